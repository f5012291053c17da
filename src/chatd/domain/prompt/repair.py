"""Repairs prompt messages so that every provider accepts them, and shrinks those that are too long.

A provider rejects a whole prompt for one call without a result, one result without a call or one
duplicate id, and a chat with such history would fail on every later turn.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from chatd.domain.answer.assembler import EMPTY_OBJECT
from chatd.domain.answer.tool_output import clip_middle
from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
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

_INVALID_ID_CHAR: Final = re.compile(r"[^A-Za-z0-9_-]")


def is_signed(message: PromptMessage) -> bool:
    """Whether it has reasoning that the vendor signed or encrypted, so the message must not be
    changed."""
    return message.role == "assistant" and any(
        isinstance(part, PromptReasoning) and not is_empty_json(part.provider_metadata)
        for part in message.parts
    )


def pair_calls_with_results(
    messages: Sequence[PromptMessage], answered: set[ToolCallId] | None = None
) -> list[PromptMessage]:
    """Put the results of local calls right after their answer, and give each result a call.

    A result belongs to the nearest answer before it. `answered` are the calls of earlier messages
    that have their result; those of these messages are added.
    """
    out: list[PromptMessage] = []
    answered = set() if answered is None else answered
    for head, rest in _exchanges(messages):
        results = _local_results([*([] if head is None else [head]), *rest])
        if head is not None:
            answer = _repair_answer(head, rest)
            out.extend(_nonempty([answer]))
            calls = _local_calls(answer)
            found = {result.id: result for result in reversed(results)}
            out.extend(_results_message([_result_of(call, found) for call in calls]))
            results = [result for result in results if result.id not in {call.id for call in calls}]
            answered.update(call.id for call in calls if call.id in found)
        out.extend(_pair_orphans(results, answered))
        out.extend(_nonempty(_without_results(message) for message in rest))
    return out


_Exchange = tuple[PromptMessage | None, list[PromptMessage]]


def _exchanges(messages: Iterable[PromptMessage]) -> list[_Exchange]:
    """Each answer with the messages up to the next one."""
    exchanges: list[_Exchange] = [(None, [])]
    for message in messages:
        if message.role == "assistant":
            exchanges.append((message, []))
        else:
            exchanges[-1][1].append(message)
    return exchanges


def _repair_answer(head: PromptMessage, rest: Iterable[PromptMessage]) -> PromptMessage:
    """The answer without local results and duplicate calls, and with those provider-executed
    results that are stored in a message of their own."""
    separate = {
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
                if part.id in separate and part.id not in inside:
                    parts.append(separate.pop(part.id))
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


def _local_results(messages: Iterable[PromptMessage]) -> list[PromptResult]:
    return [
        part
        for message in messages
        for part in message.parts
        if isinstance(part, PromptResult) and not part.provider_executed
    ]


def _local_calls(message: PromptMessage) -> list[PromptCall]:
    return [p for p in message.parts if isinstance(p, PromptCall) and not p.provider_executed]


def _result_of(call: PromptCall, found: dict[ToolCallId, PromptResult]) -> PromptResult:
    """The result gets the call's name, because some wires match results by name."""
    result = found.get(call.id)
    if result is None:
        return PromptResult(id=call.id, name=call.name, text=INTERRUPTED_CALL_TEXT, is_error=True)
    return msgspec.structs.replace(result, name=call.name)


def _pair_orphans(
    results: Iterable[PromptResult], answered: set[ToolCallId]
) -> list[PromptMessage]:
    """Results without a call get a generated one. A result of an answered call is a duplicate."""
    orphans: dict[ToolCallId, PromptResult] = {}
    for result in results:
        if result.id not in answered:
            orphans.setdefault(result.id, result)
    answered.update(orphans)
    calls = tuple(
        PromptCall(id=orphan.id, name=orphan.name, input=EMPTY_OBJECT)
        for orphan in orphans.values()
    )
    paired = [_result_of(call, orphans) for call in calls]
    return _nonempty([PromptMessage(role="assistant", parts=calls)]) + _results_message(paired)


def _results_message(results: Sequence[PromptResult]) -> list[PromptMessage]:
    return _nonempty([PromptMessage(role="tool", parts=tuple(results))])


def _without_results(message: PromptMessage) -> PromptMessage:
    parts = tuple(part for part in message.parts if not isinstance(part, PromptResult))
    return PromptMessage(role="user", parts=parts)


def _nonempty(messages: Iterable[PromptMessage]) -> list[PromptMessage]:
    return [message for message in messages if message.parts]


def join_consecutive(
    messages: Iterable[PromptMessage], *, may_end_with_answer: bool = False
) -> list[PromptMessage]:
    """Merge consecutive answers, unless one of them is signed. Make the first message the user's,
    and the last one the user's or tool results, unless the provider is to continue its answer."""
    out = begin_with_user(join_answers(messages))
    if out[-1].role == "assistant" and not may_end_with_answer:
        out.append(CONTINUE_MESSAGE)
    return out


def join_answers(messages: Iterable[PromptMessage]) -> list[PromptMessage]:
    out: list[PromptMessage] = []
    for message in messages:
        last = out[-1] if out else None
        if last is not None and _can_join(last, message):
            parts = (*last.parts, *message.parts)
            out[-1] = PromptMessage(role="assistant", parts=parts)
        else:
            out.append(message)
    return out


def begin_with_user(messages: list[PromptMessage]) -> list[PromptMessage]:
    if messages and messages[0].role == "user":
        return messages
    return [_user(MISSING_START_TEXT), *messages]


def _can_join(one: PromptMessage, two: PromptMessage) -> bool:
    both = one.role == two.role == "assistant"
    return both and not is_signed(one) and not is_signed(two)


