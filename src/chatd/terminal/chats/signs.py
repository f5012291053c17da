"""How the status of a chat is shown: a sign, a word and a colour, never one of them alone."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from chatd.client.resources import Chat


class StatusSign(Struct, frozen=True):
    """`tone` is the name of a colour of the theme."""

    sign: str
    word: str
    tone: str


SIGNS: Final[Mapping[str, StatusSign]] = {
    "waiting": StatusSign("○", "Waiting for you", "text-muted"),
    "pending": StatusSign("◌", "Waiting for a worker", "text-muted"),
    "running": StatusSign("◐", "Working", "text-accent"),
    "interrupting": StatusSign("◼", "Stopping", "text-muted"),
    "requires_action": StatusSign("◆", "Needs you", "text-warning"),
    "error": StatusSign("✗", "Failed", "text-error"),
    "done": StatusSign("✓", "Done", "text-success"),
    "stopped": StatusSign("■", "Stopped, queue held", "text-muted"),
    "archived": StatusSign("▪", "Archived", "text-muted"),
}
UNREAD: Final = StatusSign("●", "New answer", "text-accent")
TURNING: Final = "◐◓◑◒"
"""The sign of a working chat, in turn."""


def is_subagent(chat: Chat) -> bool:
    return chat.parent_chat_id is not None


def sign_of(chat: Chat) -> StatusSign:
    """A subagent that waits has done its work; a held queue is no failure."""
    if chat.status == "waiting" and is_subagent(chat):
        return SIGNS["done"]
    if chat.plan_ready:
        return SIGNS["requires_action"]
    if chat.status == "waiting" and is_unread(chat):
        return UNREAD
    if chat.status == "error" and is_held(chat):
        return SIGNS["stopped"]
    return SIGNS.get(chat.status, SIGNS["waiting"])


def is_held(chat: Chat) -> bool:
    """A person stopped the turn and holds the queue."""
    return chat.last_error is not None and chat.last_error.kind == "queue_held"


def is_unread(chat: Chat) -> bool:
    """Whether it has an answer for you. What a subagent says is for its parent."""
    return bool(chat.has_unread) and not is_subagent(chat)


def needs_person(chat: Chat) -> bool:
    return chat.status == "requires_action" or chat.plan_ready


def is_active(chat: Chat) -> bool:
    return chat.status in ("pending", "running", "interrupting")
