"""How a completion ends, and how it fails: many servers' words into ours."""

from typing import Final

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.protocol import FinishReason, ProviderFault
from chatd.providers.openai_chat import wire
from chatd.providers.openai_errors import Error, error_fault, error_of

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
# Ends that are none: the server gave up.
_FAILED: Final[dict[str, str]] = {
    "error": "api_error",
    "insufficient_system_resource": "overloaded_error",
}


def finish_reason(word: str, *, called: bool, refused: bool) -> FinishReason:
    reason = _REASONS.get(word.lower(), "other")
    if called and reason in ("stop", "other"):
        return "tool-calls"
    return "content-filter" if refused and reason == "stop" else reason


def failed_finish(word: str) -> ProviderFault | None:
    kind = _FAILED.get(word.lower())
    return None if kind is None else ProviderFault(message=f"the answer ended: {word}", type=kind)


def usage_of(usage: wire.Usage) -> TokenUsage:
    """The prompt's count includes the cache. Some leave thoughts out of the completion's count
    and only show them in the total."""
    details = usage.prompt_tokens_details or wire.PromptDetails()
    cached = _count(details.cached_tokens) or _count(usage.prompt_cache_hit_tokens)
    written = _count(details.cache_write_tokens)
    prompt = _count(usage.prompt_tokens)
    completion = _count(usage.completion_tokens)
    total = _count(usage.total_tokens)
    hidden = max(0, total - prompt - completion)
    thought = usage.completion_tokens_details or wire.CompletionDetails()
    return TokenUsage(
        input_tokens=max(0, prompt - cached - written),
        output_tokens=completion + hidden,
        total_tokens=total or prompt + completion,
        reasoning_tokens=max(_count(thought.reasoning_tokens), hidden),
        cache_creation_tokens=written,
        cache_read_tokens=cached,
    )


def _count(value: int | None) -> int:
    return max(0, value or 0)


def chunk_fault(chunk: wire.Chunk, data: bytes) -> ProviderFault:
    """Of a chunk that is an error, if only by the name of its event."""
    if chunk.error:
        return said_fault(chunk.error, data)
    return said_fault(Error(message=chunk.message, type=chunk.type, code=chunk.code), data)


def said_fault(said: object, data: bytes) -> ProviderFault:
    error = said if isinstance(said, Error) else error_of(said)
    return error_fault(error, data, otherwise="the server reported an error")
