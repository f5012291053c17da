"""The work of `chatd serve`, `worker` and `bench`, and what they print.

A browser on a desktop is given a private file that leads to the sign-in link, not the link: other
users of this machine can read the arguments of its process.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Final

import typer
from msgspec.structs import replace

import chatd
from chatd import sealed_secrets
from chatd.api.web_page import PACKAGED_HELP, is_built
from chatd.app import process
from chatd.app.composition import LifecycleCallbacks, ProcessRole, ReadyInfo
from chatd.app.process_group import (
    MemberFailed,
    Membership,
    ProcessGroup,
    Ready,
    count_processes,
    member_settings,
    read_spec,
)
from chatd.cli.admin import administration_command, database_name, print_line
from chatd.cli.process import StopSignal, tune_collector
from chatd.cli.target import forget_address, write_address
from chatd.client import desktop
from chatd.client.desktop import can_open_browser
from chatd.client.exchange import API_PATH
from chatd.clock import SystemClock
from chatd.services.operation.demo_worker import READY_LINE
from chatd.settings.schema import Settings, SettingsError

PAGE_FILE: Final = "sign-in.html"


def open_browser(data_dir: Path, link: str) -> None:
    """The link is printed too, so a failure is no error."""
    page = data_dir / PAGE_FILE
    target = escape(link, quote=True)
    text = f'<!doctype html><meta http-equiv=refresh content="0; url={target}">'
    try:
        sealed_secrets.replace(page, text)
    except OSError:
        return
    desktop.open_browser(page.as_uri(), os.environ)


def forget_browser_page(data_dir: Path) -> None:
    with suppress(OSError):
        (data_dir / PAGE_FILE).unlink(missing_ok=True)


# The work of `chatd serve`, `worker`, `bench`, `migrate` and `admin`, and what they print.


async def run_bench(
    names: Sequence[str], *, quick: bool, json: bool, database_url: str | None
) -> bool:
    """Return whether every target was met. Progress goes to standard error."""
    checkout = Path(chatd.__file__).parents[2]
    if not (checkout / "bench").is_dir():
        raise SettingsError(
            "chatd bench runs in a checkout of chatd's repository: an installed chatd has no"
            " benchmarks. In a checkout, run `make bench`."
        )
    sys.path.insert(0, str(checkout))
    from bench.report import format_json, format_table, has_missed
    from bench.run import ALL_ROWS, DEFAULT_ROWS, measure_rows

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


async def serve_here_or_in_group(
    settings: Settings,
    stop: StopSignal,
    role: ProcessRole,
    member: str | None,
    *,
    may_open_browser: bool,
) -> None:
    """`chatd serve`: in this process, as the supervisor of several, or as one of those."""
    if member is not None:
        spec = read_spec(member)
        stop.is_member = True
        member_of = Membership(spec, lambda order: stop.on_order(now=order.now))
        async with member_of.running() as membership:
            await serve(
                member_settings(settings, spec),
                stop,
                replace(role, is_member=True),
                may_open_browser=may_open_browser,
                membership=membership,
            )
    elif (count := count_processes(settings)) > 1:
        await _serve_in_group(settings, stop, count)
    else:
        await serve(settings, stop, role, may_open_browser=may_open_browser)


async def _serve_in_group(settings: Settings, stop: StopSignal, count: int) -> None:
    def ready(first: Ready) -> None:
        stop.started()
        with suppress(OSError):
            write_address(settings.data_dir, first.url)
        title = f"chatd {metadata.version('chatd')}, process {os.getpid()} with {count} processes"
        for line in (title, *first.banner):
            print_line(line)

    def stopping() -> None:
        print_line(
            f"Stopping: {count} processes finish the steps in progress, for at most"
            f" {settings.worker.drain_s:g} s. Ctrl-C again stops at once."
        )

    process.check_settings(settings, os.environ)
    async with process.reserved_port(settings) as port:
        group = ProcessGroup(
            count,
            tuple(sys.argv[1:]),
            SystemClock(),
            port=port,
            drain_s=settings.worker.drain_s,
            on_ready=ready,
            on_stopping=stopping,
            shows_link=sys.stdout.isatty(),
        )
        failed: MemberFailed | None = None
        workspaces = 0
        try:
            workspaces = await group.run(stop.requested)
        except* MemberFailed as errors:
            failed = next(error for error in errors.exceptions if isinstance(error, MemberFailed))
    if failed is not None:  # the member has said why
        raise typer.Exit(failed.exit_code if failed.exit_code > 0 else 1)
    with suppress(OSError):
        forget_address(settings.data_dir)
    print_line(_stopped_text(workspaces, settings))


async def serve(
    settings: Settings,
    stop: StopSignal,
    role: ProcessRole,
    *,
    may_open_browser: bool = False,
    membership: Membership | None = None,
) -> None:
    """With a `membership` the supervisor prints the banner and keeps the address file."""
    is_terminal = sys.stdout.isatty() if membership is None else membership.spec.shows_link
    opens_browser = can_open_browser(
        os.environ,
        platform=sys.platform,
        is_terminal=is_terminal,
        is_wanted=may_open_browser and settings.server.open_browser,
    )

    def ready(info: ReadyInfo) -> None:
        stop.started()
        if opens_browser and info.sign_in_link is not None:
            open_browser(settings.data_dir, info.sign_in_link)
        banner = banner_lines(info, settings, role)
        if membership is not None:
            membership.ready(info.url or "", banner)
        else:
            if role.serves == "api":
                with suppress(OSError):
                    write_address(settings.data_dir, info.url or "")
            print_line(f"chatd {metadata.version('chatd')}, process {os.getpid()}")
            for line in banner:
                print_line(line)
        tune_collector()

    def stopping(running: int) -> None:
        print_line(_stopping_text(running, settings.worker.drain_s))

    callbacks = LifecycleCallbacks(ready=ready, stopping=stopping, shows_sign_in_link=is_terminal)
    workspaces = await process.serve(
        settings,
        os.environ,
        clock=SystemClock(),
        stop=stop.requested,
        callbacks=callbacks,
        role=role,
        membership=membership,
    )
    if opens_browser:
        forget_browser_page(settings.data_dir)
    if membership is not None:
        membership.left(workspaces)
        return
    if role.serves == "api":
        with suppress(OSError):
            forget_address(settings.data_dir)
    print_line(_stopped_text(workspaces, settings))


def banner_lines(info: ReadyInfo, settings: Settings, role: ProcessRole) -> tuple[str, ...]:
    """What is printed once the server runs, below its name."""
    lines = [
        f"  data      {settings.data_dir}",
        f"  database  {database_name(settings)}, {_schema(info)}",
        f"{_restored_text(info, settings)}  model     {info.model}",
    ]
    if role.serves == "api":
        lines += address_lines(info.url or "", settings.server.url)
        lines.append(f"  token     {info.token_file or 'that of CHATD_ADMIN_TOKEN'}")
        another = administration_command("sign-in-link", settings, os.environ)
        if info.sign_in_link is not None:
            lines.append(f"  sign in   {info.sign_in_link}")
            lines.append(f"            (once, within 15 minutes; another: {another})")
        else:
            lines.append(f"  sign in   a link for a browser: {another}")
    elif info.url is not None:
        lines.append(f"  health    {info.url}/healthz, /readyz and /metrics")
    if not role.runs_chats:
        lines.append("  chats     run on other replicas: this process has no worker")
    if role.serves == "api":
        lines.append(_first_chat(f"{info.url}{API_PATH}", info.token_file))
    return (*lines, READY_LINE)


def _stopped_text(workspaces: int, settings: Settings) -> str:
    return (
        "Stopped." if workspaces == 0 else f"Stopped. {_running_workspaces(workspaces, settings)}"
    )


def _restored_text(info: ReadyInfo, settings: Settings) -> str:
    """Lines of the banner, while a restored deployment waits."""
    if info.restored is None:
        return ""
    command = administration_command("confirm-restore", settings, os.environ)
    return (
        f"  restored  from a backup of {info.restored.made_at:%Y-%m-%d %H:%M} UTC\n"
        f"            chats, schedules and webhooks wait until you confirm it: {command}\n"
    )


def address_lines(listens: str, public: str | None) -> list[str]:
    """Of the banner: the addresses that people use. `public` is `server.url`."""
    url = (public or listens).rstrip("/")
    page = f"{url}/"
    if not is_built():
        page = f"{url}/lite (the full page is not built: install Node 20, run make serve)"
    api = f"  API       {url}{API_PATH}, described at {url}/docs"
    help_ = f"{url}/help/"
    if not is_built(PACKAGED_HELP):
        help_ += " (not built yet: make serve and make site build it)"
    lines = [f"  page      {page}", api, f"  help      {help_}"]
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
