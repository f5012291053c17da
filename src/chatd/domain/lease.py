"""What a worker may do given the times of its heartbeats: start work, continue, reap other workers.

All times come from one monotonic clock. The database decides which workers are dead.
"""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

LEASE_TTL_S: Final = 30.0
"""Without a heartbeat for this long a worker has lost its chats."""
NO_NEW_WORK_AFTER_S: Final = 20.0
"""Without a heartbeat for this long a worker acquires nothing."""
MIN_HEARTBEATS_TO_REAP: Final = 3
"""Successful heartbeats in a row before a worker may reap."""
OWN_HEARTBEATS_TO_REAP_LOCKS_S: Final = 2.0
"""A worker reaps by a lost session lock after its own heartbeats have succeeded for this long."""
OWN_HEARTBEATS_TO_REAP_LEASES_S: Final = LEASE_TTL_S
"""A worker reaps by an expired lease after its own heartbeats have succeeded for this long."""
MAX_MISSED_HEARTBEATS: Final = 2
"""More intervals without success end an unbroken run of heartbeats."""

ReapScope = Literal["none", "locks", "leases"]
LeaseHealth = Literal["ok", "no_new_work", "cancel_runs"]


class HeartbeatHistory(Struct, frozen=True, kw_only=True):
    """The latest unbroken run of successful heartbeats."""

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
        """No heartbeat has succeeded yet, or the process was suspended for several intervals."""
        return self.count == 0 or now - self.last_at > MAX_MISSED_HEARTBEATS * self.interval_s


def may_reap(history: HeartbeatHistory, now: float) -> ReapScope:
    """Which dead workers this worker may reap.

    After a database outage every lease looks expired and every lock free until the other workers
    reconnect. So reap only after the database has answered for as long as they need: a moment to
    take their locks again, at most one lease to renew their leases.
    """
    if history.is_broken(now) or history.count < MIN_HEARTBEATS_TO_REAP:
        return "none"
    answered_s = history.last_at - history.first_at
    if answered_s >= OWN_HEARTBEATS_TO_REAP_LEASES_S:
        return "leases"
    return "locks" if answered_s >= OWN_HEARTBEATS_TO_REAP_LOCKS_S else "none"


def lease_health(last_success: float, now: float) -> LeaseHealth:
    """What the age of a lease allows. An ageing lease starts no work that could outlive it; after
    an expired one, another worker may own the chats."""
    age_s = now - last_success
    if age_s >= LEASE_TTL_S:
        return "cancel_runs"
    return "no_new_work" if age_s >= NO_NEW_WORK_AFTER_S else "ok"
