"""The turn loop: load the turn's context, choose one action, run it, commit, repeat until the
chat waits, is released or fails. `decisions.next_action` chooses the action.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeVar, assert_never

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from chatd.aio import retry_unavailable
from chatd.domain.access.permissions import WORKER
from chatd.domain.answer.answer import result_messages
from chatd.domain.answer.assembler import EMPTY_OBJECT
from chatd.domain.answer.partial import longest_attempt
from chatd.domain.answer.tool_calls import DEFAULT_STEP_LIMITS, StepLimits
from chatd.domain.answer.tool_output import (
    AnsweredCall,
    ToolOutput,
    error_output,
    fit_outputs,
    result_message,
)
from chatd.domain.chat.commands import (
    CommitStep,
    FinishInterrupt,
    FinishTurn,
    NoteCallWaits,
    ReleaseChat,
    RequireAnswers,
    SuspendTurn,
)
from chatd.domain.chat.messages import (
    CallHooks,
    Draft,
    Message,
    UsageEntry,
    local_results,
    step_limit_notice,
)
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.chat.person_commands import (
    COMMAND_TOOL,
    LIST_TOOL,
    command_call,
    end_calls,
    has_ended,
    is_persons_call,
    listed_process,
    open_call,
    running_process,
)
from chatd.domain.chat.row import Chat, ChatError, Episode, Fence
from chatd.domain.decisions import (
    MAX_STEPS_PER_TURN,
    Action,
    AskHooks,
    Compact,
    Fail,
    Finish,
    Generate,
    RequireAction,
    RunTools,
    StartCommand,
    next_action,
    turn_rows,
)
from chatd.domain.deployment.hooks import (
    HookEvent,
    HookRefused,
    answer_text,
    find_prompt,
    step_facts,
    unrun_text,
)
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ToolCallId
from chatd.domain.mcp.tool_search import (
    FIND_TOOLS,
    SearchableTool,
    find_active_names,
    find_tools_description,
    find_tools_schema,
    needs_search,
    read_query,
    search_tools,
)
from chatd.domain.mcp.tools import mcp_origin
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import ModelError
from chatd.domain.model.protocol import ProviderError, ToolSpec
from chatd.domain.ports import (
    Env,
    ModelSource,
    SpanAttributes,
    Tool,
    ToolContext,
    ToolEffect,
    ToolSource,
)
from chatd.domain.prompt.kept_rows import CompactionLimits
from chatd.domain.text import utc_text
from chatd.domain.tool_modes import allows_client_tools, allows_tool, refusal_text
from chatd.domain.tool_policy.matching import denied_tools
from chatd.domain.workspace.agent_api import ProcessSignal
from chatd.engine.hooks import NO_HOOKS, TurnHooks
from chatd.engine.kept_histories import KeptHistories
from chatd.engine.model.attempt import Attempt, Committer
from chatd.engine.model.call_records import UsageWriter
from chatd.engine.model.model_call import AnswerTimes, ClientToolSpec, TurnContext
from chatd.engine.model.model_choice import choose_answering_model
from chatd.engine.model.model_step import ModelStep
from chatd.engine.model.title_generator import TitleGenerator
from chatd.engine.tool_runner import ToolBatchRun, ToolDeps
from chatd.store.chat import chats
from chatd.store.chat.operation import AppliedChange
from chatd.stream.episodes import EpisodeRegistry
from chatd.stream.journal_tail import decode_live_parts, keep_said, read_said

# Which of a step's tools the model is sent, and the tool that finds the others.


class ToolOffer(Struct, frozen=True, kw_only=True):
    """All tools that may be called, and the names of those that the model is not sent."""

    tools: Mapping[str, Tool]
    hidden: frozenset[str] = frozenset()


def offer_tools(
    found: Sequence[Tool],
    history: Sequence[Message],
    context_limit: int | None,
    denied: frozenset[str] = frozenset(),
) -> ToolOffer:
    """All tools, unless those of MCP servers need more than their share of the prompt. A tool of
    another family with the name `find_tools` disables the search. Those that the tool policy
    denies are neither sent nor found; a call of one gets the policy's denial."""
    tools = {tool.spec.name: tool for tool in found}
    searchable = [
        SearchableTool(
            name=tool.spec.name,
            description=tool.spec.description,
            schema=tool.spec.input_schema,
            server=origin.name,
        )
        for tool in found
        if (origin := mcp_origin(tool)) is not None and tool.spec.name not in denied
    ]
    if FIND_TOOLS in tools or not needs_search(searchable, context_limit):
        return ToolOffer(tools=tools, hidden=denied)
    active = find_active_names(history, searchable, context_limit)
    search = FindTools(
        spec=ToolSpec(
            name=FIND_TOOLS,
            description=find_tools_description(searchable, context_limit),
            input_schema=find_tools_schema(),
        ),
        searchable=tuple(searchable),
    )
    own = {name: tool for name, tool in tools.items() if mcp_origin(tool) is None}
    own[FIND_TOOLS] = search
    return ToolOffer(
        tools={name: own[name] for name in sorted(own)} | tools,
        hidden=(frozenset(tool.name for tool in searchable) - active) | denied,
    )


