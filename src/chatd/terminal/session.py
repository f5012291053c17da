"""What every part of the terminal shares: the server, the connection to it, who is signed in, and
the machine it runs on."""

import asyncio
import os
import shlex
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, cast

from msgspec import Struct, field
from textual.app import App
from textual.dom import DOMNode

from chatd.client.connection import Connection
from chatd.client.desktop import can_open_browser, without_tokens
from chatd.client.outbox import Outbox
from chatd.client.resources import Me
from chatd.client.server import ServerAddress, ServerApi, open_api
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock

# What the terminal uses of the machine it runs on: directories, the editor of the person, and
# whether there is a browser.

DEFAULT_EDITOR: Final = "vi"
MAX_CHOICE_CHARS: Final = 200


class Machine(Struct, frozen=True, kw_only=True):
    """Paths of a draft begin at `working_directory`. Without a `state_directory` drafts end with
    the terminal. New chats begin in the workspace, if there is one."""

    working_directory: Path = field(default_factory=Path.cwd)
    home: Path = field(default_factory=Path.home)
    state_directory: Path | None = None
    config_directory: Path | None = None
    """The user's configuration directory, with `commands/`."""
    editor: tuple[str, ...] = (DEFAULT_EDITOR,)
    has_browser: bool = False
    shows_pictures: bool = True
    program_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The environment of the editor and the browser, without the token."""
    workspace_id: str = ""
    workspace_name: str = ""


def read_machine(environ: Mapping[str, str]) -> Machine:
    """Read VISUAL, EDITOR, XDG_STATE_HOME, XDG_CONFIG_HOME and CHATD_PICTURES."""
    config = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    has_browser = can_open_browser(environ, platform=sys.platform, is_terminal=True, is_wanted=True)
    return Machine(
        state_directory=Path(state) / "chatd",
        config_directory=Path(config) / "chatd",
        editor=_read_editor(environ),
        has_browser=has_browser,
        shows_pictures=environ.get("CHATD_PICTURES", "").lower() not in ("0", "off", "false", "no"),
        program_env=without_tokens(environ),
    )


def read_kept_choice(directory: Path | None, name: str) -> str:
    """What was chosen in an earlier terminal; empty if nothing was."""
    if directory is not None:
        with suppress(OSError, ValueError):
            return (directory / name).read_text(encoding="utf-8")[:MAX_CHOICE_CHARS].strip()
    return ""


def keep_choice(directory: Path | None, name: str, text: str) -> None:
    """Store it for the next terminal. A choice that cannot be stored lasts as long as this one."""
    if directory is None:
        return
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = directory / f"{name}.{os.getpid()}.tmp"
        new.write_text(f"{text}\n", encoding="utf-8")
        new.replace(directory / name)


def _read_editor(environ: Mapping[str, str]) -> tuple[str, ...]:
    """An editor may have arguments: `code --wait`."""
    for name in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(environ.get(name, ""))
        except ValueError:
            continue
        if words:
            return tuple(words)
    return (DEFAULT_EDITOR,)


# What every part of the terminal shares: the server, the connection to it, who is signed in.


class Session(Struct, frozen=True, kw_only=True):
    """One run of the terminal."""

    server: ServerAddress
    api: ServerApi
    connection: Connection
    outbox: Outbox
    me: Me
    clock: Clock
    machine: Machine = field(default_factory=Machine)


class SessionApp(App[None]):
    """An app with a session: the terminal, or one of a test."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session


def app_of(node: DOMNode) -> SessionApp:
    """The app that shows this widget or screen, with its type."""
    app = cast("object", node.app)  # pyright: ignore[reportUnknownMemberType]
    assert isinstance(app, SessionApp)
    return app


def session_of(node: DOMNode) -> Session:
    """The session of the app that shows this widget or screen."""
    return app_of(node).session


# Opens a session with a server, for the terminal and for its tests.


@asynccontextmanager
async def open_session(
    server: ServerAddress,
    clock: Clock,
    chat_id: ChatId | None = None,
    *,
    machine: Machine | None = None,
) -> AsyncGenerator[Session]:
    """Connected until the end of the block. Raises ApiError and ServerUnreachable at the start,
    before a screen is shown, even if only the chat with this id does not exist."""
    async with open_api(server) as plain:
        api = ServerApi(server, plain.http, clock=clock)
        impatient = api.without_patience()
        me = await impatient.get_me()
        if chat_id is not None:
            await impatient.get_chat(chat_id)
        connection = Connection(api)
        outbox = Outbox(api, connection)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(connection.run()), group.create_task(outbox.run())]
            try:
                yield Session(
                    server=server,
                    api=api,
                    connection=connection,
                    outbox=outbox,
                    me=me,
                    clock=clock,
                    machine=machine or Machine(),
                )
            finally:
                for task in tasks:
                    task.cancel()
