"""Token buckets: so many events a minute, with a burst of one minute's worth."""

import math

from msgspec import Struct


class Bucket(Struct, frozen=True):
    """`level` events were left at the time `at`, in seconds of any steady clock."""

    level: float
    at: float


def take(bucket: Bucket | None, per_minute: float, now: float) -> tuple[Bucket, float]:
    """The bucket after one event, and 0; or the bucket unchanged in its level, and the seconds
    after which an event is allowed again. None is a full bucket."""
    level = per_minute
    if bucket is not None:
        refilled = bucket.level + max(now - bucket.at, 0.0) * per_minute / 60
        level = min(per_minute, refilled)
    if level >= 1:
        return Bucket(level - 1, now), 0.0
    return Bucket(level, now), (1 - level) * 60 / per_minute


def is_full(bucket: Bucket, per_minute: float, now: float) -> bool:
    """Then it need not be kept."""
    return bucket.level + (now - bucket.at) * per_minute / 60 >= per_minute


def retry_after(seconds: float) -> int:
    """The value of a Retry-After header: whole seconds, at least 1."""
    return max(1, math.ceil(seconds))
