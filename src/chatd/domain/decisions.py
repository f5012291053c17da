"""What a runner does next with its chat, from committed history alone.

Owns the order in which reasons to act are weighed. Does not own how an action is carried out,
nor the status: whoever owns a running chat asks here, acts once, commits once, asks again.
A crash, a takeover and the ordinary next step are therefore the same path.

What a runner does when it hears that its chat's row has changed.

Owns the judgement only. A row may come late, twice or out of order, from a hint, a poll or
somebody's own commit; the versions in it say what it is worth.

A history changes under one owner and epoch by that owner's commits alone, so a runner would
meet its own commit here as news, whenever the row gets to it before the answer of its
statement. It therefore says when it starts to write (`committing`) and how that went (`after`,
`refused`); rows that come in between wait for the answer.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.chat.messages import Message, local_calls, local_results, pending_calls
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.chat.row import Chat, ChatError, Fence
from chatd.domain.chat.states import Status
from chatd.domain.ids import WorkerId
from chatd.domain.prompt import compaction

MAX_STEPS_PER_TURN: Final = 1200

CONTEXT_FULL_ERROR: Final = ChatError(
    kind="config",
    message="The context is full again right after it was summarized. Raise the model's context"
    " limit or its compaction threshold, or start a new chat.",
)
PENDING_CALLS_MISMATCH_ERROR: Final = ChatError(
    kind="internal",
    message="The chat's open tool calls do not match its messages. Send a message to go on.",
)


class TurnRules(Struct, frozen=True, kw_only=True):
    """What the chat's model and tools ask for. Tools are given by name."""

    max_steps: int = MAX_STEPS_PER_TURN
    client_tools: frozenset[str] = frozenset()
    exclusive_tools: frozenset[str] = frozenset()
    stop_after_tools: frozenset[str] = frozenset()
    context_limit: int | None = None
    compaction_threshold: int = compaction.DEFAULT_THRESHOLD_PERCENT


class Generate(Struct, frozen=True, kw_only=True):
    """Call the model."""


class RunTools(Struct, frozen=True, kw_only=True):
    """Answer these calls, in one commit. Arguments may be missing: that is an error result.

    `refused`: a tool that must be alone was called together with others. None of them runs
    and each gets an error; calls for the client are among them, or it would be asked for
    results that no longer matter.
    """

    calls: tuple[ToolCallPart, ...]
    refused: bool = False


class RequireAction(Struct, frozen=True, kw_only=True):
    """Only the client can answer what is left."""

    calls: tuple[ToolCallPart, ...]


class Compact(Struct, frozen=True, kw_only=True):
    """Summarize. After `auto` a model call follows; `manual` was all that was asked for, so
    its commit ends the turn."""

    source: Literal["auto", "manual"]
    fill: compaction.ContextFill
    threshold: int


class Finish(Struct, frozen=True, kw_only=True):
    reason: Literal["complete", "stop_after_tool", "max_steps"]


class Fail(Struct, frozen=True, kw_only=True):
    error: ChatError


Action = Generate | RunTools | RequireAction | Compact | Finish | Fail


def next_action(history: Sequence[Message], chat: Chat, rules: TurnRules) -> Action:
    """`history` holds the chat's rows by id, as of `chat.history_version`."""
    rows = [row for row in history if not row.deleted and not row.compressed]
    turn = _current_turn(rows)
    calls = tuple(pending_calls(turn))
    if {call.tool_call_id for call in calls} != {call.id for call in chat.pending_calls}:
        return Fail(error=PENDING_CALLS_MISMATCH_ERROR)
    if calls:
        return _answer_calls(calls, chat, rules)
    if chat.compaction_requested and compaction.is_compactable(history):
        return _compact("manual", history, rules)
    if _has_stop_result(turn, rules):
        return Finish(reason="stop_after_tool")
    if _ends_with_answer(turn):
        return Finish(reason="complete")
    if _count_steps(turn) >= max(rules.max_steps, 1):
        return Finish(reason="max_steps")
    return _call_model(history, rules)


def _current_turn(rows: Sequence[Message]) -> Sequence[Message]:
    """All after the last prompt of a person. A prompt also closes whatever was open before
    it, so that a history that should not exist can be left behind by sending a message."""
    for index in range(len(rows) - 1, -1, -1):
        if rows[index].starts_turn:
            return rows[index + 1 :]
    return rows


