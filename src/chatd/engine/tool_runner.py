"""Running a batch of tool calls: side by side, answered in the order they were made.

Owns that nothing a tool does can break the loop: it fails, hangs, raises, ignores being told to
stop, and each becomes an answer the model can act on. What may run at all is planned in the
domain.
"""

import asyncio
from typing import Final

from msgspec import UNSET, Struct

from chatd.domain.batch import plan_batch
from chatd.domain.blocks import EMPTY_OBJECT
from chatd.domain.chat import Chat, Fence
from chatd.domain.errors import ChatdError, StaleFence, Unavailable
from chatd.domain.heal import heal_text
from chatd.domain.ids import ToolCallId
from chatd.domain.messages import Draft, UsageEntry
from chatd.domain.parts import ToolCall, ToolResult
from chatd.domain.ports import Env, Tool, ToolContext
from chatd.domain.step_rows import in_call_order, result_messages
from chatd.domain.tool_output import Answered, ToolOutput, failed
from chatd.engine.lease import WorkerLease
from chatd.engine.tasks import TaskReaper
from chatd.engine.turn_context import Setting
from chatd.parts.episodes import Recorder
from chatd.store import tool_runs
from chatd.store.conn import Conn

UNKNOWN_OUTCOME_OUTPUT: Final = failed(
    "The worker was lost while this tool ran, and it must not run twice. Its outcome is unknown:"
    " look at the state it would have changed before you decide what to do."
)
TOOL_MARK_RETRY_DELAY_S: Final = 0.5


class ToolDeps(Struct, frozen=True, kw_only=True):
    """What tools are run with."""

    conn: Conn
    lease: WorkerLease
    left: TaskReaper
    env: Env


class ToolBatchRun:
    """One batch. Satisfies `job.Heard`: a stop keeps the results of the tools that are done."""

    def __init__(
        self,
        chat: Chat,
        setting: Setting,
        calls: tuple[ToolCall, ...],
        *,
        shop: ToolDeps,
        recorder: Recorder,
    ) -> None:
        self._chat = chat
        self._recorder = recorder
        self._fence = Fence.of(chat)
        self._setting = setting
        self._calls = calls
        self._shop = shop
        self._answered: dict[ToolCallId, Answered] = {}

    def so_far(self, at: str) -> tuple[Draft, ...]:
        done = in_call_order(self._calls, self._answered.values())
        return result_messages(done, self._setting.config.context_limit, at)

    def paid(self) -> tuple[UsageEntry, ...]:
        return ()

    async def run(self) -> None:
        """Until every call has its answer. Serial tools wait until the others are done, then
        go one by one. Raises StaleFence if the chat is no longer ours."""
        batch = plan_batch(self._calls, self._setting.toolbox)
        self._answered = {answer.call_id: answer for answer in batch.rejected}
        try:
            async with asyncio.TaskGroup() as group:
                for call in batch.concurrent:
                    group.create_task(self._answer(call), name=f"call {call.tool_call_id}")
        except* StaleFence:
            raise StaleFence(f"Chat {self._chat.id} has moved on.") from None
        for call in batch.serial:
            await self._answer(call)

    async def _answer(self, call: ToolCall) -> None:
        clock, began = self._shop.env.clock, self._shop.env.clock.monotonic()
        output = await self._output(self._setting.tools[call.tool_name], call)
        self._keep(call, output)
        self._shop.env.emit(
            "tool_finished",
            chat_id=self._chat.id,
            tool=call.tool_name,
            tool_call_id=call.tool_call_id,
            failed=output.is_error,
            duration_ms=round((clock.monotonic() - began) * 1000),
        )

    def _keep(self, call: ToolCall, output: ToolOutput) -> None:
        self._answered[call.tool_call_id] = Answered(
            call_id=call.tool_call_id,
            name=call.tool_name,
            output=output,
            mcp_server_config_id=call.mcp_server_config_id,
        )

    async def _output(self, tool: Tool, call: ToolCall) -> ToolOutput:
        context = ToolContext(
            chat=self._chat,
            call_id=call.tool_call_id,
            fence=self._fence,
            show=lambda text: self._show(call, text),
        )
        await self._shop.lease.wait_healthy()
        first = tool.effect != "once" or await self._mark(call.tool_call_id)
        self._shop.env.emit(
            "tool_started",
            chat_id=self._chat.id,
            tool=call.tool_name,
            tool_call_id=call.tool_call_id,
            again=not first,
        )
        args = EMPTY_OBJECT if call.args is UNSET else call.args
        work = tool.run(context, args) if first else tool.recover(context)
        task = asyncio.get_running_loop().create_task(work, name=f"tool {call.tool_name}")
        try:
            await asyncio.wait({task}, timeout=tool.timeout_s)
        except asyncio.CancelledError:
            await self._shop.left.stop(task)
            self._keep_last_words(task, call)
            raise
        if not task.done():
            await self._shop.left.stop(task)
            return failed(f"The tool did not finish within {tool.timeout_s:g} seconds.")
        return self._outcome(task, call) or UNKNOWN_OUTCOME_OUTPUT

    def _show(self, call: ToolCall, text: str) -> None:
        part = ToolResult(
            tool_call_id=call.tool_call_id, tool_name=call.tool_name, result_delta=heal_text(text)
        )
        self._recorder.add("tool", (part,))

    def _keep_last_words(self, task: asyncio.Task[ToolOutput | None], call: ToolCall) -> None:
        """A tool that was stopped may still tell how far it has come."""
        said = task.done() and not task.cancelled() and task.exception() is None
        if said and (output := task.result()) is not None:
            self._keep(call, output)

    def _outcome(self, task: asyncio.Task[ToolOutput | None], call: ToolCall) -> ToolOutput | None:
        if task.cancelled():
            return failed("The tool was cancelled.")
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, StaleFence):
            raise error
        if isinstance(error, ChatdError):
            return failed(error.message)
        # A tool's bug is the model's news, not our end.
        self._shop.env.emit("tool_failed", chat_id=self._chat.id, tool=call.tool_name, error=error)
        return failed(f"The tool failed: {type(error).__name__}: {error}")

    async def _mark(self, call_id: ToolCallId) -> bool:
        """Before a tool that must not run twice. The history at which it was called is part of
        the mark: after an edit a model may use the id of a call again."""
        mark = ToolCallId(f"{self._fence.history_version}:{call_id}")
        again = False
        while True:
            try:
                return await tool_runs.start(
                    self._shop.conn, self._chat.id, mark, self._fence, again=again
                )
            except Unavailable as error:
                again = again or error.maybe_applied
                await self._shop.env.clock.sleep(TOOL_MARK_RETRY_DELAY_S, "mark_retry")
