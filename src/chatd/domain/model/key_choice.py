"""Which of a provider's keys a call uses.

Keys are used in their order. A key that the provider refused or limited rests for a while, and the
same call goes on with the next key. If all keys rest, the one that has rested longest relative to
its time is tried.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from chatd.domain.model.failures import ClassifiedFailure

REFUSED_KEY_REST_S: Final = 300.0
"""The provider does not accept the key, or its account has no credit left."""
LIMITED_KEY_REST_S: Final = 30.0
"""The provider limits the key's rate and has not said for how long."""
MAX_KEY_REST_S: Final = 900.0


def rest_time_s(failure: ClassifiedFailure) -> float | None:
    """How long the key rests. None: another key would fail too."""
    match failure.kind:
        case "auth" | "usage_limit":
            return REFUSED_KEY_REST_S
        case "rate_limit":
            told = failure.retry_after_s
            return min(LIMITED_KEY_REST_S if told is None else told, MAX_KEY_REST_S)
        case _:
            return None


def order_keys(keys: Sequence[UUID], rests_until: Mapping[UUID, float], now: float) -> list[UUID]:
    """Rested keys in their order, then the resting ones, the soonest first."""
    return sorted(keys, key=lambda key: max(rests_until.get(key, now), now))
