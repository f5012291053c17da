"""What live parts leave in history when nobody is left who heard them.

A turn that is stopped is normally saved by the worker that has assembled it. If that worker is
gone, the journal still has the parts that viewers were shown; this makes content of them, as
far as they go. Signatures and usage are not in them.
"""

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.answer.assembler import merge_text, storable_args
from chatd.domain.chat.messages import Draft, PendingCall, Role, local_calls
from chatd.domain.chat.parts import (
    SUMMARY_TOOL_NAME,
    KnownPart,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ToolCallId
from chatd.domain.text import parse_json, storable_json


class LivePart(Struct, frozen=True, kw_only=True):
    role: Role
    part: KnownPart


class PartialAnswer(Struct, frozen=True, kw_only=True):
    """`content` is what the model had said; `results` answer calls of it, or open ones."""

    content: tuple[Part, ...] = ()
    results: tuple[Draft, ...] = ()


def rebuild_partial(
    shown: Iterable[LivePart], open_calls: Iterable[PendingCall] = (), at: str | None = None
) -> PartialAnswer:
    """`shown` in the order in which it was shown; `at` is when the turn was stopped.

    While calls are open no model speaks, so nothing said by one is kept then. Calls without a
    result are not answered here: a turn's end does that for all that are open. A summary that
    did not come about leaves nothing: it is shown as a call, but no model has made it.
    """
    waiting = {call.id for call in open_calls}
    said = _Said(at)
    results: dict[ToolCallId, Draft] = {}
    for live in shown:
        match live.part:
            case (ToolCallPart() | ToolResultPart()) as part if part.tool_name == SUMMARY_TOOL_NAME:
                pass
            case ToolResultPart(provider_executed=False) as result if live.role == "tool":
                known = waiting or {call.tool_call_id for call in local_calls(said.content())}
                if result.tool_call_id in known and _is_whole(result):
                    results.setdefault(result.tool_call_id, _message(result))
            case part if not waiting and (live.role == "assistant" or _is_providers(part)):
                said.add(part)
            case _:
                pass
    return PartialAnswer(content=said.content(), results=tuple(results.values()))


def partial_messages(chat: Chat, shown: Iterable[LivePart], at: str | None) -> tuple[Draft, ...]:
    """What a stop of `chat` keeps of what was shown, as messages."""
    found = rebuild_partial(shown, chat.pending_calls, at)
    answer = Draft(role="assistant", content=found.content, model_config_id=chat.model_config_id)
    return (*((answer,) if found.content else ()), *found.results)


def _is_providers(part: KnownPart) -> bool:
    """A provider's own result is shown as a tool's, but stands in its answer."""
    return isinstance(part, ToolResultPart) and part.provider_executed


def _is_whole(result: ToolResultPart) -> bool:
    """A preview of an output is no output."""
    return result.result_delta is None and parse_json(storable_json(result.result)) is not UNSET


def _message(result: ToolResultPart) -> Draft:
    return Draft(
        role="tool", content=(msgspec.structs.replace(result, result=storable_json(result.result)),)
    )


class _Said:
    """An answer as it grows. A call stands where its first piece was shown."""

    def __init__(self, at: str | None) -> None:
        self._at = at
        self._parts: list[Part] = []
        self._calls: dict[ToolCallId, int] = {}
        self._pieces: dict[ToolCallId, list[str]] = {}

    def add(self, part: KnownPart) -> None:
        match part:
            case TextPart():
                self._parts.append(TextPart(text=part.text))
            case ReasoningPart():
                self._reasoning(part)
            case ToolCallPart():
                self._call(part)
            case ToolResultPart() if _is_whole(part):
                self._parts.append(part)
            case SourcePart():
                self._parts.append(part)
            case _:
                pass

    def _reasoning(self, part: ReasoningPart) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ReasoningPart):
            self._parts[-1] = msgspec.structs.replace(last, text=last.text + part.text)
        else:
            began = part.created_at or self._at
            self._parts.append(
                ReasoningPart(text=part.text, created_at=began, completed_at=self._at)
            )

    def _call(self, part: ToolCallPart) -> None:
        place = self._calls.setdefault(part.tool_call_id, len(self._parts))
        if place == len(self._parts):
            self._parts.append(part)
            self._pieces[part.tool_call_id] = []
        if part.args_delta is None:
            # The whole call counts, whatever pieces come before or after it.
            self._parts[place] = part
            self._pieces.pop(part.tool_call_id, None)
        elif part.tool_call_id in self._pieces:
            self._pieces[part.tool_call_id].append(part.args_delta)

    def content(self) -> tuple[Part, ...]:
        parts = list(self._parts)
        for call_id, pieces in self._pieces.items():
            place = self._calls[call_id]
            half_said = parts[place]
            if isinstance(half_said, ToolCallPart):
                parts[place] = msgspec.structs.replace(
                    half_said,
                    args=storable_args("".join(pieces)),
                    args_delta=None,
                    created_at=half_said.created_at or self._at,
                )
        return merge_text(parts)