def _answer_calls(calls: tuple[ToolCallPart, ...], chat: Chat, rules: TurnRules) -> Action:
    if len(calls) > 1 and any(call.tool_name in rules.exclusive_tools for call in calls):
        return RunTools(calls=calls, refused=True)
    # The client's tools may have changed since the call was made. Whoever waits for a client
    # must be sure that both the call and the client know of it; otherwise it is ours to refuse.
    for_client = {
        call.id for call in chat.pending_calls if call.client and call.name in rules.client_tools
    }
    ours = tuple(call for call in calls if call.tool_call_id not in for_client)
    return RunTools(calls=ours) if ours else RequireAction(calls=calls)


def _has_stop_result(turn: Sequence[Message], rules: TurnRules) -> bool:
    return any(
        result.tool_name in rules.stop_after_tools and not result.is_error
        for row in turn
        for result in local_results(row.content)
    )


def _ends_with_answer(turn: Sequence[Message]) -> bool:
    return bool(turn) and turn[-1].role == "assistant" and not local_calls(turn[-1].content)


def _count_steps(turn: Sequence[Message]) -> int:
    return sum(row.role == "assistant" for row in turn)


def _call_model(history: Sequence[Message], rules: TurnRules) -> Action:
    match compaction.compaction_status(history, rules.context_limit, rules.compaction_threshold):
        case "none":
            return Generate()
        case "needed":
            return _compact("auto", history, rules)
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


class RunnerView(Struct, frozen=True, kw_only=True):
    """What a runner knows of its chat. `snapshot_version` is the watermark: older rows are
    no news."""

    snapshot_version: int
    epoch: int
    status: Status
    history_version: int
    attempt: int
    archived: bool
    writing: bool = False

    @staticmethod
    def of(chat: Chat) -> "RunnerView":
        return RunnerView(
            snapshot_version=chat.snapshot_version,
            epoch=chat.epoch,
            status=chat.status,
            history_version=chat.history_version,
            attempt=chat.attempt,
            archived=chat.archived,
        )

    def committing(self) -> "RunnerView":
        """A write of our own has been sent."""
        return msgspec.structs.replace(self, writing=True)

    def committed(self, chat: Chat) -> "RunnerView":
        """Our write has landed and made the row this. (A row that was read later to find out
        may tell of more than our own doing: then `refused`, and let `react` see that row.) The
        epoch stays the one we serve, even if the write gave the chat away."""
        if chat.snapshot_version <= self.snapshot_version:
            return self.not_committed()
        return msgspec.structs.replace(RunnerView.of(chat), epoch=self.epoch)

    def not_committed(self) -> "RunnerView":
        """Our write has not landed, or nobody can say."""
        return msgspec.structs.replace(self, writing=False)


class IgnoreRow(Struct, frozen=True, kw_only=True):
    """No news."""


class DeferRow(Struct, frozen=True, kw_only=True):
    """Keep the newest such row and ask again once our own write has been answered: it may be
    what the row tells of, and if it is not, the write is refused by itself."""


class UpdateView(Struct, frozen=True, kw_only=True):
    """News, but the same work: go on, with this view."""

    view: RunnerView


class StopRunner(Struct, frozen=True, kw_only=True):
    """Not ours any more, or nothing left to do: stop and write nothing."""


class RestartTask(Struct, frozen=True, kw_only=True):
    """Stop what runs and start this task, under this fence, with this view."""

    task: Task
    fence: Fence
    view: RunnerView


Reaction = IgnoreRow | DeferRow | UpdateView | StopRunner | RestartTask


def decide_reaction(local: RunnerView | None, row: Chat, worker_id: WorkerId) -> Reaction:
    """`local` is None until the runner has seen its first row."""
    if local is not None and row.snapshot_version <= local.snapshot_version:
        return IgnoreRow()
    if local is not None and local.writing:
        return DeferRow()
    if row.worker_id != worker_id or (local is not None and row.epoch != local.epoch):
        return StopRunner()
    if local is not None and _is_same_work(local, row):
        return UpdateView(view=RunnerView.of(row))
    return _start_task(row)


def _is_same_work(local: RunnerView, row: Chat) -> bool:
    known = (local.status, local.history_version, local.archived)
    return known == (row.status, row.history_version, row.archived)


def _start_task(row: Chat) -> Reaction:
    if row.archived:
        return StopRunner()
    match row.status:
        case "running":
            return RestartTask(task="generate", fence=Fence.of(row), view=RunnerView.of(row))
        case "interrupting":
            return RestartTask(task="interrupt", fence=Fence.of(row), view=RunnerView.of(row))
        case "waiting" | "requires_action" | "error":
            return StopRunner()
