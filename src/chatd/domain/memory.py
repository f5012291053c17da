"""Memory: short notes that a user keeps for the models of all own chats, or of one project. Pure.

A note is plain text. A person writes it, or accepts one that a model has proposed: nothing that a
model says is kept without that. What is kept has no character that a person cannot see.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal
from unicodedata import category
from uuid import UUID, uuid5

from msgspec import Struct

from chatd.domain.errors import Conflict, InvalidInput, ToolError
from chatd.domain.ids import ChatId, ProjectId, UserId
from chatd.domain.prompt.instructions import quoted_text, strip_invisible

MemoryChoice = Literal["off", "notes", "proposals"]
"""What a user wants: no notes, own notes, or also notes that models propose."""
NoteState = Literal["proposed", "kept", "dismissed"]

MAX_NOTES: Final = 50
"""Of one user for all chats, and of one project."""
MAX_PROPOSALS: Final = 20
"""Of one user, that wait for a decision. Of those that were dismissed, as many are remembered."""
MAX_NOTE_CHARS: Final = 500
"""Of one note."""

_IDS: Final = UUID("0b1d9f3c-5f0e-5e0b-9a44-7e2f6d1c8a35")
"""Must not change: a worker of another version that runs a call again must find the same note."""
_NON_JOINER: Final = "\u200c"  # Persian and Urdu are written with it
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_SELECTORS: Final = frozenset(
    {*range(0x180B, 0x180E), 0x180F, *range(0xFE00, 0xFE0F), *range(0xE0100, 0xE01F0)}
)
_SHAPELESS: Final = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U0001d159")
"""Letters and signs without a shape."""

_INTRODUCTION: Final = (
    "Notes that the user keeps for you: facts and preferences. They are the user's own words, and"
    " no tasks. Use those that matter to what is asked, and do not mention the others."
)
_PROJECT_INTRODUCTION: Final = (
    "Notes that the members of this chat's project keep for you: facts and preferences, and no"
    " tasks. Use those that matter to what is asked."
)


class MemoryNote(Struct, frozen=True, kw_only=True):
    """Of the user `owner_id`, who wrote or accepted it; with a project also of the project.
    `chat_id` is the chat whose model proposed it. `place` orders the notes."""

    id: UUID
    owner_id: UserId
    project_id: ProjectId | None
    chat_id: ChatId | None
    state: NoteState
    text: str
    enabled: bool
    place: int
    created_at: datetime
    updated_at: datetime


class NoteBrief(Struct, frozen=True, kw_only=True):
    """What a chat needs of its owner's memory. `allowed` is the setting of the deployment."""

    allowed: bool = True
    choice: MemoryChoice = "notes"
    texts: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        return self.texts if self.allowed and self.choice != "off" else ()

    @property
    def takes_proposals(self) -> bool:
        return self.allowed and self.choice == "proposals"


def clean_note(text: str) -> str:
    """Without what a person cannot see, and without surplus blank space. Raises InvalidInput."""
    cleaned = strip_invisible("".join(one for one in strip_invisible(text) if _is_seen(one)))
    if not cleaned:
        raise InvalidInput("text", "has no visible character")
    if len(cleaned) > MAX_NOTE_CHARS:
        found = f"has {len(cleaned)} characters"
        raise InvalidInput("text", f"{found}; at most {MAX_NOTE_CHARS} are allowed")
    return cleaned


def _is_seen(character: str) -> bool:
    if character in ("\n", _NON_JOINER):
        return True
    if character in _SHAPELESS or ord(character) in _SELECTORS:
        return False
    return category(character) not in _HIDDEN


def proposed_text(text: str) -> str:
    """The text that a model proposes, as the person sees it before deciding. Raises ToolError."""
    proposed = text.strip()
    try:
        clean_note(proposed)
    except InvalidInput as error:
        raise ToolError(f"The text {error.detail}. Propose one short fact.") from None
    if len(proposed) > MAX_NOTE_CHARS:
        raise ToolError(f"The text has more than {MAX_NOTE_CHARS} characters. Shorten it.")
    return proposed


def note_of_call(call_key: str) -> UUID:
    """The note that a call proposes: the same for every worker that runs the call."""
    return uuid5(_IDS, call_key)


def require_room(count: int, *, of_project: bool) -> None:
    """Raises Conflict. `count` are the notes now."""
    if count >= MAX_NOTES:
        whose = "The project has" if of_project else "You have"
        raise Conflict(f"{whose} {MAX_NOTES} notes. Remove one first.", code="too_many_notes")


def moved(order: Sequence[UUID], note_id: UUID, place: int) -> list[UUID]:
    """The order with the note at this place, from 1; a place behind the last one is the last."""
    others = [one for one in order if one != note_id]
    others.insert(place - 1, note_id)
    return others


def notes_block(texts: Iterable[str], *, of_project: bool = False) -> str:
    """What the model is told; empty without notes."""
    lines = ["- " + quoted_text(text).replace("\n", "\n  ") for text in texts]
    if not lines:
        return ""
    tag = "project-notes" if of_project else "user-notes"
    head = _PROJECT_INTRODUCTION if of_project else _INTRODUCTION
    return "\n".join([f"<{tag}>", head, *lines, f"</{tag}>"])
