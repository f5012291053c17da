"""Pure decisions of a chat task: the next action of its turn, and the reaction to a changed row.

`next_action` reads committed history only, so a step after a crash or a takeover is chosen like
any other. `decide_reaction` compares versions, because rows come late, twice or out of order.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.answer.tool_calls import DEFAULT_STEP_LIMITS, refuse_surplus
from chatd.domain.chat.call_waits import (
    CLIENT_TOOL_DEADLINE_S,
    PERSON_DEADLINE_S,
    CallWait,
    read_questions,
)
from chatd.domain.chat.messages import (
    Message,
    PendingCall,
    local_calls,
    local_results,
    pending_calls,
)
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.chat.person_commands import find_commands, is_persons_call
from chatd.domain.chat.row import Chat, ChatError, Fence
from chatd.domain.chat.states import Status
from chatd.domain.deployment.hooks import effective_args, with_hooks
from chatd.domain.errors import ToolError
from chatd.domain.ids import ChangeId, ToolCallId, WorkerId
from chatd.domain.model.protocol import FinishReason
from chatd.domain.prompt import compaction
from chatd.domain.prompt.kept_rows import CompactionLimits
from chatd.domain.text import parse_json
from chatd.domain.tool_policy.decision import (
    PolicyDecision,
    can_allow_always,
    decide,
    denial_text,
)
from chatd.domain.tool_policy.rules import PolicyLayer

MAX_STEPS_PER_TURN: Final = 1200

CONTEXT_FULL_ERROR: Final = ChatError(
    kind="config",
    message="The context is full again right after it was summarized. Raise the model's context"
    " limit or its compaction threshold, or start a new chat.",
)
PENDING_CALLS_MISMATCH_ERROR: Final = ChatError(
    kind="internal",
    message="The chat's pending tool calls do not match its messages. Send a message to continue.",
)
MAX_PAUSES: Final = 10
MAX_CUT_ANSWERS: Final = 3
"""Both in a row within a turn: each costs a model call."""

PAUSED_TOO_OFTEN_ERROR: Final = ChatError(
    kind="provider_paused",
    message=f"The provider paused its answer {MAX_PAUSES} times in a row. Send a message to"
    " continue.",
)
CUT_TOO_OFTEN_ERROR: Final = ChatError(
    kind="output_limit",
    message=f"{MAX_CUT_ANSWERS} answers in a row reached the output limit within a tool call."
    " Raise the model's max_output_tokens, or ask for smaller steps.",
)


class TurnRules(Struct, frozen=True, kw_only=True):
    """Limits and tool names that the chat's model and tools set for a turn. `asks_hooks`: there
    are hooks before tool calls."""

    max_steps: int = MAX_STEPS_PER_TURN
    max_calls: int = DEFAULT_STEP_LIMITS.calls
    client_tools: frozenset[str] = frozenset()
    refused_tools: frozenset[str] = frozenset()
    client_timeouts_s: Mapping[str, float] = {}
    question_tools: frozenset[str] = frozenset()
    agent_wait_tools: frozenset[str] = frozenset()
    question_timeout_s: float = PERSON_DEADLINE_S
    approval_timeout_s: float = PERSON_DEADLINE_S
    policy: tuple[PolicyLayer, ...] = ()
    asks_hooks: bool = False
    stop_after_tools: frozenset[str] = frozenset()
    context_limit: int | None = None
    compaction_threshold: int = compaction.DEFAULT_THRESHOLD_PERCENT
    compaction: CompactionLimits = CompactionLimits()


class Generate(Struct, frozen=True, kw_only=True):
    pass


class RunTools(Struct, frozen=True, kw_only=True):
    """Answer these calls in one commit. A call without arguments gets an error result. `denied`
    calls do not run, because a policy denies them or the answer makes too many; the text is their
    result."""

    calls: tuple[ToolCallPart, ...]
    denied: Mapping[ToolCallId, str] = {}


class StartCommand(Struct, frozen=True, kw_only=True):
    """Commit the call for a command of a person; it then runs like a call of the model."""

    message: Message


class AskHooks(Struct, frozen=True, kw_only=True):
    """Ask the hooks about these calls, and commit what they answer: the next action follows from
    it. Calls that a policy denies are not asked for."""

    calls: tuple[ToolCallPart, ...]


class RequireAction(Struct, frozen=True, kw_only=True):
    """All pending calls wait: for the client, for answers of a person, for approvals, or, beside
    one of these, for subagents."""

    calls: tuple[ToolCallPart, ...]
    waits: tuple[CallWait, ...] = ()


class Compact(Struct, frozen=True, kw_only=True):
    """Summarize. A model call follows `auto`; the commit of `manual` ends the turn."""

    source: Literal["auto", "manual"]
    fill: compaction.ContextFill
    threshold: int


class Finish(Struct, frozen=True, kw_only=True):
    reason: Literal["complete", "stop_after_tool", "max_steps"]


class Fail(Struct, frozen=True, kw_only=True):
    error: ChatError


Action = Generate | StartCommand | AskHooks | RunTools | RequireAction | Compact | Finish | Fail


def next_action(history: Sequence[Message], chat: Chat, rules: TurnRules) -> Action:
    """`history` holds the chat's rows by id, as of `chat.history_version`. Notices to people and
    the system prompt decide nothing. Tool policies are for the model: a person's own command meets
    hooks only."""
    turn = turn_rows(history)
    calls = tuple(pending_calls(turn))
    if {call.tool_call_id for call in calls} != {call.id for call in chat.pending_calls}:
        return Fail(error=PENDING_CALLS_MISMATCH_ERROR)
    if calls:
        if all(is_persons_call(call.tool_call_id) for call in calls):
            rules = msgspec.structs.replace(rules, policy=(), refused_tools=frozenset())
        return _answer_calls(calls, _surplus(turn, rules), chat, rules)
    commands = find_commands(history, chat.turn_message_id)
    if commands.next is not None:
        return StartCommand(message=commands.next)
    if commands.is_all:
        return Finish(reason="complete")
    if chat.compaction_requested and compaction.is_compactable(history):
        return _compact("manual", history, rules)
    if _has_stop_result(turn, rules):
        return Finish(reason="stop_after_tool")
    if _ends_with_answer(turn):
        return Finish(reason="complete")
    if _count_last(turn, "pause") >= MAX_PAUSES:
        return Fail(error=PAUSED_TOO_OFTEN_ERROR)
    if _count_last(turn, "length") >= MAX_CUT_ANSWERS:
        return Fail(error=CUT_TOO_OFTEN_ERROR)
    if _count_steps(turn) >= max(rules.max_steps, 1):
        return Finish(reason="max_steps")
    return _call_model(history, rules)


def turn_rows(history: Sequence[Message]) -> Sequence[Message]:
    """The rows after the last user message. That message also ends all pending calls before it,
    so that sending a message recovers a chat with an invalid history."""
    rows = [r for r in history if not r.deleted and not r.compressed and r.role != "system"]
    for index in range(len(rows) - 1, -1, -1):
        if rows[index].starts_turn:
            return rows[index + 1 :]
    return rows


def _surplus(turn: Sequence[Message], rules: TurnRules) -> Mapping[ToolCallId, str]:
    """Those calls of the newest answer that do not run because it makes too many."""
    answer = next((row for row in reversed(turn) if row.role == "assistant"), None)
    return {} if answer is None else refuse_surplus(local_calls(answer.content), rules.max_calls)


def _answer_calls(
    calls: tuple[ToolCallPart, ...],
    surplus: Mapping[ToolCallId, str],
    chat: Chat,
    rules: TurnRules,
) -> Action:
    marks = {call.id: call for call in chat.pending_calls}
    calls = tuple(effective_args(call, marks[call.tool_call_id].hooks) for call in calls)
    usable = [call for call in calls if call.tool_call_id not in surplus]
    layers = {
        call.tool_call_id: with_hooks(rules.policy, call.tool_name, marks[call.tool_call_id].hooks)
        for call in usable
    }
    decisions = {
        call.tool_call_id: decide(layers[call.tool_call_id], call.tool_name, call.args)
        for call in usable
    }
    if rules.asks_hooks and (
        unasked := tuple(
            call
            for call in usable
            if marks[call.tool_call_id].hooks is None
            and decisions[call.tool_call_id].action != "deny"
            and call.tool_name not in rules.refused_tools
            and (
                _is_client(call, marks[call.tool_call_id], rules)
                or not (call.cut or not isinstance(parse_json(call.args), dict))
            )
        )
    ):
        return AskHooks(calls=unasked)
    waits = {
        call.tool_call_id: wait
        for call in usable
        if (wait := _wait(call, marks[call.tool_call_id], decisions, layers, rules)) is not None
    }
    # A person is asked while subagents work: a wait for them must not come first.
    waits |= {
        call.tool_call_id: CallWait(call_id=call.tool_call_id, kind="agents", timeout_s=None)
        for call in usable
        if waits
        and call.tool_call_id not in waits
        and call.tool_name in rules.agent_wait_tools
        and decisions[call.tool_call_id].action != "deny"
    }
    # Calls that need no person run first. The order of the results is the prompt's matter.
    ready = tuple(call for call in calls if call.tool_call_id not in waits)
    if not ready:
        return RequireAction(calls=calls, waits=tuple(waits.values()))
    denied = {
        call.tool_call_id: surplus[call.tool_call_id]
        for call in ready
        if call.tool_call_id in surplus
    }
    denied |= {
        call_id: denial_text(decision)
        for call_id, decision in decisions.items()
        if decision.action == "deny"
    }
    return RunTools(calls=ready, denied=denied)


def _wait(
    call: ToolCallPart,
    mark: PendingCall,
    decisions: Mapping[ToolCallId, PolicyDecision],
    layers: Mapping[ToolCallId, tuple[PolicyLayer, ...]],
    rules: TurnRules,
) -> CallWait | None:
    """What the call must wait for. None: it runs, or fails without an effect."""
    decision = decisions[call.tool_call_id]
    if decision.action == "deny" or call.tool_name in rules.refused_tools:
        return None
    if call.tool_name in rules.question_tools:
        return _wait_for_answer(call, rules)
    is_client = _is_client(call, mark, rules)
    can_run = is_client or not (call.cut or parse_json(call.args) is UNSET)
    if decision.action == "ask" and mark.approved_by is None and can_run:
        return CallWait(
            call_id=call.tool_call_id,
            kind="approval",
            timeout_s=rules.approval_timeout_s,
            args=call.args,
            always=can_allow_always(layers[call.tool_call_id], call.tool_name, call.args),
            reason=decision.reason,
        )
    # The client's tools may have changed since the call. Wait for the client only if the call is
    # marked as the client's and the client still has the tool; the chat task refuses the others.
    if is_client:
        return CallWait(
            call_id=call.tool_call_id,
            kind="client",
            timeout_s=rules.client_timeouts_s.get(call.tool_name, CLIENT_TOOL_DEADLINE_S),
            args=call.args,
        )
    return None


def _is_client(call: ToolCallPart, mark: PendingCall, rules: TurnRules) -> bool:
    """Whether the client gets the call, with arguments of any kind."""
    return mark.client and call.tool_name in rules.client_tools


def _wait_for_answer(call: ToolCallPart, rules: TurnRules) -> CallWait | None:
    """Bad questions are not asked: the tool answers them with what is wrong."""
    try:
        read_questions(call.args)
    except ToolError:
        return None
    return CallWait(
        call_id=call.tool_call_id,
        kind="question",
        timeout_s=rules.question_timeout_s,
        args=call.args,
    )


def _has_stop_result(turn: Sequence[Message], rules: TurnRules) -> bool:
    return any(
        result.tool_name in rules.stop_after_tools and not result.is_error
        for row in turn
        for result in local_results(row.content)
    )


def _ends_with_answer(turn: Sequence[Message]) -> bool:
    """A paused answer without calls is not the end: the provider continues it."""
    last = turn[-1] if turn else None
    if last is None or last.role != "assistant" or local_calls(last.content):
        return False
    return last.finish_reason != "pause"


def _count_last(turn: Sequence[Message], reason: FinishReason) -> int:
    """How many of the newest answers ended for this reason, without another in between."""
    count = 0
    for row in reversed(turn):
        if row.role == "assistant":
            if row.finish_reason != reason:
                break
            count += 1
    return count


def _count_steps(turn: Sequence[Message]) -> int:
    return sum(row.role == "assistant" for row in turn)


def _call_model(history: Sequence[Message], rules: TurnRules) -> Action:
    match compaction.compaction_status(
        history, rules.context_limit, rules.compaction_threshold, rules.compaction.ceiling_tokens
    ):
        case "none":
            return Generate()
        case "needed":
            compact = _compact("auto", history, rules)
            return compact if compaction.may_try_summary(history, compact.fill) else Generate()
        case "still_over_limit":
            return Fail(error=CONTEXT_FULL_ERROR)


def _compact(
    source: Literal["auto", "manual"], history: Sequence[Message], rules: TurnRules
) -> Compact:
    return Compact(
        source=source,
        fill=compaction.measure_fill(history, rules.context_limit),
        threshold=compaction.effective_threshold(rules.compaction_threshold),
    )


Task = Literal["generate", "interrupt"]


class TaskView(Struct, frozen=True, kw_only=True):
    """The latest row a chat task has acted on; rows up to its `snapshot_version` are ignored.

    The row of the chat task's own commit may arrive before the reply to its statement. The chat
    task therefore marks the write (`committing`) and its outcome (`committed`, `not_committed`);
    rows that arrive in between are deferred.
    """

    snapshot_version: int
    epoch: int
    status: Status
    history_version: int
    attempt: int
    archived: bool
    recent_changes: tuple[ChangeId, ...] = ()
    writing: bool = False

    @staticmethod
    def of(chat: Chat) -> "TaskView":
        return TaskView(
            snapshot_version=chat.snapshot_version,
            epoch=chat.epoch,
            status=chat.status,
            history_version=chat.history_version,
            attempt=chat.attempt,
            archived=chat.archived,
            recent_changes=chat.recent_changes,
        )

    def committing(self) -> "TaskView":
        """The chat task has sent a write."""
        return msgspec.structs.replace(self, writing=True)

    def committed(self, chat: Chat) -> "TaskView":
        """The chat task's write produced this row. For a row read later, which may hold other
        changes, use `not_committed` and `decide_reaction`. The epoch stays the chat task's, even if
        the write released the chat."""
        if chat.snapshot_version <= self.snapshot_version:
            return self.not_committed()
        return msgspec.structs.replace(TaskView.of(chat), epoch=self.epoch)

    def not_committed(self) -> "TaskView":
        """The write was not applied, or its outcome is unknown."""
        return msgspec.structs.replace(self, writing=False)


class IgnoreRow(Struct, frozen=True, kw_only=True):
    pass


class DeferRow(Struct, frozen=True, kw_only=True):
    """Keep the newest such row and decide again after the reply to the chat task's write: the row
    may be that write's. If it is another change, the database refuses the write."""


