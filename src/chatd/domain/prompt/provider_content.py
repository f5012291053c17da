"""Provider-specific content in prompts: provider-executed calls, signed reasoning, metadata.

A strict provider rejects a prompt with one unpaired call of its own. A valid pair is in one
answer, call first, once each, of a supported tool, with vendor data in the result. The same check
runs on an answer before it is stored, on history, and on a request before it is sent.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, cast

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.answer.tool_output import clip_middle
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptMessage,
    PromptPart,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.repair import is_signed
from chatd.domain.text import Json, is_empty_json, model_text, parse_json

SUPPORTED_PROVIDER_TOOLS: Final = frozenset({"web_search"})
MAX_RESULT_TEXT_CHARS: Final = 8 * 1024

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


class PairingViolation(Struct, frozen=True, kw_only=True):
    message: int
    part: int
    reason: Reason


class _Slot(Struct, frozen=True, kw_only=True):
    """A call or result of a prompt or of stored content. `is_valid`: its input or data is JSON of
    the required type."""

    index: int
    is_call: bool
    id: ToolCallId
    name: str
    provider_executed: bool
    is_valid: bool


def drop_unpaired(
    messages: Sequence[PromptMessage], *, last_is_paused: bool = False
) -> list[PromptMessage]:
    """Remove invalid pairs and messages left empty; the text of a removed result stays. A call of
    a paused answer has no result yet.

    The newest answer with signed reasoning must not be changed, except that a provider-executed
    call without a result is removed even there.
    """
    if not any(_is_provider_executed(part) for message in messages for part in message.parts):
        return list(messages)
    newest_signed = max((i for i, m in enumerate(messages) if is_signed(m)), default=-1)
    paired: set[ToolCallId] = set()
    out: list[PromptMessage] = []
    for index, message in enumerate(messages):
        if last_is_paused and index == len(messages) - 1:
            out.append(message)
            continue
        found = _check_message(message, paired)
        if index == newest_signed:
            found = {part: reason for part, reason in found.items() if reason == "orphan_call"}
        out.append(_without_parts(message, found.keys()))
    # A prompt without any search is better than one that the provider rejects.
    for index in {violation.message for violation in find_violations(out)}:
        if last_is_paused and index == len(out) - 1:
            continue
        out[index] = _without_provider_calls(out[index])
    return [message for message in out if message.parts]


def find_violations(messages: Sequence[PromptMessage]) -> list[PairingViolation]:
    """What a strict provider would reject. A request with violations is not sent."""
    paired: set[ToolCallId] = set()
    return [
        PairingViolation(message=position, part=index, reason=reason)
        for position, message in enumerate(messages)
        for index, reason in sorted(_check_message(message, paired).items())
    ]


def drop_unpaired_in_answer(content: Sequence[Part]) -> tuple[Part, ...]:
    """Check a new answer before it is stored. One with signed reasoning stays unchanged."""
    if any(
        isinstance(p, ReasoningPart) and not is_empty_json(p.provider_metadata) for p in content
    ):
        return tuple(content)
    found = _check_slots(_slots_of_content(content), set())
    out: list[Part] = []
    for index, part in enumerate(content):
        if index not in found:
            out.append(part)
        elif isinstance(part, ToolResultPart) and (text := result_text(part.result)):
            out.append(TextPart(text=text))
    return tuple(out)


def _check_message(message: PromptMessage, paired: set[ToolCallId]) -> dict[int, Reason]:
    slots = _slots_of_prompt(message.parts)
    if message.role != "assistant":
        return {slot.index: "outside_assistant" for slot in slots if slot.provider_executed}
    return _check_slots(slots, paired)


def _check_slots(slots: Sequence[_Slot], paired: set[ToolCallId]) -> dict[int, Reason]:
    """Reasons by part index. `paired` has the ids of earlier valid pairs; new ones are added."""
    local = {slot.id for slot in slots if not slot.provider_executed}
    executed = [slot for slot in slots if slot.provider_executed]
    found: dict[int, Reason] = {}
    for call_id in dict.fromkeys(slot.id for slot in executed):
        pair = [slot for slot in executed if slot.id == call_id]
        reason = _find_flaw(pair, also_local=call_id in local, known=call_id in paired)
        if reason is None:
            paired.add(call_id)
        else:
            found.update((slot.index, reason) for slot in pair)
    return found


def _find_flaw(pair: Sequence[_Slot], *, also_local: bool, known: bool) -> Reason | None:
    calls = [slot for slot in pair if slot.is_call]
    results = [slot for slot in pair if not slot.is_call]
    checks: tuple[tuple[bool, Reason], ...] = (
        (not pair[0].id.strip(), "no_id"),
        (also_local, "also_local"),
        (not results, "orphan_call"),
        (not calls, "orphan_result"),
        (len(pair) > 2 or known, "duplicate"),
        (not all(slot.name.strip() for slot in pair), "no_name"),
        (not all(slot.name in SUPPORTED_PROVIDER_TOOLS for slot in pair), "unsupported_tool"),
        (not all(slot.is_valid for slot in calls), "bad_input"),
        (not all(slot.is_valid for slot in results), "no_vendor_data"),
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
            is_valid=_is_object(part.input)
            if isinstance(part, PromptCall)
            else _has_data(part.raw),
        )
        for index, part in enumerate(parts)
        if isinstance(part, PromptCall | PromptResult)
    ]


def _slots_of_content(parts: Sequence[Part]) -> list[_Slot]:
    return [
        _Slot(
            index=index,
            is_call=isinstance(part, ToolCallPart),
            id=part.tool_call_id,
            name=part.tool_name,
            provider_executed=part.provider_executed,
            is_valid=_is_object(part.args)
            if isinstance(part, ToolCallPart)
            else _has_data(part.result),
        )
        for index, part in enumerate(parts)
        if isinstance(part, ToolCallPart | ToolResultPart)
    ]


def _is_object(raw: Json) -> bool:
    return isinstance(parse_json(raw), dict)


def _has_data(raw: Json) -> bool:
    """Vendors send a list of results, or an object with an error."""
    return not is_empty_json(raw) and isinstance(parse_json(raw), dict | list)


def _without_parts(message: PromptMessage, removed: Collection[int]) -> PromptMessage:
    if not removed:
        return message
    parts: list[PromptPart] = []
    for index, part in enumerate(message.parts):
        if index not in removed:
            parts.append(part)
        elif (
            message.role == "assistant"
            and isinstance(part, PromptResult)
            and (text := result_text(part.raw))
        ):
            parts.append(PromptText(text=text))
    return PromptMessage(role=message.role, parts=tuple(parts))


def _without_provider_calls(message: PromptMessage) -> PromptMessage:
    parts = tuple(part for part in message.parts if not _is_provider_executed(part))
    return PromptMessage(role=message.role, parts=parts)


def _is_provider_executed(part: PromptPart) -> bool:
    return isinstance(part, PromptCall | PromptResult) and part.provider_executed


def result_text(raw: Json) -> str:
    """The readable text of a vendor's result: titles, URLs, texts and errors."""
    value = parse_json(raw)
    if value is UNSET or is_empty_json(raw):
        return ""
    if isinstance(value, str):
        return clip_middle(model_text(value), MAX_RESULT_TEXT_CHARS).strip()
    entries = cast("list[object]", value) if isinstance(value, list) else [value]
    lines = [line for entry in entries if (line := _line(entry))]
    return clip_middle(model_text("\n".join(lines)), MAX_RESULT_TEXT_CHARS).strip()


def _line(entry: object) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    fields = cast("dict[str, object]", entry)
    texts: Iterable[object] = (
        fields.get(name) for name in ("title", "url", "text", "output", "error", "error_code")
    )
    return " ".join(text for text in texts if isinstance(text, str) and text.strip())


def strip_provider_content(content: Sequence[Part]) -> tuple[Part, ...]:
    """Remove what only the provider that wrote the answer can read."""
    return tuple(out for part in content if (out := _strip_part(part)) is not None)


def _strip_part(part: Part) -> Part | None:
    match part:
        case (
            ReasoningPart()
            | ToolCallPart(provider_executed=True)
            | ToolResultPart(provider_executed=True)
        ):
            return None
        case TextPart() | ToolCallPart() | ToolResultPart():
            return msgspec.structs.replace(part, provider_metadata=UNSET)
        case _:
            return part
