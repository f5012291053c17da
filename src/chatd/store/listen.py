"""The replica's ear: one session that hears the hints of all replicas.

Owns the LISTEN session, its life (open, check, drop, open again) and the session lock by which
other replicas see that this process is alive. Whatever was said while it was deaf is lost, so
after every opening it says once: everything may have changed. Who is interested in which chat
is decided by those it calls, in process; nobody else listens.
"""

import asyncio
import random
from collections.abc import Callable
from itertools import count
from typing import Final

import msgspec

from chatd.domain.errors import ChatdError
from chatd.domain.hint import Hint, decode
from chatd.domain.ports import Clock
from chatd.store.backoff import Backoff
from chatd.store.conn import ConnectConfig, Session, connect

CHANNEL: Final = "chatd"
# Shared, so that a new session of this process can take it while the server still keeps the
# lost one. Others only ask whether anybody holds it.
HOLD: Final = "SELECT pg_advisory_lock_shared($1)"
PING: Final = "SELECT pg_notify($1, $2)"


class ListenConfig(msgspec.Struct, frozen=True, kw_only=True):
    connect: ConnectConfig
    ping_every_s: float = 15
    pong_within_s: float = 5
    backoff: Backoff = Backoff()


class Listener:
    """`run` listens until it is cancelled. Callbacks are plain functions and must be quick.

    `on_dirty` is called each time listening has begun: what happened before was not heard.
    """

    def __init__(
        self,
        config: ListenConfig,
        clock: Clock,
        *,
        on_hint: Callable[[Hint], None],
        on_dirty: Callable[[], None],
        lock_key: int | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_hint = on_hint
        self._on_dirty = on_dirty
        self._lock_key = lock_key
        self._draw = draw
        self._pings = count(1)
        self._answered = asyncio.Event()
        self._awaited = ""
        self.listening = asyncio.Event()

    async def run(self) -> None:
        failures = 0
        while True:
            began = self._clock.monotonic()
            try:
                session = await self._open()
            except ChatdError:
                pass  # away, or with an objection of its own: either way nobody listens here
            else:
                await self._stay(session)
            # One that is lost as soon as it is open is no better than none.
            lasted = self._clock.monotonic() - began
            failures = 1 if lasted > self._config.ping_every_s else failures + 1
            delay = self._config.backoff.delay(failures, self._draw)
            await self._clock.sleep(delay, tag="listen_reconnect")

    async def _open(self) -> Session:
        session = await connect(self._config.connect.named("listen"))
        try:
            if self._lock_key is not None:
                await session.fetchval(HOLD, self._lock_key)
            await session.listen(CHANNEL, self._hear_on(session.backend_pid))
        except BaseException:
            session.terminate()
            raise
        return session

    async def _stay(self, session: Session) -> None:
        """Until the session is lost, one way or the other."""
        lost = asyncio.Event()
        session.on_lost(lost.set)
        try:
            if session.closed:
                return
            self.listening.set()
            self._on_dirty()
            async with asyncio.TaskGroup() as group:
                pings = group.create_task(self._ping(session), name="listen_ping")
                await lost.wait()
                pings.cancel()
        finally:
            self.listening.clear()
            session.terminate()

    async def _ping(self, session: Session) -> None:
        """A connection can be dead without saying so: drop it unless it hears its own voice."""
        while True:
            await self._clock.sleep(self._config.ping_every_s, tag="listen_ping")
            self._answered.clear()
            self._awaited = f"ping {next(self._pings)}"
            try:
                async with asyncio.timeout(self._config.pong_within_s):
                    await session.fetchval(PING, CHANNEL, self._awaited)
                    await self._answered.wait()
            except (TimeoutError, ChatdError):
                session.terminate()
                return

    def _hear_on(self, own_pid: int) -> Callable[[int, str], None]:
        def hear(pid: int, payload: str) -> None:
            if pid == own_pid:
                # This session says nothing but pings.
                if payload == self._awaited:
                    self._answered.set()
            elif (hint := decode(payload)) is not None:
                self._on_hint(hint)

        return hear
