"""Release the chats of dead workers and expire deadlines.

Runs beside the heartbeat, so that a dead worker with many chats cannot delay lease renewal.
Replicas race; the compare-and-set lets one win, and the others find the work done.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime

from msgspec.structs import replace

from chatd.aio import run_contained
from chatd.domain.access.permissions import WORKER
from chatd.domain.answer.partial import kept_messages
from chatd.domain.chat.commands import ExpireDeadline, ReapChat
from chatd.domain.chat.lease import is_evidence
from chatd.domain.chat.row import Episode
from chatd.domain.errors import ChatdError, NotFound, StaleFence, Unavailable
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.domain.text import utc_text
from chatd.engine.committer import Committer
from chatd.engine.usage_writer import UsageWriter
from chatd.store.chat import chats, workers
from chatd.store.conn import Conn
from chatd.stream.journal_tail import read_said


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
