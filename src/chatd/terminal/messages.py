"""Messages by which widgets of the terminal ask the main screen for something."""

from typing import Final, Literal

from textual.message import Message

from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.ids import ChatId
from chatd.terminal.safe_text import safe_text

Severity = Literal["information", "warning", "error"]

ScreenName = Literal["changes", "help", "mcp", "models", "modes", "plan", "policy", "usage"]


COPY_READY: Final = "The copy is ready: it is in the chat list."
"""For somebody who has gone elsewhere meanwhile, and is not taken away from there."""


class OpenChat(Message):
    """Show this chat in place of the open one."""

    def __init__(self, chat_id: ChatId) -> None:
        super().__init__()
        self.chat_id = chat_id


class NewChat(Message):
    """Show an empty composer; the first message that is sent creates the chat."""


class ShowNotice(Message):
    """Say something in one or two lines, which go away by themselves. Plain text, never markup;
    much of it is what a server says, so it is made safe here."""

    def __init__(self, text: str, severity: Severity = "information") -> None:
        super().__init__()
        self.text = safe_text(text)
        self.severity: Severity = severity


class EditMessage(Message):
    """Put this message of the user into the message box, to be changed and run again."""

    def __init__(self, edited: PublicMessage) -> None:
        super().__init__()
        self.edited = edited


class OpenScreen(Message):
    """Put the screen with this name on top, for the open chat."""

    def __init__(self, name: ScreenName) -> None:
        super().__init__()
        self.name: ScreenName = name
