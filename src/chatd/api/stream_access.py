"""Whether an open stream may stay open: its credential, and the chats that it reads.

A stream is checked after a change that may concern it, and after this replica has heard nothing for
a while: everything may have changed then. The owner of a chat always reads it, so only reads of
other users' chats are looked up.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from chatd.aio import Backoff
from chatd.api.auth import ApiCaller
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.store.account import credentials
from chatd.store.account.runtime_settings import DEPLOYMENT
from chatd.store.chat import chats
from chatd.store.conn import Conn

MAX_CHECKS_AT_ONCE: Final = 4
"""Of streams: the other connections of the pool stay free for requests."""
_BACKOFF: Final = Backoff(first_delay_s=0.1, max_delay_s=2.0)


class OpenRead:
    """A chat that a stream reads. `chat` is None until its row is known. `lost` is called once the
    caller may no longer read it."""

    def __init__(self, chat_id: ChatId) -> None:
        self.chat_id = chat_id
        self.chat: Chat | None = None
        self.lost: Callable[[], None] = lambda: None


class AccessChecks:
    """What the checks of all streams share."""

    def __init__(self, conn: Conn, env: Env) -> None:
        self.conn = conn
        self.env = env
        self.slots = asyncio.Semaphore(MAX_CHECKS_AT_ONCE)


class StreamAccess:
    """Of one stream. `follow` must be running; `end` is called once the credential has ended."""

    def __init__(self, checks: AccessChecks, caller: ApiCaller, end: Callable[[], None]) -> None:
        self._checks = checks
        self._caller = caller
        self._end = end
        self._reads: set[OpenRead] = set()
        self._needs_check = asyncio.Event()
        self.actor = caller.actor

    @contextmanager
    def read(self, chat_id: ChatId) -> Generator[OpenRead]:
        """Begins before the chat is read, so that no change is missed."""
        read = OpenRead(chat_id)
        self._reads.add(read)
        try:
            yield read
        finally:
            self._reads.discard(read)

    def on_read(self, read: OpenRead, chat: Chat) -> None:
        """The chat was read for the caller. A change between the caller's request and this moment
        may have been heard by no part of this stream: another user's chat is checked once more."""
        read.chat = chat
        if self._is_foreign(read):
            self._needs_check.set()

    def on_change(self, change: ConfigChange | None) -> None:
        if change is None or self._concerns(change):
            self._needs_check.set()

    def _concerns(self, change: ConfigChange) -> bool:
        if change.kind == "settings":
            return change.id in ("", DEPLOYMENT)
        foreign = [read.chat for read in self._reads if self._is_foreign(read)]
        if change.kind == "share":
            return any(chat is None or str(chat.root_chat_id) == change.id for chat in foreign)
        return change.kind == "group" and bool(foreign)

    def _is_foreign(self, read: OpenRead) -> bool:
        return read.chat is None or read.chat.owner_id != self._caller.user_id

    async def follow(self) -> None:
        """Never returns."""
        failures = 0
        while True:
            await self._needs_check.wait()
            self._needs_check.clear()
            try:
                async with self._checks.slots:
                    await self._check()
                failures = 0
            except Unavailable:
                failures += 1
                self._needs_check.set()
                env = self._checks.env
                await env.clock.sleep(_BACKOFF.delay(failures, env.jitter), "stream_check_retry")

    async def _check(self) -> None:
        caller = self._caller
        actor = await credentials.check(self._checks.conn, caller.actor, caller.credential_id)
        if actor is None or not _is_same(actor, caller.actor):
            self._end()
            return
        self.actor = actor
        foreign = [read for read in self._reads if self._is_foreign(read)]
        if not foreign:
            return
        ids = list({read.chat_id for read in foreign})
        found = await chats.list_versions(self._checks.conn, actor, ids)
        for read in foreign:
            if read.chat_id not in found:
                read.lost()


def _is_same(now: UserActor, before: UserActor) -> bool:
    """With another role or other scopes the client connects again."""
    return (now.role, now.scopes) == (before.role, before.scopes)
