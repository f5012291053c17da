"""`--here` of `chatd chat` and `chatd run`: its options, its server, and the work in between."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from chatd.cli import process
from chatd.cli.api_session import START_PATIENCE_S, ExitCode, UsageProblem, report_errors
from chatd.cli.chats.here import (
    HereChoice,
    NetworkChoice,
    check_chat_here,
    ensure_server,
    last_chat_here,
    open_here,
)
from chatd.cli.chats.run_request import RunRequest
from chatd.cli.target import Target, TargetFlags, choose_server, own_data_dir, profiles_path
from chatd.cli.terminal_ui import TerminalOptions, read_chat_id, run_terminal
from chatd.client.server import ServerApi, open_api
from chatd.settings.schema import SettingsError


def read_choice(
    *,
    here: bool,
    network: NetworkChoice | None,
    no_sandbox: bool,
    yes: bool,
    continues: bool = False,
) -> HereChoice | None:
    """None without `--here`. Raises UsageProblem."""
    only_here = {
        "--network": network is not None,
        "--no-sandbox": no_sandbox,
        "--yes": yes,
        "--continue": continues,
    }
    if not here:
        if names := [name for name, is_given in only_here.items() if is_given]:
            raise UsageProblem(f"{names[0]} is for --here: give both")
        return None
    if no_sandbox and network is not None:
        raise UsageProblem("--network is for the sandbox: without one commands reach what you do")
    return HereChoice(
        directory=Path.cwd().resolve(),
        network="full" if no_sandbox else network or "none",
        sandbox=not no_sandbox,
        agreed=yes,
    )


def check_request(request: RunRequest, *, detach: bool) -> None:
    """Raises UsageProblem."""
    if detach:
        raise UsageProblem("--detach would end the tools of the chat: with --here they end with it")
    if request.workspace is not None or request.template is not None:
        raise UsageProblem("--here is the workspace: leave out -w and --template")


def find_target(flags: Mapping[str, Any]) -> tuple[Target, Sequence[Path]]:
    """The server of the command, started if it is this machine's own and does not run, and what the
    sandbox must not see of it. Raises SettingsError, HereFailed."""
    env, data_dir = os.environ, flags["data_dir"]
    wanted = TargetFlags(
        url=flags["url"],
        token_file=flags["token_file"],
        profile=flags["profile"],
        data_dir=None if data_dir is None else Path(data_dir),
    )
    own = own_data_dir(wanted, env, uid=os.geteuid())
    if own is not None:
        ensure_server(Path.cwd() / own, env)
    files = (flags["token_file"], env.get("CHATD_TOKEN_FILE"), own, env.get("CHATD_CONFIG"))
    hidden = [Path.cwd() / path for path in files if path]
    with suppress(SettingsError):
        hidden.append(profiles_path(env).parent)
    return choose_server(wanted, env, uid=os.geteuid()), hidden


def run_here(
    flags: Mapping[str, Any],
    choice: HereChoice,
    request: RunRequest,
    work: Callable[[ServerApi, RunRequest], Awaitable[ExitCode]],
) -> ExitCode:
    async def connected(target: Target, hidden: Sequence[Path]) -> ExitCode:
        async with (
            open_api(target.server, patience_s=START_PATIENCE_S) as api,
            open_here(api, choice, hidden=hidden) as place,
        ):
            if request.continues:
                chat_id = await last_chat_here(api, place)
                return await work(api, replace(request, chat_id=chat_id, continues=False))
            if request.chat_id is not None:
                await check_chat_here(api, place, request.chat_id)
                return await work(api, request)
            return await work(api, replace(request, workspace=str(place.workspace_id)))

    with report_errors():
        target, hidden = find_target(flags)
        return process.run_to_completion(connected(target, hidden))


async def open_terminal(
    flags: Mapping[str, Any], choice: HereChoice, options: TerminalOptions, *, continues: bool
) -> int:
    """The exit code. Raises ChatdError before the screen is taken."""
    if continues and options.chat_id is not None:
        raise UsageProblem("-c opens the last chat, ID the one that it names: give one of them")
    target, hidden = find_target(flags)
    async with (
        open_api(target.server, patience_s=START_PATIENCE_S) as api,
        open_here(api, choice, hidden=hidden) as place,
    ):
        chat_id = options.chat_id
        if chat_id is not None:
            await check_chat_here(api, place, read_chat_id(chat_id))
        elif continues:
            chat_id = str(await last_chat_here(api, place))
        options = replace(
            options,
            chat_id=chat_id,
            workspace_id=str(place.workspace_id),
            workspace_name=place.name,
        )
        return await run_terminal(target, options)
