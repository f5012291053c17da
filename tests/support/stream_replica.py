"""Replicas without an engine: feeds, tails, episodes and a journal on one database.

Hints go through a network of the test's own, which loses, doubles and delays them on request.
Clients see nothing but the bytes of the stream.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Final
from uuid import UUID, uuid4

import msgspec

from chatd.clock import SystemClock
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat, Episode, Hint
from chatd.domain.chat_views.events import START, Cursor, Event
from chatd.domain.ids import ChangeId, ChatId, WorkerId
from chatd.domain.ports import Clock, Env
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from chatd.stream.chat_list import ChatListFeeds
from chatd.stream.episodes import EpisodeRegistry, EpisodesConfig, PartRecorder
from chatd.stream.fanout import Frame, encode_sse
from chatd.stream.feed_registry import FeedRegistry, Viewer
from chatd.stream.journal_tail import JournalTail, JournalTailConfig, LivePartSource
from chatd.stream.journal_writer import JournalWriter, JournalWriterConfig
from tests.support.client_state import ClientState
from tests.support.domain.turn_decisions import Decision
from tests.support.factories import HARNESS
from tests.support.operations import create_chat, deciding, deciding_transactor, operation
from tests.support.store import opening_command

A: Final = WorkerId(UUID(int=100))
B: Final = WorkerId(UUID(int=101))

_CHANGES: Final = count(1_000_000)
_EVENT: Final = msgspec.json.Decoder(Event)


class StreamPace(msgspec.Struct, frozen=True, kw_only=True):
    episodes: EpisodesConfig = EpisodesConfig()
    writer: JournalWriterConfig = JournalWriterConfig()
    tail: JournalTailConfig = JournalTailConfig()


USUAL: Final = StreamPace()
QUICK: Final = StreamPace(
    episodes=EpisodesConfig(coalesce_s=0.003),
    writer=JournalWriterConfig(
        tailed_interval_s=0.003, untailed_interval_s=0.01, max_interval_s=0.02
    ),
    tail=JournalTailConfig(interval_s=0.004, quiet_interval_s=0.03),
)
"""For tests with a real clock: short intervals."""


class Emitted:
    """Records emitted events."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: str, **fields: object) -> None:
        self.counts[event] += 1
        self._events.append((event, fields))

    def of(self, event: str) -> list[dict[str, object]]:
        """The fields of all events of this name."""
        return [fields for name, fields in self._events if name == event]


def env_with(clock: Clock, emitted: Emitted | None = None) -> Env:
    return Env(
        clock=clock,
        emit=emitted or Emitted(),
        new_id=uuid4,
        new_change_id=lambda: ChangeId(next(_CHANGES)),
    )


class HintNetwork:
    """Delivers published hints to all replicas, unless a test holds them back."""

    def __init__(self) -> None:
        self.replicas: list[StreamReplica] = []
        self.held: list[Hint] | None = None
        self.said: list[Hint] = []

    def publish(self, hint: Hint) -> None:
        self.said.append(hint)
        if self.held is not None:
            self.held.append(hint)
        else:
            self.deliver(hint)

    def deliver(self, hint: Hint) -> None:
        for replica in self.replicas:
            replica.on_hint(hint)

    def hold(self) -> None:
        """From now on no hint is delivered by itself."""
        self.held = []


