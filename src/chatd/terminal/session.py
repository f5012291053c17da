"""What every part of the terminal shares: the server, the connection to it, who is signed in."""

from typing import cast

from msgspec import Struct, field
from textual.app import App
from textual.dom import DOMNode

from chatd.client.connection import Connection
from chatd.client.outbox import Outbox
from chatd.client.resources import Me
from chatd.client.server import ServerAddress, ServerApi
from chatd.domain.ports import Clock
from chatd.terminal.machine import Machine


class Session(Struct, frozen=True, kw_only=True):
    """Of one run of the terminal."""

    server: ServerAddress
    api: ServerApi
    connection: Connection
    outbox: Outbox
    me: Me
    clock: Clock
    machine: Machine = field(default_factory=Machine)


class SessionApp(App[None]):
    """An app with a session. The terminal is one; so may be a test's."""

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
