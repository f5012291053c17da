"""`chatd run --here` and `chatd chat --here` as processes, against a server that is another one."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.here import HereChoice, runner_data_dir, workspace_name
from chatd.cli.chats.here_commands import check_request, read_choice
from chatd.cli.chats.run_request import Prompt, RunRequest
from chatd.cli.target import TargetFlags, own_data_dir
from chatd.client.resources import Page, Workspace
from tests.support.command_line import ServerProcess
from tests.support.database import TestServer
from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.support.outcomes import present
from tests.support.tmux import WAIT_S, tmux_terminal

pytestmark = pytest.mark.timeout(240)

CHATD = str(Path(sys.executable).with_name("chatd"))


@pytest.fixture(scope="module")
def here_server(
    test_server: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[ServerProcess]:
    clone = test_server.clone()
    top = tmp_path_factory.mktemp("chatd")
    server = ServerProcess(clone.dsn, top, workspaces=True)
    server.start()
    yield server
    server.stop()
    for lock in top.glob("data-here/*/ws-supervisor/lock"):
        if (text := lock.read_text().strip()).isdecimal():
            os.kill(int(text), signal.SIGTERM)
    clone.drop()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "my project"
    path.mkdir()
    return path


@pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")
async def test_a_chat_changes_files_of_this_directory_and_is_continued_there(
    here_server: ServerProcess, project: Path, tmp_path: Path
) -> None:
    """A server, a runner, a sandbox and a terminal: each takes a moment to start."""
    done = here_server.pipe("", "run", "--here", "fix the failing test", cwd=project)
    assert done.code == 0, done
    assert "All three tests pass now" in done.out
    assert "discount_percent) / 100" in (project / "chatd-demo" / "basket.py").read_text()

    again = here_server.pipe("", "run", "--here", "-c", "run a command", cwd=project)
    assert again.code == 0, again
    assert f"{project}\n" in again.out
    assert chat_of(again.err) == chat_of(done.err)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    refused = here_server.pipe("", "run", "--here", "-r", chat_of(done.err), "x", cwd=elsewhere)
    assert (refused.code, "does not work in this directory" in refused.err) == (2, True)

    asked = here_server.pipe("", "run", "--here", "--no-sandbox", "hello", cwd=project)
    assert (asked.code, "say --yes" in asked.err) == (2, True)

    found = convert(here_server.request("GET", "/workspaces"), Page[Workspace]).items
    (workspace,) = (one for one in found if one.name.startswith("my-project-"))
    build = present(workspace.latest_build)
    assert (build.transition, build.status) == ("stop", "succeeded")

    if shutil.which("tmux") is None:
        return
    async with tmux_terminal(tmp_path, {**here_server.env, "LANG": "C.UTF-8"}) as terminal:
        await terminal.write(f"cd '{project}'")
        await terminal.press("Enter")
        await terminal.type_command(CHATD, "chat", "--here")
        await terminal.until_shown(workspace.name)
        await terminal.press("C-d")
        await terminal.until_shown("code=0")


SLOW_DATE = """#!/bin/sh
echo begun >> begun
until test -e go; do sleep 0.05; done
echo the date was told once
"""


@pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
async def test_who_leaves_a_running_turn_is_told_what_becomes_of_it_and_finds_its_end(
    here_server: ServerProcess, tmp_path: Path
) -> None:
    """Takes seconds: a runner, a sandbox and the terminal are started twice. The command of the
    demo model begins with `date`, and the directory has one of its own."""
    project = tmp_path / "left project"
    program = project / "bin" / "date"
    program.parent.mkdir(parents=True)
    program.write_text(SLOW_DATE)
    program.chmod(0o755)
    path = f"{program.parent}:{here_server.env['PATH']}"
    env = {**here_server.env, "LANG": "C.UTF-8", "PATH": path}
    async with tmux_terminal(tmp_path, env) as terminal:
        await terminal.write(f"cd '{project}'")
        await terminal.press("Enter")
        await terminal.type_command(CHATD, "chat", "--here")
        await terminal.until_shown("left-project-")
        await terminal.write("run a command")
        await terminal.press("Enter")
        await wait_for_file(project / "begun")
        await terminal.press("C-d")
        left = await terminal.until_shown("code=0")
        assert "The chat goes on; its tools wait until you run chatd chat --here" in left
        (project / "go").touch()
        await terminal.run("clear-history")
        await terminal.press("C-l")
        await terminal.type_command(CHATD, "chat", "--here", "-c")
        await terminal.until_shown("the date was told once")
        await terminal.press("C-d")
        await terminal.until_shown("code=0")
    assert (project / "begun").read_text() == "begun\n"


async def wait_for_file(path: Path) -> None:
    async def look() -> bool:
        return await asyncio.to_thread(path.exists)

    await eventually(look, within_s=WAIT_S)


def chat_of(err: str) -> str:
    return next(line.split()[1] for line in err.splitlines() if line.startswith("chat "))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"network": "full"}, "--network is for --here"),
        ({"no_sandbox": True}, "--no-sandbox is for --here"),
        ({"yes": True}, "--yes is for --here"),
        ({"continues": True}, "--continue is for --here"),
        ({"here": True, "no_sandbox": True, "network": "none"}, "--network is for the sandbox"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, Any], told: str) -> None:
    plain: dict[str, Any] = {"here": False, "network": None, "no_sandbox": False, "yes": False}
    with pytest.raises(UsageProblem, match=told):
        read_choice(**{**plain, **given})


def test_a_sandbox_has_no_network_unless_asked_for() -> None:
    plain = read_choice(here=True, network=None, no_sandbox=False, yes=False)
    asked = read_choice(here=True, network="full", no_sandbox=False, yes=False)
    assert [(one.sandbox, one.network) for one in (present(plain), present(asked))] == [
        (True, "none"),
        (True, "full"),
    ]
    assert read_choice(here=False, network=None, no_sandbox=False, yes=False) is None


@pytest.mark.parametrize(
    ("fields", "detach", "told"),
    [
        ({}, True, "--detach would end the tools"),
        ({"workspace": "other"}, False, "--here is the workspace"),
        ({"template": "scratch"}, False, "--here is the workspace"),
    ],
)
def test_a_run_here_is_not_detached_and_has_no_other_workspace(
    fields: dict[str, Any], *, detach: bool, told: str
) -> None:
    with pytest.raises(UsageProblem, match=told):
        check_request(RunRequest(prompt=Prompt(text="hello"), **fields), detach=detach)


def test_the_same_directory_has_the_same_runner_and_another_one_has_not(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}

    def data_dir(directory: str, url: str = "http://a", *, sandbox: bool = True) -> Path:
        choice = HereChoice(directory=Path(directory), sandbox=sandbox)
        return runner_data_dir(choice, url, env, 1000)

    first = data_dir("/p")
    assert first == data_dir("/p")
    assert first.is_relative_to(tmp_path / ".local" / "share" / "chatd-here")
    others = [data_dir("/q"), data_dir("/p", "http://b"), data_dir("/p", sandbox=False)]
    assert len({first, *others}) == 4


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("/home/ada/shop", "shop-12ab"),
        ("/srv/My new App!", "My-new-App-12ab"),
        ("/srv/----", "here-12ab"),
        ("/", "here-12ab"),
        (f"/srv/{'long' * 20}", f"{'long' * 6}-12ab"),
    ],
)
def test_a_workspace_is_named_after_its_directory(directory: str, name: str) -> None:
    assert workspace_name(Path(directory), "12ab34cd") == name


@pytest.mark.parametrize(
    ("data_dir", "env", "found"),
    [
        (None, {}, "/h/.local/share/chatd"),
        (None, {"CHATD_DATA_DIR": "/data"}, "/data"),
        (Path("/given"), {"CHATD_URL": "http://x"}, "/given"),
        (None, {"CHATD_TOKEN": "secret"}, "/h/.local/share/chatd"),
        (None, {"CHATD_URL": "http://x", "CHATD_TOKEN": "secret"}, None),
    ],
)
def test_only_a_server_of_this_machine_is_started(
    data_dir: Path | None, env: dict[str, str], found: str | None
) -> None:
    own = own_data_dir(TargetFlags(data_dir=data_dir), {"HOME": "/h", **env}, uid=1000)
    assert own == (None if found is None else Path(found))
