"""When another model answers in place of a chat's own, which one, and what the chat is told.

A model names its fallbacks in order, each for some reasons. The choice is in the chat's row
(`Setbacks.fallback`), written before the fallback is called: after a crash the next worker goes on
with the same model. Only the fallbacks of the chat's own model count, never those of a fallback,
and each is tried once in a round, so that there is no loop.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from chatd.domain.chat.messages import Draft, Message, NoticeCode, notice_draft
from chatd.domain.chat.parts import FilePart, NoticePart
from chatd.domain.chat.row import ChosenFallback, Setbacks
from chatd.domain.model.failures import ClassifiedFailure
from chatd.domain.model.protocol import AcceptedFiles, Fallback, FallbackReason, ModelConfig

MAX_FALLBACKS: Final = 5
FAILURES_BEFORE_FALLBACK: Final = 2
"""A provider that is down or overloaded gets one more call, because another model costs the prompt
cache and answers differently."""
MAX_AWAITED_S: Final = 10.0
"""A provider that asks for a longer wait gets no second call before the fallback."""
FALLBACK_STAY_S: Final = 300.0
"""How long a fallback answers before the chat's own model is tried again: about as long as most
providers cache a prompt."""


def fallback_reason(failed: ClassifiedFailure) -> FallbackReason | None:
    """Why another model may answer. None: it would not help, or the failure is chatd's own."""
    match failed.kind:
        case "missing_key" | "provider_disabled" | "config":
            # Often found before a call, and so without the name of a provider.
            return "access"
        case _ if failed.error.provider is None:
            return None
        case "overloaded" | "rate_limit":
            return "overload"
        case "timeout" | "stream_silence_timeout":
            return "outage"
        case "generic":
            return "outage" if failed.retryable else None
        case "auth" | "usage_limit":
            return "access"
        case "content_filter" | "refusal":
            return "refusal"
        case "context_overflow":
            return "context"
        case _:
            return None


def needs_fallback(
    failed: ClassifiedFailure, setbacks: Setbacks, *, is_called: bool = True
) -> FallbackReason | None:
    """The reason for a fallback after a failure that `setbacks` does not count yet. Without
    `is_called` no call was made, because the provider fails for all chats. A chat that has fallen
    back before needs no second call to its own model."""
    reason = fallback_reason(failed)
    if reason not in ("outage", "overload") or not is_called or setbacks.fallback is not None:
        return reason
    is_soon = (failed.retry_after_s or 0.0) <= MAX_AWAITED_S
    is_first = setbacks.failed_calls + 1 < FAILURES_BEFORE_FALLBACK
    return None if is_soon and is_first else reason


class PromptNeeds(Struct, frozen=True, kw_only=True):
    """What a model must be able to take: the size of the prompt, 0 if unknown, and the media types
    of its files."""

    tokens: int = 0
    media_types: frozenset[str] = frozenset()

    @staticmethod
    def of(history: Sequence[Message], tokens: int) -> "PromptNeeds":
        """`history` are the rows of the prompt."""
        files = (part for row in history for part in row.content if isinstance(part, FilePart))
        kinds = (part.media_type for part in files)
        sent = (kind for kind in kinds if kind.startswith("image/") or kind == "application/pdf")
        return PromptNeeds(tokens=tokens, media_types=frozenset(sent))


def fallback_objection(
    candidate: ModelConfig,
    files: AcceptedFiles,
    needs: PromptNeeds,
    reason: FallbackReason,
    own: ModelConfig,
) -> str | None:
    """Why the model cannot answer this prompt, for the log. After an overflow its window must be
    known to be larger."""
    limit = candidate.context_limit
    if reason == "context" and (limit is None or limit <= max(own.context_limit or 0, 1)):
        return "context window not known to be larger"
    if limit is not None and needs.tokens >= limit:
        return "context window too small"
    if any(not files.takes(kind) for kind in needs.media_types):
        return "cannot read the files of the chat"
    return None


def fits_reason(fallback: Fallback, reason: FallbackReason, setbacks: Setbacks) -> bool:
    """Whether it is for this reason, or for the one for which the chat's own model failed."""
    first = None if setbacks.fallback is None else setbacks.fallback.reason
    return reason in fallback.on or first in fallback.on


def is_fallback_due(
    chosen: ChosenFallback, setbacks: Setbacks, own: ModelConfig, tokens: int, now: datetime
) -> bool:
    """Whether the fallback of the row answers the next step. Within a step it does until it has
    failed itself; then for some minutes, and as long as the chat is too long for its own model."""
    if own.id in setbacks.failed_models:
        return chosen.model_config_id not in setbacks.failed_models
    if own.context_limit is not None and tokens >= own.context_limit:
        return True
    return now - chosen.since < timedelta(seconds=FALLBACK_STAY_S)


_TEXTS: Final[dict[str, str]] = {
    "overload": "{own} is overloaded",
    "outage": "{own} does not answer",
    "access": "{own} cannot be used now",
    "refusal": "{own} refused to answer",
    "context": "The chat is too long for {own}",
}


def fallback_text(own: str, fallback: str, reason: str) -> str:
    return f"{_TEXTS.get(reason, '{own} failed').format(own=own)}; {fallback} answers."


def fallback_notice(
    history: Sequence[Message], chosen: ChosenFallback | None, own: ModelConfig, now: ModelConfig
) -> Draft | None:
    """The notice, given once, that `now` answers in place of `own`, or that `own` answers again."""
    if chosen is None:
        return None
    told = _last_notice(history)
    if now.id != own.id:
        pair = {"own_model_config_id": str(own.id), "model_config_id": str(now.id)}
        if (
            told is not None
            and told.code == "model_fallback"
            and pair.items() <= told.detail.items()
        ):
            return None
        text = fallback_text(own.name, now.name, chosen.reason)
        return notice_draft("model_fallback", text, {**pair, "reason": chosen.reason})
    if told is None or told.code != "model_fallback":
        return None
    detail = {"model_config_id": str(own.id)}
    return notice_draft("model_recovered", f"{own.name} answers again.", detail)


_CODES: Final[tuple[NoticeCode, ...]] = ("model_fallback", "model_recovered")


def _last_notice(history: Sequence[Message]) -> NoticePart | None:
    for row in reversed(history):
        if row.is_notice and not row.deleted:
            for part in row.content:
                if isinstance(part, NoticePart) and part.code in _CODES:
                    return part
    return None


def check_fallbacks(name: str, given: Sequence[Fallback]) -> str | None:
    """What is wrong with the fallbacks of the model `name`, for its administrator."""
    names = [fallback.model for fallback in given]
    if len(names) > MAX_FALLBACKS:
        return f"a model has at most {MAX_FALLBACKS} fallbacks"
    if name in names:
        return "a model cannot be its own fallback"
    if len(set(names)) < len(names):
        return "each model may be named once"
    if any(not fallback.on for fallback in given):
        return "`on` names at least one reason; leave it out for all"
    return None
