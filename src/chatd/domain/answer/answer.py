"""The answer of a model call: whether it is kept, and its message and usage rows.

Owns the conversion to rows, not their commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.answer.tool_output import (
    STEP_OUTPUT_BYTES,
    AnsweredCall,
    fit_outputs,
    result_message,
)
from chatd.domain.chat.messages import CallKind, Draft, TokenUsage, UsageEntry
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart, ToolCallPart
from chatd.domain.chat.row import ChatError
from chatd.domain.model.config import LearnedLimit, cost_micros, effective_context_limit, is_refuted
from chatd.domain.model.failures import (
    ClassifiedFailure,
    FailureKind,
    clip_detail,
    known_failure,
    redact_urls,
)
from chatd.domain.model.protocol import Finished, ModelConfig
from chatd.domain.model.usage import complete_usage
from chatd.domain.text import is_empty_json

_ENDED_IN_ERROR_TEXT: Final = "The provider reported that its answer ended in an error."


class Answer(Struct, frozen=True, kw_only=True):
    """Without `finished` it was interrupted. `usage` has estimates for what was not told.
    `calls_made` counts the calls for chatd and its client, also those that were dropped."""

    content: tuple[Part, ...]
    finished: Finished | None = None
    usage: TokenUsage | None = None
    calls_made: int = 0

    @property
    def has_visible_text(self) -> bool:
        """Any part that a user or a tool can act on. Reasoning and cut calls are none."""
        return any(
            not isinstance(part, ReasoningPart)
            and not (isinstance(part, ToolCallPart) and part.cut)
            and not _is_blank(part)
            for part in self.content
        )

    @property
    def has_output(self) -> bool:
        """Any part besides reasoning. A cut call is one: the model is told to call again."""
        return any(
            not isinstance(part, ReasoningPart) and not _is_blank(part) for part in self.content
        )

    @property
    def is_paused(self) -> bool:
        return self.finished is not None and self.finished.reason == "pause"


class KeepAnswer(Struct, frozen=True, kw_only=True):
    """Commit the answer."""


class EmptyAnswer(Struct, frozen=True, kw_only=True):
    """The answer has no content: the turn ends without a new message."""


class RejectAnswer(Struct, frozen=True, kw_only=True):
    """The answer is a failure, which must be reported and not end the turn silently."""

    failure: ClassifiedFailure


_REJECTED: Final[Mapping[str, FailureKind]] = {
    "content-filter": "content_filter",
    "refusal": "refusal",
}


def judge_answer(answer: Answer, provider: str) -> KeepAnswer | EmptyAnswer | RejectAnswer:
    """Visible content is kept for every finish reason."""
    reason = None if answer.finished is None else answer.finished.reason
    if not answer.has_visible_text and reason in _REJECTED:
        explanation = "" if answer.finished is None else answer.finished.explanation or ""
        detail = clip_detail(redact_urls(explanation))
        return RejectAnswer(failure=known_failure(_REJECTED[reason], provider, detail=detail))
    if reason == "length" and not answer.has_output:
        failure = known_failure("output_limit", provider, detail=_spent_output(answer))
        return RejectAnswer(failure=failure)
    if not answer.has_visible_text and reason == "error":
        return RejectAnswer(failure=_ended_in_error(provider))
    return EmptyAnswer() if all(_is_blank(part) for part in answer.content) else KeepAnswer()


def _spent_output(answer: Answer) -> str | None:
    """What the output limit was used for, if the provider told."""
    usage = answer.usage
    if usage is None or usage.output_tokens == 0:
        return None
    return f"{usage.output_tokens} output tokens, {usage.reasoning_tokens} of them for reasoning."


def _ended_in_error(provider: str) -> ClassifiedFailure:
    error = ChatError(
        message=known_failure("generic", provider).error.message,
        detail=_ENDED_IN_ERROR_TEXT,
        provider=provider or None,
        retryable=True,
    )
    return ClassifiedFailure(kind="generic", error=error)


def _is_blank(part: Part) -> bool:
    """Text and reasoning are blank without text and provider metadata; other parts never are."""
    match part:
        case TextPart() | ReasoningPart():
            return not part.text.strip() and is_empty_json(part.provider_metadata)
        case _:
            return False


_NO_SERVERS: Mapping[str, str] = {}


class ModelCallRecord(Struct, frozen=True, kw_only=True):
    """The facts of a model call. `id` identifies its usage entry. `runtime_ms` is the time from
    opening the stream to its end, of the successful attempt only and without tools. `learned` is
    what was known of the model's window by its refusals."""

    config: ModelConfig
    learned: LearnedLimit | None = None
    id: UUID | None = None
    reasoning_effort: str | None = None
    runtime_ms: int | None = None


