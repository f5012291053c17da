"""What a runner does next with its chat, from committed history alone.

Owns the order in which reasons to act are weighed. Does not own how an action is carried out,
nor the status: whoever owns a running chat asks here, acts once, commits once, asks again.
A crash, a takeover and the ordinary next step are therefore the same path.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from chatd.domain import compaction
from chatd.domain.chat import Chat, ChatError
from chatd.domain.messages import Message, local_calls, local_results, open_calls
from chatd.domain.parts import ToolCall

MAX_STEPS: Final = 1200

OVER_LIMIT: Final = ChatError(
    kind="config",
    message="The context is full again right after it was summarized. Raise the model's context"
    " limit or its compaction threshold, or start a new chat.",
)
CALLS_DISAGREE: Final = ChatError(
    kind="internal",
    message="The chat's open tool calls do not match its messages. Send a message to go on.",
)


class Rules(Struct, frozen=True, kw_only=True):
    """What the chat's model and tools ask for. Tools are given by name."""

    max_steps: int = MAX_STEPS
    client_tools: frozenset[str] = frozenset()
    exclusive_tools: frozenset[str] = frozenset()
    stop_after_tools: frozenset[str] = frozenset()
    context_limit: int | None = None
    compaction_threshold: int = compaction.DEFAULT_THRESHOLD


class Generate(Struct, frozen=True, kw_only=True):
    """Call the model."""


class RunTools(Struct, frozen=True, kw_only=True):
    """Answer these calls, in one commit. Arguments may be missing: that is an error result.

    `refused`: a tool that must be alone was called together with others. None of them runs
    and each gets an error; calls for the client are among them, or it would be asked for
    results that no longer matter.
    """

    calls: tuple[ToolCall, ...]
    refused: bool = False


class RequireAction(Struct, frozen=True, kw_only=True):
    """Only the client can answer what is left."""

    calls: tuple[ToolCall, ...]


class Compact(Struct, frozen=True, kw_only=True):
    """Summarize. After `auto` a model call follows; `manual` was all that was asked for, so
    its commit ends the turn."""

    source: Literal["auto", "manual"]
    fill: compaction.Fill
    threshold: int


class Finish(Struct, frozen=True, kw_only=True):
    reason: Literal["complete", "stop_after_tool", "max_steps"]


class Fail(Struct, frozen=True, kw_only=True):
    error: ChatError


Action = Generate | RunTools | RequireAction | Compact | Finish | Fail


def next_action(history: Sequence[Message], chat: Chat, rules: Rules) -> Action:
    """`history` holds the chat's rows by id, as of `chat.history_version`."""
    rows = [row for row in history if not row.deleted and not row.compressed]
    turn = _current_turn(rows)
    calls = tuple(open_calls(turn))
    if {call.tool_call_id for call in calls} != {call.id for call in chat.pending_calls}:
        return Fail(error=CALLS_DISAGREE)
    if calls:
        return _answer(calls, chat, rules)
    if chat.compaction_requested and compaction.compactable(history):
        return _compact("manual", history, rules)
    if _asked_to_stop(turn, rules):
        return Finish(reason="stop_after_tool")
    if _is_answer(turn):
        return Finish(reason="complete")
    if _steps(turn) >= max(rules.max_steps, 1):
        return Finish(reason="max_steps")
    return _call_model(history, rules)


def _current_turn(rows: Sequence[Message]) -> Sequence[Message]:
    """All after the last prompt of a person. A prompt also closes whatever was open before
    it, so that a history that should not exist can be left behind by sending a message."""
    for index in range(len(rows) - 1, -1, -1):
        if rows[index].begins_turn:
            return rows[index + 1 :]
    return rows


def _answer(calls: tuple[ToolCall, ...], chat: Chat, rules: Rules) -> Action:
    if len(calls) > 1 and any(call.tool_name in rules.exclusive_tools for call in calls):
        return RunTools(calls=calls, refused=True)
    # The client's tools may have changed since the call was made. Whoever waits for a client
    # must be sure that both the call and the client know of it; otherwise it is ours to refuse.
    for_client = {
        call.id for call in chat.pending_calls if call.client and call.name in rules.client_tools
    }
    ours = tuple(call for call in calls if call.tool_call_id not in for_client)
    return RunTools(calls=ours) if ours else RequireAction(calls=calls)


def _asked_to_stop(turn: Sequence[Message], rules: Rules) -> bool:
    return any(
        result.tool_name in rules.stop_after_tools and not result.is_error
        for row in turn
        for result in local_results(row.content)
    )


def _is_answer(turn: Sequence[Message]) -> bool:
    return bool(turn) and turn[-1].role == "assistant" and not local_calls(turn[-1].content)


def _steps(turn: Sequence[Message]) -> int:
    return sum(row.role == "assistant" for row in turn)


def _call_model(history: Sequence[Message], rules: Rules) -> Action:
    match compaction.status(history, rules.context_limit, rules.compaction_threshold):
        case "none":
            return Generate()
        case "needed":
            return _compact("auto", history, rules)
        case "still_over_limit":
            return Fail(error=OVER_LIMIT)


def _compact(
    source: Literal["auto", "manual"], history: Sequence[Message], rules: Rules
) -> Compact:
    return Compact(
        source=source,
        fill=compaction.measure(history, rules.context_limit),
        threshold=compaction.effective_threshold(rules.compaction_threshold),
    )
