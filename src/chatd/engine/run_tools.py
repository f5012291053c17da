"""Running a batch of tool calls: side by side, answered in the order they were made.

Owns that nothing a tool does can break the loop: it fails, hangs, raises or
is unknown, and each becomes an answer the model can act on.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import UNSET, Raw

from chatd.domain.assemble import EMPTY_OBJECT
from chatd.domain.chat import Chat, Fence
from chatd.domain.errors import ChatdError, StaleFence
from chatd.domain.ids import ToolCallId
from chatd.domain.messages import Draft
from chatd.domain.parts import ToolCall
from chatd.domain.ports import Env, Tool, ToolContext
from chatd.domain.step_rows import in_call_order, result_messages
from chatd.domain.tool_output import Answered, ToolOutput
from chatd.store import tool_runs
from chatd.store.conn import Conn

UNKNOWN_OUTCOME: Final = ToolOutput(
    text="The worker was lost while this tool ran, and it must not run twice. Its outcome is"
    " unknown: look at the state it would have changed before you decide what to do.",
    is_error=True,
)


class ToolRun:
    """One batch. `answered` fills up as tools come back, so that a stop keeps what is there."""

    def __init__(self, chat: Chat, tools: Mapping[str, Tool], conn: Conn, env: Env) -> None:
        self._chat = chat
        self._fence = Fence.of(chat)
        self._tools = tools
        self._conn = conn
        self._env = env
        self._calls: tuple[ToolCall, ...] = ()
        self._context_limit: int | None = None
        self.answered: dict[ToolCallId, Answered] = {}

    def so_far(self, at: str) -> tuple[Draft, ...]:
        """Satisfies `runner.Heard`: results of the tools that are done."""
        done = in_call_order(self._calls, self.answered.values())
        return result_messages(done, self._context_limit, at)

    async def run(self, calls: tuple[ToolCall, ...]) -> list[Answered]:
        """Serial tools wait until the others are done, then go one by one."""
        self._calls = calls
        serial = [call for call in calls if self._is_serial(call)]
        together = [call for call in calls if not self._is_serial(call)]
        await self._side_by_side(together)
        for call in serial:
            await self._answer(call)
        return [self.answered[call.tool_call_id] for call in calls]

    def refuse(self, calls: tuple[ToolCall, ...]) -> list[Answered]:
        """A tool that must be called alone came with others: none of them runs."""
        return [self._refused(call) for call in calls]

    async def _side_by_side(self, calls: list[ToolCall]) -> None:
        """One that fails does not stop the others: each call is answered by itself."""
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._answer(call), name=f"tool {call.tool_name}")
        except* StaleFence:
            raise StaleFence(f"Chat {self._chat.id} has moved on.") from None

    def _is_serial(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.tool_name)
        return tool is not None and tool.serial

    async def _answer(self, call: ToolCall) -> None:
        began = self._env.clock.monotonic()
        output = await self._output(call)
        self.answered[call.tool_call_id] = Answered(
            call_id=call.tool_call_id, name=call.tool_name, output=output
        )
        self._env.emit(
            "tool_finished",
            chat_id=self._chat.id,
            tool=call.tool_name,
            tool_call_id=call.tool_call_id,
            failed=output.is_error,
            duration_ms=round((self._env.clock.monotonic() - began) * 1000),
        )

    async def _output(self, call: ToolCall) -> ToolOutput:
        tool = self._tools.get(call.tool_name)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return _failed(f"There is no tool named {call.tool_name!r}. Tools: {known}.")
        if call.args is UNSET:
            return _failed("The arguments were not valid JSON. Send the call again, whole.")
        context = ToolContext(chat=self._chat, call_id=call.tool_call_id, fence=self._fence)
        try:
            async with asyncio.timeout(tool.timeout_s):
                return await self._attempt(tool, context, call.args)
        except TimeoutError:
            return _failed(f"The tool did not finish within {tool.timeout_s:g} seconds.")
        except StaleFence:
            raise
        except ChatdError as error:
            return _failed(error.message)
        except asyncio.CancelledError:
            # Ours, or the tool's own doing? Only the first ends the batch.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _failed("The tool was cancelled.")
        except Exception as error:  # noqa: BLE001 - a tool's bug is the model's news, not our end
            self._env.emit("tool_failed", chat_id=self._chat.id, tool=call.tool_name, error=error)
            return _failed(f"The tool failed: {type(error).__name__}: {error}")

    async def _attempt(self, tool: Tool, context: ToolContext, args: Raw) -> ToolOutput:
        if tool.effect == "once":
            first = await tool_runs.start(
                self._conn, context.chat.id, context.call_id, context.fence
            )
            if not first:
                return await tool.recover(context) or UNKNOWN_OUTCOME
        return await tool.run(context, args or EMPTY_OBJECT)

    def _refused(self, call: ToolCall) -> Answered:
        tool = self._tools.get(call.tool_name)
        alone = tool is not None and tool.exclusive
        text = (
            "This tool must be called alone. Call it again, without others."
            if alone
            else "Not run: another call of this batch must be made alone."
        )
        return Answered(call_id=call.tool_call_id, name=call.tool_name, output=_failed(text))


def _failed(text: str) -> ToolOutput:
    return ToolOutput(text=text, is_error=True)
