"""When to try a model call again. The attempt is counted in the chat's row.

Owns the decision and what viewers are told of the wait. Does not own waiting.

When a stream that says nothing is given up.

Owns the judgement; whoever reads the stream owns the timer and closes the socket. The guard is
armed when the stream is opened and again by every event. Exactly one of two things ends it: the
time runs out, or the reader lets go. Whatever the stream does after the time ran out, an error
or a quiet end, was our own doing and means silence.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.chat.row import RetryState
from chatd.domain.model.failures import ClassifiedFailure, known_failure

MAX_MODEL_CALL_ATTEMPTS: Final = 25
FIRST_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 60.0
MAX_RETRY_AFTER_S: Final = 3600.0
"""Whoever asks for more patience than this is told of as an error: a chat that holds a worker
for a day looks stuck."""


class RetryAfter(Struct, frozen=True, kw_only=True):
    delay_s: float


class CompactFirst(Struct, frozen=True, kw_only=True):
    """The prompt is too long for the model: summarize, and ask again with what is left."""


class GiveUp(Struct, frozen=True, kw_only=True):
    """What is wrong will not pass, or has not passed for too long."""

    exhausted: bool


def backoff_s(failures: int) -> float:
    """1, 2, 4 ... 60 seconds after the first, second, third failure."""
    return min(FIRST_RETRY_DELAY_S * 2.0 ** min(failures - 1, 16), MAX_RETRY_DELAY_S)


def decide_retry(
    failed: ClassifiedFailure, attempt: int, *, compactable: bool = False
) -> RetryAfter | CompactFirst | GiveUp:
    """`attempt` is the one that has just failed, counted from 1.

    `compactable`: an answer exists after the last summary. A prompt that overflows right after
    a summary has none, so one overflow leads to one summary and never to another.
    """
    if failed.kind == "context_overflow":
        return CompactFirst() if compactable else GiveUp(exhausted=False)
    if not failed.retryable:
        return GiveUp(exhausted=False)
    asked_s = failed.retry_after_s or 0.0
    if attempt >= MAX_MODEL_CALL_ATTEMPTS or asked_s > MAX_RETRY_AFTER_S:
        return GiveUp(exhausted=True)
    return RetryAfter(delay_s=max(backoff_s(attempt), asked_s))


def retry_state(
    failed: ClassifiedFailure, attempt: int, delay_s: float, now: datetime
) -> RetryState:
    """What viewers see of the wait after attempt number `attempt`."""
    return RetryState(
        attempt=attempt,
        delay_ms=round(delay_s * 1000),
        error=failed.error.message,
        kind=failed.error.kind,
        provider=failed.error.provider,
        status_code=failed.error.status_code,
        retrying_at=now + timedelta(seconds=delay_s),
    )


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """How long the other side asks us to wait. Names of headers are in lower case.

    The header in milliseconds is the more exact one and counts first. A date is compared with
    the answer's own Date, so that nobody's clock matters but theirs; `now` stands in for a
    missing one. What cannot be read, or lies in the past, asks for nothing.
    """
    wait = _seconds(headers.get("retry-after-ms"))
    if wait is not None:
        return wait / 1000
    said = headers.get("retry-after")
    wait = _seconds(said)
    if wait is not None:
        return wait
    until, since = _date(said), _date(headers.get("date")) or now
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


class IdleTimeout(Struct, frozen=True, kw_only=True):
    """Times are of one monotonic clock, in seconds."""

    deadline: float
    limit_s: float = STREAM_IDLE_TIMEOUT_S
    settled: Literal["fired", "released"] | None = None

    @staticmethod
    def armed(at: float, limit_s: float = STREAM_IDLE_TIMEOUT_S) -> "IdleTimeout":
        return IdleTimeout(deadline=at + limit_s, limit_s=limit_s)

    def touched(self, at: float) -> "IdleTimeout":
        """The stream is alive. Too late if the time had run out before."""
        if self.settled is not None:
            return self
        return msgspec.structs.replace(self, deadline=at + self.limit_s)

    def checked(self, at: float) -> "IdleTimeout":
        """The timer rings. It fires unless something was heard in between."""
        if self.settled is not None or at < self.deadline:
            return self
        return msgspec.structs.replace(self, settled="fired")

    def released(self) -> "IdleTimeout":
        """The reader is done, well or not. A guard that has fired stays fired."""
        if self.settled is not None:
            return self
        return msgspec.structs.replace(self, settled="released")

    @property
    def is_expired(self) -> bool:
        return self.settled == "fired"

    def wait_s(self, at: float) -> float:
        """How long the timer sleeps before it looks again."""
        return max(self.deadline - at, 0.0)

    def failure(
        self, provider: str, otherwise: ClassifiedFailure | None
    ) -> ClassifiedFailure | None:
        """What ended the stream: silence if the guard fired, else what the stream said itself.
        None: it ended well."""
        return known_failure("stream_silence_timeout", provider) if self.is_expired else otherwise
