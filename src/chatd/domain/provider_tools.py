"""Calls that a provider answers itself, as a strict provider wants them back.

Such a provider refuses the whole conversation for one search without its result. A pair is good
if it stands in one answer, call first, once each, of a tool we know, with the vendor's own data
in the result. What is not good is taken out; of a result the words are kept. The same judgement
is made on an answer before it is stored, on history, and on a request before it is sent.

The newest answer with signed thoughts must not be changed, but a call in it that was never
answered has to go even there.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, cast

from msgspec import UNSET, Struct

from chatd.domain.heal import for_model, is_empty, parse
from chatd.domain.ids import ToolCallId
from chatd.domain.model import PromptCall, PromptMessage, PromptPart, PromptResult, PromptText
from chatd.domain.parts import Json, Part, Reasoning, Text, ToolCall, ToolResult
from chatd.domain.prompt_repair import is_signed
from chatd.domain.tool_output import cut

SUPPORTED: Final = frozenset({"web_search"})
MAX_TEXT: Final = 8 * 1024

Reason = Literal[
    "outside_assistant",
    "no_id",
    "no_name",
    "unsupported_tool",
    "bad_input",
    "no_vendor_data",
    "also_local",
    "orphan_call",
    "orphan_result",
    "duplicate",
    "out_of_order",
]


class Violation(Struct, frozen=True, kw_only=True):
    message: int
    part: int
    reason: Reason


class _Slot(Struct, frozen=True, kw_only=True):
    """A call or result, whatever it is made of. `sound`: its input or data is what it must be."""

    index: int
    is_call: bool
    id: ToolCallId
    name: str
    provider_executed: bool
    sound: bool


def guarded(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """The same conversation with good pairs only. Messages with nothing left are gone."""
    if not any(_is_providers(part) for message in messages for part in message.parts):
        return list(messages)
    untouchable = max((i for i, m in enumerate(messages) if is_signed(m)), default=-1)
    seen: set[ToolCallId] = set()
    out: list[PromptMessage] = []
    for index, message in enumerate(messages):
        found = _judged(message, seen)
        if index == untouchable:
            found = {part: why for part, why in found.items() if why == "orphan_call"}
        out.append(_mended(message, found.keys()))
    # Rather no search at all than a conversation that is refused.
    for place in {violation.message for violation in violations(out)}:
        out[place] = _bare(out[place])
    return [message for message in out if message.parts]


def violations(messages: Sequence[PromptMessage]) -> list[Violation]:
    """What a strict provider would refuse. A request with any is not sent."""
    seen: set[ToolCallId] = set()
    return [
        Violation(message=place, part=index, reason=reason)
        for place, message in enumerate(messages)
        for index, reason in sorted(_judged(message, seen).items())
    ]


def guarded_answer(content: Sequence[Part]) -> tuple[Part, ...]:
    """A fresh answer before it is stored. One with signed thoughts stays as it came."""
    if any(isinstance(p, Reasoning) and not is_empty(p.provider_metadata) for p in content):
        return tuple(content)
    found = _judge(_slots_of_content(content), set())
    out: list[Part] = []
    for index, part in enumerate(content):
        if index not in found:
            out.append(part)
        elif isinstance(part, ToolResult) and (words := readable(part.result)):
            out.append(Text(text=words))
    return tuple(out)


def _judged(message: PromptMessage, seen: set[ToolCallId]) -> dict[int, Reason]:
    slots = _slots_of_prompt(message.parts)
    if message.role != "assistant":
        return {slot.index: "outside_assistant" for slot in slots if slot.provider_executed}
    return _judge(slots, seen)


def _judge(slots: Sequence[_Slot], seen: set[ToolCallId]) -> dict[int, Reason]:
    """Reasons by part. `seen` are the ids of good pairs before, and gets those found here."""
    local = {slot.id for slot in slots if not slot.provider_executed}
    theirs = [slot for slot in slots if slot.provider_executed]
    found: dict[int, Reason] = {}
    for call_id in dict.fromkeys(slot.id for slot in theirs):
        pair = [slot for slot in theirs if slot.id == call_id]
        reason = _flaw(pair, also_local=call_id in local, known=call_id in seen)
        if reason is None:
            seen.add(call_id)
        else:
            found.update((slot.index, reason) for slot in pair)
    return found


def _flaw(pair: Sequence[_Slot], *, also_local: bool, known: bool) -> Reason | None:
    calls = [slot for slot in pair if slot.is_call]
    results = [slot for slot in pair if not slot.is_call]
    checks: tuple[tuple[bool, Reason], ...] = (
        (not pair[0].id.strip(), "no_id"),
        (also_local, "also_local"),
        (not results, "orphan_call"),
        (not calls, "orphan_result"),
        (len(pair) > 2 or known, "duplicate"),
        (not all(slot.name.strip() for slot in pair), "no_name"),
        (not all(slot.name in SUPPORTED for slot in pair), "unsupported_tool"),
        (not all(slot.sound for slot in calls), "bad_input"),
        (not all(slot.sound for slot in results), "no_vendor_data"),
        (not pair[0].is_call, "out_of_order"),
    )
    return next((reason for flawed, reason in checks if flawed), None)


def _slots_of_prompt(parts: Sequence[PromptPart]) -> list[_Slot]:
    return [
        _Slot(
            index=index,
            is_call=isinstance(part, PromptCall),
            id=part.id,
            name=part.name,
            provider_executed=part.provider_executed,
            sound=_is_object(part.input) if isinstance(part, PromptCall) else _has_data(part.raw),
        )
        for index, part in enumerate(parts)
        if isinstance(part, PromptCall | PromptResult)
    ]


def _slots_of_content(parts: Sequence[Part]) -> list[_Slot]:
    return [
        _Slot(
            index=index,
            is_call=isinstance(part, ToolCall),
            id=part.tool_call_id,
            name=part.tool_name,
            provider_executed=part.provider_executed,
            sound=_is_object(part.args) if isinstance(part, ToolCall) else _has_data(part.result),
        )
        for index, part in enumerate(parts)
        if isinstance(part, ToolCall | ToolResult)
    ]


def _is_object(raw: Json) -> bool:
    return isinstance(parse(raw), dict)


def _has_data(raw: Json) -> bool:
    """A list of what was found, or an object that says why nothing was."""
    return not is_empty(raw) and isinstance(parse(raw), dict | list)


def _mended(message: PromptMessage, found: Collection[int]) -> PromptMessage:
    if not found:
        return message
    parts: list[PromptPart] = []
    for index, part in enumerate(message.parts):
        if index not in found:
            parts.append(part)
        elif message.role == "assistant" and (words := _words(part)):
            parts.append(PromptText(text=words))
    return PromptMessage(role=message.role, parts=tuple(parts))


def _words(part: PromptPart) -> str:
    return readable(part.raw) if isinstance(part, PromptResult) else ""


def _bare(message: PromptMessage) -> PromptMessage:
    parts = tuple(part for part in message.parts if not _is_providers(part))
    return PromptMessage(role=message.role, parts=parts)


def _is_providers(part: PromptPart) -> bool:
    return isinstance(part, PromptCall | PromptResult) and part.provider_executed


def readable(raw: Json) -> str:
    """A result in words: what was found and where, without what only the vendor can read."""
    value = parse(raw)
    if value is UNSET or is_empty(raw):
        return ""
    if isinstance(value, str):
        return cut(for_model(value), MAX_TEXT).strip()
    entries = cast("list[object]", value) if isinstance(value, list) else [value]
    lines = [line for entry in entries if (line := _line(entry))]
    return cut(for_model("\n".join(lines)), MAX_TEXT).strip()


def _line(entry: object) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    fields = cast("dict[str, object]", entry)
    wanted: Iterable[object] = (
        fields.get(name) for name in ("title", "url", "text", "output", "error", "error_code")
    )
    return " ".join(text for text in wanted if isinstance(text, str) and text.strip())
