"""This worker's lease, as far as it can be sure of it.

Owns when it was last renewed, and who waits for that. What its age allows is judged in the
domain; renewing it is the tick's business.

The tick: once a second the worker says that it lives, and hears what it must know.

Owns when it is said and that it does not hang. What is done about what was heard is for the
worker and the sweeper.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.lease import LEASE_S, Health, Ticks, lease_health, may_reap
from chatd.domain.ports import Clock, Env
from chatd.store import workers
from chatd.store.conn import Conn


class WorkerLease:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed_at: float | None = None
        self._renewed = asyncio.Event()

    @property
    def health(self) -> Health:
        """Before it was first taken nothing may be begun."""
        if self._renewed_at is None:
            return "no_new_work"
        return lease_health(self._renewed_at, self._clock.monotonic())

    @property
    def age_s(self) -> float | None:
        """How long ago it was renewed, for whoever watches over this process. None: never."""
        if self._renewed_at is None:
            return None
        return self._clock.monotonic() - self._renewed_at

    def renew(self, asked_at: float) -> None:
        """From when the database was asked: when it has answered we only learn later."""
        self._renewed_at = asked_at
        self._renewed.set()

    async def wait_healthy(self) -> None:
        """Until new work may be begun."""
        while self.health != "ok":
            self._renewed.clear()
            await self._renewed.wait()

    async def wait_expired(self) -> None:
        """Until somebody else may own our chats."""
        while self._renewed_at is None:
            self._renewed.clear()
            await self._renewed.wait()
        while self.health != "cancel_runs":
            left = self._renewed_at + LEASE_S - self._clock.monotonic()
            await self._clock.sleep(max(left, 0.0), "lease")


ANSWER_S: Final = 5.0
"""Longer than this no answer is waited for: a new session may be heard where this one is not."""
EAGER_S: Final = 0.25


class Ticking:
    """`running` are the chats that run here, with their epochs; `listening` is set while the
    session is open by whose lock others see that this process lives."""

    def __init__(
        self,
        me: WorkerId,
        conn: Conn,
        env: Env,
        lease: WorkerLease,
        *,
        every_s: float,
        listening: asyncio.Event,
        running: Callable[[], Mapping[ChatId, int]],
        heard: Callable[[workers.Heard], None],
    ) -> None:
        self._me = me
        self._conn = conn
        self._env = env
        self._lease = lease
        self._every_s = every_s
        self._listening = listening
        self._running = running
        self._heard = heard
        self._ticks = Ticks(interval_s=every_s)
        self._failures = 0
        self.draining = False

    async def run(self) -> None:
        """Registered without its lock, a worker would look dead to others from the start."""
        await self._listening.wait()
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._tick()
            except (Unavailable, TimeoutError) as error:
                self._ticks = self._ticks.failed()
                self._failures += 1
                kind = error.code if isinstance(error, Unavailable) else "timeout"
                self._env.emit("tick_failed", error_kind=kind, failures=self._failures)
            else:
                if self._failures:
                    self._env.emit("database_back", failed_ticks=self._failures)
                self._failures = 0
            await self._env.clock.sleep(self._pause(), "tick")

    def _pause(self) -> float:
        """As long as it may not act on any death it is in a hurry to: after a restart nobody
        else may be there to take up what was running."""
        learning = may_reap(self._ticks, self._env.clock.monotonic()) == "none"
        return min(self._every_s, EAGER_S) if learning else self._every_s

    async def _tick(self) -> None:
        asked_at = self._env.clock.monotonic()
        beat = workers.Beat(
            worker_id=self._me,
            running=self._running(),
            scope=may_reap(self._ticks, asked_at),
            draining=self.draining,
            lease_s=LEASE_S,
        )
        heard = await workers.tick(self._conn, beat)
        self._ticks = self._ticks.succeeded(self._env.clock.monotonic())
        self._lease.renew(asked_at)
        self._heard(heard)
