"""Handles of replicas that are processes: told what to do, listened to, killed, frozen, asked to
leave."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from uuid import UUID

import msgspec

from chatd.domain.chat.commands import WhenBusy
from chatd.domain.ids import ChatId
from tests.support.chaos.remains import Remains
from tests.support.engine_rig import Events
from tests.support.nursery import Forked, Nursery, nursery
from tests.support.replica_orders import Deed, Done, Order, Seen
from tests.support.replica_process import Setup

ANSWER_S = 60.0
NOBODYS = ChatId(UUID(int=0))
MODULE = "tests.support.replica_process"


class Gone(Exception):
    """The process ended before it answered. The outcome of the order is unknown."""


class ReplicaProcess:
    def __init__(self, process: Forked, setup: Setup) -> None:
        self.setup = setup
        self.events = Events()
        self.ready = asyncio.Event()
        self._process = process
        self._orders = 0
        self._waiting: dict[int, asyncio.Future[Done]] = {}
        self._watching: dict[int, asyncio.Queue[Seen]] = {}

    # What it is told

    async def create(self, chat: ChatId, text: str, key: UUID | None = None) -> Done:
        return await self.order("create", chat, text=text, key=key)

    async def send(
        self, chat: ChatId, text: str, key: UUID | None = None, *, when_busy: WhenBusy = "queue"
    ) -> Done:
        return await self.order("send", chat, text=text, key=key, when_busy=when_busy)

    async def interrupt(self, chat: ChatId) -> Done:
        return await self.order("interrupt", chat)

    async def remains(self) -> Remains:
        done = await self.order("remains", NOBODYS)
        return msgspec.json.decode(done.state or "", type=Remains)

    async def order(self, do: Deed, chat: ChatId, **fields: object) -> Done:
        order = self._made(do, chat, **fields)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[order.id] = answer
        self._tell(order)
        async with asyncio.timeout(ANSWER_S):
            return await answer

    async def watch(self, chat: ChatId, after: int | None) -> AsyncGenerator[str]:
        """Frames of the chat's stream, as they come over the wire. Raises Gone at its end."""
        order = self._made("watch", chat, after=after)
        frames: asyncio.Queue[Seen] = asyncio.Queue()
        self._watching[order.id] = frames
        try:
            self._tell(order)
            while (seen := await frames.get()).sse is not None:
                yield seen.sse
            raise Gone(seen.ended)
        finally:
            self._watching.pop(order.id, None)
            with suppress(Gone):
                self._tell(self._made("unwatch", chat, target=order.id))

    def _made(self, do: Deed, chat: ChatId, **fields: object) -> Order:
        self._orders += 1
        return msgspec.structs.replace(Order(id=self._orders, do=do, chat=chat), **fields)

    def _tell(self, order: Order) -> None:
        if not self.alive:
            raise Gone
        self._process.write(msgspec.json.encode(order) + b"\n")

    # What it says

    async def listen(self) -> None:
        while line := await self._process.stdout.readline():
            said = msgspec.json.decode(line, type=dict[str, str | int | None])
            if "reply" in said:
                done = msgspec.convert(said, Done)
                if (answer := self._waiting.pop(done.reply, None)) and not answer.done():
                    answer.set_result(done)
                continue
            if "frame" in said:
                seen = msgspec.convert(said, Seen)
                if (frames := self._watching.get(seen.frame)) is not None:
                    frames.put_nowait(seen)
                continue
            event = str(said.pop("event"))
            if event == "ready":
                self.ready.set()
            self.events(event, **said)
        await self._process.wait()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Gone())
        for number, frames in self._watching.items():
            frames.put_nowait(Seen(frame=number, ended="gone"))
        self.ready.set()

    # What becomes of it

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def leave(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            self._process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(ANSWER_S):
            return await self._process.wait()


def replicas() -> AbstractAsyncContextManager[Nursery]:
    """Where replicas come from."""
    return nursery(MODULE)


@asynccontextmanager
async def replica_process(born_in: Nursery, setup: Setup) -> AsyncGenerator[ReplicaProcess]:
    """Running and registered, unless it was to die before. Killed in the end."""
    process = await born_in.fork(msgspec.json.encode(setup))
    handle = ReplicaProcess(process, setup)
    # Not in a group: it is left by another task than it was entered by.
    listening = asyncio.get_running_loop().create_task(handle.listen(), name=setup.name)
    try:
        async with asyncio.timeout(ANSWER_S):
            await handle.ready.wait()
        yield handle
    finally:
        handle.thaw()
        handle.kill()
        await listening
