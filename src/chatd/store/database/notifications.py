"""Hints between replicas: a session that listens, and a publisher that sends by a bus, which is
PostgreSQL (`PostgresBus`) or NATS (`nats.NatsBus`).

The listening session holds the lock by which other replicas see that this process lives. After
each connect `on_connected` reports that earlier hints may be lost. Hints are lossy: `publish`
neither waits nor fails, and while the database is unreachable the oldest are dropped and counted.

Hints are sent after the commit, on a session that does not wait for the disk: a NOTIFY inside a
transaction makes all committing transactions queue for one lock. `publish` is the exception: a
notice of changed settings, which are rare, is part of the transaction that changes them.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Final, Protocol, TypeAlias

import msgspec

from chatd.aio import Backoff
from chatd.domain.chat.row import Hint, decode_hint, encode_hint
from chatd.domain.deployment.config_change import (
    ConfigChange,
    decode_config_change,
    encode_config_change,
)
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.store.database.conn import ConnectConfig, DatabaseSession, connect

# Publish changes of accounts, models, settings and limits to all replicas.
#
# The notice is part of the transaction that writes the change: a replica hears of every committed
# change and of no other. A NOTIFY in a transaction takes a lock of the whole server during its
# commit, so only writes that are rare do this.

CONFIG_CHANNEL: Final = "chatd_config"
NOTIFY_CONFIG_CHANGE: Final = "SELECT pg_notify($1, $2)"

OnConfigChange = Callable[[ConfigChange | None], None]
"""Called with each change, in this replica too; with None when changes may have been missed: then
everything cached must be read again. Must not raise or block."""


async def publish(session: DatabaseSession, change: ConfigChange) -> None:
    """Call it only inside the transaction that writes the change."""
    await session.execute(NOTIFY_CONFIG_CHANGE, CONFIG_CHANNEL, encode_config_change(change))


class ConfigChanges:
    """What this replica hears. While `is_current` is False it hears nothing, and cached values must
    not be used."""

    def __init__(self) -> None:
        self._callbacks: list[OnConfigChange] = []
        self.is_current = False

    def subscribe(self, callback: OnConfigChange) -> None:
        self._callbacks.append(callback)

    def on_connected(self) -> None:
        self.is_current = True
        self._call(None)

    def on_disconnected(self) -> None:
        self.is_current = False

    def on_notice(self, payload: str) -> None:
        if (change := decode_config_change(payload)) is not None:
            self._call(change)

    def _call(self, change: ConfigChange | None) -> None:
        for callback in self._callbacks:
            callback(change)


CHANNEL: Final = "chatd"
# Shared, so that a new session of this process gets the lock while the server still holds the lost
# session. Other replicas only check whether it is held.
HOLD_WORKER_LOCK: Final = "SELECT pg_advisory_lock_shared($1)"
PING: Final = "SELECT pg_notify($1, $2)"


class ListenConfig(msgspec.Struct, frozen=True, kw_only=True):
    connect: ConnectConfig
    ping_interval_s: float = 15
    pong_timeout_s: float = 5
    backoff: Backoff = Backoff()


class HintListener:
    """`run` listens until it is cancelled. Callbacks must not block.

    `on_connected` is called after each connect: hints sent before were not received."""

    def __init__(
        self,
        config: ListenConfig,
        clock: Clock,
        *,
        on_hint: Callable[[Hint], None],
        on_connected: Callable[[], None],
        config_changes: ConfigChanges | None = None,
        lock_key: int | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_hint = on_hint
        self._on_connected = on_connected
        self._config_changes = ConfigChanges() if config_changes is None else config_changes
        self._lock_key = lock_key
        self._draw = draw
        self._pings = count(1)
        self._pong_received = asyncio.Event()
        self._expected_pong = ""
        self.listening = asyncio.Event()
        self.lost = asyncio.Event()
        """Set when a session was lost, until there is one again."""

    async def run(self) -> None:
        failures = 0
        while True:
            began = self._clock.monotonic()
            try:
                session = await self._open()
            except ChatdError:
                pass  # unreachable or refused: connect again after the delay
            else:
                await self._serve(session)
            # A session that is lost at once counts as a failed attempt.
            lasted = self._clock.monotonic() - began
            failures = 1 if lasted > self._config.ping_interval_s else failures + 1
            delay = self._config.backoff.delay(failures, self._draw)
            await self._clock.sleep(delay, tag="listen_reconnect")

    async def _open(self) -> DatabaseSession:
        session = await connect(self._config.connect.named("listen"))
        try:
            if self._lock_key is not None:
                await session.fetchval(HOLD_WORKER_LOCK, self._lock_key)
            await session.listen(CHANNEL, self._receiver(session.backend_pid))
            await session.listen(CONFIG_CHANNEL, self._receive_config_change)
        except BaseException:
            session.terminate()
            raise
        return session

    async def _serve(self, session: DatabaseSession) -> None:
        """Listen until the session is lost."""
        lost = asyncio.Event()
        session.on_connection_lost(lost.set)
        try:
            if session.is_closed:
                return
            self.lost.clear()
            self.listening.set()
            self._config_changes.on_connected()
            self._on_connected()
            async with asyncio.TaskGroup() as group:
                pings = group.create_task(self._ping(session), name="listen_ping")
                await lost.wait()
                pings.cancel()
        finally:
            self.listening.clear()
            self.lost.set()
            self._config_changes.on_disconnected()
            session.terminate()

    async def _ping(self, session: DatabaseSession) -> None:
        """Detect a dead connection: close it unless it receives its own ping."""
        while True:
            await self._clock.sleep(self._config.ping_interval_s, tag="listen_ping")
            self._pong_received.clear()
            self._expected_pong = f"ping {next(self._pings)}"
            try:
                async with asyncio.timeout(self._config.pong_timeout_s):
                    await session.fetchval(PING, CHANNEL, self._expected_pong)
                    await self._pong_received.wait()
            except (TimeoutError, ChatdError):
                session.terminate()
                return

    def _receiver(self, own_pid: int) -> Callable[[int, str], None]:
        def receive(pid: int, payload: str) -> None:
            if pid == own_pid:
                # This session sends only pings.
                if payload == self._expected_pong:
                    self._pong_received.set()
            elif (hint := decode_hint(payload)) is not None:
                self._on_hint(hint)

        return receive

    def _receive_config_change(self, _pid: int, payload: str) -> None:
        self._config_changes.on_notice(payload)


_Batch: TypeAlias = dict[tuple[ChatId, str | None], Hint]

NOTIFY_MANY: Final = "SELECT pg_notify($1, p) FROM unnest($2::text[]) p"


class HintBus(Protocol):
    """Takes encoded hints to the other replicas. Theirs go to the callbacks of the listener, or of
    the bus itself."""

    async def send(self, payloads: Sequence[str]) -> None:
        """Raises Unavailable if they may not have arrived, another ChatdError if they never
        will."""
        ...

    def disconnect(self) -> None:
        """At the end, and after a failure or a timeout: the next `send` begins anew."""
        ...


class PostgresBus:
    """`HintListener` receives what this sends."""

    def __init__(self, connect: ConnectConfig) -> None:
        self._connect = connect
        self._session: DatabaseSession | None = None

    async def send(self, payloads: Sequence[str]) -> None:
        session = self._session
        if session is None or not session.is_reusable:
            self.disconnect()
            config = self._connect.named("publish", synchronous_commit="off")
            session = self._session = await connect(config)
        await session.execute(NOTIFY_MANY, CHANNEL, payloads)

    def disconnect(self) -> None:
        if self._session is not None:
            self._session.terminate()
            self._session = None


class PublishConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The first hint after a pause is sent at once; those that follow share a statement."""

    flush_interval_s: float = 0.003
    rush_interval_s: float = 0.02
    rush_batch: int = 3
    max_batch: int = 100
    max_pending: int = 10_000
    send_timeout_s: float = 5
    close_timeout_s: float = 2
    backoff: Backoff = Backoff()


