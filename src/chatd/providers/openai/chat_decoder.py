"""Decode the chunks of a completion into model events; finish reasons, usage and errors."""

from decimal import ROUND_CEILING, Decimal
from typing import Final, cast

from msgspec.structs import replace

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.protocol import Finished, FinishReason, ProviderFault, UsageReported
from chatd.providers.faults import (
    OpenAIError,
    incomplete_fault,
    openai_fault,
    read_error,
    unreadable_fault,
)
from chatd.providers.openai import chat_wire
from chatd.providers.openai.chat_answer import ChatAnswerBuilder
from chatd.providers.openai.chat_wire import Chunk
from chatd.providers.sse import DECODE_ERRORS, FramedDecoder, decode_event

_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
}
# Finish reasons that report a failure of the server.
_FAILED: Final[dict[str, str]] = {
    "error": "api_error",
    "insufficient_system_resource": "overloaded_error",
}


def convert_finish_reason(word: str, *, called: bool, refused: bool) -> FinishReason:
    reason = _REASONS.get(word.lower(), "other")
    if called and reason in ("stop", "other"):
        return "tool-calls"
    return "refusal" if refused and reason == "stop" else reason


def finish_fault(word: str) -> ProviderFault | None:
    kind = _FAILED.get(word.lower())
    return None if kind is None else ProviderFault(message=f"the answer ended: {word}", type=kind)


def convert_usage(usage: chat_wire.Usage) -> TokenUsage:
    """The prompt count includes cached tokens. Some servers count reasoning only in the total."""
    details = usage.prompt_tokens_details or chat_wire.PromptDetails()
    cached = _count(details.cached_tokens) or _count(usage.prompt_cache_hit_tokens)
    written = _count(details.cache_write_tokens)
    prompt = _count(usage.prompt_tokens)
    completion = _count(usage.completion_tokens)
    total = _count(usage.total_tokens)
    hidden = max(0, total - prompt - completion)
    output = usage.completion_tokens_details or chat_wire.CompletionDetails()
    return TokenUsage(
        input_tokens=max(0, prompt - cached - written),
        output_tokens=completion + hidden,
        total_tokens=total or prompt + completion,
        reasoning_tokens=max(_count(output.reasoning_tokens), hidden),
        cache_creation_tokens=written,
        cache_read_tokens=cached,
    )


def openrouter_cost_micros(usage: chat_wire.Usage) -> int | None:
    """OpenRouter's charge; with the user's own key also the vendor's. None if unknown."""
    if (cost := _usd(usage.cost)) is None:
        return None
    details: object = usage.cost_details
    if usage.is_byok is True and isinstance(details, dict):
        upstream = cast("dict[str, object]", details).get("upstream_inference_cost")
        cost += _usd(upstream) or 0
    return int((cost * 1_000_000).to_integral_value(rounding=ROUND_CEILING))


def _usd(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    usd = Decimal(str(value))
    return usd if usd.is_finite() and 0 <= usd < _MAX_COST_USD else None


def _count(value: int | None) -> int:
    return max(0, value or 0)


def chunk_fault(chunk: chat_wire.Chunk, data: bytes) -> ProviderFault:
    """The fault of a chunk that is an error by its content or its event name."""
    if chunk.error:
        return stated_fault(chunk.error, data)
    return stated_fault(OpenAIError(message=chunk.message, type=chunk.type, code=chunk.code), data)


def stated_fault(value: object, data: bytes) -> ProviderFault:
    error = value if isinstance(value, OpenAIError) else read_error(value)
    return openai_fault(error, data, default_message="the server reported an error")


_MAX_COST_USD: Final = 1_000_000
"""A larger cost of one call is a mistake."""
_DONE: Final = b"[DONE]"
_NO_ERROR: Final = (None, False, "")


class ChatDecoder(FramedDecoder):
    """Decodes the first choice of a completion. A finish reason completes it; `[DONE]` may be
    missing."""

    def __init__(self, answer: ChatAnswerBuilder, *, reports_cost: bool = False) -> None:
        """`reports_cost`: the server is OpenRouter, so that the cost in its usage is in USD."""
        super().__init__()
        self._answer = answer
        self._reports_cost = reports_cost
        self._out = answer.out
        self._id: str | None = None
        self._reason: str | None = None
        self._usage = TokenUsage()

    def _decode(self, name: bytes, data: bytes, *, is_last: bool = False) -> None:
        if data[:6] == _DONE:
            self._end()
            return
        try:
            chunk = decode_event(chat_wire.CHUNK, data)
            if chunk.error not in _NO_ERROR or chunk.object == "error" or name == b"error":
                self._fail(chunk_fault(chunk, data))
            else:
                self._chunk(chunk, data)
        except DECODE_ERRORS:
            if not is_last:
                self._fail(unreadable_fault(data))

    def _chunk(self, chunk: Chunk, data: bytes) -> None:
        if self._id is None and chunk.id:
            self._id = chunk.id
        self._report_usage(chunk.usage)
        for choice in chunk.choices or ():
            if choice.index != 0:
                continue
            if choice.error not in _NO_ERROR:
                self._fail(stated_fault(choice.error, data))
                return
            self._report_usage(choice.usage)
            if choice.delta is not None:
                self._answer.add(choice.delta)
            if choice.finish_reason:
                self._ended(choice.finish_reason)

    def _report_usage(self, reported: chat_wire.Usage | None) -> None:
        """Most servers tell it once at the end, some with every chunk."""
        if reported is None:
            return
        usage = convert_usage(reported)
        if self._reports_cost:
            usage = replace(usage, provider_cost_micros=openrouter_cost_micros(reported))
        if usage != self._usage:
            self._usage = usage
            self._out.append(UsageReported(usage=usage))

    def _ended(self, word: str) -> None:
        self._reason = word
        if (fault := finish_fault(word)) is not None:
            self._fail(fault)

    def _end(self) -> None:
        if self._reason is None:
            self._fail(incomplete_fault())
            return
        self.done = True
        self._answer.close()
        refusal = self._answer.refusal
        reason = convert_finish_reason(
            self._reason, called=self._answer.has_calls, refused=refusal is not None
        )
        self._out.append(
            Finished(
                reason=reason,
                usage=self._usage,
                response_id=self._id,
                explanation=refusal if reason == "refusal" else None,
            )
        )
