"""Instruction updates: a chat's instructions as rows of its history, appended when they change.

A request must begin with the bytes of the one before it: the provider's prompt cache depends on
it, and newer models drop their reasoning otherwise. So instructions that the model has been given
are never rewritten. The first update is part of the system prompt; later ones are messages that
only the model sees. An update is committed with the answer that it preceded.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from chatd.domain.chat.messages import Draft, Message
from chatd.domain.chat.parts import InstructionPart
from chatd.domain.chat.row import Chat
from chatd.domain.ids import MessageId
from chatd.domain.prompt.compaction import rows_for_prompt
from chatd.domain.prompt.instructions import BEGINNING, Instructions


def next_update(history: Sequence[Message], instructions: Instructions) -> Draft | None:
    """What the next model call must be told in addition to the history; None: nothing is new.

    A summary hides earlier updates, except the first one: the next update repeats what is not
    in the system prompt. An imported chat has answers and was told nothing: it gets everything.
    """
    rows = rows_for_prompt(history)
    told = _told_sections(rows)
    is_first = not told and not any(row.role == "assistant" for row in rows)
    changed = tuple(
        InstructionPart(section=section, text=text)
        for section, text in instructions.sections()
        if text != told.get(section, "") and (not told or section != BEGINNING)
    )
    if not changed:
        return None
    role = "system" if is_first else "user"
    return Draft(role=role, content=changed, visibility="model")


def _told_sections(rows: Iterable[Message]) -> dict[str, str]:
    """The newest text of each section."""
    return {part.section: part.text for row in rows for part in _parts(row)}


def _parts(row: Message) -> Iterable[InstructionPart]:
    return (part for part in row.content if isinstance(part, InstructionPart))


class PendingUpdate(Struct, frozen=True, kw_only=True):
    """A message that the next commit of the chat will store before its answer, with the row as it
    will be: number `place` of these, from 0."""

    draft: Draft
    row: Message

    @staticmethod
    def of(draft: Draft, chat: Chat, place: int = 0) -> "PendingUpdate":
        row = Message(
            id=MessageId(chat.next_message_id + place),
            revision=chat.snapshot_version + 1,
            created_at=chat.updated_at,
            role=draft.role,
            content=draft.content,
            visibility=draft.visibility,
        )
        return PendingUpdate(draft=draft, row=row)
