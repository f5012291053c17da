"""Scenarios of the official clients for TypeScript, in `tests/official_clients`.

A scenario runs in Node and asks its test for what happens on the other side, one step after the
other: what the model answers, when it goes on, when the server dies.
"""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.support.node_packages import install_packages, locked_node
from tests.support.providers.openai_chat import DONE, FakeChat, chunk
from tests.support.providers.server import Gate

DIRECTORY: Final = Path(__file__).parents[1] / "official_clients"
Json = dict[str, object]
Step = Callable[[Json], Awaitable[object]]


async def run_scenario(
    file: str, name: str, arguments: Json, steps: Mapping[str, Step], *, within_s: float = 50
) -> None:
    """Until it has passed. Its own assertion is shown if it has not."""
    node = locked_node()
    await install_packages(DIRECTORY, "openai")
    process = await asyncio.create_subprocess_exec(
        node,
        DIRECTORY / file,
        name,
        msgspec.json.encode(arguments),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=2**22,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    problems = asyncio.create_task(process.stderr.read())
    try:
        async with asyncio.timeout(within_s):
            async for line in process.stdout:
                asked = msgspec.json.decode(line, type=Json)
                given = await steps[str(asked.pop("step"))](asked)
                process.stdin.write(msgspec.json.encode(given) + b"\n")
            assert await process.wait() == 0, (await problems).decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await problems


class ModelSteps:
    """Steps that say what the model answers."""

    def __init__(self, vendor: FakeChat) -> None:
        self._vendor = vendor
        self._gates: list[Gate] = []
        self._reached = 0
        self._calls = 0

    def all(self) -> dict[str, Step]:
        return {
            "answer": self.answer,
            "call": self.call,
            "reached": self.reached,
            "open": self.open,
            "sent": self.sent,
            "refuse": self.refuse,
        }

    def hold(self) -> Gate:
        self._gates.append(Gate())
        return self._gates[-1]

    async def answer(self, asked: Json) -> None:
        """Half of the text, a gate if it is `held`, the rest."""
        text = str(asked["text"])
        half = len(text) // 2
        self._vendor.script(
            chunk(role="assistant", content=text[:half]),
            *((self.hold(),) if asked.get("held") else ()),
            chunk(content=text[half:]),
            chunk(finish="stop"),
            DONE,
        )

    async def call(self, asked: Json) -> None:
        self._calls += 1
        function = {"name": asked["name"], "arguments": asked["arguments"]}
        made = {
            "index": 0,
            "id": f"call_{self._calls}",
            "type": "function",
            "function": function,
        }
        self._vendor.script(
            chunk(role="assistant", content="I look."),
            chunk(tool_calls=[made]),
            chunk(finish="tool_calls"),
            DONE,
        )

    async def reached(self, _asked: Json) -> None:
        """The model has come to the next gate."""
        gate = self._gates[self._reached]
        self._reached += 1
        await gate.reached.wait()

    async def open(self, _asked: Json) -> None:
        for gate in self._gates:
            gate.open()

    async def sent(self, _asked: Json) -> object:
        """The messages of the last request to the model, without instructions."""
        messages = self._vendor.accepted[-1].messages
        return [
            (one.role, one.content) for one in messages if one.role not in ("system", "developer")
        ]

    async def refuse(self, _asked: Json) -> None:
        self._vendor.reply(401, {"error": {"message": "bad key"}})
