"""When to try a model call again. The attempt is counted in the chat's row.

Owns the decision and what viewers are told of the wait. Does not own waiting.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

from chatd.domain.chat import RetryState
from chatd.domain.failures import Classified

MAX_ATTEMPTS: Final = 25
FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 60.0
LONGEST_WAIT_S: Final = 3600.0
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
    return min(FIRST_DELAY_S * 2.0 ** min(failures - 1, 16), LONGEST_DELAY_S)


def decide_retry(
    failed: Classified, attempt: int, *, compactable: bool = False
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
    if attempt >= MAX_ATTEMPTS or asked_s > LONGEST_WAIT_S:
        return GiveUp(exhausted=True)
    return RetryAfter(delay_s=max(backoff_s(attempt), asked_s))


def retry_state(failed: Classified, attempt: int, delay_s: float, now: datetime) -> RetryState:
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
