"""Messages by which widgets of the terminal ask the main screen for something."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from textual.message import Message
from textual.message_pump import MessagePump

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.ids import ChatId
from chatd.terminal.safe_text import safe_text

Severity = Literal["information", "warning", "error"]

ScreenName = Literal["connect", "help", "mcp", "memory", "models", "plan", "policy", "usage"]


COPY_READY: Final = "The copy is ready: it is in the chat list."
"""Shown if the user has left the chat; does not switch back."""


@dataclass
class OpenChat(Message):
    """Show this chat in place of the open one."""

    chat_id: ChatId


@dataclass
class FindChat(Message):
    """Let the person choose a chat; these words are searched for at first."""

    words: str = ""


class NewChat(Message):
    """Show an empty composer; the first message that is sent creates the chat."""


class ShowNotice(Message):
    """Say something in one or two lines, which go away by themselves. Plain text, never markup;
    much of it is what a server says, so it is made safe here."""

    def __init__(self, text: str, severity: Severity = "information") -> None:
        super().__init__()
        self.text = safe_text(text)
        self.severity: Severity = severity


@dataclass
class EditMessage(Message):
    """Put this message of the user into the message box, to be changed and run again."""

    edited: PublicMessage


@dataclass
class OpenScreen(Message):
    """Put the screen with this name on top, for the open chat."""

    name: ScreenName


@contextmanager
def telling_errors(node: MessagePump, about: str = "") -> Generator[None]:
    """A request that fails ends the block, and a notice says why; `about` begins the sentence."""
    try:
        yield
    except (ApiError, ServerUnreachable) as error:
        node.post_message(ShowNotice(f"{about}{error.message}", "error"))
