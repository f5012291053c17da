"""Viewers that keep changing replicas, and must see all that the database holds.

Each applies the events as the protocol says; a part that is missing, doubled or of another attempt
fails at once. At the end every viewer resumes from its last version, and must then have the state
of a new viewer.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing, suppress

from chatd.domain.chat_views.events import Cursor
from chatd.domain.ids import ChatId
from chatd.store.chat import chats
from chatd.store.database.conn import Conn
from tests.support.chaos.patience import load_factor
from tests.support.chaos.replicas import ReplicaGone, ReplicaProcess
from tests.support.chaos.running_replicas import RunningReplicas
from tests.support.client_state import ClientState, read_state
from tests.support.factories import HARNESS
from tests.support.stream_replica import read_sse

RESUME_TIMEOUT_S = 10.0
MAX_CONCURRENT_CHECKS = 8


class RoamingViewer:
    """`state` survives every connection."""

    def __init__(self, chat_id: ChatId) -> None:
        self.chat_id = chat_id
        self.state = ClientState()
        self.connections = 0
        self._last_id: str | None = None

    async def read(
        self, replica: ReplicaProcess, until: Callable[[ClientState], bool] = lambda _: False
    ) -> None:
        """Read until the condition holds or the stream ends."""
        if self._last_id in (None, "0"):
            self.state = ClientState()
        self.connections += 1
        async with aclosing(replica.watch(self.chat_id, self._last_id)) as frames:
            async for frame in frames:
                self._take(frame)
                if until(self.state):
                    return

    def _take(self, frame: str) -> None:
        for event, last_id in read_sse(frame.encode()):
            self.state = self.state.apply([event])
            if last_id is not None:
                self._last_id = last_id
                assert self.state.version == Cursor.parse(last_id).version


class RoamingViewers:
    def __init__(self, replicas: RunningReplicas, dice: random.Random) -> None:
        self._replicas = replicas
        self._dice = dice
        self._all: dict[ChatId, list[RoamingViewer]] = {}

    @property
    def connections(self) -> int:
        return sum(one.connections for some in self._all.values() for one in some)

    def state(self, chat_id: ChatId) -> ClientState:
        """The state of one of the chat's viewers."""
        onlookers = self._all.get(chat_id)
        return onlookers[0].state if onlookers else ClientState()

    async def watch(self, chat_id: ChatId) -> None:
        """Read at random replicas until cancelled."""
        onlooker = RoamingViewer(chat_id)
        self._all.setdefault(chat_id, []).append(onlooker)
        while True:
            if (replica := self._replicas.any()) is not None:
                with suppress(ReplicaGone, TimeoutError):
                    async with asyncio.timeout(self._dice.choice((0.1, 1.0, 3.0, 20.0))):
                        await onlooker.read(replica)
            await asyncio.sleep(0.05)

    async def check(self, conn: Conn, replica: ReplicaProcess) -> list[AssertionError]:
        """Every viewer resumes at `replica` and must see the stored state. A viewer of a chat that
        the database has lost must be told so. Returns what is wrong."""
        turns = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)
        wrong: list[AssertionError] = []

        async def one(onlooker: RoamingViewer) -> None:
            async with turns:
                try:
                    await check_one(onlooker)
                except AssertionError as error:
                    wrong.append(error)

        async def check_one(onlooker: RoamingViewer) -> None:
            if await chats.get(conn, HARNESS, onlooker.chat_id) is None:
                await _check_not_found(onlooker, replica)
            else:
                await _check_state(onlooker, replica, await read_state(conn, onlooker.chat_id))

        async with asyncio.TaskGroup() as group:
            for onlookers in self._all.values():
                for onlooker in onlookers:
                    group.create_task(one(onlooker))
        return wrong


async def _check_state(
    onlooker: RoamingViewer, replica: ReplicaProcess, meant: ClientState
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(RESUME_TIMEOUT_S * load_factor()):
            await onlooker.read(replica, lambda state: state.settled() == meant)
    seen = onlooker.state.settled()
    assert seen == meant, f"a viewer of {onlooker.chat_id} {_difference(seen, meant)}"


def _difference(seen: ClientState, meant: ClientState) -> str:
    """The fields and messages that differ."""
    fields = [
        f"{name}: {getattr(seen, name)} instead of {getattr(meant, name)}"
        for name in ("version", "status", "queue", "retry", "error", "asked", "episode")
        if getattr(seen, name) != getattr(meant, name)
    ]
    messages = [
        f"message {key}: {seen.messages.get(key)} instead of {meant.messages.get(key)}"
        for key in sorted({*seen.messages, *meant.messages})
        if seen.messages.get(key) != meant.messages.get(key)
    ]
    return "sees " + "; ".join((*fields, *messages))


async def _check_not_found(onlooker: RoamingViewer, replica: ReplicaProcess) -> None:
    try:
        async with asyncio.timeout(RESUME_TIMEOUT_S * load_factor()):
            await onlooker.read(replica)
    except ReplicaGone as gone:
        assert gone.args == ("not_found",), f"a viewer of {onlooker.chat_id} was told {gone.args}"
