"""Which root chats of other users the watching users read, kept current.

What is shared is read when a user begins to watch, and again after each notice that may concern it.
The difference is reported, so that a chat list gains and loses chats. The reads are one after the
other: of two notices, the later read counts.
"""

import asyncio
import random
from collections.abc import Callable, Collection
from itertools import islice
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.aio import Backoff
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, UserId
from chatd.domain.ports import Env
from chatd.store.account import shares
from chatd.store.account.runtime_settings import DEPLOYMENT
from chatd.store.database.conn import Conn

MAX_KNOWN_ROOTS: Final = 10_000
"""Of one user: the newest. Changes of others are found by the poll of the chat list."""


class ShareWatchConfig(Struct, frozen=True, kw_only=True):
    max_per_read: int = 200
    backoff: Backoff = Backoff(first_delay_s=0.1, max_delay_s=2.0)


class ShareListener(Struct, frozen=True, kw_only=True):
    """`loaded`: what the user reads is known. `gained` and `lost`: a root chat is shared with the
    user, or no longer. `changed`: the readers of a root chat changed. `switched`: sharing was
    enabled or disabled."""

    loaded: Callable[[UserId], None]
    gained: Callable[[UserId, ChatId], None]
    lost: Callable[[UserId, ChatId], None]
    changed: Callable[[ChatId], None]
    switched: Callable[[], None]


class ShareWatch:
    """`run` must be running."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        listener: ShareListener,
        config: ShareWatchConfig | None = None,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._conn = conn
        self._env = env
        self._listener = listener
        self._config = config or ShareWatchConfig()
        self._draw = draw
        self._roots: dict[UserId, set[ChatId]] = {}
        self._readers: dict[ChatId, set[UserId]] = {}
        self._stale_users: dict[UserId, None] = {}
        self._stale_roots: dict[ChatId, None] = {}
        self._is_switch_stale = True
        self._is_enabled: bool | None = None
        self._wake = asyncio.Event()

    def readers(self, root: ChatId) -> Collection[UserId]:
        return self._readers.get(root, ())

    def add_user(self, user: UserId) -> None:
        self._roots[user] = set()
        self._refresh_users([user])

    def remove_user(self, user: UserId) -> None:
        for root in self._roots.pop(user, ()):
            self._discard_reader(root, user)
        self._stale_users.pop(user, None)

    def add_root(self, user: UserId, root: ChatId) -> None:
        """Another read has found it."""
        if user in self._roots:
            self._roots[user].add(root)
            self._readers.setdefault(root, set()).add(user)

    def on_config_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind == "group":
            self._refresh_users(self._roots)
        if change is None or (change.kind == "settings" and change.id in ("", DEPLOYMENT)):
            self._is_switch_stale = True
            self._wake.set()
        if change is not None and change.kind == "share":
            self._refresh_root(change.id)
        if change is not None and change.kind == "project_access":
            self._refresh_users([user for user in self._roots if str(user) == change.id])

    def _refresh_users(self, users: Collection[UserId]) -> None:
        self._stale_users.update(dict.fromkeys(users))
        self._wake.set()

    def _refresh_root(self, text: str) -> None:
        """Without an id: all. Every database user can write a notice."""
        if not text:
            self._refresh_users(self._roots)
            return
        try:
            self._stale_roots[ChatId(UUID(text))] = None
        except ValueError:
            return
        self._wake.set()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while self._roots and await self._read_some():
                    failures = 0
                if not self._roots:
                    self._stale_roots.clear()
            except ChatdError as error:
                failures += 1
                self._env.emit("share_read_failed", error_kind=error.code, failures=failures)
                self._wake.set()
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "share_read_retry")

    async def _read_some(self) -> bool:
        """False if nothing is stale. What was read counts as stale again if the read fails."""
        if self._is_switch_stale:
            await self._read_switch()
        elif users := list(islice(self._stale_users, self._config.max_per_read)):
            await self._read_users(users)
        elif roots := list(islice(self._stale_roots, self._config.max_per_read)):
            await self._read_readers(roots)
        else:
            return False
        return True

    async def _read_switch(self) -> None:
        self._is_switch_stale = False
        try:
            is_enabled = await shares.is_enabled(self._conn)
        except ChatdError:
            self._is_switch_stale = True
            raise
        if self._is_enabled not in (None, is_enabled):
            self._refresh_users(self._roots)
            self._listener.switched()
        self._is_enabled = is_enabled

    async def _read_users(self, users: list[UserId]) -> None:
        for user in users:
            del self._stale_users[user]
        watched = {user: self._roots[user] for user in users if user in self._roots}
        try:
            found = await shares.list_roots_of(self._conn, list(watched), limit=MAX_KNOWN_ROOTS)
        except ChatdError:
            self._stale_users.update(dict.fromkeys(users))
            raise
        for user, before in watched.items():
            # A user who left and came back meanwhile has another set, which is read for itself.
            if self._roots.get(user) is before:
                self._replace_roots(user, found.get(user, set()))

    def _replace_roots(self, user: UserId, found: set[ChatId]) -> None:
        known = self._roots[user]
        gone = known - found
        if len(found) >= MAX_KNOWN_ROOTS:
            # Not the newest any more, or no longer shared: each is looked up.
            self._stale_roots.update(dict.fromkeys(gone))
            gone = set[ChatId]()
        for root in gone:
            self._lose(user, root)
        for root in found - known:
            self._gain(user, root)
        self._listener.loaded(user)

    async def _read_readers(self, roots: list[ChatId]) -> None:
        for root in roots:
            del self._stale_roots[root]
        watched = dict(self._roots)
        try:
            found = await shares.list_readers_of(self._conn, roots, list(watched))
        except ChatdError:
            self._stale_roots.update(dict.fromkeys(roots))
            raise
        for root in roots:
            for user, before in watched.items():
                if self._roots.get(user) is not before:
                    continue
                is_reader, was_reader = (root, user) in found, root in before
                if is_reader and not was_reader:
                    self._gain(user, root)
                elif was_reader and not is_reader:
                    self._lose(user, root)
            self._listener.changed(root)

    def _gain(self, user: UserId, root: ChatId) -> None:
        self.add_root(user, root)
        self._listener.gained(user, root)

    def _lose(self, user: UserId, root: ChatId) -> None:
        self._roots[user].discard(root)
        self._discard_reader(root, user)
        self._listener.lost(user, root)

    def _discard_reader(self, root: ChatId, user: UserId) -> None:
        if readers := self._readers.get(root):
            readers.discard(user)
            if not readers:
                del self._readers[root]
