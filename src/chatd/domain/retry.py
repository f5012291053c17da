"""When to try a model call again. The attempt is counted in the chat's row."""

from typing import Final

from msgspec import Struct

from chatd.domain.classify import Classified

MAX_ATTEMPTS: Final = 25
FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 60.0


class RetryAfter(Struct, frozen=True, kw_only=True):
    delay_s: float


class GiveUp(Struct, frozen=True, kw_only=True):
    """What is wrong will not pass, or has not passed for too long."""

    exhausted: bool


def backoff_s(failures: int) -> float:
    """1, 2, 4 ... 60 seconds after the first, second, third failure."""
    return min(FIRST_DELAY_S * 2.0 ** min(failures - 1, 16), LONGEST_DELAY_S)


def decide_retry(failed: Classified, attempt: int) -> RetryAfter | GiveUp:
    """`attempt` is the one that has just failed, counted from 1."""
    if not failed.retryable:
        return GiveUp(exhausted=False)
    if attempt >= MAX_ATTEMPTS:
        return GiveUp(exhausted=True)
    return RetryAfter(delay_s=max(backoff_s(attempt), failed.retry_after_s or 0.0))