def _user(text: str) -> PromptMessage:
    return PromptMessage(role="user", parts=(PromptText(text=text),))


CONTINUE_MESSAGE: Final = _user(CONTINUE_TEXT)


def rename_call_ids(
    messages: Iterable[PromptMessage], used: set[str] | None = None
) -> list[PromptMessage]:
    """Give local calls ids that every provider accepts and that are unique in the prompt.
    Provider-executed calls keep theirs. `used` are the ids of earlier messages; those of these
    messages are added."""
    messages = list(messages)
    used = set() if used is None else used
    used |= {
        part.id
        for message in messages
        for part in message.parts
        if isinstance(part, PromptCall | PromptResult) and part.provider_executed
    }
    new_ids: dict[ToolCallId, ToolCallId] = {}
    out: list[PromptMessage] = []
    for message in messages:
        if message.role == "assistant":
            new_ids = {call.id: _unique_id(call.id, used) for call in _local_calls(message)}
        out.append(_with_ids(message, new_ids))
    return out


def _unique_id(given: str, used: set[str]) -> ToolCallId:
    plain = _INVALID_ID_CHAR.sub("_", given)[:MAX_CALL_ID_CHARS] or "call"
    unique, count = plain, 1
    while unique in used:
        count += 1
        unique = f"{plain[: MAX_CALL_ID_CHARS - 8]}_{count}"
    used.add(unique)
    return ToolCallId(unique)


def _with_ids(message: PromptMessage, new_ids: dict[ToolCallId, ToolCallId]) -> PromptMessage:
    if all(new == old for old, new in new_ids.items()):
        return message
    parts = tuple(
        msgspec.structs.replace(part, id=new_ids.get(part.id, part.id))
        if isinstance(part, PromptCall | PromptResult) and not part.provider_executed
        else part
        for part in message.parts
    )
    return msgspec.structs.replace(message, parts=parts)


# Shrinks a prompt that is too long for the model's context window.

MIN_SHRUNK_TEXT_CHARS: Final = 1024
_FILE_OMITTED_TEXT: Final = "[A file is left out here.]"
_FILE_BYTES: Final = 8 * 1024


def prompt_bytes(messages: Sequence[PromptMessage]) -> int:
    """The approximate size. Every file counts as a fixed number of bytes."""
    return sum(_bytes(part) for message in messages for part in message.parts)


def _bytes(part: PromptPart) -> int:
    match part:
        case PromptText() | PromptReasoning():
            return len(part.text.encode("utf-8", "replace"))
        case PromptFile():
            return _FILE_BYTES
        case PromptCall():
            return len(bytes(part.input))
        case PromptResult():
            media = 0 if part.media is None else _FILE_BYTES
            return len(part.text.encode("utf-8", "replace")) + media


def is_prompt_larger(messages: Iterable[PromptMessage], chars: int) -> bool:
    """Whether the prompt exceeds `chars`; stops counting there. Files count in full."""
    for message in messages:
        for part in message.parts:
            chars -= _chars(part)
            if chars < 0:
                return True
    return False


def _chars(part: PromptPart) -> int:
    match part:
        case PromptText() | PromptReasoning():
            return len(part.text)
        case PromptFile():
            return len(part.data)
        case PromptCall():
            return len(bytes(part.input))
        case PromptResult():
            return len(part.text) + (0 if part.media is None else len(part.media.data))


def shrink_prompt(messages: Sequence[PromptMessage], halvings: int) -> tuple[PromptMessage, ...]:
    """Cut `messages` to 1/2**halvings of their size, for a summary request after an overflow.

    Long texts go first, then the oldest messages. System messages stay whole.
    """
    front = [message for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    budget = prompt_bytes(rest) >> halvings
    return (*front, *join_consecutive(_newest(_clip_oldest(rest, budget), budget)))


def _clip_oldest(messages: list[PromptMessage], budget: int) -> list[PromptMessage]:
    """Clip long texts, oldest message first, until the total fits."""
    out = messages.copy()
    size = prompt_bytes(out)
    for index, message in enumerate(out):
        if size <= budget:
            break
        out[index] = _clip_message(message)
        size -= prompt_bytes([message]) - prompt_bytes([out[index]])
    return out


def _clip_message(message: PromptMessage) -> PromptMessage:
    if is_signed(message):
        return message
    parts = tuple(_clip_part(part) for part in message.parts)
    return PromptMessage(role=message.role, parts=parts)


def _clip_part(part: PromptPart) -> PromptPart:
    match part:
        case PromptText():
            return msgspec.structs.replace(part, text=clip_middle(part.text, MIN_SHRUNK_TEXT_CHARS))
        case PromptResult() if not part.provider_executed:
            text = clip_middle(part.text, MIN_SHRUNK_TEXT_CHARS) or _FILE_OMITTED_TEXT
            return msgspec.structs.replace(part, text=text, media=None)
        case PromptFile():
            return PromptText(text=_FILE_OMITTED_TEXT)
        case _:
            return part


def _newest(messages: Sequence[PromptMessage], budget: int) -> list[PromptMessage]:
    """As many of the newest messages as fit, at least one; calls stay with their results."""
    fitting: list[list[PromptMessage]] = []
    size = 0
    for group in reversed(_groups(messages)):
        size += prompt_bytes(group)
        if fitting and size > budget:
            break
        fitting.append(group)
    return [message for group in reversed(fitting) for message in group]


def _groups(messages: Sequence[PromptMessage]) -> list[list[PromptMessage]]:
    groups: list[list[PromptMessage]] = []
    for message in messages:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups
