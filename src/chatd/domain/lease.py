"""How far a worker may trust its own lease, and when it may act on another's death.

A worker renews its lease by a tick. Owns the judgement over the times of those ticks, all
taken from one monotonic clock. Does not own the tick, nor who is dead: the database says that.
"""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

LEASE_TTL_S: Final = 30.0
NO_NEW_WORK_AFTER_S: Final = 20.0
MIN_HEARTBEATS_TO_REAP: Final = 3
REAP_LOCK_GONE_AFTER_S: Final = 2.0
REAP_LEASE_STALE_AFTER_S: Final = LEASE_TTL_S
MAX_MISSED_HEARTBEATS: Final = 2

ReapScope = Literal["none", "locks", "leases"]
LeaseHealth = Literal["ok", "no_new_work", "cancel_runs"]


class HeartbeatHistory(Struct, frozen=True, kw_only=True):
    """The latest unbroken run of successful ticks."""

    interval_s: float
    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0

    def succeeded(self, now: float) -> "HeartbeatHistory":
        if self.is_broken(now):
            return replace(self, count=1, first_at=now, last_at=now)
        return replace(self, count=self.count + 1, last_at=now)

    def failed(self) -> "HeartbeatHistory":
        return HeartbeatHistory(interval_s=self.interval_s)

    def is_broken(self, now: float) -> bool:
        """Nothing ran yet, or the process stood still for longer than a slow tick explains."""
        return self.count == 0 or now - self.last_at > MAX_MISSED_HEARTBEATS * self.interval_s


def may_reap(history: HeartbeatHistory, now: float) -> ReapScope:
    """Whose death this worker may act on.

    After a database outage every lease looks expired and every lock free until the others
    have come back. So first see the database answer for as long as they need for that: to
    take their locks again, a moment; to renew a lease, at most the length of one.
    """
    if history.is_broken(now) or history.count < MIN_HEARTBEATS_TO_REAP:
        return "none"
    seen_s = history.last_at - history.first_at
    if seen_s >= REAP_LEASE_STALE_AFTER_S:
        return "leases"
    return "locks" if seen_s >= REAP_LOCK_GONE_AFTER_S else "none"


def lease_health(last_success: float, now: float) -> LeaseHealth:
    """What an unrenewed lease still allows. Work that would outlive it is not begun; when it
    has run out, another worker may own the chats already."""
    age_s = now - last_success
    if age_s >= LEASE_TTL_S:
        return "cancel_runs"
    return "no_new_work" if age_s >= NO_NEW_WORK_AFTER_S else "ok"
