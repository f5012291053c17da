"""A fake model and tools that derive each step from the conversation alone.

A message is `name rounds`: that many rounds of tools, then an answer that names the message. A
message of a team, `teamN size`, starts that many subagents, waits for all of them, then answers. A
replica that takes over gets the same reply as the replica before it, or the rest of it if it goes
on from the text. A test can hold the first request of any step, and counts the requests.
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
from chatd.domain.tool_modes import ToolOrigin
from tests.support.outcomes import present
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate, RecordedRequest, Reply

SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')


class WireMessage(Struct):
    role: str
    content: str | list[dict[str, str]] | None = None
    tool_calls: list[dict[str, object]] = []

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.get("text", "") for part in self.content)
        return self.content or ""


class _WireRequest(Struct):
    messages: list[WireMessage]


class FirstCallGates:
    """Gates that hold only the first request with a key."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}

    def hold(self, key: str) -> Gate:
        return self._gates.setdefault(key, Gate())

    def take(self, key: str) -> Gate | None:
        return self._gates.pop(key, None)


class PlannedModel(FakeCompatible):
    """`asked` counts the requests for each step, by `name/round`; `last_step` is the latest, and
    `last_begun` the text that its answer continues. A reply stops in the middle at one of `gates`,
    and before its first byte at one of `silences`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.gates = FirstCallGates()
        self.silences = FirstCallGates()
        self.refused: list[bytes] = []
        self.last_step = ""
        self.last_begun = ""

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
        self.last_step = key
        self.last_begun = begun = said[-1].text if said[-1].role == "assistant" else ""
        gate, held = self.gates.take(key), self.silences.take(key)
        pause = () if gate is None else (gate,)
        if name.startswith("team") and "." not in name:
            if calls := team_calls(name, int(wanted), said[last + 1 :]):
                steps = (*pause, chunk(tool_calls=calls), chunk(finish="tool_calls"), DONE)
                return Reply(steps=steps, held=held)
        elif done < int(wanted):
            tool = "once" if name.startswith("once") else "work"
            call = {"index": 0, "id": f"{name}-{done}", "type": "function"}
            body = {**call, "function": {"name": tool, "arguments": "{}"}}
            steps = (*pause, chunk(tool_calls=[body]), chunk(finish="tool_calls"), DONE)
            return Reply(steps=steps, held=held)
        words = (chunk(content="answer "), *pause, chunk(content=f"to {name}"))
        if begun:
            rest = f"answer to {name}".removeprefix(begun)
            words = (*pause, chunk(content=rest)) if rest else pause
        return Reply(steps=(*words, chunk(finish="stop"), DONE), held=held)


def team_calls(name: str, size: int, turn: list[WireMessage]) -> list[dict[str, object]]:
    """The next calls of a team: spawn all, then wait for those that have not reported. A failover
    may have lost one that was spawned: the model is told that there is none, and goes on."""
    rounds = sum(bool(message.tool_calls) for message in turn)
    if rounds == 0:
        members = [
            {"type": ("general", "explore")[n % 2], "prompt": f"{name}.{n} {n % 2}"}
            for n in range(size)
        ]
        return [_call(f"{name}-0-{n}", n, "spawn_agent", args) for n, args in enumerate(members)]
    results = [_result(message) for message in turn if message.role == "tool"]
    settled = {result.get("chat_id") for result in results if "report" in result}
    texts = [message.text for message in turn if message.role == "tool"]
    settled |= {text.split()[0] for text in texts if " is no subagent of this chat" in text}
    waiting = dict.fromkeys(
        chat_id
        for result in results
        if (chat_id := result.get("chat_id")) is not None and chat_id not in settled
    )
    return [
        _call(f"{name}-{rounds}-{n}", n, "wait_agent", {"chat_id": chat_id})
        for n, chat_id in enumerate(waiting)
    ]


def _result(message: WireMessage) -> dict[str, object]:
    """Nothing for an error, which is plain text."""
    try:
        return msgspec.json.decode(message.text, type=dict[str, object])
    except msgspec.MsgspecError:
        return {}


def _call(call_id: str, index: int, tool: str, args: object) -> dict[str, object]:
    function = {"name": tool, "arguments": msgspec.json.encode(args).decode()}
    return {"index": index, "id": call_id, "type": "function", "function": function}


class ToolServer:
    """Runs the tools of all replicas. `runs` counts the effects by call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: Counter[str] = Counter()
        self.gates = FirstCallGates()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def running(cls, path: Path) -> AsyncGenerator[Self]:
        tool_server = cls(path)
        server = await asyncio.start_unix_server(tool_server._serve, path)
        try:
            yield tool_server
        finally:
            server.close()
            for task in list(tool_server._tasks):
                task.cancel()
            await asyncio.gather(*tool_server._tasks, return_exceptions=True)

    async def work(self, call_id: str) -> None:
        self.runs[call_id] += 1
        if (gate := self.gates.take(call_id)) is not None:
            await gate.pass_through()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = present(asyncio.current_task())
        self._tasks.add(task)
        try:
            call_id = (await reader.readline()).decode().strip()
            await self.work(call_id)
            writer.write(f"did {call_id}\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        finally:
            writer.close()
            self._tasks.discard(task)


class RemoteTool:
    """Satisfies `ports.Tool`: has its effect in the tool server."""

    serial = False
    origin: ToolOrigin = "chatd"
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
