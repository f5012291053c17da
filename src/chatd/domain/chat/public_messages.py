"""Messages as clients see them, in replies and in events."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.chat.messages import Message, QueuedMessage, Role, TokenUsage
from chatd.domain.chat.parts import (
    BoundaryPart,
    ContextFilePart,
    FilePart,
    FileReferencePart,
    InstructionPart,
    KnownPart,
    NoticePart,
    Part,
    ReasoningPart,
    SkillPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
)
from chatd.domain.description import CHAT_ID, CREATED_AT, MODEL_ID, USER_ID, describe
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, QueueId, UserId
from chatd.domain.tool_modes import ModeChoice


class PublicMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a chat's history."""

    id: Annotated[
        MessageId, describe("Counts from 1 in each chat; a later message has a higher id.", 7)
    ]
    chat_id: Annotated[ChatId, describe("The chat.", CHAT_ID)]
    role: Annotated[
        Role, describe("Who said it. `system` is a notice of chatd itself.", "assistant")
    ]
    content: Annotated[tuple[KnownPart, ...], describe("Its parts, in order.")]
    created_at: Annotated[datetime, describe("When it was stored.", CREATED_AT)]
    created_by: Annotated[UserId | None, describe("The user who sent it.", USER_ID)] = None
    model_config_id: Annotated[
        ModelConfigId | None, describe("The model that answered, or that was asked to.", MODEL_ID)
    ] = None
    usage: Annotated[TokenUsage | None, describe("The tokens of the model call.")] = None
    finish_reason: Annotated[
        str | None,
        describe(
            "Why the answer ended. Absent if it was interrupted. Treat an unknown word like"
            " `other`.",
            "stop",
        ),
    ] = None


class PublicQueuedMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that waits in the queue of a busy chat."""

    id: Annotated[QueueId, describe("Counts from 1 in each chat's queue.", 3)]
    chat_id: Annotated[ChatId, describe("The chat.", CHAT_ID)]
    content: Annotated[tuple[KnownPart, ...], describe("Its parts, in order.")]
    created_at: Annotated[datetime, describe("When it was sent.", CREATED_AT)]
    created_by: Annotated[UserId, describe("The user who sent it.", USER_ID)]
    steer: Annotated[
        bool, describe("It joins history before the next model call, not after the turn.")
    ] = False
    model_config_id: Annotated[
        ModelConfigId | None, describe("The model that will answer it.", MODEL_ID)
    ] = None
    mode: Annotated[ModeChoice | None, describe("The mode that the chat gets with it.", "plan")] = (
        None
    )


def public_message(chat_id: ChatId, row: Message) -> PublicMessage | None:
    """None for messages that only the model sees: system prompts and summaries. Of a message of the
    role `system` the notices are public: that of an imported prompt shows its text."""
    if row.visibility == "model":
        return None
    content = _known(row.content)
    if row.role == "system":
        content = tuple(part for part in content if isinstance(part, NoticePart))
    return PublicMessage(
        id=row.id,
        chat_id=chat_id,
        role=row.role,
        content=content,
        created_at=row.created_at,
        created_by=row.created_by,
        model_config_id=row.model_config_id,
        usage=None if row.usage == TokenUsage() else row.usage,
        finish_reason=row.finish_reason,
    )


def public_queued(chat_id: ChatId, row: QueuedMessage) -> PublicQueuedMessage:
    return PublicQueuedMessage(
        id=row.id,
        chat_id=chat_id,
        content=_known(row.content),
        created_at=row.created_at,
        created_by=row.created_by,
        steer=row.steer,
        model_config_id=row.model_config_id,
        mode=row.mode,
    )


def _known(content: Sequence[Part]) -> tuple[KnownPart, ...]:
    return tuple(part for part in public_parts(content) if not isinstance(part, UnknownPart))


def public_part(part: Part) -> Part | None:
    """The part as clients may see it; None hides it. REST and streams both use this."""
    match part:
        case TextPart() | ReasoningPart() | ToolCallPart() | ToolResultPart():
            return msgspec.structs.replace(part, provider_metadata=UNSET)
        case FilePart(file_id=str()):
            return msgspec.structs.replace(part, data=None)
        case ContextFilePart():
            return msgspec.structs.replace(
                part,
                context_file_content=None,
                context_file_os=None,
                context_file_directory=None,
            )
        case SkillPart():
            return msgspec.structs.replace(part, skill_dir=None)
        case InstructionPart() | BoundaryPart() | UnknownPart():
            return None
        case SourcePart() | FilePart() | FileReferencePart() | NoticePart():
            return part


def public_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(public for part in parts if (public := public_part(part)) is not None)
