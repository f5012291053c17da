"""A model and tools that do as each message says, however often and by whomever they are asked.

A message is `name rounds`: so many rounds of tools, then an answer that names the message. What
is due follows from the conversation alone, so that a replica which takes over gets what the one
before it would have got. A test can hold up the first asking of anything, and sees how often it
was asked for.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Raw, Struct

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import ToolContext, ToolEffect
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate, RecordedRequest, Reply

SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')


class _WireMessage(Struct):
    role: str
    content: str | list[dict[str, str]] | None = None
    tool_calls: list[dict[str, object]] = []

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.get("text", "") for part in self.content)
        return self.content or ""


class _WireRequest(Struct):
    messages: list[_WireMessage]


class FirstCallGates:
    """Gates at which only the first who comes is held up."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def hold(self, key: str) -> Gate:
        return self._gates.setdefault(key, Gate())

    def take(self, key: str) -> Gate | None:
        return self._gates.pop(key, None)


class PlannedModel(FakeCompatible):
    """`asked` counts the requests for each step, by `name/round`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.gates = FirstCallGates()
        self.refused: list[bytes] = []

    def answer(self, request: RecordedRequest) -> Reply:
        if (refusal := self.refuse(request)) is not None:
            self.refused.append(request.body)
            return refusal
        said = msgspec.json.decode(request.body, type=_WireRequest).messages
        last = max(place for place, message in enumerate(said) if message.role == "user")
        name, wanted = said[last].text.splitlines()[-1].split()[:2]
        done = sum(bool(message.tool_calls) for message in said[last:])
        key = f"{name}/{done}"
        self.asked[key] += 1
        gate = self.gates.take(key)
        pause = () if gate is None else (gate,)
        if done < int(wanted):
            tool = "once" if name.startswith("once") else "work"
            call = {"index": 0, "id": f"{name}-{done}", "type": "function"}
            body = {**call, "function": {"name": tool, "arguments": "{}"}}
            return Reply(steps=(*pause, chunk(tool_calls=[body]), chunk(finish="tool_calls"), DONE))
        words = (chunk(content="answer "), *pause, chunk(content=f"to {name}"))
        return Reply(steps=(*words, chunk(finish="stop"), DONE))


class ToolServer:
    """Where the tools of all replicas act. `runs` are the effects, by call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: Counter[str] = Counter()
        self.gates = FirstCallGates()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def running(cls, path: Path) -> AsyncGenerator[Self]:
        shop = cls(path)
        server = await asyncio.start_unix_server(shop._serve, path)
        try:
            yield shop
        finally:
            server.close()
            for task in list(shop._tasks):
                task.cancel()
            await asyncio.gather(*shop._tasks, return_exceptions=True)

    async def work(self, call_id: str) -> None:
        self.runs[call_id] += 1
        if (gate := self.gates.take(call_id)) is not None:
            await gate.pass_through()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            call_id = (await reader.readline()).decode().strip()
            await self.work(call_id)
            writer.write(f"did {call_id}\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # whoever asked is gone, or the test is over
        finally:
            writer.close()
            self._tasks.discard(task)


class RemoteTool:
    """Satisfies `ports.Tool`: has its effect in the workshop."""

    serial = False
    exclusive = False
    stops_turn = False
    timeout_s = 30.0

    def __init__(self, name: str, effect: ToolEffect, socket: Path) -> None:
        self.spec = ToolSpec(name=name, description="Does it.", input_schema=SCHEMA)
        self.effect: ToolEffect = effect
        self._socket = socket

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        del args
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(f"{context.call_id}\n".encode())
            return ToolOutput(text=(await reader.readline()).decode().strip())
        finally:
            writer.close()

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


def remote_tools(socket: Path) -> list[RemoteTool]:
    return [RemoteTool("work", "idempotent", socket), RemoteTool("once", "once", socket)]
