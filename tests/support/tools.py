"""Tools under the test's control: wait at a gate, fail, take long, ignore cancellation."""

import asyncio
from collections.abc import Sequence

from msgspec import Raw

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import Tool, ToolContext, ToolEffect
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.tool_modes import ToolOrigin
from tests.support.providers.server import Gate

SCHEMA = Raw(b'{"type":"object","properties":{"say":{"type":"string"}}}')


class GatedTool:
    """Satisfies `ports.Tool`. Runs up to its gate, if it has one, then returns its arguments.
    `runs` are the calls that it ran for."""

    def __init__(
        self,
        name: str = "echo",
        *,
        gate: Gate | None = None,
        effect: ToolEffect = "read",
        serial: bool = False,
        stops_turn: bool = False,
        timeout_s: float = 5.0,
    ) -> None:
        self.spec = ToolSpec(name=name, description="Says it again.", input_schema=SCHEMA)
        self.effect: ToolEffect = effect
        self.serial = serial
        self.origin: ToolOrigin = "chatd"
        self.stops_turn = stops_turn
        self.timeout_s = timeout_s
        self.gate = gate
        self.runs: list[ToolCallId] = []
        self.recovers: ToolOutput | None = None

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        self.runs.append(context.call_id)
        if self.gate is not None:
            await self.gate.pass_through()
        return ToolOutput(text=f"said {bytes(args).decode()}")

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return self.recovers


class BrokenTool(GatedTool):
    """Raises an unexpected exception."""

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        raise ValueError("a bug")


class StubbornTool(GatedTool):
    """Runs until its gate opens and ignores cancellation. `refused` is set when it was
    cancelled."""

    def __init__(self, gate: Gate, *, timeout_s: float = 5.0, serial: bool = False) -> None:
        super().__init__(gate=gate, timeout_s=timeout_s, serial=serial)
        self.refused = asyncio.Event()

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        self.runs.append(context.call_id)
        assert self.gate is not None
        while True:
            try:
                await self.gate.pass_through()
            except asyncio.CancelledError:
                self.refused.set()
            else:
                return ToolOutput(text="late")


class ShowingTool(GatedTool):
    """Reports progress."""

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        context.show("half ")
        context.show("done")
        return await super().run(context, args)


class PoliteTool(GatedTool):
    """Cancelled, it returns a partial result."""

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        assert self.gate is not None
        try:
            await self.gate.pass_through()
        except asyncio.CancelledError:
            return ToolOutput(text="half of it")
        return ToolOutput(text="all of it")


class Tools:
    """Satisfies `ports.ToolSource`."""

    def __init__(self, tools: Sequence[Tool], told: Instructions | None = None) -> None:
        self._tools = tools
        self._told = told or Instructions()

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        return self._tools

    async def instructions(self, chat: Chat) -> Instructions:
        del chat
        return self._told

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        del context
        return output
