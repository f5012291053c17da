"""Finish reasons, usage and errors of Gemini."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import structs

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.protocol import FinishReason, ProviderFault, StreamFailed
from chatd.providers.gemini.wire import (
    ERROR_BODY,
    Error,
    ErrorBody,
    PromptFeedback,
    SafetyRating,
    UsageMetadata,
)

_REASONS: Final[dict[str, FinishReason]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content-filter",
    "RECITATION": "content-filter",
    "LANGUAGE": "content-filter",
    "BLOCKLIST": "content-filter",
    "PROHIBITED_CONTENT": "content-filter",
    "SPII": "content-filter",
    "IMAGE_SAFETY": "content-filter",
    "IMAGE_PROHIBITED_CONTENT": "content-filter",
    "IMAGE_RECITATION": "content-filter",
    "MODEL_ARMOR": "content-filter",
    "JAILBREAK": "content-filter",
    "OTHER": "other",
    "FINISH_REASON_UNSPECIFIED": "unknown",
    "MALFORMED_FUNCTION_CALL": "error",
    "MALFORMED_RESPONSE": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
}

_MALFORMED_CALLS: Final = frozenset(
    {"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"}
)

_EXPLANATIONS: Final[dict[str, str]] = {
    "SAFETY": "The answer was stopped by a safety filter",
    "RECITATION": "The answer was stopped because it repeats a known source",
    "LANGUAGE": "The answer was stopped because its language is not supported",
    "BLOCKLIST": "The answer was stopped because it has a forbidden term in it",
    "PROHIBITED_CONTENT": "The answer was stopped because its content is prohibited",
    "SPII": "The answer was stopped because it may reveal personal information",
    "MALFORMED_FUNCTION_CALL": "The model made a tool call that cannot be read",
    "MALFORMED_RESPONSE": "The model made an answer that cannot be read",
    "UNEXPECTED_TOOL_CALL": "The model called a tool that it was not given",
    "TOO_MANY_TOOL_CALLS": "The model called too many tools in a row",
}


def convert_finish_reason(word: str, *, called: bool) -> FinishReason:
    """`called`: chatd must answer a call. An unknown reason is `other`."""
    reason = _REASONS.get(word.upper(), "other")
    return "tool-calls" if called and reason in ("stop", "unknown") else reason


def explain_finish(
    word: str, message: str | None, ratings: Iterable[SafetyRating] | None
) -> str | None:
    """Why the answer stopped, for users; None after a normal end."""
    if _REASONS.get(word.upper(), "other") in ("stop", "length"):
        return None
    why = message or _EXPLANATIONS.get(word.upper()) or f"The answer was stopped: {word}"
    return _with_categories(why, ratings)


def block_reason_text(feedback: PromptFeedback) -> str:
    why = feedback.block_reason_message or (
        f"The prompt was refused: {feedback.block_reason or 'no reason given'}"
    )
    return _with_categories(why, feedback.safety_ratings)


def _with_categories(why: str, ratings: Iterable[SafetyRating] | None) -> str:
    names = [
        rating.category.removeprefix("HARM_CATEGORY_").replace("_", " ").lower()
        for rating in ratings or ()
        if rating.blocked and rating.category
    ]
    why = why.strip().rstrip(".")
    return f"{why} ({', '.join(names)})." if names else f"{why}."


def is_malformed_call(word: str) -> bool:
    """The model failed to write a tool call. The text before it is not an answer, and a retry
    mostly succeeds."""
    return word.upper() in _MALFORMED_CALLS


def unusable_answer(word: str, why: str | None) -> StreamFailed:
    """The model ended without usable content."""
    return StreamFailed(
        fault=ProviderFault(message=why or f"the answer ended with {word}", type=word.lower())
    )


# Usage


def merge_usage(old: UsageMetadata, new: UsageMetadata) -> UsageMetadata:
    """Each chunk has the counts so far and omits unchanged ones."""
    return UsageMetadata(
        prompt_token_count=_newer(old.prompt_token_count, new.prompt_token_count),
        cached_content_token_count=_newer(
            old.cached_content_token_count, new.cached_content_token_count
        ),
        candidates_token_count=_newer(old.candidates_token_count, new.candidates_token_count),
        thoughts_token_count=_newer(old.thoughts_token_count, new.thoughts_token_count),
        tool_use_prompt_token_count=_newer(
            old.tool_use_prompt_token_count, new.tool_use_prompt_token_count
        ),
        total_token_count=_newer(old.total_token_count, new.total_token_count),
    )


def _newer(old: int | None, new: int | None) -> int | None:
    return old if new is None else new


def convert_usage(counts: UsageMetadata) -> TokenUsage:
    """Google's prompt count includes cached tokens. Thoughts are not in the output count, and input
    of provider-executed tools is not in the prompt count."""
    cached = _count(counts.cached_content_token_count)
    prompt = max(_count(counts.prompt_token_count), cached)
    tool_input = _count(counts.tool_use_prompt_token_count)
    read = prompt - cached + tool_input
    thoughts = _count(counts.thoughts_token_count)
    output = _count(counts.candidates_token_count) + thoughts
    return TokenUsage(
        input_tokens=read,
        output_tokens=output,
        total_tokens=_count(counts.total_token_count) or read + cached + output,
        reasoning_tokens=thoughts,
        cache_read_tokens=cached,
        # Search results are read once and do not stay in the context.
        context_tokens=prompt if tool_input else None,
    )


def _count(value: int | None) -> int:
    return max(0, value or 0)


# Errors

_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


def gemini_fault(error: Error, body: str | None = None) -> ProviderFault:
    """The retry delay and the mark of an invalid key are in the error's details."""
    details = error.details or ()
    reasons = [detail.reason for detail in details if detail.reason]
    key = next((reason for reason in reasons if reason.startswith("API_KEY_")), None)
    return ProviderFault(
        message=error.message or f"status {error.code or error.status or 'unknown'}",
        status_code=error.code if error.code and 100 <= error.code < 600 else None,
        type=key or error.status,
        body=body,
        retry_after_s=_retry_after(error),
    )


def _retry_after(error: Error) -> float | None:
    for detail in error.details or ():
        if match := _DELAY.fullmatch(detail.retry_delay or ""):
            return float(match[1])
    return None


def refine_fault(fault: ProviderFault) -> ProviderFault:
    """Add the facts of Google's error body to the fault of a rejected request."""
    if fault.body is None or fault.status_code is None:
        return fault
    error = _error_in(fault.body)
    if error is None:
        return fault
    found = gemini_fault(error)
    return structs.replace(
        fault,
        message=found.message if error.message else fault.message,
        type=found.type or fault.type,
        retry_after_s=fault.retry_after_s if found.retry_after_s is None else found.retry_after_s,
        body=_unwrapped(fault.body),
    )


def _error_in(body: str) -> Error | None:
    try:
        decoded = ERROR_BODY.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if isinstance(decoded, ErrorBody):
        return decoded.error
    return decoded[0].error if decoded else None


def _unwrapped(body: str) -> str:
    text = body.strip()
    return text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text
