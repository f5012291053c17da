"""The command line: output and exit codes."""

import asyncio
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

import pytest
from msgspec import Struct
from typer.testing import CliRunner

from chatd.app.telemetry import explained
from chatd.cli.admin import administration_command
from chatd.cli.completion import command_places
from chatd.cli.main import SECTIONS, app
from chatd.cli.process import (
    JsonFormatter,
    StopSignal,
    TextFormatter,
    is_worth_logging,
    run_until_signal,
)
from chatd.cli.server_commands import address_lines
from chatd.domain.errors import Unavailable
from chatd.settings.config_file import default_data_dir
from chatd.settings.schema import DatabaseSettings, Settings
from chatd.store.database.pool import require_version

CHATD = Path(sys.executable).with_name("chatd")
NOWHERE = "postgresql://ada:hunter2@127.0.0.1:1/chatd"

Chatd: TypeAlias = Callable[..., "Ended"]


class Ended(Struct, frozen=True, kw_only=True):
    returncode: int
    stdout: str
    stderr: str


@contextmanager
def own_logging() -> Generator[None]:
    """Restore the root logger, which a command configures."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture
def chatd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chatd:
    """Runs a command in an empty directory with only the given environment. In this process:
    another one would take a second to start."""
    for name in ("CHATD_TEST_DATABASE_URL", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **env: str) -> Ended:
        with own_logging():
            ran = CliRunner().invoke(app, arguments, prog_name="chatd", env=env)
        return Ended(returncode=ran.exit_code, stdout=ran.stdout, stderr=ran.stderr)

    return run


@pytest.mark.usefixtures("real_start")
def test_the_command_is_installed_and_prints_the_version() -> None:
    ended = subprocess.run(
        [CHATD, "--version"], capture_output=True, text=True, timeout=50, check=False, env={}
    )
    assert (ended.returncode, ended.stdout) == (0, f"chatd {metadata.version('chatd')}\n")


def assert_no_database(stdout: str, stderr: str) -> None:
    assert stderr.startswith("chatd: The database cannot be reached")
    assert "Check that PostgreSQL is running" in stderr
    assert stderr.endswith("The address is postgresql://ada:***@127.0.0.1:1/chatd\n")
    assert stderr.count("\n") == 1
    assert "hunter2" not in stderr + stdout


def test_no_line_of_the_help_is_cut_at_80_columns() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert [line for line in text.splitlines()[1:] if line.endswith("...")] == []


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_names_every_command(chatd: Chatd, arguments: list[str]) -> None:
    ended = chatd(*arguments)
    assert ended.returncode == (0 if arguments else 2)
    named = [line.split()[0] for line in ended.stdout.splitlines() if line[2:3].strip()]
    known = {name for names in SECTIONS.values() for name in names}
    assert known <= set(named)
    assert set(next(iter(command_places(app))).commands) == known


def test_the_version_is_that_of_the_installed_package(chatd: Chatd) -> None:
    ended = chatd("version")
    assert (ended.returncode, ended.stdout) == (0, f"chatd {metadata.version('chatd')}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--zebra"],
        ["zebra"],
        ["migrate", "sideways"],
        ["serve", "extra"],
        ["worker", "--no-worker"],
    ],
)
def test_wrong_usage_exits_with_two(chatd: Chatd, arguments: list[str]) -> None:
    ended = chatd(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith("Usage: chatd")


@pytest.mark.parametrize("command", [["serve"], ["worker"], ["migrate", "check"]])
def test_refused_settings_exit_with_two_and_print_one_line(
    chatd: Chatd, command: list[str]
) -> None:
    ended = chatd(*command, CHATD_LOG_LEVL="debug")
    assert ended.returncode == 2
    assert ended.stderr == (
        "chatd: unknown environment variable CHATD_LOG_LEVL; did you mean CHATD_LOG_LEVEL?\n"
    )


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"CHATD_ADMIN_TOKEN": "x"}, "CHATD_ADMIN_TOKEN must have 16 to 4095 characters"),
        ({"CHATD_SECRET": "x"}, "CHATD_SECRET is too short"),
        ({"CHATD_SECRET_KEYS": "x"}, "CHATD_SECRET_KEYS: a key is 32 bytes in base64"),
        ({"CHATD_TEMPLATES": "[{}]"}, "templates, number 1: name is missing"),
        ({"CHATD_MODELS": '[{"name":"m","provider":"p","model":"x"}]'}, 'models "m": there is no'),
    ],
)
def test_invalid_settings_exit_with_two_before_anything_starts(
    chatd: Chatd, tmp_path: Path, env: dict[str, str], message: str
) -> None:
    ended = chatd("serve", "--port", "0", **env)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"chatd: {message}")
    assert list(tmp_path.iterdir()) == []


def test_the_file_in_the_working_directory_is_read(chatd: Chatd, tmp_path: Path) -> None:
    (tmp_path / "chatd.toml").write_text("[database]\npool_size = 0\n")
    ended = chatd("serve")
    assert ended.returncode == 2
    assert ended.stderr == (
        f"chatd: {tmp_path}/chatd.toml: database.pool_size: expected a whole number from 2 to 500,"
        " got 0\n"
    )


def test_a_flag_wins_over_the_environment(chatd: Chatd) -> None:
    ended = chatd("migrate", "check", "--database-url", "zebra", CHATD_DATABASE_URL=NOWHERE)
    assert ended.returncode == 2
    assert ended.stderr.startswith("chatd: --database-url: expected an address")


@pytest.mark.parametrize(
    "command", ["serve --port 0", "worker", "migrate up", "migrate status", "migrate check"]
)
def test_an_unreachable_database_exits_with_one_and_prints_one_line(
    chatd: Chatd, command: str
) -> None:
    ended = chatd(*command.split(), "--database-url", NOWHERE)
    assert ended.returncode == 1
    assert_no_database(ended.stdout, ended.stderr)


def test_an_invalid_address_prints_one_line_without_its_password(
    chatd: Chatd,
) -> None:
    ended = chatd("migrate", "check", "--database-url", "postgresql://ada:hun:ter2@db:port/chatd")
    assert ended.returncode == 1
    assert ended.stderr.startswith("chatd: The database address is not valid. Check that the port")
    assert ended.stderr.endswith("The address is postgresql://ada:***@db:port/chatd\n")


@pytest.mark.parametrize(("version", "message"), [(140011, "is PostgreSQL 14;"), (90624, "9;")])
def test_an_old_postgresql_is_refused(version: int, message: str) -> None:
    with pytest.raises(Unavailable, match=f"{message}.* chatd needs 15 or newer"):
        require_version(version)
    require_version(150000)
    require_version(180001)


async def test_the_first_signal_requests_a_stop_and_the_second_cancels() -> None:
    def started_stop(task: "asyncio.Task[object]") -> StopSignal:
        stop = StopSignal(task)
        stop.started()
        return stop

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        serving = group.create_task(asyncio.Event().wait())
        stop = started_stop(serving)
        stop.on_signal()
        assert (stop.requested.is_set(), serving.cancelling()) == (True, 0)
        stop.on_signal()
        assert serving.cancelling() == 1


def test_signal_handlers_are_installed_while_serving_and_restored_afterwards() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]

    async def serve(stop: StopSignal) -> None:
        stop.started()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(30):
            await stop.requested.wait()

    run_until_signal(serve)
    assert [signal.getsignal(number) for number in numbers] == before


async def test_a_signal_during_the_start_cancels_it() -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        starting = group.create_task(asyncio.Event().wait())
        StopSignal(starting).on_signal()
        assert starting.cancelling() == 1


def test_a_json_log_line_is_one_object_on_one_line() -> None:
    record = logging.LogRecord("chatd.app", logging.WARNING, "", 0, "gone: %s", ("a\nb",), None)
    record.created = 0.5
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "logger": "chatd.app",
        "event": "gone: a\nb",
    }


def test_a_text_line_has_the_time_in_utc() -> None:
    record = logging.LogRecord("chatd.app", logging.WARNING, "", 0, "gone: %s", ("x",), None)
    record.created, record.msecs = 0.5, 500.0
    assert TextFormatter().format(record) == "1970-01-01T00:00:00.500Z WARNING chatd.app: gone: x"


def test_an_event_is_fields_in_json_and_a_line_in_text() -> None:
    chat_id = UUID(int=1)
    event = explained(event="model_failed", fields={"chat_id": chat_id, "attempt": 2})
    record = logging.LogRecord("chatd", logging.WARNING, "", 0, event, None, None)
    line = json.loads(JsonFormatter().format(record))
    del line["time"]
    assert line == {
        "level": "warning",
        "logger": "chatd",
        "event": "model_failed",
        "chat_id": str(chat_id),
        "attempt": 2,
    }
    assert record.getMessage() == f"model_failed chat_id={chat_id} attempt=2"


@pytest.mark.parametrize(
    ("message", "logged"),
    [
        ("ASGI callable returned without completing handshake.", False),
        ("Exception in ASGI application\n", True),
    ],
)
def test_a_refused_websocket_is_not_logged_as_an_error(message: str, *, logged: bool) -> None:
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, message, None, None)
    assert is_worth_logging(record) is logged


@pytest.mark.parametrize(
    ("data_dir", "url", "config", "flags"),
    [
        (None, None, None, ""),
        ("/srv/my chats", None, None, " --data-dir '/srv/my chats'"),
        ("/srv/a", None, "/etc/chatd.toml", " --config /etc/chatd.toml --data-dir /srv/a"),
        (None, "postgresql://db/a?b=c&d=e", None, " --database-url 'postgresql://db/a?b=c&d=e'"),
        (None, NOWHERE, None, ' --database-url "$CHATD_DATABASE_URL"'),
        (None, NOWHERE, "/etc/chatd.toml", " --config /etc/chatd.toml"),
    ],
)
def test_a_printed_command_names_the_deployment_and_no_password(
    data_dir: str | None, url: str | None, config: str | None, flags: str
) -> None:
    env = {
        "HOME": "/home/ada",
        "PATH": str(CHATD.parent),
        **({} if config is None else {"CHATD_CONFIG": config}),
    }
    place = data_dir or default_data_dir(env, uid=os.geteuid()) or ""
    settings = Settings(data_dir=Path(place), database=DatabaseSettings(url=url))
    printed = administration_command("sign-in-link", settings, env)
    assert printed == f"chatd admin sign-in-link{flags}"
    elsewhere = administration_command("sign-in-link", settings, {**env, "PATH": "/nonexistent"})
    assert elsewhere == f"{shlex.quote(str(CHATD))} admin sign-in-link{flags}"


@pytest.mark.parametrize(
    ("public", "lines"),
    [
        (
            None,
            [
                "page      http://127.0.0.1:7870/",
                "API       http://127.0.0.1:7870/api/v1",
                "help      http://127.0.0.1:7870/help/",
            ],
        ),
        (
            "https://chat.example.com/",
            [
                "page      https://chat.example.com/",
                "API       https://chat.example.com/api/v1",
                "help      https://chat.example.com/help/",
                "listens   http://127.0.0.1:7870",
            ],
        ),
    ],
)
def test_the_banner_prints_the_public_address(public: str | None, lines: list[str]) -> None:
    printed = address_lines("http://127.0.0.1:7870", public)
    assert len(printed) == len(lines)
    for line, start in zip(printed, lines, strict=True):
        assert line.startswith(f"  {start}")
