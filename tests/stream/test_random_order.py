"""Commands, disconnects and lost hints in random order: every viewer ends with the state of a fresh
read.

Hints are lost, doubled and late; the running replica records parts; clients disconnect anywhere,
also in the middle of a group.
"""

import asyncio
from random import Random

import pytest

from chatd.domain.chat.row import Chat, Episode, Hint
from chatd.domain.ids import ChatId
from chatd.store.chat import chats
from chatd.store.chat.operation import AppliedChange
from chatd.stream.episodes import PartRecorder
from chatd.stream.fanout import encode_sse
from tests.stream.conftest import ReplicaPair
from tests.support.client_state import ClientState, read_state
from tests.support.domain.turn_decisions import sends
from tests.support.factories import HARNESS, text
from tests.support.outcomes import present
from tests.support.random_actors import RandomActors
from tests.support.run_length import seeds, steps
from tests.support.store import write
from tests.support.stream_replica import A, B, StreamClient, StreamReplica, read_sse

pytestmark = pytest.mark.promise("P8")

VIEWERS = 5
STEPS = 100


class Life(RandomActors):
    """Users and workers on either replica. Their own replica gets each change at once, the other
    one by a hint or not at all."""

    def __init__(self, pair: ReplicaPair, rng: Random) -> None:
        super().__init__(pair.pool, rng)
        self.pair = pair
        self.workers = [A, B]
        self.serving = pair.here
        self.late: list[Hint] = []
        self.recorders: dict[Episode, tuple[PartRecorder, list[str]]] = {}

    def _hear(self, row: Chat) -> None:
        super()._remember(row)
        if self.rng.random() < 0.6:
            self.late.append(Hint.of(row))

    def _tell(self, applied: AppliedChange) -> None:
        super()._on_applied(applied)
        if self.rng.random() < 0.8:
            self.serving.feeds.on_applied(applied)

    async def step(self) -> None:
        self.serving = self.rng.choice((self.pair.here, self.pair.there))
        await self.act_as_any()
        self.rng.shuffle(self.late)
        while self.late and self.rng.random() < 0.7:
            hint = self.late.pop()
            for replica in (self.pair.here, self.pair.there):
                replica.on_hint(hint)
        self.speak()

    def speak(self) -> None:
        """The worker of a running chat records parts at random."""
        for row in self.seen.values():
            replica = self.replica_of(row)
            if replica is None or row.status != "running" or self.rng.random() < 0.4:
                continue
            episode = Episode.of(row)
            if episode not in self.recorders:
                self.recorders[episode] = (replica.episodes.open(episode), [])
            recorder, said = self.recorders[episode]
            said.append(f"{episode.history_version}.{episode.attempt}.{len(said)} ")
            recorder.add("assistant", [text(said[-1])])
            if self.rng.random() < 0.05:
                recorder.close()

    def replica_of(self, row: Chat) -> StreamReplica | None:
        replicas = {A: self.pair.here, B: self.pair.there}
        return replicas.get(row.worker_id) if row.worker_id is not None else None

    async def expected_ends(self) -> dict[ChatId, tuple[ClientState, str]]:
        """Make every chat run on `here`, without a hint. Returns the state and the live text that
        viewers must end with."""
        ends: dict[ChatId, tuple[ClientState, str]] = {}
        for chat_id in self.seen:
            row = present(await chats.get(self.pool, HARNESS, chat_id))
            row = (await write(self.pool, sends("last", "rollback", A)(row), 0)).chat
            self.pair.here.record(row).add("assistant", [text("last "), text("words")])
            ends[chat_id] = (await read_state(self.pool, chat_id), "last words")
        return ends


class Fickle(StreamClient):
    """Connects to either replica and may disconnect after any event."""

    async def live(self, pair: ReplicaPair, rng: Random) -> None:
        while True:
            replica = rng.choice((pair.here, pair.there))
            async with self.connected(replica.feeds) as viewer:
                patience = rng.choice((0, 1, 3, 10, 30, 100))
                while patience > 0:
                    for event, last_id in read_sse(encode_sse(await viewer.next())):
                        self.apply(event, last_id)
                        if (patience := patience - 1) <= 0:
                            break


@pytest.mark.covers("F15")
@pytest.mark.parametrize("seed", seeds(5))
async def test_every_viewer_ends_with_the_state_of_a_fresh_read(
    live_pair: ReplicaPair, seed: int
) -> None:
    rng, pair = Random(seed), live_pair
    pair.network.hold()
    life = Life(pair, rng)
    await life.create_chats(single=2)
    chat_ids = list(life.seen)
    ends: dict[ChatId, tuple[ClientState, str]] = {}

    def at_the_end(client: StreamClient) -> bool:
        return ends.get(client.chat_id) == (client.state.settled(), client.preview)

    fickle = [Fickle(rng.choice(chat_ids)) for _ in range(VIEWERS)]
    steady = [StreamClient(chat_id) for chat_id in chat_ids for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        restless = [group.create_task(client.live(pair, rng)) for client in fickle]
        for client, replica in zip(steady, (pair.here, pair.there) * 2, strict=True):
            group.create_task(client.see(replica.feeds, at_the_end))
        for _ in range(steps(STEPS)):
            await life.step()
        await life.check()
        for task in restless:
            task.cancel()
        ends |= await life.expected_ends()
        for replica in (pair.here, pair.there):
            replica.without_hints()
        for client in fickle:
            replica = rng.choice((pair.here, pair.there))
            group.create_task(client.see(replica.feeds, at_the_end))
    assert [client.connections for client in steady] == [1, 1, 1, 1]
