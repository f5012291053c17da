"""Decides when a model call is retried and when a silent stream has timed out.

Pure decisions: the chat's row has the number of failures and the time of the retry, and the engine
closes the stream.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.backoff import doubled_s, spread
from chatd.domain.chat.row import RetryState
from chatd.domain.model.failures import ClassifiedFailure, known_failure
from chatd.domain.model.protocol import DEFAULT_MAX_OUTPUT_TOKENS, TransportFault

MAX_MODEL_CALL_ATTEMPTS: Final = 25
"""Attempts in a row at one step. Only an outage of the provider is waited out for longer."""
DEFAULT_OUTAGE_S: Final = 86400.0
"""How long a chat waits for a provider that is down, as the sum of its delays."""
FIRST_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 60.0
MAX_RETRY_AFTER_S: Final = 3600.0
"""A provider that asks for a longer wait is an error: a chat that waits for a day looks stuck."""

MAX_ATTEMPTS_NEVER_REACHED: Final[Mapping[TransportFault, int]] = {
    "refused": 6,
    "dns": 4,
    "unreachable": 3,
}
"""Attempts at a provider that has not answered since the process started. Most likely its address
is wrong, so the turn fails within a minute: an attempt may last 10 seconds, if the address does not
respond, and the waits are 1, 2, 4, 8 and 16 seconds."""


_CONTINUATION_REFUSALS: Final = frozenset({400, 404, 405, 422, 501})


class RetryAfter(Struct, frozen=True, kw_only=True):
    delay_s: float


class CompactFirst(Struct, frozen=True, kw_only=True):
    """The prompt is too long for the model: compact the chat, then call again."""


class GiveUp(Struct, frozen=True, kw_only=True):
    """The failure is permanent, or (`exhausted`) all attempts failed."""

    exhausted: bool


def backoff_s(failures: int) -> float:
    """1, 2, 4 ... 60 seconds after the first, second, third failure."""
    return doubled_s(failures, first_s=FIRST_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)


class OutageWait(Struct, frozen=True, kw_only=True):
    """How long a chat may wait for a provider that is down, and how long it has waited for its
    next step. `is_begun`: the failed call began its answer, which costs money each time."""

    limit_s: float = DEFAULT_OUTAGE_S
    waited_ms: int = 0
    is_begun: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_begun or self.waited_ms >= self.limit_s * 1000


def decide_retry(
    failed: ClassifiedFailure,
    failures: int,
    *,
    compactable: bool = False,
    jitter: float = 0.0,
    outage: OutageWait | None = None,
    is_own_awaited: bool = False,
) -> RetryAfter | CompactFirst | GiveUp:
    """Decide after failure number `failures`, counted from 1, of the chat's next step.

    `compactable`: there is an answer after the last summary, or the summary keeps messages. A
    prompt that overflows right after a summary leads to one more, which keeps nothing, and never to
    a third. With `outage`, a provider that is down is waited for beyond the usual number of
    attempts. `is_own_awaited`: a fallback failed, and the chat's own model may be back later.
    """
    if failed.kind == "context_overflow":
        return CompactFirst() if compactable else GiveUp(exhausted=False)
    if not failed.retryable and not is_own_awaited:
        return GiveUp(exhausted=False)
    requested_s = failed.retry_after_s or 0.0
    may_wait = outage is not None and is_outage(failed) and not outage.is_over
    is_last = failures >= MAX_MODEL_CALL_ATTEMPTS and not may_wait
    if is_last or _is_unreachable(failed, failures) or requested_s > MAX_RETRY_AFTER_S:
        return GiveUp(exhausted=True)
    delay_s = min(spread(backoff_s(failures), jitter), MAX_RETRY_DELAY_S)
    return RetryAfter(delay_s=max(delay_s, spread(requested_s, jitter)))


def is_outage(failed: ClassifiedFailure) -> bool:
    """Whether the provider is down or overloaded, rather than this request at fault."""
    match failed.kind:
        case "overloaded" | "timeout" | "rate_limit":
            return failed.retryable
        case "generic":
            return failed.retryable and (failed.error.status_code or 0) >= 500
        case _:
            return False


def is_continuation_refused(failed: ClassifiedFailure) -> bool:
    """Whether a provider refused a request because it continues an answer. Refusals for another
    reason that is known, such as the key or a full window, are no sign of it."""
    is_unexplained = failed.kind in ("generic", "config")
    return is_unexplained and failed.error.status_code in _CONTINUATION_REFUSALS


def _is_unreachable(failed: ClassifiedFailure, failures: int) -> bool:
    """A chat with more failures than any of the limits has waited since before this process
    started: an earlier process had an answer from this provider, so it is only down for a while."""
    limits = MAX_ATTEMPTS_NEVER_REACHED
    if failed.never_reached is None or failed.never_reached not in limits:
        return False
    return limits[failed.never_reached] <= failures <= max(limits.values())


def retry_state(
    failed: ClassifiedFailure, failures: int, delay_s: float, now: datetime
) -> RetryState:
    """What viewers see during the wait after failure number `failures`."""
    return RetryState(
        attempt=failures,
        delay_ms=round(delay_s * 1000),
        error=failed.error.message,
        kind=failed.error.kind,
        provider=failed.error.provider,
        status_code=failed.error.status_code,
        detail=failed.error.detail,
        retrying_at=now + timedelta(seconds=delay_s),
    )


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The wait that a provider requests. Header names are in lower case.

    `retry-after-ms` is more exact and comes first. A date is compared with the response's own Date,
    so that clock skew does not matter; `now` replaces a missing one. None for an invalid value or
    one in the past.
    """
    wait = _seconds(headers.get("retry-after-ms"))
    if wait is not None:
        return wait / 1000
    header = headers.get("retry-after")
    wait = _seconds(header)
    if wait is not None:
        return wait
    until, since = _date(header), _date(headers.get("date")) or now
    if until is None or since is None or until < since:
        return None
    return (until - since).total_seconds()


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _date(text: str | None) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


