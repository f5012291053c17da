"""Replies with debug records of model calls. Docstrings here are part of the OpenAPI document."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Raw, Struct

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.description import CREATED_AT, MODEL_ID, describe
from chatd.domain.ids import MessageId, ModelConfigId
from chatd.domain.list_page import ListPage

_RUN_ID = "0193c5a6-2d4e-7f60-8a1b-3c4d5e6f7081"
_REQUEST = {
    "model": "sable-4",
    "messages": [{"role": "user", "parts": [{"type": "text", "text": "Why does it fail?"}]}],
}
_RESPONSE = {"finish_reason": "stop", "parts": [{"type": "text", "text": "The sum starts at 1."}]}


class DebugRunItem(Struct, frozen=True, kw_only=True):
    """One model call."""

    id: Annotated[UUID, describe("The id of the record.", _RUN_ID)]
    kind: Annotated[
        Literal["turn", "title", "compaction"],
        describe("What the call was for: an answer, a title or a summary.", "turn"),
    ]
    model_config_id: Annotated[ModelConfigId | None, describe("The model's id.", MODEL_ID)]
    provider: Annotated[str, describe("The name of the provider.", "anthropic")]
    model: Annotated[str, describe("The model as the provider calls it.", "sable-4")]
    attempt: Annotated[int, describe("The number of the try at this answer.", 1)]
    history_version: Annotated[
        int, describe("The version at which the answer began; with `attempt` it names it.", 11)
    ]
    turn_message_id: Annotated[MessageId | None, describe("The message that began the turn.", 12)]
    started_at: Annotated[datetime, describe("When the call began.", CREATED_AT)]
    duration_ms: Annotated[int, describe("How long it took, in milliseconds.", 4200)]
    first_part_ms: Annotated[
        int | None, describe("Milliseconds until the first part of the answer.", 610)
    ]
    error: Annotated[
        str | None, describe("Why it failed, for people.", "The provider is overloaded.")
    ]
    error_kind: Annotated[
        str | None,
        describe("The kind of error; `cancelled` if a user stopped the call.", "overloaded"),
    ]
    status_code: Annotated[int | None, describe("The HTTP status of the error.", 529)]
    finish_reason: Annotated[
        str | None, describe("Why the answer ended; null if it was cut off.", "stop")
    ]
    usage: Annotated[TokenUsage, describe("The tokens of the call.")]
    is_cut: Annotated[bool, Meta(description="The record leaves out what was over its size limit.")]


class DebugRunReply(DebugRunItem, frozen=True, kw_only=True):
    """One model call with its request and its answer, without secrets."""

    request: Annotated[
        Raw,
        describe(
            "The request before the provider's own encoding, any JSON. Keys, headers and the"
            " queries of URLs are removed, and files are named by type and size.",
            _REQUEST,
        ),
    ]
    response: Annotated[Raw, describe("The answer as far as it came, any JSON.", _RESPONSE)]


class DebugRunPage(ListPage[DebugRunItem], frozen=True, kw_only=True):
    """Model calls of a chat, newest first."""
