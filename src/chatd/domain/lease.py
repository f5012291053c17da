"""The times of a lease, and which other workers a worker may reap given its own heartbeats.

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