def runtime_ms(opened: float, ended: float) -> int | None:
    """None below one millisecond. Both times are seconds of one clock."""
    return int((ended - opened) * 1000) or None


def answer_message(
    answer: Answer, call: ModelCallRecord, mcp_servers: Mapping[str, str] = _NO_SERVERS
) -> Draft:
    """The answer as one assistant message. `mcp_servers` maps tool names to MCP servers."""
    finished = answer.finished
    usage = _with_limit(answer, call)
    cost = cost_micros(usage, call.config.prices)
    if usage is not None and cost is None:
        usage = msgspec.structs.replace(usage, unpriced=True)
    return Draft(
        role="assistant",
        content=tuple(_with_mcp_server(part, mcp_servers) for part in answer.content),
        model_config_id=call.config.id,
        reasoning_effort=call.reasoning_effort,
        usage=usage,
        cost_micros=cost,
        runtime_ms=call.runtime_ms,
        provider_response_id=None if finished is None else finished.response_id,
        finish_reason=None if finished is None else finished.reason,
    )


def _with_limit(answer: Answer, call: ModelCallRecord) -> TokenUsage | None:
    """A learned window that this very answer refutes is not stored with it: the chat would count
    as full from then on."""
    usage = answer.usage
    if usage is None:
        return None
    metadata = UNSET if answer.finished is None else answer.finished.provider_metadata
    is_wrong = call.learned is not None and is_refuted(call.learned, usage)
    limit = effective_context_limit(metadata, None if is_wrong else call.config.context_limit)
    return msgspec.structs.replace(usage, context_limit=usage.context_limit or limit)


def _with_mcp_server(part: Part, mcp_servers: Mapping[str, str]) -> Part:
    if not isinstance(part, ToolCallPart) or part.tool_name not in mcp_servers:
        return part
    return msgspec.structs.replace(part, mcp_server_config_id=mcp_servers[part.tool_name])


def result_messages(
    answers: Sequence[AnsweredCall],
    context_limit: int | None,
    at: str | None = None,
    *,
    max_bytes: int = STEP_OUTPUT_BYTES,
) -> tuple[Draft, ...]:
    """One tool message per result, in the order of `answers`, cut to what a step may have."""
    fitted = fit_outputs(answers, context_limit, max_bytes)
    return tuple(result_message(answer, at) for answer in fitted)


def usage_entry(
    kind: CallKind,
    call: ModelCallRecord,
    usage: TokenUsage | None,
    *,
    ok: bool = True,
) -> UsageEntry:
    """Prices are stored with the entry: a later price change does not change recorded cost. A cost
    that the provider reported follows from no price."""
    is_reported = usage is not None and usage.provider_cost_micros is not None
    prices = None if is_reported else call.config.prices
    return UsageEntry(
        kind=kind,
        provider=call.config.provider,
        model=call.config.model,
        usage=usage or TokenUsage(),
        model_config_id=call.config.id,
        cost_micros=cost_micros(usage, prices),
        price=None if prices is None else Raw(msgspec.json.encode(prices)),
        runtime_ms=call.runtime_ms,
        ok=ok,
        call_id=call.id,
    )


class StartedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that was or will be sent: what another worker needs to record it if this one dies.
    Before the provider tells its usage, `usage` is an estimate of the input. The first
    `continued_bytes` of its live parts are of the call before it."""

    id: UUID
    kind: CallKind
    config: ModelConfig
    usage: TokenUsage
    continued_bytes: int = 0


def started_call(
    kind: CallKind,
    call_id: UUID,
    config: ModelConfig,
    usage: TokenUsage,
    *,
    continued_bytes: int = 0,
) -> StartedCall:
    """Without the model's options, which may contain keys."""
    stored = msgspec.structs.replace(config, options=UNSET)
    return StartedCall(
        id=call_id, kind=kind, config=stored, usage=usage, continued_bytes=continued_bytes
    )


def estimated_entry(call: StartedCall, output_tokens: int) -> UsageEntry:
    """The entry of a call that its worker could not record."""
    usage = complete_usage(
        call.usage,
        is_final=False,
        expected=call.usage,
        output_tokens=output_tokens,
    )
    record = ModelCallRecord(config=call.config, id=call.id)
    return usage_entry(call.kind, record, usage, ok=False)


def sort_by_call(
    calls: Iterable[ToolCallPart], answers: Iterable[AnsweredCall]
) -> list[AnsweredCall]:
    """Results in the order of the calls, not of their completion."""
    by_id = {answer.call_id: answer for answer in answers}
    return [by_id[call.tool_call_id] for call in calls if call.tool_call_id in by_id]
