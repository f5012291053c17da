"""One model call's contribution to history, and whether it is worth keeping.

What a model call leaves behind: a message in history, and an entry in the books.

Owns the conversion of an answer to rows. Does not own their commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from chatd.domain.answer.tool_output import AnsweredCall, fit_outputs, result_message
from chatd.domain.chat.messages import Draft, TokenUsage, UsageEntry
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart, ToolCallPart
from chatd.domain.chat.row import ChatError
from chatd.domain.model.config import cost_micros, effective_context_limit
from chatd.domain.model.failures import ClassifiedFailure, clip_detail, known_failure, redact_urls
from chatd.domain.model.protocol import Finished, ModelConfig
from chatd.domain.text import is_empty_json

_BROKE_OFF: Final = "The provider says that its answer ended in an error."


class Answer(Struct, frozen=True, kw_only=True):
    content: tuple[Part, ...]
    finished: Finished | None = None

    @property
    def usage(self) -> TokenUsage | None:
        return None if self.finished is None else self.finished.usage

    @property
    def has_visible_text(self) -> bool:
        """Anything a person or a tool could act on; reasoning alone is not an answer."""
        return any(
            not isinstance(part, ReasoningPart) and not _blank(part) for part in self.content
        )


class KeepAnswer(Struct, frozen=True, kw_only=True):
    """Commit it."""


class EmptyAnswer(Struct, frozen=True, kw_only=True):
    """The model had nothing to say: the turn ends, and no message is added."""


class RejectAnswer(Struct, frozen=True, kw_only=True):
    """Not an answer but a failure, which must not end the turn in silence."""

    failure: ClassifiedFailure


def judge_answer(answer: Answer, provider: str) -> KeepAnswer | EmptyAnswer | RejectAnswer:
    """What was visibly said is kept, however the model came to stop."""
    reason = None if answer.finished is None else answer.finished.reason
    if not answer.has_visible_text and reason == "content-filter":
        said = "" if answer.finished is None else answer.finished.explanation or ""
        detail = clip_detail(redact_urls(said))
        return RejectAnswer(failure=known_failure("content_filter", provider, detail=detail))
    if not answer.has_visible_text and reason == "error":
        return RejectAnswer(failure=_broken_off(provider))
    return EmptyAnswer() if all(_blank(part) for part in answer.content) else KeepAnswer()


def _broken_off(provider: str) -> ClassifiedFailure:
    error = ChatError(
        message=known_failure("generic", provider).error.message,
        detail=_BROKE_OFF,
        provider=provider or None,
        retryable=True,
    )
    return ClassifiedFailure(kind="generic", error=error)


def _blank(part: Part) -> bool:
    """Of a text or a thought that is blank, only what the vendor attached to it can matter."""
    match part:
        case TextPart() | ReasoningPart():
            return not part.text.strip() and is_empty_json(part.provider_metadata)
        case _:
            return False


_NO_SERVERS: Mapping[str, str] = {}


class ModelCallRecord(Struct, frozen=True, kw_only=True):
    """A model call as it was made. `runtime_ms` is the time from opening the stream to its
    end, of the attempt that counts: neither tools nor failed attempts are in it."""

    config: ModelConfig
    reasoning_effort: str | None = None
    runtime_ms: int | None = None


def runtime_ms(opened: float, ended: float) -> int | None:
    """Less than a millisecond is as good as unknown. Times are in seconds, of one clock."""
    return int((ended - opened) * 1000) or None


def answer_message(
    answer: Answer, call: ModelCallRecord, mcp_servers: Mapping[str, str] = _NO_SERVERS
) -> Draft:
    """The answer as one assistant message. `mcp_servers` says whose tool a name is.

    Without a `finished` the answer was interrupted: nobody knows its usage.
    """
    done = answer.finished
    usage = _with_limit(answer, call.config)
    return Draft(
        role="assistant",
        content=tuple(_stamped(part, mcp_servers) for part in answer.content),
        model_config_id=call.config.id,
        reasoning_effort=call.reasoning_effort,
        usage=usage,
        cost_micros=cost_micros(usage, call.config.prices),
        runtime_ms=call.runtime_ms,
        provider_response_id=None if done is None else done.response_id,
    )


def _with_limit(answer: Answer, config: ModelConfig) -> TokenUsage | None:
    if answer.finished is None:
        return None
    limit = effective_context_limit(answer.finished.provider_metadata, config.context_limit)
    usage = answer.finished.usage
    return msgspec.structs.replace(usage, context_limit=usage.context_limit or limit)


def _stamped(part: Part, mcp_servers: Mapping[str, str]) -> Part:
    if not isinstance(part, ToolCallPart) or part.tool_name not in mcp_servers:
        return part
    return msgspec.structs.replace(part, mcp_server_config_id=mcp_servers[part.tool_name])


def result_messages(
    answers: Sequence[AnsweredCall], context_limit: int | None, at: str | None = None
) -> tuple[Draft, ...]:
    """One tool message per result, in the order of the calls, within what the context bears."""
    return tuple(result_message(answer, at) for answer in fit_outputs(answers, context_limit))


def usage_entry(
    kind: Literal["turn", "compaction", "title", "summary"],
    call: ModelCallRecord,
    usage: TokenUsage | None,
    *,
    ok: bool = True,
) -> UsageEntry:
    """The prices go with it: a later change of prices does not change what was spent."""
    prices = call.config.prices
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
    )


def sort_by_call(
    calls: Iterable[ToolCallPart], answers: Iterable[AnsweredCall]
) -> list[AnsweredCall]:
    """Results as the model asked for them, whoever was done first."""
    by_id = {answer.call_id: answer for answer in answers}
    return [by_id[call.tool_call_id] for call in calls if call.tool_call_id in by_id]
