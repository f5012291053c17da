"""What one provider has said, for another to read.

Searches a provider has made itself, thoughts it has signed and all else it has attached mean
nothing elsewhere, and are often refused. By instance, not by kind: two accounts at one vendor
cannot read each other's seals.

Calls that a provider answers itself, as a strict provider wants them back.

Such a provider refuses the whole conversation for one search without its result. A pair is good
if it stands in one answer, call first, once each, of a tool we know, with the vendor's own data
in the result. What is not good is taken out; of a result the words are kept. The same judgement
is made on an answer before it is stored, on history, and on a request before it is sent.

The newest answer with signed thoughts must not be changed, but a call in it that was never
answered has to go even there.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, cast

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.answer.tool_output import clip_middle
from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.ids import ModelConfigId, ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.parts import base_media_type
from chatd.domain.prompt.repair import is_signed, join_consecutive
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
    """A call or result, whatever it is made of. `sound`: its input or data is what it must be."""

    index: int
    is_call: bool
    id: ToolCallId
    name: str
    provider_executed: bool
    sound: bool


def drop_unpaired(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
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
    for place in {violation.message for violation in find_violations(out)}:
        out[place] = _bare(out[place])
    return [message for message in out if message.parts]


def find_violations(messages: Sequence[PromptMessage]) -> list[PairingViolation]:
    """What a strict provider would refuse. A request with any is not sent."""
    seen: set[ToolCallId] = set()
    return [
        PairingViolation(message=place, part=index, reason=reason)
        for place, message in enumerate(messages)
        for index, reason in sorted(_judged(message, seen).items())
    ]


def drop_unpaired_in_answer(content: Sequence[Part]) -> tuple[Part, ...]:
    """A fresh answer before it is stored. One with signed thoughts stays as it came."""
    if any(
        isinstance(p, ReasoningPart) and not is_empty_json(p.provider_metadata) for p in content
    ):
        return tuple(content)
    found = _judge(_slots_of_content(content), set())
    out: list[Part] = []
    for index, part in enumerate(content):
        if index not in found:
            out.append(part)
        elif isinstance(part, ToolResultPart) and (words := result_text(part.result)):
            out.append(TextPart(text=words))
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
        (not all(slot.name in SUPPORTED_PROVIDER_TOOLS for slot in pair), "unsupported_tool"),
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
            is_call=isinstance(part, ToolCallPart),
            id=part.tool_call_id,
            name=part.tool_name,
            provider_executed=part.provider_executed,
            sound=_is_object(part.args)
            if isinstance(part, ToolCallPart)
            else _has_data(part.result),
        )
        for index, part in enumerate(parts)
        if isinstance(part, ToolCallPart | ToolResultPart)
    ]


def _is_object(raw: Json) -> bool:
    return isinstance(parse_json(raw), dict)


def _has_data(raw: Json) -> bool:
    """A list of what was found, or an object that says why nothing was."""
    return not is_empty_json(raw) and isinstance(parse_json(raw), dict | list)


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
    return result_text(part.raw) if isinstance(part, PromptResult) else ""


def _bare(message: PromptMessage) -> PromptMessage:
    parts = tuple(part for part in message.parts if not _is_providers(part))
    return PromptMessage(role=message.role, parts=parts)


def _is_providers(part: PromptPart) -> bool:
    return isinstance(part, PromptCall | PromptResult) and part.provider_executed


def result_text(raw: Json) -> str:
    """A result in words: what was found and where, without what only the vendor can read."""
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
    wanted: Iterable[object] = (
        fields.get(name) for name in ("title", "url", "text", "output", "error", "error_code")
    )
    return " ".join(text for text in wanted if isinstance(text, str) and text.strip())


Origins = Mapping[ModelConfigId, str]
"""Which provider serves or has served each configured model."""

_MEDIA_LEFT_OUT: Final = "[A picture or file that the tool made is left out here.]"


def is_from_other_provider(row: Message, provider: str, origins: Origins | None) -> bool:
    """Nobody knows who wrote an answer without a model: then it was not this provider.
    Without `origins`, all answers are this provider's."""
    if origins is None or row.role != "assistant":
        return False
    return row.model_config_id is None or origins.get(row.model_config_id) != provider


def strip_provider_content(content: Sequence[Part]) -> tuple[Part, ...]:
    """The content of a foreign answer, as far as it means anything here."""
    return tuple(kept for part in content if (kept := _stripped(part)) is not None)


def _stripped(part: Part) -> Part | None:
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


def flattened(
    messages: Sequence[PromptMessage], takes: Callable[[str], bool] | None = None
) -> tuple[PromptMessage, ...]:
    """A whole prompt for a model elsewhere: searches in words, thoughts left out, and a
    sentence in place of each file that it would not be shown. The given prompt stays as it is."""
    flat = (
        PromptMessage(
            role=message.role,
            parts=tuple(
                part
                for given in message.parts
                if (part := _flat(given, message, takes)) is not None
            ),
        )
        for message in messages
    )
    left = [message for message in flat if message.parts]
    front = [message for message in left if message.role == "system"]
    return (*front, *join_consecutive(message for message in left if message.role != "system"))


def _flat(
    part: PromptPart, message: PromptMessage, takes: Callable[[str], bool] | None
) -> PromptPart | None:
    match part:
        case PromptReasoning():
            return None
        case PromptText():
            return PromptText(text=part.text)
        case PromptFile():
            return _file(part, takes)
        case PromptCall(provider_executed=True):
            words = f"[Called {part.name} with {bytes(part.input).decode('utf-8', 'replace')}]"
            return PromptText(text=model_text(words)) if message.role == "assistant" else None
        case PromptResult(provider_executed=True):
            words = f"[Result of {part.name}]\n{result_text(part.raw)}".strip()
            return PromptText(text=model_text(words)) if message.role == "assistant" else None
        case PromptCall():
            return msgspec.structs.replace(part, provider_metadata=UNSET)
        case PromptResult():
            return _result(part)


def _file(part: PromptFile, takes: Callable[[str], bool] | None) -> PromptPart:
    kind = base_media_type(part.media_type)
    if takes is None or takes(kind):
        return part
    name = f" {model_text(part.name)}" if part.name else ""
    return PromptText(text=f"[The file{name} of type {model_text(kind)} is left out here.]")


def _result(part: PromptResult) -> PromptResult:
    plain = msgspec.structs.replace(part, provider_metadata=UNSET)
    if part.media is None:
        return plain
    text = f"{part.text}\n{_MEDIA_LEFT_OUT}" if part.text.strip() else _MEDIA_LEFT_OUT
    return msgspec.structs.replace(plain, text=text, media=None)
