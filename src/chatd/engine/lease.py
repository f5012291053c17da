"""This worker's lease with the heartbeats that renew it, and the reaper of the chats of dead
workers.

`domain.lease` decides when other workers may be reaped.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.aio import first_of, run_contained
from chatd.domain.access.permissions import WORKER
from chatd.domain.answer.partial import kept_messages
from chatd.domain.chat.commands import ExpireDeadline, ReapChat
from chatd.domain.chat.lease import (
    LEASE_TTL_S,
    HeartbeatHistory,
    LeaseHealth,
    SeenWorker,
    WorkerObservations,
    is_evidence,
    lease_health,
    lease_ttl_s,
    may_reap,
)
from chatd.domain.chat.row import Episode
from chatd.domain.errors import ChatdError, NotFound, StaleFence, Unavailable
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Clock, Env
from chatd.domain.text import utc_text
from chatd.engine.model.attempt import Committer
from chatd.engine.model.call_records import UsageWriter
from chatd.store.chat import chats, workers
from chatd.store.database.conn import Conn
from chatd.stream.journal_tail import read_said

HEARTBEAT_TIMEOUT_S: Final = 5.0
"""After this the worker opens a new session, which may reach the database again."""
CATCH_UP_HEARTBEAT_INTERVAL_S: Final = 0.25
BUSY_HEARTBEAT_INTERVAL_S: Final = 0.5
"""While chats run here, or live answers of other replicas are shown here: workers watch each other,
and a dead one is noticed sooner."""
WATCHFUL_HEARTBEAT_INTERVAL_S: Final = 1.0
"""While chats run only on other replicas."""
DOWN_FOR_ALL: Final = frozenset(
    {"database_down", "database_starting", "database_read_only", "database_full"}
)
"""Errors of a heartbeat after which no other worker has one either. One that gets no answer or no
session may be the only one."""


class WorkerLease:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed_at: float | None = None
        self._renewed = asyncio.Event()
        self._failed = asyncio.Event()
        self.error_kind: str | None = None
        """Why the latest heartbeat failed; None if it succeeded."""

    @property
    def health(self) -> LeaseHealth:
        if self._renewed_at is None:
            return "no_new_work"
        now = self._clock.monotonic()
        return lease_health(self._renewed_at, now, is_database_down=self._is_database_down)

    @property
    def _is_database_down(self) -> bool:
        return self.error_kind in DOWN_FOR_ALL

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

    def on_failure(self, kind: str) -> None:
        self.error_kind = kind
        self._failed.set()

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
            # The kind of a failure may shorten the lease.
            self._failed.clear()
            ends_at = self._renewed_at + lease_ttl_s(is_database_down=self._is_database_down)
            remaining_s = max(ends_at - self._clock.monotonic(), 0.0)
            await first_of(self._clock.sleep(remaining_s, "lease"), self._failed.wait())


class OwnState(Struct, frozen=True, kw_only=True):
    """What a worker's heartbeats tell or depend on. `running` gives the chats that run here, with
    their epochs; `is_tailing` tells whether live answers of other replicas are shown here.
    `listening` is set while the session with this worker's lock is open, and `lost` after it was
    lost; other replicas take a missing lock for its death."""

    running: Callable[[], Mapping[ChatId, int]]
    is_tailing: Callable[[], bool]
    listening: asyncio.Event
    lost: asyncio.Event


class HeartbeatLoop:
    """Renews the lease, and observes the other workers."""

    def __init__(
        self,
        me: workers.WorkerDescription,
        conn: Conn,
        env: Env,
        lease: WorkerLease,
        *,
        interval_s: float,
        own: OwnState,
        on_heartbeat: Callable[[workers.HeartbeatResult], None],
    ) -> None:
        self._me = me
        self._conn = conn
        self._env = env
        self._lease = lease
        self._interval_s = interval_s
        self._own = own
        self._on_heartbeat = on_heartbeat
        self._observations = WorkerObservations(history=HeartbeatHistory(interval_s=interval_s))
        self._judged: tuple[SeenWorker, ...] = ()
        self._failures = 0
        self._others_run = False
        self.draining = False

    async def run(self) -> None:
        """Starts when the lock is held: without it a registered worker would look dead."""
        await self._own.listening.wait()
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
                    await self._send()
            except (Unavailable, TimeoutError) as error:
                self._observations = self._observations.failed()
                self._failures += 1
                kind = error.code if isinstance(error, Unavailable) else "timeout"
                self._lease.on_failure(kind)
                self._env.emit("heartbeat_failed", error_kind=kind, failures=self._failures)
            else:
                if self._failures:
                    self._env.emit("database_recovered", failed_ticks=self._failures)
                self._failures = 0
            pause = self._env.clock.sleep(self._delay_s(), "heartbeat")
            if self._own.lost.is_set():
                await pause
            else:  # An idle worker that loses its lock shows at once that it lives.
                await first_of(pause, self._own.lost.wait())

    def _delay_s(self) -> float:
        """Short until this worker may reap: after a restart no other replica may be there to take
        over the chats that ran. Short too while a worker without its lock is to be judged, and
        while this one has lost its own: its renewals are what shows that it lives."""
        observations, now = self._observations, self._env.clock.monotonic()
        if any(seen not in self._judged for seen in observations.dead(now)):
            return 0.0  # the next heartbeat reaps it
        may_not_reap = may_reap(observations.history, now) == "none"
        is_suspect = not self._own.listening.is_set()
        if may_not_reap or is_suspect or observations.has_suspects(self._judged):
            return min(self._interval_s, CATCH_UP_HEARTBEAT_INTERVAL_S)
        if self._own.running() or self._own.is_tailing():
            return min(self._interval_s, BUSY_HEARTBEAT_INTERVAL_S)
        if self._others_run:
            return min(self._interval_s, WATCHFUL_HEARTBEAT_INTERVAL_S)
        return self._interval_s

    async def _send(self) -> None:
        sent_at = self._env.clock.monotonic()
        observed = self._observations
        self._judged = observed.dead(sent_at)
        heartbeat = workers.Heartbeat(
            worker_id=self._me.worker_id,
            description=self._me,
            running=self._own.running(),
            dead=self._judged,
            draining=self.draining,
            lease_s=LEASE_TTL_S,
        )
        result = await workers.send_heartbeat(self._conn, heartbeat)
        self._observations = self._observations.succeeded(
            result.others, sent_at=sent_at, now=self._env.clock.monotonic()
        )
        self._lease.renew(sent_at)
        self._others_run = result.others_run
        if result.dead:
            result = replace(result, notices=observed.death_notices(result.dead))
        self._on_heartbeat(result)


# Release the chats of dead workers and expire deadlines.
#
# Runs beside the heartbeat, so that a dead worker with many chats cannot delay lease renewal.
# Replicas race; the compare-and-set lets one win, and the others find the work done.


class ChatReaper:
    """Works only while `run` runs."""

    def __init__(
        self,
        conn: Conn,
        committer: Committer,
        worker_id: WorkerId,
        env: Env,
        *,
        usage_writer: UsageWriter,
    ) -> None:
        self._conn = conn
        self._usage_writer = usage_writer
        self._committer = committer
        self._worker_id = worker_id
        self._env = env
        self._found: workers.HeartbeatResult | None = None
        self._delayed: set[ChatId] = set()
        self._has_work = asyncio.Event()

    def on_heartbeat(self, result: workers.HeartbeatResult) -> None:
        """Replaces earlier findings: those not dealt with yet are in this heartbeat too."""
        if result.dead or result.expired:
            self._found = result
            self._has_work.set()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            result, self._found = self._found, None
            if result is None:
                continue
            try:
                await self._reap_all(result)
            except Unavailable as error:
                self._env.emit("reap_failed", error_kind=error.code)

    async def _reap_all(self, result: workers.HeartbeatResult) -> None:
        self._delayed.intersection_update((*result.expired, *result.orphaned))
        for chat_id in self._in_order(result.expired):
            await self._expire(chat_id, result.at)
        blamed = await self._find_blamed(result)
        for chat_id in self._in_order(result.orphaned):
            command = ReapChat(
                worker_ids=result.dead,
                blamed=blamed,
                jitter=self._env.jitter(),
                notices=result.notices,
                reaper=self._worker_id,
            )
            await self._write(chat_id, command)
        if result.dead:
            # Before the workers are forgotten: if this process dies now, another one does it.
            await self._usage_writer.settle_workers(tuple(result.dead))
            await workers.delete_workers(self._conn, result.dead)
            self._env.emit("workers_reaped", workers=len(result.dead), chats=len(result.orphaned))

    async def _find_blamed(self, result: workers.HeartbeatResult) -> frozenset[ChatId]:
        """The isolated chats against which the death of their worker tells."""
        if not result.orphaned:
            return frozenset()
        deaths = await workers.read_deaths(self._conn, result.notices, self._worker_id)
        evidence = [death for death in deaths.values() if is_evidence(death)]
        return frozenset(chat_id for death in evidence for chat_id in death.suspects)

    def _in_order(self, chat_ids: Iterable[ChatId]) -> list[ChatId]:
        """Each replica has its own order, so that replicas collide less. Chats that stopped an
        earlier round come last."""
        return sorted(
            chat_ids,
            key=lambda chat_id: (chat_id in self._delayed, chat_id.int ^ self._worker_id.int),
        )

    async def _expire(self, chat_id: ChatId, at: datetime) -> None:
        """End an expired interrupt with its live parts as the partial answer. If these cannot be
        read or written, end it without them. A busy database gets a second chance."""
        expiry = bare = ExpireDeadline(now=at)
        is_postponed = False

        async def read() -> None:
            nonlocal expiry, is_postponed
            try:
                expiry = await self._with_live_parts(chat_id, bare)
            except Unavailable:
                is_postponed = chat_id not in self._delayed
                raise

        await run_contained(read(), lambda error: self._on_failed(chat_id, error))
        if is_postponed:
            # The next heartbeat finds it again; it is then handled after all the others.
            self._delayed.add(chat_id)
            return
        is_done = await self._write(chat_id, expiry)
        if not is_done and expiry.messages:
            await self._write(chat_id, bare)

    async def _with_live_parts(self, chat_id: ChatId, expiry: ExpireDeadline) -> ExpireDeadline:
        chat = await chats.get(self._conn, WORKER, chat_id)
        if chat is None or chat.status != "interrupting":
            return expiry
        kept = Episode.kept_of(chat)[::-1]
        parts = await read_said(self._conn, chat, kept)
        messages = kept_messages(chat, (), parts.values(), utc_text(expiry.now))
        return replace(expiry, episode=Episode.of(chat), messages=messages)

    async def _write(self, chat_id: ChatId, command: ReapChat | ExpireDeadline) -> bool:
        """False if the write was refused. The chat counts as delayed until its write ends, so
        that a locked row does not hold up the others in the next round too."""
        self._delayed.add(chat_id)
        try:
            outcome = await self._committer.run(chat_id, command)
        except (StaleFence, NotFound):
            pass
        except Unavailable:
            raise
        except ChatdError as error:
            self._on_failed(chat_id, error)
            return False
        else:
            self._env.emit("chat_reaped", chat_id=chat_id, to_state=str(outcome.chat.state))
            if outcome.chat.status not in ("running", "interrupting"):
                # No other worker takes the chat over and records the calls of the last one.
                self._usage_writer.settle(outcome.chat)
        self._delayed.discard(chat_id)
        return True

    def _on_failed(self, chat_id: ChatId, error: Exception) -> None:
        kind = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("reap_failed", chat_id=chat_id, error_kind=kind, error=error)
