"""Messages: drafts, committed rows and queued messages; their public form; notices from chatd.

A part of an unknown kind, written by a newer replica, is read as `UnknownPart` and written back
byte for byte.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal, get_args
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.parts import (
    CONTENT_VERSION,
    BoundaryPart,
    CommandPart,
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
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, QueueId, ToolCallId, UserId
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
    report all of it. `provider_cost_micros` is the cost that the provider itself reported.
    `unpriced`: no price is known, so the call counts as nothing towards a spend limit.
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
        """Whether it is a notice from chatd, which only people see."""
        return self.role == "system" and self.visibility == "user"


class Message(Draft, frozen=True, kw_only=True):
    """A committed message. `revision` is the snapshot_version of its last change."""

    id: MessageId
    revision: int
    created_at: datetime
    deleted: bool = False

    @property
    def starts_turn(self) -> bool:
        """Whether it is a user's own message: not a summary, and not for the model alone."""
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


class HookVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one hook answered before a call. `layer` is whose hook it is. `decision` is `allow`,
    `ask`, `deny` or empty for no opinion; it is plain text, because a newer replica may write
    another. `failed` says why the hook gave no answer."""

    hook: str
    layer: str = "deployment"
    decision: str = ""
    reason: str = ""
    changed: bool = False
    failed: str = ""


class CallHooks(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answers of all hooks before a call, committed before it runs. `args` are those that run
    if a hook changed them."""

    verdicts: tuple[HookVerdict, ...] = ()
    args: Json = UNSET


class PendingCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call of the last assistant message that has no result yet.

    The API's client answers `client` calls. `asks` is "question" or "approval" if a person must
    answer first; `chat.call_waits` reads it. It is plain text, because a newer replica may write a
    kind that this one does not know. Calls that wait carry their arguments: viewers need them
    without reading history. `timeout_s` counts from the moment at which the chat began to wait.
    `approved_by` is the user that approved the call: it may run. `always`: a rule of the chat could
    end the asking. `reason` is why the policy asks. `waits_for` says why a call that runs cannot go
    on now, such as a machine that is not connected; empty: it goes on. `hooks` is what hooks
    answered; None: they have not been asked.
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
    waits_for: str = ""
    hooks: CallHooks | None = None


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
    """Whether the turn continues after this message: calls wait for results, or the provider paused
    its answer and continues once the answer is sent back."""
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


# Messages as clients see them, in replies and in events.


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
    """None for messages that only the model sees: system prompts and summaries. Notices of the role
    `system` are public: the notice for an imported prompt shows its text."""
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
        case SourcePart() | FilePart() | FileReferencePart() | CommandPart() | NoticePart():
            return part


def public_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(public for part in parts if (public := public_part(part)) is not None)


# Notices: what chatd itself tells the people who read a chat, as messages of its history.
#
# A notice is not part of the conversation: the model never gets it, and it neither starts nor ends
# a turn nor counts as a step. It is one of the messages of the step or change that it reports, so
# it is committed with that step or change, exactly once.

NoticeCode = Literal[
    "step_limit",
    "stopped",
    "empty_answer",
    "model_stream_cut",
    "model_replaced",
    "model_fallback",
    "model_recovered",
    "effort_not_sent",
    "summary_failed",
    "results_cleared",
    "calls_over_limit",
    "imported",
    "imported_prompt",
    "hook_changed",
    "hook_failed",
]
NOTICE_CODES: Final[frozenset[str]] = frozenset(get_args(NoticeCode))
CONTINUABLE_NOTICES: Final = frozenset({"step_limit", "empty_answer", "model_stream_cut"})
"""Codes of notices that say why a turn ended early; a user may tell the chat to continue."""


def notice_draft(code: NoticeCode, text: str, detail: Mapping[str, str] | None = None) -> Draft:
    part = NoticePart(
        code=code,
        text=replace_surrogates(text),
        detail={name: replace_surrogates(value) for name, value in (detail or {}).items()},
    )
    return Draft(role="system", content=(part,), visibility="user")


def step_limit_notice(steps: int) -> Draft:
    text = f"The turn ended after {steps:,} steps, its limit. The task may not be complete."
    return notice_draft("step_limit", text, {"steps": str(steps)})


def stopped_notice() -> Draft:
    text = "Stopped by you, before the next step. What was done is kept."
    return notice_draft("stopped", text)


def empty_answer_notice(*, has_reasoning: bool) -> Draft:
    end = ", after reasoning only." if has_reasoning else "."
    return notice_draft("empty_answer", f"The model ended the turn without an answer{end}")


def ends_early(message: Draft | PublicMessage) -> bool:
    """Whether it is a notice that says why the turn ended early."""
    codes = (part.code for part in message.content if isinstance(part, NoticePart))
    return message.role == "system" and any(code in CONTINUABLE_NOTICES for code in codes)


def is_stop(message: Draft | PublicMessage) -> bool:
    """Whether it is the notice that the turn was stopped between two steps."""
    parts = (part for part in message.content if isinstance(part, NoticePart))
    return message.role == "system" and any(part.code == "stopped" for part in parts)


def early_end(drafts: Iterable[Draft | PublicMessage]) -> NoticePart | None:
    """The notice among these messages that says why their turn ended early."""
    notices = (part for draft in drafts if ends_early(draft) for part in draft.content)
    return next((part for part in notices if isinstance(part, NoticePart)), None)


def has_notice(
    history: Sequence[Message], code: str, detail: Mapping[str, str] | None = None
) -> bool:
    """Whether the current turn has this notice already, with these facts if `detail` is given."""
    for row in reversed(history):
        if row.deleted:
            continue
        if row.starts_turn:
            return False
        for part in row.content if row.is_notice else ():
            if isinstance(part, NoticePart) and _is_same(part, code, detail or {}):
                return True
    return False


def _is_same(part: NoticePart, code: str, detail: Mapping[str, str]) -> bool:
    return part.code == code and detail.items() <= part.detail.items()
