"""Shown when the server does not accept the token any more."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from chatd.terminal.safe_text import safe_text
from chatd.terminal.session import app_of, session_of


class SignedOutScreen(ModalScreen[None]):
    """It closes by itself when the server accepts the token again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("r,f5", "retry", "Try again"),
        ("ctrl+d,ctrl+c,q,escape", "leave", "Leave"),
    ]

    def compose(self) -> ComposeResult:
        session = session_of(self)
        url = safe_text(session.server.url)
        why = safe_text(session.connection.problem)
        with Vertical(classes="dialog"):
            yield Static("Signed out", classes="title", markup=False)
            yield Static(f"{url} does not accept your token any more. {why}".rstrip(), markup=False)
            yield Static(
                f"Leave, sign in with\n\n    chatd login {url}\n\nand come back. Your chats go on.",
                classes="paragraph",
                markup=False,
            )
            yield Static("Esc leaves, R tries the token again", classes="hint", markup=False)

    def action_retry(self) -> None:
        session_of(self).connection.retry_now()

    def action_leave(self) -> None:
        app_of(self).exit()
