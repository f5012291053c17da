"""A conversation that every provider takes, whatever history holds.

A provider refuses a whole conversation for one call without a result, one result without a
call, one id that comes twice; and a chat whose history is refused once is refused for ever. So
nothing that stands in history is trusted to be in order: calls are answered right after they
were made, once each, and what cannot be put in order is left out or made up for.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from chatd.domain.answer.assembler import EMPTY_OBJECT
from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.text import is_empty_json

MISSING_START_TEXT: Final = "[The beginning of this chat is not available.]"
CONTINUE_TEXT: Final = "Continue."
MAX_CALL_ID_CHARS: Final = 64

_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_-]")


def is_signed(message: PromptMessage) -> bool:
    """Holds thoughts that the vendor has signed or sealed, and which must not be touched."""
    return message.role == "assistant" and any(
        isinstance(part, PromptReasoning) and not is_empty_json(part.provider_metadata)
        for part in message.parts
    )


def pair_calls_with_results(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Every call of ours answered by the message right after it, no result without its call.

    A result belongs to the nearest answer before it, wherever it stands up to the next one.
    """
    out: list[PromptMessage] = []
    answered: set[ToolCallId] = set()
    for head, rest in _exchanges(messages):
        given = _results([*([] if head is None else [head]), *rest])
        if head is not None:
            said = _said(head, rest)
            out.extend(_nonempty([said]))
            calls = _local_calls(said)
            found = {result.id: result for result in reversed(given)}
            out.extend(_results_message([_answer(call, found) for call in calls]))
            given = [result for result in given if result.id not in {call.id for call in calls}]
            answered.update(call.id for call in calls if call.id in found)
        out.extend(_orphans(given, answered))
        out.extend(_nonempty(_without_results(message) for message in rest))
    return out


_Exchange = tuple[PromptMessage | None, list[PromptMessage]]


def _exchanges(messages: Iterable[PromptMessage]) -> list[_Exchange]:
    """Each answer with all that stands between it and the next one."""
    exchanges: list[_Exchange] = [(None, [])]
    for message in messages:
        if message.role == "assistant":
            exchanges.append((message, []))
        else:
            exchanges[-1][1].append(message)
    return exchanges


def _said(head: PromptMessage, rest: Iterable[PromptMessage]) -> PromptMessage:
    """The answer without results of ours, without a second call of one id, and with those
    results of the provider that were once stored beside it."""
    stored_apart = {
        part.id: part
        for message in rest
        for part in message.parts
        if isinstance(part, PromptResult) and part.provider_executed
    }
    inside = {p.id for p in head.parts if isinstance(p, PromptResult) and p.provider_executed}
    parts: list[PromptPart] = []
    called: set[tuple[ToolCallId, bool]] = set()
    for part in head.parts:
        match part:
            case PromptCall(provider_executed=True):
                parts.append(part)
                called.add((part.id, True))
                if part.id in stored_apart and part.id not in inside:
                    parts.append(stored_apart.pop(part.id))
            case PromptCall():
                if (part.id, False) not in called:
                    parts.append(part)
                called.add((part.id, False))
            case PromptResult():
                if part.provider_executed and (part.id, True) in called:
                    parts.append(part)
            case _:
                parts.append(part)
    return PromptMessage(role="assistant", parts=tuple(parts))


def _results(messages: Iterable[PromptMessage]) -> list[PromptResult]:
    return [
        part
        for message in messages
        for part in message.parts
        if isinstance(part, PromptResult) and not part.provider_executed
    ]


def _local_calls(message: PromptMessage) -> list[PromptCall]:
    return [p for p in message.parts if isinstance(p, PromptCall) and not p.provider_executed]


def _answer(call: PromptCall, found: dict[ToolCallId, PromptResult]) -> PromptResult:
    """Under the name that was called: some wires match by it."""
    result = found.get(call.id)
    if result is None:
        return PromptResult(id=call.id, name=call.name, text=INTERRUPTED_CALL_TEXT, is_error=True)
    return msgspec.structs.replace(result, name=call.name)


def _orphans(results: Iterable[PromptResult], answered: set[ToolCallId]) -> list[PromptMessage]:
    """Results whose call is lost get one. What was answered before was only said twice."""
    lost: dict[ToolCallId, PromptResult] = {}
    for result in results:
        if result.id not in answered:
            lost.setdefault(result.id, result)
    answered.update(lost)
    calls = tuple(
        PromptCall(id=result.id, name=result.name, input=EMPTY_OBJECT) for result in lost.values()
    )
    named = [_answer(call, lost) for call in calls]
    return _nonempty([PromptMessage(role="assistant", parts=calls)]) + _results_message(named)


def _results_message(results: Sequence[PromptResult]) -> list[PromptMessage]:
    return _nonempty([PromptMessage(role="tool", parts=tuple(results))])


def _without_results(message: PromptMessage) -> PromptMessage:
    parts = tuple(part for part in message.parts if not isinstance(part, PromptResult))
    return PromptMessage(role="user", parts=parts)


def _nonempty(messages: Iterable[PromptMessage]) -> list[PromptMessage]:
    return [message for message in messages if message.parts]


def join_consecutive(messages: Iterable[PromptMessage]) -> list[PromptMessage]:
    """Answers that follow each other become one, unless one of them is signed. The first
    message is the user's, and so is the last, or it holds results."""
    out: list[PromptMessage] = []
    for message in messages:
        last = out[-1] if out else None
        if last is not None and _can_join(last, message):
            parts = (*last.parts, *message.parts)
            out[-1] = PromptMessage(role="assistant", parts=parts)
        else:
            out.append(message)
    if not out or out[0].role != "user":
        out.insert(0, _user(MISSING_START_TEXT))
    if out[-1].role == "assistant":
        out.append(_user(CONTINUE_TEXT))
    return out


def _can_join(one: PromptMessage, two: PromptMessage) -> bool:
    both = one.role == two.role == "assistant"
    return both and not is_signed(one) and not is_signed(two)


def _user(text: str) -> PromptMessage:
    return PromptMessage(role="user", parts=(PromptText(text=text),))


def rename_call_ids(messages: Iterable[PromptMessage]) -> list[PromptMessage]:
    """Ids of our calls as every provider takes them, no two of them the same in all of the
    conversation. The provider's own calls keep theirs."""
    everything = list(messages)
    taken: set[str] = {
        part.id
        for message in everything
        for part in message.parts
        if isinstance(part, PromptCall | PromptResult) and part.provider_executed
    }
    known: dict[ToolCallId, ToolCallId] = {}
    out: list[PromptMessage] = []
    for message in everything:
        if message.role == "assistant":
            known = {call.id: _fresh_id(call.id, taken) for call in _local_calls(message)}
        out.append(_with_ids(message, known))
    return out


def _fresh_id(given: str, taken: set[str]) -> ToolCallId:
    plain = _NOT_IN_AN_ID.sub("_", given)[:MAX_CALL_ID_CHARS] or "call"
    fresh, count = plain, 1
    while fresh in taken:
        count += 1
        fresh = f"{plain[: MAX_CALL_ID_CHARS - 8]}_{count}"
    taken.add(fresh)
    return ToolCallId(fresh)


def _with_ids(message: PromptMessage, known: dict[ToolCallId, ToolCallId]) -> PromptMessage:
    if all(own == given for given, own in known.items()):
        return message
    parts = tuple(
        msgspec.structs.replace(part, id=known.get(part.id, part.id))
        if isinstance(part, PromptCall | PromptResult) and not part.provider_executed
        else part
        for part in message.parts
    )
    return msgspec.structs.replace(message, parts=parts)
