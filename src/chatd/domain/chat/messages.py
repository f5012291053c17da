"""Messages: drafts, committed rows and queued messages, with their usage and pending calls.

A part of an unknown kind, written by a newer replica, is read as `UnknownPart` and written back
byte for byte.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.parts import (
    CONTENT_VERSION,
    KnownPart,
    Part,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
)
from chatd.domain.description import describe
from chatd.domain.ids import MessageId, ModelConfigId, QueueId, ToolCallId, UserId
from chatd.domain.text import Json, replace_surrogates
from chatd.domain.tool_modes import PLAN_MODE_TOOLS, ModeChoice

Role = Literal["system", "user", "assistant", "tool"]
Visibility = Literal["user", "model", "both"]
CallKind = Literal["turn", "compaction", "title", "summary"]

_KNOWN_LIST = msgspec.json.Decoder(tuple[KnownPart, ...])
_KNOWN = msgspec.json.Decoder(KnownPart)
_RAW_LIST = msgspec.json.Decoder(tuple[Raw, ...])
_ENCODER = msgspec.json.Encoder()


class TokenUsage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one model call. `input_tokens` excludes cached ones; output includes reasoning.

    `context_tokens` is set if the provider ran the model several times in one call: each run is
    charged for its input, which fills the context only once. `estimated`: the provider did not
    tell all of it. `provider_cost_micros` is the cost that the provider itself reported.
    `unpriced`: no price is known, so that the call counts as nothing towards a spend limit.
    """

    input_tokens: Annotated[
        int, describe("Tokens of the prompt that were not in the provider's cache.", 812)
    ] = 0
    output_tokens: Annotated[int, describe("Tokens of the answer, with reasoning.", 164)] = 0
    total_tokens: Annotated[int, describe("All tokens of the call.", 5072)] = 0
    reasoning_tokens: Annotated[int, describe("Those of the output that were reasoning.", 40)] = 0
    cache_creation_tokens: Annotated[
        int, describe("Tokens that the provider wrote to its cache.", 0)
    ] = 0
    cache_creation_1h_tokens: Annotated[
        int, describe("Those of the tokens written to the cache that it keeps for an hour.", 0)
    ] = 0
    cache_read_tokens: Annotated[
        int, describe("Tokens that the provider read from its cache.", 4096)
    ] = 0
    context_limit: Annotated[
        int | None, describe("How many tokens the model's context can hold.", 200000)
    ] = None
    context_tokens: Annotated[
        int | None,
        describe("Tokens that fill the context, if they differ from those charged for.", 4908),
    ] = None
    web_searches: Annotated[int, describe("Web searches that the provider made.", 0)] = 0
    provider_cost_micros: Annotated[
        int | None,
        describe("The cost that the provider reported, in millionths of a US dollar.", 5310),
    ] = None
    estimated: Annotated[
        bool, describe("The provider did not report all of it; chatd estimated the rest.")
    ] = False
    unpriced: Annotated[
        bool,
        describe("No price is known: the call counts as nothing towards a spend limit."),
    ] = False


class Draft(Struct, frozen=True, kw_only=True):
    """A message before it has an id. `finish_reason` says why an answer ended, as a word of
    `FinishReason` or of a newer version; None if it was interrupted."""

    role: Role
    content: tuple[Part, ...]
    visibility: Visibility = "both"
    content_version: int = CONTENT_VERSION
    compressed: bool = False
    model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    created_by: UserId | None = None
    usage: TokenUsage | None = None
    cost_micros: int | None = None
    runtime_ms: int | None = None
    provider_response_id: str | None = None
    finish_reason: str | None = None

    @property
    def is_notice(self) -> bool:
        """Whether chatd tells it to people only (`chat.notices`)."""
        return self.role == "system" and self.visibility == "user"


class Message(Draft, frozen=True, kw_only=True):
    """A committed message. `revision` is the snapshot_version of its last change."""

    id: MessageId
    revision: int
    created_at: datetime
    deleted: bool = False

    @property
    def starts_turn(self) -> bool:
        """Whether it is a user's own message: no summary, and not for the model alone."""
        return self.role == "user" and not self.compressed and self.visibility != "model"