class HintPublisher:
    """`run` sends until `close` is called; `publish` may be called at any time."""

    def __init__(
        self,
        bus: HintBus,
        config: PublishConfig,
        clock: Clock,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._bus = bus
        self._config = config
        self._clock = clock
        self._draw = draw
        self._pending: _Batch = {}
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._closing = False
        self._closed = False
        self.dropped_hints = 0

    def publish(self, hint: Hint) -> None:
        """Of several pending hints of one kind for a chat only the newest is sent."""
        if self._closed:
            self.dropped_hints += 1
            return
        key = (hint.chat_id, hint.kind)
        waiting = self._pending.get(key)
        if waiting is None or waiting.snapshot_version <= hint.snapshot_version:
            # It keeps its place: a chat that changes often must not wait longer.
            self._pending[key] = hint
        self._drop_oldest()
        self._wake.set()

    async def run(self) -> None:
        self._stopped.clear()
        failures = 0
        try:
            while await self._wait_for_pending():
                batch = self._take_batch()
                if await self._send(batch):
                    failures = 0
                    if len(self._pending) < self._config.max_batch:
                        await self._clock.sleep(self._flush_interval_s(batch), tag="publish_flush")
                else:
                    failures += 1
                    delay = self._config.backoff.delay(failures, self._draw)
                    await self._clock.sleep(delay, tag="publish_reconnect")
        finally:
            self._bus.disconnect()
            self._stopped.set()

    async def close(self) -> None:
        """Send pending hints for up to `close_timeout_s`; drop the rest."""
        self._closing = True
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.close_timeout_s):
                await self._stopped.wait()
        self._closed = True
        self._bus.disconnect()
        self.dropped_hints += len(self._pending)
        self._pending.clear()

    def _flush_interval_s(self, sent: _Batch) -> float:
        """Under load more hints share a statement, which costs as much as a tenth of a commit."""
        config = self._config
        is_rush = len(sent) >= config.rush_batch
        return config.rush_interval_s if is_rush else config.flush_interval_s

    async def _wait_for_pending(self) -> bool:
        while not self._pending:
            if self._closing:
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    async def _send(self, batch: _Batch) -> bool:
        """False if the bus was unreachable; then the batch is pending again."""
        try:
            async with asyncio.timeout(self._config.send_timeout_s):
                await self._bus.send([encode_hint(hint) for hint in batch.values()])
        except (Unavailable, TimeoutError):
            self._bus.disconnect()
            self._requeue(batch)
            return False
        except ChatdError:
            # A hint that the server refuses must not block those behind it.
            self.dropped_hints += len(batch)
        return True

    def _take_batch(self) -> _Batch:
        batch = dict(islice(self._pending.items(), self._config.max_batch))
        for key in batch:
            del self._pending[key]
        return batch

    def _requeue(self, batch: _Batch) -> None:
        if self._closed:
            self.dropped_hints += len(batch)
            return
        # At the front, except for hints that a newer one has replaced.
        self._pending = batch | self._pending
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._pending) > self._config.max_pending:
            del self._pending[next(iter(self._pending))]
            self.dropped_hints += 1