class UpdateView(Struct, frozen=True, kw_only=True):
    """The row changed but the work did not: continue with this view."""

    view: TaskView


class StopChatTask(Struct, frozen=True, kw_only=True):
    """The chat has another owner, needs no work, or has another past than the chat task: stop and
    write nothing."""


class RestartTask(Struct, frozen=True, kw_only=True):
    """Cancel the running task and start this one."""

    task: Task
    fence: Fence
    view: TaskView


Reaction = IgnoreRow | DeferRow | UpdateView | StopChatTask | RestartTask


def decide_reaction(local: TaskView | None, row: Chat, worker_id: WorkerId) -> Reaction:
    """`local` is None before the chat task's first row."""
    if local is not None and not row.shares_past(local.snapshot_version, local.recent_changes):
        return StopChatTask()
    if local is not None and row.snapshot_version <= local.snapshot_version:
        return IgnoreRow()
    if local is not None and local.writing:
        return DeferRow()
    if row.worker_id != worker_id or (local is not None and row.epoch != local.epoch):
        return StopChatTask()
    if local is not None and _is_same_work(local, row):
        return UpdateView(view=TaskView.of(row))
    return _start_task(row)


def _is_same_work(local: TaskView, row: Chat) -> bool:
    known = (local.status, local.history_version, local.archived)
    return known == (row.status, row.history_version, row.archived)


def _start_task(row: Chat) -> Reaction:
    if row.archived:
        return StopChatTask()
    match row.status:
        case "running":
            return RestartTask(task="generate", fence=Fence.of(row), view=TaskView.of(row))
        case "interrupting":
            return RestartTask(task="interrupt", fence=Fence.of(row), view=TaskView.of(row))
        case "waiting" | "requires_action" | "error":
            return StopChatTask()
