"""Wakes chats that are suspended until their subagents are settled.

The replica that writes the end of a subagent's turn wakes the parent. It also looks once more after
it has suspended a chat, because the subagent may have ended in between. A poll covers a replica
that died before it did either. The end of the wait itself needs no waking: the chat is runnable
then.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from chatd.aio import InterruptibleSleep, run_contained
from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.commands import WakeTurn
from chatd.domain.chat.row import Chat
from chatd.domain.chat.transitions import ReservedSlots
from chatd.domain.errors import ChatdError, NotFound, StaleFence
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.store.chat import subagents
from chatd.store.chat.operation import Operation
from chatd.store.chat.transactor import Transactor
from chatd.store.conn import Conn

AGENT_WAIT_POLL_INTERVAL_S: Final = 10.0
WAKE_RETRY_DELAY_S: Final = 1.0


class ReserveSlot(Protocol):
    """Reserve a slot of this replica's worker until the write has ended. None if it has none."""

    def __call__(self, *, root: bool) -> AbstractContextManager[WorkerId | None]: ...


class AgentWaker:
    def __init__(
        self, conn: Conn, transactor: Transactor, env: Env, reserve_slot: ReserveSlot
    ) -> None:
        self._conn = conn
        self._transactor = transactor
        self._env = env
        self._reserve_slot = reserve_slot
        self._requested: set[ChatId] = set()
        self._sleep = InterruptibleSleep(env.clock)

    def on_applied(self, chat: Chat) -> None:
        """A write of this replica."""
        if chat.is_suspended:
            self._request(chat.id)
        elif chat.parent_chat_id is not None and chat.is_settled:
            self._request(chat.parent_chat_id)

    def _request(self, parent: ChatId) -> None:
        self._requested.add(parent)
        self._sleep.wake()

    async def run(self) -> None:
        polled_at = self._env.clock.monotonic()
        while True:
            now = self._env.clock.monotonic()
            until_poll_s = polled_at + AGENT_WAIT_POLL_INTERVAL_S - now
            if not self._requested and until_poll_s > 0:
                await self._sleep.sleep(until_poll_s, "agent_wait_poll")
                continue
            requested, self._requested = self._requested, set()
            is_poll = until_poll_s <= 0
            if is_poll:
                polled_at = now
            wake = self._wake(None if is_poll else list(requested))
            if not await run_contained(wake, self._on_failed):
                self._requested |= requested
                await self._env.clock.sleep(WAKE_RETRY_DELAY_S, "wake_retry")

    def _on_failed(self, error: Exception) -> None:
        kind = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("wake_failed", error_kind=kind)

    async def _wake(self, parents: Sequence[ChatId] | None) -> None:
        """All suspended chats that can go on, or those of `parents`."""
        for chat in await subagents.list_wakeable(self._conn, parents):
            try:
                await self._wake_one(chat)
            except (StaleFence, NotFound):
                continue  # another replica was first, or a user has stopped the chat

    async def _wake_one(self, chat: Chat) -> None:
        with self._reserve_slot(root=chat.is_root) as worker:
            operation = Operation(
                chat_id=chat.id,
                command=WakeTurn(),
                actor=WORKER,
                change_id=self._env.new_change_id(),
                slots=ReservedSlots(root=worker, child=worker),
                known=chat,
            )
            await self._transactor.run(operation)
        self._env.emit("turn_woken", chat_id=chat.id)