class UserInput(Struct, frozen=True, kw_only=True):
    """A user's input: becomes a user message at once, or through the queue. Its mode becomes the
    chat's when it joins history."""

    content: tuple[Part, ...]
    created_by: UserId
    model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    mode: ModeChoice | None = None

    def draft(self) -> Draft:
        return Draft(
            role="user",
            content=self.content,
            created_by=self.created_by,
            model_config_id=self.model_config_id,
            reasoning_effort=self.reasoning_effort,
        )


class QueuedMessage(UserInput, frozen=True, kw_only=True):
    """Order in the queue: steering messages first, then by position."""

    id: QueueId
    position: int
    steer: bool
    created_at: datetime


class PendingCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call of the last assistant message that has no result yet.

    The API's client answers `client` calls. `asks` is "question" or "approval" if a person must
    answer first; `chat.call_waits` reads it. It is plain text, because a newer replica may write a
    kind that this one does not know. Calls that wait carry their arguments: viewers need them
    without reading history. `timeout_s` counts from the moment at which the chat began to wait.
    `approved_by` is the user that approved the call: it may run. `always`: a rule of the chat could
    end the asking. `reason` is why the policy asks.
    """

    id: ToolCallId
    name: str
    client: bool = False
    args: Json = UNSET
    asks: str = ""
    timeout_s: float | None = None
    approved_by: UserId | None = None
    always: bool = False
    reason: str = ""


class UsageEntry(Struct, frozen=True, kw_only=True):
    """Usage of one model call. A cost of None is unpriced, 0 is free. A call is recorded once for
    each `call_id`."""

    kind: CallKind
    provider: str
    model: str
    usage: TokenUsage
    model_config_id: ModelConfigId | None = None
    message_id: MessageId | None = None
    cost_micros: int | None = None
    price: Raw | None = None
    runtime_ms: int | None = None
    ok: bool = True
    call_id: UUID | None = None


def local_calls(content: Iterable[Part]) -> list[ToolCallPart]:
    """Calls that chatd or its client must answer; the provider answers its own inline."""
    return [p for p in content if isinstance(p, ToolCallPart) and not p.provider_executed]


def needs_next_step(draft: Draft) -> bool:
    """Whether the turn goes on after this message: calls wait for results, or the provider paused
    its answer and continues it when it gets it back."""
    return bool(local_calls(draft.content)) or draft.finish_reason == "pause"


def local_results(content: Iterable[Part]) -> list[ToolResultPart]:
    return [p for p in content if isinstance(p, ToolResultPart) and not p.provider_executed]


def proposes_plan(draft: Draft) -> bool:
    """Whether it has the result of a call that showed a plan to the user."""
    results = local_results(draft.content)
    return any(part.tool_name in PLAN_MODE_TOOLS and not part.is_error for part in results)


def pending_calls(history: Sequence[Draft]) -> list[ToolCallPart]:
    """Local calls of the last assistant message that no later message answers."""
    calls: list[ToolCallPart] = []
    answered: set[ToolCallId] = set()
    for message in reversed(history):
        answered.update(result.tool_call_id for result in local_results(message.content))
        if message.role == "assistant":
            calls = local_calls(message.content)
            break
    return [call for call in calls if call.tool_call_id not in answered]


def decode_parts(content: str | bytes) -> tuple[Part, ...]:
    """Decode stored content. Raises msgspec.DecodeError only if it is not a JSON array."""
    try:
        return _KNOWN_LIST.decode(content)
    except msgspec.ValidationError:
        return tuple(_decode_part(raw) for raw in _RAW_LIST.decode(content))


def _decode_part(raw: Raw) -> Part:
    try:
        return _KNOWN.decode(raw)
    except msgspec.ValidationError:
        return UnknownPart(raw=raw.copy())


def encode_parts(parts: Sequence[Part]) -> str:
    """Encode content for storage. Lone surrogates, which UTF-8 cannot hold, become U+FFFD."""
    wire = [part.raw if isinstance(part, UnknownPart) else part for part in parts]
    try:
        return _ENCODER.encode(wire).decode()
    except UnicodeEncodeError:
        cleaned = [part.raw if isinstance(part, UnknownPart) else _scrub(part) for part in parts]
        return _ENCODER.encode(cleaned).decode()


def _scrub(part: KnownPart) -> KnownPart:
    changed = {
        name: replace_surrogates(value)
        for name in part.__struct_fields__
        if isinstance(value := getattr(part, name), str)
    }
    return msgspec.structs.replace(part, **changed)
