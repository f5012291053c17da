"""Handles of replica processes: send orders, read events, kill, freeze and terminate."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from uuid import UUID

import msgspec

from chatd.domain.chat.commands import WhenBusy
from chatd.domain.ids import ChatId
from tests.support.chaos.fork_server import ForkedProcess, ForkServer, fork_server
from tests.support.chaos.replica_orders import Order, OrderKind, OrderReply, StreamFrame
from tests.support.chaos.replica_process import ReplicaSetup
from tests.support.chaos.replica_resources import ReplicaResources
from tests.support.engine_rig import Events

REPLY_TIMEOUT_S = 60.0
NO_CHAT = ChatId(UUID(int=0))
MODULE = "tests.support.chaos.replica_process"


class ReplicaGone(Exception):
    """The process ended before it replied. The outcome of the order is unknown."""


class ReplicaProcess:
    def __init__(self, process: ForkedProcess, setup: ReplicaSetup) -> None:
        self.setup = setup
        self.events = Events()
        self.ready = asyncio.Event()
        self._process = process
        self._orders = 0
        self._waiting: dict[int, asyncio.Future[OrderReply]] = {}
        self._watching: dict[int, asyncio.Queue[StreamFrame]] = {}

    # Orders

    async def create(self, chat: ChatId, text: str, key: UUID | None = None) -> OrderReply:
        return await self.order("create", chat, text=text, key=key)

    async def send(
        self, chat: ChatId, text: str, key: UUID | None = None, *, when_busy: WhenBusy = "queue"
    ) -> OrderReply:
        return await self.order("send", chat, text=text, key=key, when_busy=when_busy)

    async def interrupt(self, chat: ChatId) -> OrderReply:
        return await self.order("interrupt", chat)

    async def resources(self) -> ReplicaResources:
        done = await self.order("remains", NO_CHAT)
        return msgspec.json.decode(done.state or "", type=ReplicaResources)

    async def order(self, do: OrderKind, chat: ChatId, **fields: object) -> OrderReply:
        order = self._new_order(do, chat, **fields)
        answer = asyncio.get_running_loop().create_future()
        self._waiting[order.id] = answer
        self._write(order)
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            return await answer

    async def watch(self, chat: ChatId, after: str | None) -> AsyncGenerator[str]:
        """Frames of the chat's stream, as sent to clients. Raises `ReplicaGone` at its end."""
        order = self._new_order("watch", chat, after=after)
        frames: asyncio.Queue[StreamFrame] = asyncio.Queue()
        self._watching[order.id] = frames
        try:
            self._write(order)
            while (seen := await frames.get()).sse is not None:
                yield seen.sse
            raise ReplicaGone(seen.ended)
        finally:
            self._watching.pop(order.id, None)
            with suppress(ReplicaGone):
                self._write(self._new_order("unwatch", chat, target=order.id))

    def _new_order(self, do: OrderKind, chat: ChatId, **fields: object) -> Order:
        self._orders += 1
        return msgspec.structs.replace(Order(id=self._orders, do=do, chat=chat), **fields)

    def _write(self, order: Order) -> None:
        if not self.alive:
            raise ReplicaGone
        self._process.write(msgspec.json.encode(order) + b"\n")

    # Output

    async def read_output(self) -> None:
        while line := await self._process.stdout.readline():
            fields = msgspec.json.decode(line, type=dict[str, str | int | None])
            if "reply" in fields:
                done = msgspec.convert(fields, OrderReply)
                if (answer := self._waiting.pop(done.reply, None)) and not answer.done():
                    answer.set_result(done)
                continue
            if "frame" in fields:
                seen = msgspec.convert(fields, StreamFrame)
                if (frames := self._watching.get(seen.frame)) is not None:
                    frames.put_nowait(seen)
                continue
            event = str(fields.pop("event"))
            if event == "ready":
                self.ready.set()
            self.events(event, **fields)
        await self._process.wait()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ReplicaGone())
        for number, frames in self._watching.items():
            frames.put_nowait(StreamFrame(frame=number, ended="gone"))
        self.ready.set()

    # The process

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

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            self._process.send_signal(number)

    async def exited(self) -> int:
        """Without a timeout, for a process that runs until the test ends it."""
        return await self._process.wait()

    async def wait_exited(self) -> int:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            return await self._process.wait()


def replica_fork_server() -> AbstractAsyncContextManager[ForkServer]:
    return fork_server(MODULE)


@asynccontextmanager
async def replica_process(
    fork_server: ForkServer, setup: ReplicaSetup
) -> AsyncGenerator[ReplicaProcess]:
    """Running and registered, unless it had to die before. Killed at the end."""
    process = await fork_server.fork(msgspec.json.encode(setup))
    handle = ReplicaProcess(process, setup)
    # Not in a task group: another task than the one that entered it may exit it.
    listening = asyncio.get_running_loop().create_task(handle.read_output(), name=setup.name)
    try:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            await handle.ready.wait()
        yield handle
    finally:
        handle.resume()
        handle.kill()
        await listening