STREAM_IDLE_TIMEOUT_S: Final = 600.0
SLOWEST_ANSWER_TOKENS_PER_S: Final = 10.0
"""A model that writes more slowly is given up before it has used all its output tokens."""


STREAM_CONTENT_TIMEOUT_S: Final = 1800.0
"""How long a provider may send pings and nothing of an answer."""


class CallLimits(Struct, frozen=True, kw_only=True):
    """`silence_s`: how long a provider may send nothing, before the answer or within it.
    `content_s`: how long it may send only pings. `answer_s`: how long one call may take in all."""

    silence_s: float = STREAM_IDLE_TIMEOUT_S
    answer_s: float = (
        STREAM_IDLE_TIMEOUT_S + DEFAULT_MAX_OUTPUT_TOKENS / SLOWEST_ANSWER_TOKENS_PER_S
    )
    content_s: float = STREAM_CONTENT_TIMEOUT_S

    @staticmethod
    def of_model(
        max_output_tokens: int | None, silence_s: float, answer_s: float | None
    ) -> "CallLimits":
        """The longest answer has all output tokens, written slowly, after the longest silence."""
        tokens = max_output_tokens or DEFAULT_MAX_OUTPUT_TOKENS
        longest_s = silence_s + tokens / SLOWEST_ANSWER_TOKENS_PER_S
        return CallLimits(
            silence_s=silence_s,
            answer_s=answer_s or longest_s,
            content_s=max(silence_s, STREAM_CONTENT_TIMEOUT_S),
        )


class IdleTimeout(Struct, frozen=True, kw_only=True):
    """The idle timeout of a stream: armed when the call starts and by all bytes, pings included.

    It ends once, expired or released. After expiry every end of the stream, an error or a normal
    end, counts as idle timeout, because chatd closed the stream. Times are of one monotonic clock.
    """

    deadline: float
    limit_s: float = STREAM_IDLE_TIMEOUT_S
    settled: Literal["fired", "released"] | None = None

    @staticmethod
    def armed(at: float, limit_s: float = STREAM_IDLE_TIMEOUT_S) -> "IdleTimeout":
        return IdleTimeout(deadline=at + limit_s, limit_s=limit_s)

    def touched(self, at: float) -> "IdleTimeout":
        """An event arrived. No effect after expiry."""
        if self.settled is not None:
            return self
        return msgspec.structs.replace(self, deadline=at + self.limit_s)

    def checked(self, at: float) -> "IdleTimeout":
        """The timer fired. Expires unless an event has moved the deadline."""
        if self.settled is not None or at < self.deadline:
            return self
        return msgspec.structs.replace(self, settled="fired")

    def released(self) -> "IdleTimeout":
        """The reader is done, well or not. No effect after expiry."""
        if self.settled is not None:
            return self
        return msgspec.structs.replace(self, settled="released")

    @property
    def is_expired(self) -> bool:
        return self.settled == "fired"

    def wait_s(self, at: float) -> float:
        """How long the timer sleeps before the next check."""
        return max(self.deadline - at, 0.0)

    def failure(
        self, provider: str, otherwise: ClassifiedFailure | None
    ) -> ClassifiedFailure | None:
        """Why the stream ended: idle timeout if expired, else `otherwise`. None: it ended well."""
        return known_failure("stream_silence_timeout", provider) if self.is_expired else otherwise
