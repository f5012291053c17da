"""Handing on what the dead have left, and ending what has waited too long.

The tick says which chats; each is then looked at by itself, beside the tick, so that a dead
worker with many chats does not cost the living their lease. Every replica does this at once: of
several that sweep the same chat one wins, and the others find it done.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain import worker_moves
from chatd.domain.change import Change
from chatd.domain.chat import Chat, Episode
from chatd.domain.errors import ChatdError, NotFound, StaleFence, Unavailable
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.messages import Draft
from chatd.domain.partial import last_words
from chatd.domain.ports import Env
from chatd.engine.tasks import run_contained
from chatd.parts.replay import read_episode
from chatd.store import chats, workers
from chatd.store.conn import Conn
from chatd.store.transact import Operation, Transactor


class ChatReaper:
    """`run` must be running."""

    def __init__(self, conn: Conn, transactor: Transactor, me: WorkerId, env: Env) -> None:
        self._conn = conn
        self._transactor = transactor
        self._me = me
        self._env = env
        self._found: workers.Heard | None = None
        self._held_up: set[ChatId] = set()
        self._some = asyncio.Event()

    def on_heartbeat(self, heard: workers.Heard) -> None:
        """What was found before and is still there is found again by the next tick."""
        if heard.dead or heard.expired:
            self._found = heard
            self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            heard, self._found = self._found, None
            if heard is None:
                continue
            try:
                await self._sweep_all(heard)
            except Unavailable as error:
                self._env.emit("sweep_failed", error_kind=error.code)

    async def _sweep_all(self, heard: workers.Heard) -> None:
        self._held_up.intersection_update((*heard.expired, *heard.orphaned))
        for chat_id in self._shuffled(heard.expired):
            await self._expire(chat_id, heard.at)
        for chat_id in self._shuffled(heard.orphaned):
            await self._sweep(chat_id, lambda chat: _reap(chat, heard.dead))
        if heard.dead:
            await workers.strike(self._conn, heard.dead)
            self._env.emit("workers_reaped", workers=len(heard.dead), chats=len(heard.orphaned))

    def _shuffled(self, chat_ids: Iterable[ChatId]) -> list[ChatId]:
        """In an order of our own: replicas that begin at different ends get in each other's
        way less. Those at which an earlier round came to its end are the last."""
        return sorted(
            chat_ids, key=lambda chat_id: (chat_id in self._held_up, chat_id.int ^ self._me.int)
        )

    async def _expire(self, chat_id: ChatId, at: datetime) -> None:
        """A stop that ends late keeps what was shown. If that is what cannot be read or written
        it ends without, but it ends. A database that is merely busy is asked twice."""
        late = bare = _Late(at=at)
        postponed = False

        async def look() -> None:
            nonlocal late, postponed
            try:
                late = await self._with_what_was_shown(chat_id, bare)
            except Unavailable:
                postponed = chat_id not in self._held_up
                raise

        await run_contained(look(), lambda error: self._not_swept(chat_id, error))
        if postponed:
            # The next tick finds it again, after all the others.
            self._held_up.add(chat_id)
            return
        if not await self._sweep(chat_id, lambda row: _expire(row, late)) and late.shown:
            await self._sweep(chat_id, lambda row: _expire(row, bare))

    async def _with_what_was_shown(self, chat_id: ChatId, late: "_Late") -> "_Late":
        chat = await chats.get(self._conn, chat_id)
        if chat is None or chat.status != "interrupting":
            return late
        episode = Episode.of(chat)
        parts = await read_episode(self._conn, episode)
        shown = last_words(chat, parts, late.at.isoformat())
        return replace(late, episode=episode, shown=shown)

    async def _sweep(self, chat_id: ChatId, decide: Callable[[Chat], Change]) -> bool:
        """One that cannot be swept must not keep the others waiting: not now, and not by being
        the first again, as long as somebody else holds its row. False if it cannot be."""
        self._held_up.add(chat_id)
        operation = Operation(
            chat_id=chat_id,
            change_id=self._env.new_change_id(),
            decide=lambda loaded: decide(loaded.chat),
        )
        try:
            outcome = await self._transactor.run(operation)
        except (StaleFence, NotFound):
            pass
        except Unavailable:
            raise
        except ChatdError as error:
            self._not_swept(chat_id, error)
            return False
        else:
            self._env.emit("swept", chat_id=chat_id, to_state=str(outcome.chat.state))
        self._held_up.discard(chat_id)
        return True

    def _not_swept(self, chat_id: ChatId, error: Exception) -> None:
        kind = error.code if isinstance(error, ChatdError) else type(error).__name__
        self._env.emit("sweep_failed", chat_id=chat_id, error_kind=kind, error=error)


class _Late(Struct, frozen=True, kw_only=True):
    """A deadline before `at` has passed. Of a stop: what viewers have seen of which episode."""

    at: datetime
    episode: Episode | None = None
    shown: tuple[Draft, ...] = ()


def _reap(chat: Chat, dead: frozenset[WorkerId]) -> Change:
    if chat.worker_id is None or chat.worker_id not in dead:
        raise StaleFence(f"Chat {chat.id} has another owner.")
    return worker_moves.reap(chat, chat.worker_id)


def _expire(chat: Chat, late: _Late) -> Change:
    """Looked at again, the chat may have a new deadline that has not passed."""
    if chat.interrupt_deadline is not None and chat.interrupt_deadline < late.at:
        same = late.episode == Episode.of(chat)
        return worker_moves.expire_interrupt(chat, late.shown if same else ())
    if chat.action_deadline is not None and chat.action_deadline < late.at:
        return worker_moves.expire_action(chat)
    raise StaleFence(f"Chat {chat.id} is not late any more.")
