"""Run a batch of tool calls, so many at once, and answer them in call order.

A tool that fails, hangs, raises or ignores its cancellation never breaks the turn: each of these
becomes a tool result that the model can act on. `domain.answer.tool_calls` decides which calls may
run.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from chatd.aio import TaskReaper, retry_unavailable
from chatd.domain.answer.answer import result_messages, sort_by_call
from chatd.domain.answer.assembler import EMPTY_OBJECT
from chatd.domain.answer.tool_calls import plan_batch
from chatd.domain.answer.tool_output import (
    AnsweredCall,
    ToolOutput,
    error_output,
    fit_outputs,
    is_long,
    share_bytes,
)
from chatd.domain.chat.messages import Draft
from chatd.domain.chat.parts import ToolCallPart, ToolResultPart
from chatd.domain.chat.row import AgentWait, Chat, Fence
from chatd.domain.decisions import RunTools
from chatd.domain.deployment.hooks import hook_notices
from chatd.domain.errors import ChatdError, StaleFence, Unavailable
from chatd.domain.ids import ToolCallId
from chatd.domain.ports import Env, Tool, ToolContext
from chatd.domain.subagents import join_waits
from chatd.domain.text import replace_surrogates
from chatd.engine.hooks import TurnHooks
from chatd.engine.lease import WorkerLease
from chatd.engine.model.model_call import TurnContext
from chatd.store import idempotency
from chatd.store.database.conn import Conn
from chatd.store.idempotency import ToolMark
from chatd.stream.episodes import PartRecorder

UNKNOWN_OUTCOME_OUTPUT: Final = error_output(
    "The worker was lost while this tool ran, and it must not run twice. Its outcome is unknown:"
    " look at the state it would have changed before you decide what to do."
)
EFFECT_UNKNOWN_TEXT: Final = (
    "Its outcome is unknown: look at the state it would have changed before you repeat it."
)
UNCHECKED_TEXT: Final = (
    "The call ran. The turn was stopped before a hook of the server had checked its result, so it"
    " is not shown."
)
TOOL_MARK_RETRY_DELAY_S: Final = 0.5
SAVE_CUT_RESULTS_TIMEOUT_S: Final = 20.0
"""For all results of a step that are cut because it has many."""

_KEPT_OUTPUT: Final = msgspec.json.Decoder(ToolOutput)


class ToolDeps(Struct, frozen=True, kw_only=True):
    conn: Conn
    lease: WorkerLease
    task_reaper: TaskReaper
    save_result: Callable[[ToolContext, ToolOutput], Awaitable[ToolOutput]]
    env: Env
    hooks: TurnHooks | None = None


class ToolBatchRun:
    """One batch. An interrupt keeps the results of the tools that have finished."""

    def __init__(
        self,
        chat: Chat,
        context: TurnContext,
        action: RunTools,
        *,
        deps: ToolDeps,
        recorder: PartRecorder,
        note_waits: Callable[[Mapping[ToolCallId, str]], Awaitable[object]],
    ) -> None:
        """`note_waits` commits what calls wait for."""
        self._chat = chat
        self._context = context
        self._calls = action.calls
        self._denied = action.denied
        self._deps = deps
        self._env = deps.env
        self._recorder = recorder
        self._fence = Fence.of(chat)
        self._answered: dict[ToolCallId, AnsweredCall] = {}
        self._waits: list[AgentWait] = []
        self._note_waits = note_waits
        # Also what an owner before this one waited for: the tool takes it back when it goes on.
        self._waits_for = {call.id: call.waits_for for call in chat.pending_calls if call.waits_for}
        self._hooked = {call.id: call.hooks for call in chat.pending_calls if call.hooks}

    @property
    def wait(self) -> AgentWait | None:
        """What the calls without a result wait for."""
        return join_waits(self._waits) if self._waits else None

    def partial_messages(self, at: str) -> tuple[Draft, ...]:
        done = sort_by_call(self._calls, self._answered.values())
        results = result_messages(done, self._limits[0], at, max_bytes=self._limits[1])
        told = [
            notice
            for each in done
            for notice in hook_notices(each.name, each.call_id, self._hooked.get(each.call_id))
        ]
        return (*told, *results)

    @property
    def _limits(self) -> tuple[int | None, int]:
        return self._context.config.context_limit, self._context.limits.output_bytes

    async def run(self) -> None:
        """Return when every call has its result or waits for subagents. A bounded number of tools
        runs at once, and serial ones one by one after the others. Raises StaleFence if another
        worker owns the chat."""
        allowed = [call for call in self._calls if call.tool_call_id not in self._denied]
        batch = plan_batch(allowed, self._context.toolbox)
        self._answered = {answer.call_id: answer for answer in batch.rejected}
        for call in self._calls:
            if (text := self._denied.get(call.tool_call_id)) is not None:
                self._store(call, error_output(text))
        try:
            await self._each(batch.concurrent, self._answer)
            for call in batch.serial:
                await self._answer(call)
            await self._save_cut_results()
        except* StaleFence:
            raise StaleFence(f"Chat {self._chat.id} has changed.") from None

    async def _each(
        self, calls: Sequence[ToolCallPart], work: Callable[[ToolCallPart], Awaitable[None]]
    ) -> None:
        """Several tasks share `waiting`: each takes the next call when it is done with its last."""
        waiting = iter(calls)

        async def take() -> None:
            for call in waiting:
                await work(call)

        async with asyncio.TaskGroup() as group:
            for number in range(min(len(calls), self._context.limits.concurrent_calls)):
                group.create_task(take(), name=f"calls {number}")

    async def _save_cut_results(self) -> None:
        """Those that the step cuts because it has many. What is not saved in time has no file."""
        share = share_bytes(list(self._answered.values()), *self._limits)
        cut = [
            call
            for call in self._calls
            if (answer := self._answered.get(call.tool_call_id)) and is_long(answer.output, share)
        ]

        async def save(call: ToolCallPart) -> None:
            output = self._answered[call.tool_call_id].output
            self._store(call, await self._deps.save_result(self._tool_context(call), output))

        try:
            async with asyncio.timeout(SAVE_CUT_RESULTS_TIMEOUT_S):
                await self._each(cut, save)
        except TimeoutError:
            self._env.emit("tool_results_not_saved", chat_id=self._chat.id, calls=len(cut))

    async def _answer(self, call: ToolCallPart) -> None:
        clock, started_at = self._env.clock, self._env.clock.monotonic()
        tracer = self._env.tracer
        facts = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool_name,
            "gen_ai.tool.call.id": call.tool_call_id,
            "gen_ai.tool.type": "function",
        }
        with tracer.span(f"execute_tool {call.tool_name}", facts) as span:
            output = await self._output(self._context.tools[call.tool_name], call)
            if output.is_error:
                span.fail("tool_error")
            if tracer.has_content:
                given = "" if call.args is UNSET else bytes(call.args).decode(errors="replace")
                span.set(
                    {"gen_ai.tool.call.arguments": given, "gen_ai.tool.call.result": output.text}
                )
        if output.wait is not None:
            self._waits.append(output.wait)
            return
        if (hooks := self._deps.hooks) is not None and self._context.hooks.has("after_tool"):
            output = await retry_unavailable(
                self._env.clock,
                lambda: hooks.after_call(self._context.hooks, self._chat, call, output),
                tag="hook_retry",
                delay=lambda _: TOOL_MARK_RETRY_DELAY_S,
                budget_s=None,
            )
        self._store(call, output)
        self._env.emit(
            "tool_finished",
            chat_id=self._chat.id,
            tool=call.tool_name,
            tool_call_id=call.tool_call_id,
            failed=output.is_error,
            duration_ms=round((clock.monotonic() - started_at) * 1000),
        )

    def _store_unchecked(self, call: ToolCallPart, output: ToolOutput) -> None:
        """What a stop of the turn now keeps: nothing that a hook is still to pass."""
        is_passed = self._deps.hooks is None or not self._context.hooks.has("after_tool")
        self._store(call, output if is_passed else error_output(UNCHECKED_TEXT))

    def _store(self, call: ToolCallPart, output: ToolOutput) -> None:
        hooked = self._hooked.get(call.tool_call_id)
        answered = _answered(call, output)
        if hooked is not None and hooked.args is not UNSET:
            answered = replace(answered, changed_args=hooked.args)
        self._answered[call.tool_call_id] = answered

    async def _output(self, tool: Tool, call: ToolCallPart) -> ToolOutput:
        await self._deps.lease.wait_healthy()
        mark = ToolMark(first=True)
        if tool.effect == "once":
            mark = await self._mark_started(call.tool_call_id)
            if mark.output is not None:
                return _KEPT_OUTPUT.decode(mark.output)
        is_first = mark.first
        self._env.emit(
            "tool_started",
            chat_id=self._chat.id,
            tool=call.tool_name,
            tool_call_id=call.tool_call_id,
            again=not is_first,
        )
        task = self._start(tool, call, is_first=is_first)
        try:
            await asyncio.wait({task}, timeout=tool.timeout_s)
        except asyncio.CancelledError:
            await self._deps.task_reaper.stop(task)
            self._store_late_output(task, call)
            raise
        if not task.done():
            await self._deps.task_reaper.stop(task)
            text = f"The tool did not finish within {tool.timeout_s:g} seconds."
            return _unfinished_output(tool, text)
        output = self._outcome(task, tool, call) or UNKNOWN_OUTCOME_OUTPUT
        if output.wait is not None:
            return output
        runs_once = tool.effect == "once" and is_first
        if is_long(output):
            self._store_unchecked(call, output)  # an interrupt or a death now keeps it, cut
            if runs_once:
                await self._keep(call, output)
            output = await self._deps.save_result(self._tool_context(call), output)
        if runs_once and len(self._calls) > 1:
            await self._keep(call, output)
        return output

    async def _keep(self, call: ToolCallPart, output: ToolOutput) -> None:
        """Other calls of the step may run on until a drain or a death ends this worker. Tried
        once: the step's own commit follows."""
        answered = [_answered(call, output)]
        [fitted] = fit_outputs(answered, *self._limits)
        text = msgspec.json.encode(fitted.output).decode()
        mark = self._mark_of(call.tool_call_id)
        try:
            await idempotency.keep_tool_output(
                self._deps.conn, self._chat.id, mark, self._fence, text
            )
        except Unavailable as error:
            self._env.emit("tool_output_not_kept", chat_id=self._chat.id, error_kind=error.code)

    def _mark_of(self, call_id: ToolCallId) -> ToolCallId:
        """It includes the history version, because a model may reuse a call id after an edit."""
        return ToolCallId(f"{self._fence.history_version}:{call_id}")

    def _start(
        self, tool: Tool, call: ToolCallPart, *, is_first: bool
    ) -> asyncio.Task[ToolOutput | None]:
        context = self._tool_context(call)
        args = EMPTY_OBJECT if call.args is UNSET else call.args
        work = tool.run(context, args) if is_first else tool.recover(context)
        return asyncio.get_running_loop().create_task(work, name=f"tool {call.tool_name}")

    def _tool_context(self, call: ToolCallPart) -> ToolContext:
        return ToolContext(
            chat=self._chat,
            call_id=call.tool_call_id,
            fence=self._fence,
            show=lambda text: self._publish_output(call, text),
            wait_for=lambda text: self._commit_waits({call.tool_call_id: text}),
            traceparent=self._env.tracer.place(),
        )

    async def _commit_waits(self, waits: Mapping[ToolCallId, str]) -> None:
        """Only viewers need it: one that is not written is tried again when the tool asks again."""
        new = {key: text for key, text in waits.items() if text != self._waits_for.get(key, "")}
        if not new:
            return
        try:
            await self._note_waits(new)
        except (StaleFence, Unavailable) as error:
            self._env.emit("call_wait_not_noted", chat_id=self._chat.id, error_kind=error.code)
        else:
            self._waits_for.update(new)

    def _publish_output(self, call: ToolCallPart, text: str) -> None:
        part = ToolResultPart(
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            result_delta=replace_surrogates(text),
        )
        self._recorder.add("tool", (part,))

    def _store_late_output(self, task: asyncio.Task[ToolOutput | None], call: ToolCallPart) -> None:
        """A cancelled tool may still return the output it has so far."""
        has_result = task.done() and not task.cancelled() and task.exception() is None
        output = task.result() if has_result else None
        if output is not None and output.wait is None:
            self._store_unchecked(call, output)

    def _outcome(
        self, task: asyncio.Task[ToolOutput | None], tool: Tool, call: ToolCallPart
    ) -> ToolOutput | None:
        if task.cancelled():
            return _unfinished_output(tool, "The tool was cancelled.")
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, StaleFence):
            raise error
        if isinstance(error, ChatdError):
            return error_output(error.message)
        # A bug in a tool is reported to the model and does not end the turn.
        self._env.emit("tool_failed", chat_id=self._chat.id, tool=call.tool_name, error=error)
        return _unfinished_output(tool, f"The tool failed: {type(error).__name__}: {error}.")

    async def _mark_started(self, call_id: ToolCallId) -> ToolMark:
        """Mark a tool that must not run twice."""
        mark, again = self._mark_of(call_id), False
        while True:
            try:
                return await idempotency.mark_tool_started(
                    self._deps.conn, self._chat.id, mark, self._fence, is_retry=again
                )
            except Unavailable as error:
                again = again or error.maybe_applied
                await self._env.clock.sleep(TOOL_MARK_RETRY_DELAY_S, "mark_retry")


def _answered(call: ToolCallPart, output: ToolOutput) -> AnsweredCall:
    return AnsweredCall(
        call_id=call.tool_call_id,
        name=call.tool_name,
        output=output,
        mcp_server_config_id=call.mcp_server_config_id,
    )


def _unfinished_output(tool: Tool, text: str) -> ToolOutput:
    """A tool that only reads has no outcome that could be unknown."""
    return error_output(text if tool.effect == "read" else f"{text} {EFFECT_UNKNOWN_TEXT}")
