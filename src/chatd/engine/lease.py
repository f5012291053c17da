"""This worker's lease, and the heartbeats that renew it.

`domain.lease` decides when other workers may be reaped.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from chatd.domain.chat.lease import (
    LEASE_TTL_S,
    HeartbeatHistory,
    LeaseHealth,
    SeenWorker,
    WorkerObservations,
    lease_health,
    may_reap,
)
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock, Env
from chatd.store.chat import workers
from chatd.store.conn import Conn

HEARTBEAT_TIMEOUT_S: Final = 5.0
"""After this the worker opens a new session, which may reach the database again."""
CATCH_UP_HEARTBEAT_INTERVAL_S: Final = 0.25


class WorkerLease:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed_at: float | None = None
        self._renewed = asyncio.Event()
        self.error_kind: str | None = None
        """Why the latest heartbeat failed; None if it succeeded."""

    @property
    def health(self) -> LeaseHealth:
        if self._renewed_at is None:
            return "no_new_work"
        return lease_health(self._renewed_at, self._clock.monotonic())

    @property
    def age_s(self) -> float | None:
        """Time since the last renewal; None before the first."""
        if self._renewed_at is None:
            return None
        return self._clock.monotonic() - self._renewed_at

    def renew(self, sent_at: float) -> None:
        """Counted from when the statement was sent: the database may have run it right then."""
        self._renewed_at = sent_at
        self.error_kind = None
        self._renewed.set()

    async def wait_healthy(self) -> None:
        """Return when new work may start."""
        while self.health != "ok":
            self._renewed.clear()
            await self._renewed.wait()

    async def wait_expired(self) -> None:
        """Return when another worker may own this worker's chats."""
        while self._renewed_at is None:
            self._renewed.clear()
            await self._renewed.wait()
        while self.health != "cancel_runs":
            remaining_s = self._renewed_at + LEASE_TTL_S - self._clock.monotonic()
            await self._clock.sleep(max(remaining_s, 0.0), "lease")


class HeartbeatLoop:
    """`running` gives the chats that run here, with their epochs. `listening` is set while the
    session with this worker's lock is open; other replicas take a missing lock for its death."""

    def __init__(
        self,
        me: workers.WorkerDescription,
        conn: Conn,
        env: Env,
        lease: WorkerLease,
        *,
        interval_s: float,
        listening: asyncio.Event,
        running: Callable[[], Mapping[ChatId, int]],
        on_heartbeat: Callable[[workers.HeartbeatResult], None],
    ) -> None:
        self._me = me
        self._conn = conn
        self._env = env
        self._lease = lease
        self._interval_s = interval_s
        self._listening = listening
        self._running = running
        self._on_heartbeat = on_heartbeat
        self._observations = WorkerObservations(history=HeartbeatHistory(interval_s=interval_s))
        self._judged: tuple[SeenWorker, ...] = ()
        self._failures = 0
        self.draining = False

    async def run(self) -> None:
        """Starts when the lock is held: without it a registered worker would look dead."""
        await self._listening.wait()
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
                    await self._send()
            except (Unavailable, TimeoutError) as error:
                self._observations = self._observations.failed()
                self._failures += 1
                kind = error.code if isinstance(error, Unavailable) else "timeout"
                self._lease.error_kind = kind
                self._env.emit("heartbeat_failed", error_kind=kind, failures=self._failures)
            else:
                if self._failures:
                    self._env.emit("database_recovered", failed_ticks=self._failures)
                self._failures = 0
            await self._env.clock.sleep(self._delay_s(), "heartbeat")

    def _delay_s(self) -> float:
        """Short until this worker may reap: after a restart no other replica may be there to take
        over the chats that ran. Short too while a worker without its lock is to be judged."""
        observations = self._observations
        may_not_reap = may_reap(observations.history, self._env.clock.monotonic()) == "none"
        if may_not_reap or observations.has_suspects(self._judged):
            return min(self._interval_s, CATCH_UP_HEARTBEAT_INTERVAL_S)
        return self._interval_s

    async def _send(self) -> None:
        sent_at = self._env.clock.monotonic()
        observed = self._observations
        self._judged = observed.dead(sent_at)
        heartbeat = workers.Heartbeat(
            worker_id=self._me.worker_id,
            description=self._me,
            running=self._running(),
            dead=self._judged,
            draining=self.draining,
            lease_s=LEASE_TTL_S,
        )
        result = await workers.send_heartbeat(self._conn, heartbeat)
        self._observations = self._observations.succeeded(
            result.others, sent_at=sent_at, now=self._env.clock.monotonic()
        )
        self._lease.renew(sent_at)
        if result.dead:
            result = replace(result, notices=observed.death_notices(result.dead))
        self._on_heartbeat(result)
