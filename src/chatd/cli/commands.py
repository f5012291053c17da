"""The work of `chatd serve`, `worker`, `bench`, `migrate` and `admin`, and what they print."""

import os
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from pathlib import Path

from chatd.api.web_page.files import is_built
from chatd.app import process
from chatd.app.role import LifecycleCallbacks, ProcessRole, ReadyInfo
from chatd.cli.browser import forget_browser_page, open_browser
from chatd.cli.deployment import database_name, open_deployment
from chatd.cli.process import StopSignal
from chatd.cli.server_address import forget_address, write_address
from chatd.client.desktop import can_open_browser
from chatd.client.exchange import API_PATH
from chatd.clock import SystemClock
from chatd.database import open_database
from chatd.demo_worker import READY_LINE
from chatd.key_rotation import KeyRotation
from chatd.secret_keys import key_source
from chatd.settings.config_file import default_data_dir
from chatd.settings.schema import Settings, SettingsError, redact_url
from chatd.store import migrator


async def run_bench(
    names: Sequence[str], *, quick: bool, json: bool, database_url: str | None
) -> bool:
    """Return whether every target was met. Progress goes to standard error."""
    # Imported here, so that `chatd serve` starts without it.
    from chatd.bench.report import format_json, format_table, has_missed
    from chatd.bench.run import ALL_ROWS, DEFAULT_ROWS, measure_rows

    for name in names:
        if name not in ALL_ROWS:
            known = ", ".join(ALL_ROWS)
            raise SettingsError(f"--rows: there is no row {name!r}; there are {known}")
    result = await measure_rows(
        names or DEFAULT_ROWS, quick=quick, database_url=database_url, on_progress=_print_progress
    )
    if json:
        print(format_json(result.rows, result.machine).decode())
    else:
        print(format_table(result.rows))
        print(f"\n{result.machine}")
    return not has_missed(result.rows)


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def migrate_up(settings: Settings) -> None:
    async with open_database(settings, os.environ, SystemClock()) as server:
        applied = await migrator.up(server.dsn)
    for name in applied:
        print(f"applied {name}")
    if not applied:
        print("up to date")


async def show_migrations(settings: Settings) -> None:
    async with open_database(settings, os.environ, SystemClock()) as server:
        lines = await migrator.status(server.dsn)
    for line in lines:
        when = "" if line.applied_at is None else f"  {line.applied_at:%Y-%m-%d %H:%M:%S} UTC"
        print(f"{line.version:04d}  {line.state:<8}{when}  {line.name}")


async def check_migrations(settings: Settings) -> bool:
    """Return whether the database is up to date with this version."""
    async with open_database(settings, os.environ, SystemClock()) as server:
        plan = await migrator.check(server.dsn)
    for migration in plan.pending:
        print(f"pending {migration.file}")
    if plan.ahead:
        print(f"ahead of this version by {len(plan.ahead)}")
    if not plan.is_behind:
        print("up to date")
    return not plan.is_behind


@asynccontextmanager
async def _key_rotation(settings: Settings) -> AsyncGenerator[KeyRotation]:
    source = key_source(settings.data_dir, os.environ)
    async with open_deployment(settings) as pool:
        yield KeyRotation(pool, source, SystemClock(), _print_line)


async def rotate_keys(settings: Settings, *, lost: bool) -> None:
    async with _key_rotation(settings) as rotation:
        result = await rotation.rotate(lost=lost)
    _print_line(f"{result.resealed} secrets sealed again with key {result.key_id}")
    if result.unreadable:
        _print_line(f"{result.unreadable} secrets cannot be opened: enter them again")
    if result.unused:
        keys = ", ".join(result.unused)
        command = administration_command("rotate-keys --remove-old", settings, os.environ)
        _print_line(f"no secret uses {keys} any more: {command}")


async def remove_old_keys(settings: Settings) -> None:
    async with _key_rotation(settings) as rotation:
        removed = await rotation.remove_unused()
    _print_line(f"removed {', '.join(removed)}" if removed else "there is no unused key")