class StreamReplica:
    """`pool` serves the viewers' reads; writes and the journal may use another."""

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        network: HintNetwork,
        me: WorkerId,
        other_pool: Pool | None = None,
    ) -> None:
        self.me = me
        self.pool = pool
        other = other_pool or pool
        self.emitted = Emitted()
        self.network = network
        env = env_with(clock, self.emitted)
        self._new_change_id = env.new_change_id
        pace = QUICK if isinstance(clock, SystemClock) else USUAL
        self.writer = JournalWriter(other, env, me, pace.writer, draw=lambda: 1.0)
        self.episodes = EpisodeRegistry(clock, self.writer, pace.episodes)
        self.tail = JournalTail(other, env, network.publish, pace.tail, draw=lambda: 1.0)
        self.live = LivePartSource(self.episodes, self.tail, me)
        self.feeds = FeedRegistry(pool, env, self.live, draw=lambda: 1.0)
        self.watches = ChatListFeeds(other, env, draw=lambda: 1.0)
        self.transactor = deciding_transactor(other, self.on_applied)
        network.replicas.append(self)

    def on_applied(self, applied: AppliedChange) -> None:
        self.feeds.on_applied(applied)
        self.watches.on_applied(applied)
        self.network.publish(Hint.of(applied.chat))

    def on_hint(self, hint: Hint) -> None:
        self.feeds.on_hint(hint)
        self.watches.on_hint(hint)
        self.writer.on_hint(hint)

    def without_hints(self) -> None:
        self.feeds.mark_all_dirty()
        self.watches.mark_all_dirty()

    async def create(self, number: int = 1, **columns: object) -> Chat:
        """A new chat that this replica's worker owns."""
        command = opening_command(number, **columns)
        created = await create_chat(self.transactor, command, self._new_change_id(), free=self.me)
        return created.chat

    async def do(self, chat: Chat, decide: Decision) -> Chat:
        """Apply a decision on the current row; return the new row."""
        command = deciding(lambda loaded: decide(loaded.chat))
        done = operation(command, self._new_change_id(), chat.id)
        return (await self.transactor.run(done)).chat

    def record(self, chat: Chat) -> PartRecorder:
        return self.episodes.open(Episode.of(chat))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with asyncio.TaskGroup() as group:
            rooms = (self.writer, self.episodes, self.tail, self.feeds, self.watches)
            tasks = [group.create_task(room.run()) for room in rooms]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()


@asynccontextmanager
async def replica_on(
    dsn: str, clock: Clock, network: HintNetwork, me: WorkerId, other_pool: Pool | None = None
) -> AsyncGenerator[tuple[StreamReplica, list[str]]]:
    """A running replica, and the statements that it sends."""
    sent: list[str] = []
    link = ConnectConfig(dsn=dsn, application_name=f"replica {me.int}")
    pool = Pool(PoolConfig(connect=link, max_size=4), on_statement=sent.append)
    replica = StreamReplica(pool, clock, network, me, other_pool)
    try:
        async with replica.running():
            yield replica, sent
    finally:
        await pool.close()


class StreamClient:
    """One client of one chat. It keeps its state when the connection ends."""

    def __init__(self, chat_id: ChatId) -> None:
        self.chat_id = chat_id
        self.state = ClientState()
        self.last_id: str | None = None
        self.events: list[Event] = []
        self.connections = 0

    @property
    def preview(self) -> str:
        return "".join(part_text(part.part) for part in self.state.preview)

    @asynccontextmanager
    async def connected(self, feeds: FeedRegistry) -> AsyncGenerator[Viewer]:
        """Without a version to resume from, a client starts empty: messages of a first group
        that was cut off can have been deleted since."""
        after = START if self.last_id is None else Cursor.parse(self.last_id)
        if after == START:
            self.state = ClientState()
        async with feeds.open_viewer(HARNESS, self.chat_id, after) as viewer:
            self.connections += 1
            yield viewer

    def take(self, frame: Frame) -> None:
        for event, last_id in read_sse(encode_sse(frame)):
            self.apply(event, last_id)

    def apply(self, event: Event, last_id: str | None) -> None:
        self.events.append(event)
        self.state = self.state.apply([event])
        if last_id is not None:
            self.last_id = last_id
            assert self.state.version == Cursor.parse(last_id).version

    async def watch(self, viewer: Viewer, until: Callable[["StreamClient"], bool]) -> None:
        try:
            async with asyncio.timeout(30):
                while not until(self):
                    self.take(await viewer.next())
        except TimeoutError:
            state = self.state
            told = f"version {state.version}, {state.status}, {len(state.messages)} messages"
            shown = f"episode {state.episode}, preview {self.preview!r}"
            raise AssertionError(f"waits in vain at {told}, {shown}") from None

    async def see(self, feeds: FeedRegistry, until: Callable[["StreamClient"], bool]) -> None:
        """Connect, and read until the condition holds."""
        async with self.connected(feeds) as viewer:
            await self.watch(viewer, until)


def at(version: int) -> Callable[[StreamClient], bool]:
    return lambda client: client.state.version >= version


def shows(words: str) -> Callable[[StreamClient], bool]:
    return lambda client: client.preview == words


def part_text(part: object) -> str:
    return part.text if isinstance(part, TextPart) else ""


def read_sse(data: bytes) -> Iterable[tuple[Event, str | None]]:
    """Parse as a browser does, as far as chatd uses the format."""
    assert data.endswith(b"\n\n")
    for block in data[:-2].split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
        last_id = fields.get(b"id")
        yield _EVENT.decode(fields[b"data"]), None if last_id is None else last_id.decode()