class FindTools(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`. Serial: direct calls of the same step count as older."""

    spec: ToolSpec
    searchable: tuple[SearchableTool, ...]
    effect: ToolEffect = "read"
    origin: Literal["chatd"] = "chatd"
    serial: bool = True
    exclusive: bool = False
    stops_turn: bool = False
    timeout_s: float = 30.0

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        del context
        query = read_query(args)
        if isinstance(query, str):
            return error_output(query)
        return ToolOutput(text=bytes(search_tools(self.searchable, query)).decode())

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


STOP_COMMAND_S: Final = 4.0
"""How long an interrupt waits for the end of a person's command."""
ROW_READ_RETRY_DELAY_S: Final = 0.5
TURN_CONTEXT_TIMEOUT_S: Final = 60.0

TURN_CONTEXT_TIMEOUT_ERROR: Final = ChatError(
    kind="timeout", message="The chat's model and tools could not be looked up in time."
)

_CLIENT_TOOLS: Final = msgspec.json.Decoder(tuple[ClientToolSpec, ...])

T = TypeVar("T")


class TurnLoopDeps(Struct, frozen=True, kw_only=True):
    committer: Committer
    episodes: EpisodeRegistry
    models: ModelSource
    tools: ToolSource
    model_step: ModelStep
    tool_deps: ToolDeps
    usage_writer: UsageWriter
    title_generator: TitleGenerator | None = None
    answer_times: AnswerTimes = AnswerTimes()
    limits: StepLimits = DEFAULT_STEP_LIMITS
    max_steps: int = MAX_STEPS_PER_TURN
    compaction: CompactionLimits = CompactionLimits()
    kept_histories: KeptHistories
    env: Env


class TurnLoop:
    def __init__(self, deps: TurnLoopDeps) -> None:
        self._deps = deps
        self._env = deps.env
        self._conn = deps.tool_deps.conn
        self._committer = deps.committer

    async def generate(self, attempt: Attempt) -> None:
        """Return when the chat waits, needs a client, or is released."""
        if attempt.is_first and attempt.chat.attempt > 1:
            self._deps.usage_writer.settle(attempt.chat)
            await self._load_previous(attempt)
        try:
            while attempt.should_continue:
                with self._env.tracer.span(
                    "invoke_agent chatd", _turn_facts(attempt.chat), turn=_turn_name(attempt.chat)
                ):
                    await self._run_turn(attempt)
        finally:
            attempt.leave_history(self._deps.kept_histories)

    async def _run_turn(self, attempt: Attempt) -> None:
        """Until the turn ends, is released or waits. The next one may follow from the queue."""
        turn = attempt.chat.turn_message_id
        while attempt.should_continue and attempt.chat.turn_message_id == turn:
            if attempt.is_draining:
                release = ReleaseChat(worker_id=attempt.worker_id, epoch=attempt.chat.epoch)
                await self._committer.commit(attempt, release)
                return
            await self._run_step(attempt)

    async def interrupt(self, attempt: Attempt) -> None:
        """Commit the partial answer or the finished tool results; then run the queue."""
        await self._load_previous(attempt)
        at = utc_text(self._env.clock.now())
        messages, usage_entries = attempt.partial_messages(at), attempt.unrecorded_usage()
        messages = await self._stop_command(attempt, messages, at)
        if attempt.is_first and not attempt.has_partial:
            self._deps.usage_writer.settle(attempt.chat)
        step = attempt.step(FinishInterrupt, messages, usage_entries)
        await self._committer.commit(attempt, step)
        await self.generate(attempt)

    async def _stop_command(
        self, attempt: Attempt, messages: tuple[Draft, ...], at: str
    ) -> tuple[Draft, ...]:
        """A command of a person ends with the turn, a command of the model goes on in the
        background. Best effort, for a moment: the report of one that goes on has its id. One that
        an earlier worker started has no report here: it is looked for in the workspace."""
        report = next(
            (
                part
                for draft in messages
                for part in local_results(draft.content)
                if is_persons_call(part.tool_call_id)
            ),
            None,
        )
        try:
            async with asyncio.timeout(STOP_COMMAND_S):
                if report is not None and (process := running_process(report.result)):
                    call_id = report.tool_call_id
                elif attempt.is_first and (found := await self._find_command(attempt)) is not None:
                    call_id, process = found
                else:
                    return messages
                output = await self._end_process(attempt.chat, call_id, process)
        except (TimeoutError, ChatdError):
            return messages
        if output is None:
            return messages
        answer = AnsweredCall(call_id=call_id, name=COMMAND_TOOL, output=output)
        [fitted] = fit_outputs([answer], None)
        return (result_message(fitted, at),)

    async def _find_command(self, attempt: Attempt) -> tuple[ToolCallId, str] | None:
        """A person's command that an earlier worker started, and its process."""
        await attempt.load_history(self._conn, self._deps.kept_histories)
        call = open_call(attempt.history)
        if call is None:
            return None
        tools = await self._deps.tools.tools(attempt.chat)
        tool = next((one for one in tools if one.spec.name == LIST_TOOL), None)
        if tool is None:
            return None
        context = ToolContext(
            chat=attempt.chat,
            call_id=ToolCallId(f"{call.tool_call_id}-find"),
            fence=Fence.of(attempt.chat),
        )
        listed = await tool.run(context, EMPTY_OBJECT)
        process = "" if listed.is_error else listed_process(listed.text, call)
        return (call.tool_call_id, process) if process else None

    async def _end_process(
        self, chat: Chat, call_id: ToolCallId, process: str
    ) -> ToolOutput | None:
        """The report of the ended command; None if it could not be ended."""
        tools = {tool.spec.name: tool for tool in await self._deps.tools.tools(chat)}
        signals: tuple[ProcessSignal, ...] = ("terminate", "kill")
        for signal in signals:
            output = error_output("")
            for name, args in end_calls(process, signal):
                context = ToolContext(
                    chat=chat,
                    call_id=ToolCallId(f"{call_id}-{signal}"),
                    fence=Fence.of(chat),
                )
                if name not in tools:
                    return None
                output = await tools[name].run(context, args)
            if output.is_error:
                return None
            if has_ended(output.text):
                return output
        return None

    async def fail(self, attempt: Attempt, error: ChatError) -> None:
        """Fail the turn, or end its interrupt. Neither the partial answer nor its usage is in
        that commit, because they may be what cannot be written; the usage is recorded after."""
        unpaid = attempt.unrecorded_usage()
        if attempt.chat.status == "running":
            await self._committer.fail_turn(attempt, error)
        else:
            step = FinishInterrupt(fence=Fence.of(attempt.chat), keep_owner=False)
            await self._committer.commit(attempt, step)
        self.record_usage(attempt.chat, unpaid)

    async def read_row(self, chat: Chat) -> Chat | None:
        return await self._until_available(lambda: chats.get(self._conn, WORKER, chat.id))

    def record_usage(self, chat: Chat, unpaid: tuple[UsageEntry, ...]) -> None:
        """Record usage outside the chat's row, which another worker may own now."""
        self._deps.usage_writer.record(chat, unpaid)

    # One step

    async def _run_step(self, attempt: Attempt) -> AppliedChange:
        await self._deps.tool_deps.lease.wait_healthy()
        try:
            context = await self._until_available(lambda: self._load(attempt))
        except ModelError as failed:
            return await self._deps.model_step.replace_unusable(attempt, failed.classified)
        except ProviderError as failed:
            unusable = classify_fault(failed.fault)
            return await self._deps.model_step.replace_unusable(attempt, unusable)
        except TimeoutError:
            return await self._committer.fail_turn(attempt, TURN_CONTEXT_TIMEOUT_ERROR)
        action = next_action(attempt.history, attempt.chat, context.rules)
        self._env.emit(
            "action",
            chat_id=attempt.chat.id,
            task=type(action).__name__,
            attempt=attempt.chat.attempt,
        )
        if context.hooks.hooks and (refused := await self._check_hooks(attempt, context, action)):
            unrun = _unrun_calls(attempt.chat, refused, utc_text(self._env.clock.now()))
            return await self._committer.fail_turn(attempt, refused.error, messages=unrun)
        name = type(action).__name__
        with self._env.tracer.span(f"step {name}", {"chatd.attempt": attempt.chat.attempt}):
            return await self._run_action(attempt, context, action)

    async def _load(self, attempt: Attempt) -> TurnContext:
        await attempt.load_history(self._conn, self._deps.kept_histories)
        async with asyncio.timeout(TURN_CONTEXT_TIMEOUT_S):
            context = await _load_turn_context(
                attempt, self._deps.models, self._deps.tools, self._env.clock.now()
            )
            hooks = self._deps.tool_deps.hooks
            return replace(
                context,
                hooks=NO_HOOKS
                if hooks is None or hooks.has_none
                else await hooks.load(attempt.chat),
                policy=await attempt.load_policy(self._conn),
                answer_times=self._deps.answer_times,
                limits=self._deps.limits,
                max_steps=self._deps.max_steps,
                compaction=self._deps.compaction,
            )

    def _start_title(self, attempt: Attempt, context: TurnContext) -> None:
        """A chat with an answer has its title; the check is cheap, because it is made at every
        step."""
        generator = self._deps.title_generator
        if generator is None or any(row.role == "assistant" for row in attempt.history):
            return
        generator.start_if_needed(attempt.chat, attempt.history, context.choice)

    async def _run_action(
        self, attempt: Attempt, context: TurnContext, action: Action
    ) -> AppliedChange:
        match action:
            case Generate():
                self._start_title(attempt, context)
                return await self._deps.model_step.generate(attempt, context)
            case StartCommand(message=message):
                call = command_call(message, utc_text(self._env.clock.now()))
                step = attempt.step(CommitStep, (call,), client_tools=context.client_names)
                return await self._committer.commit(attempt, step)
            case AskHooks():
                return await self._ask_hooks(attempt, context, action)
            case RunTools():
                return await self._run_tools(attempt, context, action)
            case Compact():
                return await self._deps.model_step.compact(attempt, context, action)
            case RequireAction(waits=waits):
                step = attempt.step(RequireAnswers, client_tools=context.client_names, waits=waits)
                return await self._committer.commit(attempt, step)
            case Finish():
                early = action.reason == "max_steps"
                told = (step_limit_notice(context.max_steps),) if early else ()
                step = attempt.step(FinishTurn, told, client_tools=context.client_names)
                return await self._committer.commit(attempt, step)
            case Fail():
                return await self._committer.fail_turn(attempt, action.error)
            case _:
                assert_never(action)

    async def _ask_hooks(
        self, attempt: Attempt, context: TurnContext, action: AskHooks
    ) -> AppliedChange:
        """Nothing of it counts before the commit: a worker after this one asks again, under the
        same ids."""
        hooks, chat = self._hooks(), attempt.chat
        found: dict[ToolCallId, CallHooks] = {}

        async def ask(call: ToolCallPart) -> None:
            found[call.tool_call_id] = await self._until_available(
                lambda: hooks.before_call(context.hooks, chat, call)
            )

        async with asyncio.TaskGroup() as group:
            for call in action.calls:
                group.create_task(ask(call), name=f"hooks of {call.tool_name}")
        self._env.emit("hooks_answered", chat_id=chat.id, calls=len(found))
        noted = NoteCallWaits(fence=Fence.of(chat), hooks=found)
        return await self._committer.commit(attempt, noted)

    async def _check_hooks(
        self, attempt: Attempt, context: TurnContext, action: Action
    ) -> HookRefused | None:
        """Before the action: at the start of a turn and after a message that joined it, after each
        committed step, and at the end.
        A worker that took the chat over asks again for the last step, under the same id."""
        hooks, chat, asked = self._hooks(), attempt.chat, context.hooks
        turn = turn_rows(attempt.history)
        told: list[tuple[HookEvent, str, Mapping[str, object]]] = []
        prompt_id, prompt = find_prompt(attempt.history)
        if not turn and isinstance(action, Generate | Compact):
            told.append(("turn_start", f"m{prompt_id}", {"text": prompt}))
        elif turn:
            told.append(("step", f"v{chat.history_version}", step_facts(turn)))
        if isinstance(action, Finish):
            facts = {"reason": action.reason, "text": answer_text(turn)}
            told.append(("turn_end", f"m{prompt_id}", facts))
        for event, key, facts in told:
            if not asked.has(event) or attempt.has_told((event, key)):
                continue
            refused = await self._until_available(
                functools.partial(hooks.check, asked, chat, event, key, facts)
            )
            if refused is not None:
                return refused
            attempt.set_told((event, key))
        return None

    def _hooks(self) -> TurnHooks:
        hooks = self._deps.tool_deps.hooks
        assert hooks is not None  # no context names hooks without them
        return hooks

    async def _run_tools(
        self, attempt: Attempt, context: TurnContext, action: RunTools
    ) -> AppliedChange:
        recorder = self._deps.episodes.open(Episode.of(attempt.chat))
        batch = ToolBatchRun(
            attempt.chat,
            context,
            action,
            deps=self._deps.tool_deps,
            recorder=recorder,
            note_waits=lambda waits: self._committer.run(
                attempt.chat.id, NoteCallWaits(fence=Fence.of(attempt.chat), waits=waits)
            ),
        )
        attempt.set_partial(batch.partial_messages, tuple)
        try:
            await batch.run()
            drafts = batch.partial_messages(utc_text(self._env.clock.now()))
            for draft in drafts:  # a result names its files
                recorder.add("tool", tuple(local_results(draft.content)))
        finally:
            recorder.close()
        if batch.wait is not None:
            suspend = SuspendTurn(fence=Fence.of(attempt.chat), messages=drafts, wait=batch.wait)
            applied = await self._committer.commit(attempt, suspend)
            if applied.chat.is_suspended:
                chat_ids = batch.wait.chat_ids
                self._env.emit("turn_suspended", chat_id=applied.chat.id, chats=chat_ids)
            return applied
        step = attempt.step(CommitStep, drafts, client_tools=context.client_names)
        return await self._committer.commit(attempt, step)

    # Reads that wait for the database

    async def _load_previous(self, attempt: Attempt) -> None:
        """What the workers before this one said at this step, from the live parts they published.
        Taking over an interrupt opens no episode, so the last one is another worker's. This
        replica may have published an episode itself, and not yet written it to the journal. While
        the turn goes on, the longest answer is kept for workers after this one: many attempts may
        fail before one says as much, and the journal forgets."""
        if attempt.has_previous:
            return
        chat = attempt.chat
        is_last_foreign = attempt.is_first and chat.status == "interrupting"
        kept = Episode.kept_of(chat)
        episodes = (kept if is_last_foreign else kept[:-1])[::-1]
        if not episodes:
            return
        parts = await self._until_available(lambda: read_said(self._conn, chat, episodes))
        buffer = self._deps.episodes.find(chat.id)
        if buffer is not None and buffer.episode in parts:
            parts[buffer.episode] = decode_live_parts(buffer.events)
        attempt.set_previous(parts)
        longest = longest_attempt(chat, parts) if chat.status == "running" else None
        if longest is not None:
            await self._until_available(
                lambda: keep_said(self._conn, chat, longest, parts[longest])
            )

    async def _until_available(self, read: Callable[[], Awaitable[T]]) -> T:
        return await retry_unavailable(
            self._env.clock,
            read,
            tag="read_retry",
            delay=lambda _: ROW_READ_RETRY_DELAY_S,
            budget_s=None,
        )


def _turn_name(chat: Chat) -> str:
    """The same on every worker that runs a part of the turn."""
    return f"{chat.id}:{chat.turn_message_id or chat.history_version}"


def _turn_facts(chat: Chat) -> SpanAttributes:
    facts: dict[str, str | int] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "chatd",
        "gen_ai.conversation.id": str(chat.id),
        "chatd.worker.epoch": chat.epoch,
    }
    if chat.parent_chat_id is not None:
        facts["chatd.parent_chat.id"] = str(chat.parent_chat_id)
    return facts


async def _load_turn_context(
    attempt: Attempt, models: ModelSource, tools: ToolSource, now: datetime
) -> TurnContext:
    """Loaded again for every step, because model, tools and instructions can change during a turn.
    Raises ModelError if the chat's model cannot be used."""
    chat = attempt.chat
    choice = await choose_answering_model(models, attempt, now)
    found, client_tools = await tools.tools(chat), _client_tools(chat)
    refused = [
        tool.spec.name
        for tool in found
        if not allows_tool(chat.mode, tool.spec.name, tool.origin, is_root=chat.is_root)
    ]
    if not allows_client_tools(chat.mode):
        refused += [tool.name for tool in client_tools]
    names = [*(tool.spec.name for tool in found), *(tool.name for tool in client_tools)]
    denied = denied_tools(attempt.offer_policy, names)
    offer = offer_tools(found, attempt.history, choice.config.context_limit, denied)
    return TurnContext(
        choice=choice,
        tools=offer.tools,
        hidden=offer.hidden,
        refused={name: refusal_text(chat.mode, name) for name in refused},
        client_tools=client_tools,
        instructions=await tools.instructions(chat),
    )


def _client_tools(chat: Chat) -> tuple[ClientToolSpec, ...]:
    is_offered = chat.is_root or allows_client_tools(chat.mode)
    if chat.client_tools is UNSET or not is_offered:
        return ()
    return _CLIENT_TOOLS.decode(chat.client_tools)


def _unrun_calls(chat: Chat, refused: HookRefused, at: str) -> tuple[Draft, ...]:
    """Results of the calls that a refused step keeps from running. None if an earlier worker may
    have started them: their outcome is unknown then."""
    if chat.attempt > 1:
        return ()
    output = error_output(unrun_text(refused))
    calls = [
        AnsweredCall(call_id=call.id, name=call.name, output=output) for call in chat.pending_calls
    ]
    return result_messages(calls, None, at)