async def serve(
    settings: Settings, stop: StopSignal, role: ProcessRole, *, may_open_browser: bool = False
) -> None:
    is_terminal = sys.stdout.isatty()
    opens_browser = can_open_browser(
        os.environ,
        platform=sys.platform,
        is_terminal=is_terminal,
        is_wanted=may_open_browser and settings.server.open_browser,
    )

    def ready(info: ReadyInfo) -> None:
        stop.started()
        _print_line(f"chatd {metadata.version('chatd')}, process {os.getpid()}")
        _print_line(f"  data      {settings.data_dir}")
        _print_line(f"  database  {database_name(settings)}, {_schema(info)}")
        _print_line(f"  model     {info.model}")
        if role.serves == "api":
            with suppress(OSError):
                write_address(settings.data_dir, info.url or "")
            for line in address_lines(info.url or "", settings.server.url):
                _print_line(line)
            _print_line(f"  token     {info.token_file or 'that of CHATD_ADMIN_TOKEN'}")
            another = administration_command("sign-in-link", settings, os.environ)
            if info.sign_in_link is not None:
                _print_line(f"  sign in   {info.sign_in_link}")
                _print_line(f"            (once, within 15 minutes; another: {another})")
                if opens_browser:
                    open_browser(settings.data_dir, info.sign_in_link)
            else:
                _print_line(f"  sign in   a link for a browser: {another}")
        elif info.url is not None:
            _print_line(f"  health    {info.url}/healthz, /readyz and /metrics")
        if not role.runs_chats:
            _print_line("  chats     run on other replicas: this process has no worker")
        if role.serves == "api":
            _print_line(_first_chat(f"{info.url}{API_PATH}", info.token_file))
        _print_line(READY_LINE)

    def stopping(running: int) -> None:
        _print_line(_stopping_text(running, settings.worker.drain_s))

    callbacks = LifecycleCallbacks(ready=ready, stopping=stopping, shows_sign_in_link=is_terminal)
    clock = SystemClock()
    workspaces = await process.serve(
        settings, os.environ, clock=clock, stop=stop.requested, callbacks=callbacks, role=role
    )
    if role.serves == "api":
        with suppress(OSError):
            forget_address(settings.data_dir)
    if opens_browser:
        forget_browser_page(settings.data_dir)
    _print_line(
        "Stopped." if workspaces == 0 else f"Stopped. {_running_workspaces(workspaces, settings)}"
    )


def administration_command(words: str, settings: Settings, env: Mapping[str, str]) -> str:
    """`chatd admin ...` for this deployment, as it works in another shell of the same account: by
    its path if `chatd` is not found by its name. A password stays in the environment, which the
    shell then must have."""
    flags: dict[str, str] = {}
    if config := env.get("CHATD_CONFIG"):
        flags["--config"] = shlex.quote(str(Path.cwd() / config))
    if settings.data_dir != default_data_dir(env, uid=os.geteuid()):
        flags["--data-dir"] = shlex.quote(str(settings.data_dir))
    if (url := settings.database.url) is not None and not config:
        is_public = redact_url(url) == url
        flags["--database-url"] = shlex.quote(url) if is_public else '"$CHATD_DATABASE_URL"'
    installed = Path(sys.executable).with_name("chatd")
    is_found = shutil.which("chatd", path=env.get("PATH", "")) is not None
    program = "chatd" if is_found or not installed.exists() else shlex.quote(str(installed))
    return " ".join([program, "admin", words, *(f"{flag} {at}" for flag, at in flags.items())])


def address_lines(listens: str, public: str | None) -> list[str]:
    """Of the banner: the addresses that people use. `public` is `server.url`."""
    url = (public or listens).rstrip("/")
    page = f"{url}/"
    if not is_built():
        page = f"{url}/lite (the full page is not built: install Node 20, run make serve)"
    lines = [f"  page      {page}", f"  API       {url}{API_PATH}, described at {url}/docs"]
    return lines if url == listens else [*lines, f"  listens   {listens}"]


def _first_chat(api: str, token_file: str | None) -> str:
    """Commands that work as printed, in a shell of the account that runs the server."""
    token = "$CHATD_ADMIN_TOKEN" if token_file is None else f"$(cat {shlex.quote(token_file)})"
    return f"""
To start a chat and follow it, paste this into another terminal:

  CHATD={shlex.quote(api)} TOKEN="{token}"
  CHAT=$(curl -s $CHATD/chats -H "Authorization: Bearer $TOKEN" \\
       -d '{{"content":[{{"type":"text","text":"hello"}}]}}' | cut -d'"' -f4)
  curl -N $CHATD/chats/$CHAT/events -H "Authorization: Bearer $TOKEN"
"""


def _stopping_text(running: int, drain_s: float) -> str:
    if running == 0:
        return "Stopping: no chat is running, so this takes a few seconds."
    one = "1 running chat finishes its step"
    chats = one if running == 1 else f"{running} running chats finish their steps"
    return (
        f"Stopping: waiting until {chats}, for at most {drain_s:g} s. Ctrl-C again stops at once;"
        " the next start, or another replica, then continues."
    )


def _schema(info: ReadyInfo) -> str:
    count = len(info.migrated)
    if count == 0:
        return "up to date"
    return f"{count} {'migration' if count == 1 else 'migrations'} applied"


def _running_workspaces(count: int, settings: Settings) -> str:
    subject = "1 workspace keeps" if count == 1 else f"{count} workspaces keep"
    them = "it" if count == 1 else "them"
    lock = shlex.quote(str(settings.data_dir / "ws-supervisor" / "lock"))
    return f"{subject} running for the next start; to stop {them}: kill $(cat {lock})"


def _print_line(line: str) -> None:
    """Flushed: programs that start chatd wait for these lines on a pipe."""
    print(line, flush=True)
