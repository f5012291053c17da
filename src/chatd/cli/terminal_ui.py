"""The work of `chatd chat`: checks before the screen is taken, the run, and what it prints."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn
from uuid import UUID

import typer
from msgspec import Struct
from msgspec.structs import replace

from chatd.cli.output import print_notice
from chatd.cli.target import Target
from chatd.client.errors import ApiError
from chatd.clock import SystemClock
from chatd.domain.ids import ChatId
from chatd.settings.schema import SettingsError

if TYPE_CHECKING:
    from collections.abc import Generator

    from chatd.terminal.app import ChatTerminal

END_WITHIN_S: Final = 2
EXIT_USAGE: Final = 2
EXIT_SIGNED_OUT: Final = 3
_NOT_INSTALLED: Final = (
    "chatd: the terminal UI is not installed. Install it with: pip install 'chatd[tui]'"
)
_NO_SCREEN: Final = (
    "chatd: chatd chat needs a terminal for its input and output, and TERM must name its kind, not"
    " dumb. Without one, chatd run sends a message and prints the answer."
)


class TerminalOptions(Struct, frozen=True, kw_only=True):
    """`return_flags` name the server again in the command that comes back. New chats begin in the
    workspace, if one is given."""

    chat_id: str | None = None
    theme: str = "auto"
    rings: bool = True
    return_flags: str = ""
    workspace_id: str = ""
    workspace_name: str = ""


def is_installed() -> bool:
    return find_spec("textual") is not None


def require_installed() -> None:
    """Raises typer.Exit, with a sentence on standard error."""
    if not is_installed():
        print_notice(_NOT_INSTALLED)
        raise typer.Exit(1)


def refuse_no_screen() -> NoReturn:
    print_notice(_NO_SCREEN)
    raise typer.Exit(EXIT_USAGE)


async def run_terminal(target: Target, options: TerminalOptions) -> int:
    """The exit code. Raises ChatdError before the screen is taken."""
    from chatd.terminal.app import ChatTerminal, open_log
    from chatd.terminal.session import open_session, read_machine
    from chatd.terminal.themes import choose_theme, read_kept_theme

    chat_id = None if options.chat_id is None else read_chat_id(options.chat_id)
    try:
        machine = replace(
            read_machine(os.environ),
            workspace_id=options.workspace_id,
            workspace_name=options.workspace_name,
        )
        session_opened = open_session(target.server, SystemClock(), chat_id, machine=machine)
        async with session_opened as session:
            terminal = ChatTerminal(
                session,
                chat_id,
                theme=choose_theme(
                    options.theme,
                    read_kept_theme(machine.state_directory),
                    os.environ.get("COLORFGBG", ""),
                ),
                rings=options.rings,
                log_path=open_log(log_directory(os.environ)),
            )
            with _ending_by_signal(terminal) as ending:
                await terminal.run_async()
            open_chat = terminal.main.chat_id
            unsent = len(session.outbox.unsent)
    except ApiError as error:
        return _refused(error, target)
    if terminal.crash:
        print(f"chatd: {terminal.crash}", file=sys.stderr)
    if unsent:
        print(f"{unsent} {'message was' if unsent == 1 else 'messages were'} not sent.")
    if open_chat is not None:
        print(f"The chat goes on without you. To come back:\n\n  {command(open_chat, options)}\n")
    if terminal.crash:
        return 1
    return 128 + ending[0] if ending else 0


def command(chat_id: ChatId, options: TerminalOptions) -> str:
    return f"chatd chat{options.return_flags} {chat_id}"


def read_chat_id(text: str) -> ChatId:
    """Raises SettingsError."""
    try:
        return ChatId(UUID(text))
    except ValueError:
        raise SettingsError(f"{text!r} is no id of a chat: chatd chats list prints them") from None


def log_directory(env: Mapping[str, str]) -> Path:
    state = env.get("XDG_STATE_HOME") or f"{env.get('HOME') or '/nonexistent'}/.local/state"
    return Path(state) / "chatd"


def _refused(error: ApiError, target: Target) -> int:
    if error.is_signed_out:
        url = target.server.url
        text = f"{url} does not accept the token. Sign in again with: chatd login {url}"
        print_notice(f"chatd: {text}")
        return EXIT_SIGNED_OUT
    print_notice(f"chatd: {error.message}")
    return 1


@contextmanager
def _ending_by_signal(terminal: "ChatTerminal") -> "Generator[list[int]]":
    """SIGTERM and SIGHUP end the terminal in order, so that the screen is given back. A screen that
    takes no output any more would hold that up for ever: then an alarm ends the process."""
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def end(number: int) -> None:
        received.append(number)
        signal.alarm(END_WITHIN_S)
        terminal.exit()

    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, end, number)
    try:
        yield received
    finally:
        signal.alarm(0)
        for number in numbers:
            loop.remove_signal_handler(number)
