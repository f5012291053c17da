"""The replica's voice: tells all replicas, after a commit, that a chat has changed.

Owns the hints not sent yet and the session they are sent on. Hints are lossy by contract:
saying one never waits and never fails; while the database is away they pile up to a bound, and
past it the oldest are dropped and counted. Hearing them is `listen`'s business.

Hints go out after the commit and never within it, on a session that does not wait for the
disk: a NOTIFY inside a transaction makes all committing transactions queue for one lock.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.hint import Hint, encode
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.store.backoff import Backoff
from chatd.store.conn import ConnectConfig, Session, connect
from chatd.store.listen import CHANNEL

_Batch: TypeAlias = dict[tuple[ChatId, str | None], Hint]

SAY: Final = "SELECT pg_notify($1, p) FROM unnest($2::text[]) p"


class PublishConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The first hint after a pause goes out at once; those behind it share a statement."""

    connect: ConnectConfig
    every_s: float = 0.003
    batch: int = 100
    max_pending: int = 10_000
    send_within_s: float = 5
    close_within_s: float = 2
    backoff: Backoff = Backoff()


class Publisher:
    """`run` sends until `close` is called; `publish` may be called at any time."""

    def __init__(
        self,
        config: PublishConfig,
        clock: Clock,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._clock = clock
        self._draw = draw
        self._pending: _Batch = {}
        self._session: Session | None = None
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._closing = False
        self._closed = False
        self.lost = 0

    def publish(self, hint: Hint) -> None:
        """Of several hints of one kind for a chat only the newest is worth sending."""
        if self._closed:
            self.lost += 1
            return
        key = (hint.chat_id, hint.kind)
        waiting = self._pending.get(key)
        if waiting is None or waiting.snapshot_version <= hint.snapshot_version:
            # In its old place: a chat that changes all the time must not wait all the time.
            self._pending[key] = hint
        self._shed()
        self._wake.set()

    async def run(self) -> None:
        self._stopped.clear()
        failures = 0
        try:
            while await self._something_to_say():
                if await self._say(self._take()):
                    failures = 0
                    if len(self._pending) < self._config.batch:
                        await self._clock.sleep(self._config.every_s, tag="publish_flush")
                else:
                    failures += 1
                    delay = self._config.backoff.delay(failures, self._draw)
                    await self._clock.sleep(delay, tag="publish_reconnect")
        finally:
            self._hang_up()
            self._stopped.set()

    async def close(self) -> None:
        """Send what is pending, within a bound; what is left after it is lost."""
        self._closing = True
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.close_within_s):
                await self._stopped.wait()
        self._closed = True
        self._hang_up()
        self.lost += len(self._pending)
        self._pending.clear()

    async def _something_to_say(self) -> bool:
        while not self._pending:
            if self._closing:
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    async def _say(self, batch: _Batch) -> bool:
        """False if the database could not be told; then the batch waits again."""
        try:
            session = await self._connected()
            async with asyncio.timeout(self._config.send_within_s):
                await session.execute(SAY, CHANNEL, [encode(hint) for hint in batch.values()])
        except (Unavailable, TimeoutError):
            self._hang_up()
            self._put_back(batch)
            return False
        except ChatdError:
            # One that the server refuses must not stand in the way of all that follow.
            self.lost += len(batch)
        return True

    async def _connected(self) -> Session:
        if self._session is None or not self._session.reusable:
            self._hang_up()
            link = self._config.connect.named("publish", synchronous_commit="off")
            self._session = await connect(link)
        return self._session

    def _hang_up(self) -> None:
        if self._session is not None:
            self._session.terminate()
            self._session = None

    def _take(self) -> _Batch:
        batch = dict(islice(self._pending.items(), self._config.batch))
        for key in batch:
            del self._pending[key]
        return batch

    def _put_back(self, batch: _Batch) -> None:
        if self._closed:
            self.lost += len(batch)
            return
        # In front, except where something newer has come in meanwhile.
        self._pending = batch | self._pending
        self._shed()

    def _shed(self) -> None:
        while len(self._pending) > self._config.max_pending:
            del self._pending[next(iter(self._pending))]
            self.lost += 1
