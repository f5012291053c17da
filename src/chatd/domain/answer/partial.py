"""Rebuilds a partial answer from the journal's live parts.

Normally the worker that assembled an interrupted answer commits it. If that worker died, the
journal still has the live parts, but without signatures and usage.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.answer.assembler import args_text, mark_cut, merge_text, storable_args
from chatd.domain.chat.messages import Draft, PendingCall, Role, local_results
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
from chatd.domain.chat.row import Chat, Episode
from chatd.domain.ids import ToolCallId
from chatd.domain.model.usage import utf8_size
from chatd.domain.text import parse_json, storable_json


class LivePart(Struct, frozen=True, kw_only=True):
    role: Role
    part: KnownPart


class PartialAnswer(Struct, frozen=True, kw_only=True):
    """`content` is the model's; `results` answer its calls, or the chat's pending calls."""

    content: tuple[Part, ...] = ()
    results: tuple[Draft, ...] = ()


def rebuild_partial(
    live_parts: Iterable[LivePart],
    pending_calls: Iterable[PendingCall] = (),
    at: str | None = None,
) -> PartialAnswer:
    """Rebuild from `live_parts`, in the order in which they were shown; `at` is when the turn was
    stopped.

    With pending calls no model call runs, so only their results are kept. Calls without a result
    are answered by the transition that ends the turn. An unfinished summary is dropped: viewers
    see it as a tool call, but no model made that call.
    """
    pending_ids = {call.id for call in pending_calls}
    answer = _PartialContent(at)
    known = pending_ids or answer.call_ids
    results: dict[ToolCallId, Draft] = {}
    for live in live_parts:
        match live.part:
            case (ToolCallPart() | ToolResultPart()) as part if part.tool_name == SUMMARY_TOOL_NAME:
                pass
            case ToolResultPart(provider_executed=False) as result if live.role == "tool":
                if result.tool_call_id in known and _is_complete(result):
                    results.setdefault(result.tool_call_id, _message(result))
            case part if not pending_ids and (
                live.role == "assistant" or _is_provider_result(part)
            ):
                answer.add(part)
            case _:
                pass
    return PartialAnswer(content=answer.content(), results=tuple(results.values()))


def partial_messages(
    chat: Chat, live_parts: Iterable[LivePart], at: str | None
) -> tuple[Draft, ...]:
    partial = rebuild_partial(live_parts, chat.pending_calls, at)
    # With a fallback the parts may be of either model: one provider must not get the other's.
    model = chat.model_config_id if chat.fallback is None else None
    answer = Draft(role="assistant", content=partial.content, model_config_id=model)
    return (*((answer,) if partial.content else ()), *partial.results)


def kept_messages(
    chat: Chat,
    own: tuple[Draft, ...],
    previous: Iterable[Iterable[LivePart]],
    at: str | None,
) -> tuple[Draft, ...]:
    """What an interrupt keeps of a step: `own` is of the worker that ends it, `previous` are the
    live parts of attempts before, whose workers died or released the chat."""
    for live_parts in previous:
        own = keep_longer(own, partial_messages(chat, live_parts, at))
    return own


def mark_broken_off(draft: Draft) -> Draft:
    """A partial answer without a reason is one that a person stopped. This one failed."""
    if draft.role != "assistant" or draft.finish_reason is not None:
        return draft
    return msgspec.structs.replace(draft, finish_reason="error")


def longest_attempt(chat: Chat, previous: Mapping[Episode, tuple[LivePart, ...]]) -> Episode | None:
    """The attempt at an answer that an interrupt would keep, of those whose answer was not
    discarded; None if none of them said anything. The results of tools are kept by the tools."""
    said = {
        episode: _said_bytes(partial_messages(chat, live_parts, None))
        for episode, live_parts in previous.items()
        if episode.is_kept(chat)
    }
    longest = max(said, key=lambda episode: (said[episode], episode), default=None)
    return longest if longest is not None and said[longest] > 0 else None


def keep_longer(own: tuple[Draft, ...], previous: tuple[Draft, ...]) -> tuple[Draft, ...]:
    """Of two attempts at an answer the one that says more: viewers saw it all. Of two attempts at
    tool calls every result."""
    if any(draft.role == "assistant" for draft in (*own, *previous)):
        return own if _said_bytes(own) >= _said_bytes(previous) else previous
    answered = {part.tool_call_id for draft in own for part in local_results(draft.content)}
    missing = (
        draft
        for draft in previous
        if answered.isdisjoint(part.tool_call_id for part in local_results(draft.content))
    )
    return (*own, *missing)


def _said_bytes(messages: Iterable[Draft]) -> int:
    """Of the answer; a notice before it is not counted."""
    answers = (draft for draft in messages if draft.role == "assistant")
    return sum(_part_bytes(part) for draft in answers for part in draft.content)


def _part_bytes(part: Part) -> int:
    match part:
        case ToolCallPart():
            written = utf8_size(part.args_text or "")
            return len(part.tool_name) + (written if part.args is UNSET else len(bytes(part.args)))
        case TextPart() | ReasoningPart():
            return utf8_size(part.text)
        case _:
            return 1


def continuation(previous: Iterable[Iterable[LivePart]]) -> str | None:
    """The text from which the next call may continue the answer: the longest that an earlier
    attempt at the step said. None if there is none.

    Only plain text is continued. Reasoning is signed, and the journal has no signatures; a call
    that was begun, or a source, cannot be taken up in the middle. Vendors refuse a text that ends
    in white space, so that the model says it again.
    """
    longest = ""
    for live_parts in previous:
        parts = tuple(live_parts)
        is_text = all(
            live.role == "assistant" and isinstance(live.part, TextPart) for live in parts
        )
        text = "".join(live.part.text for live in parts if isinstance(live.part, TextPart))
        if is_text and len(text) > len(longest):
            longest = text
    return longest.rstrip() or None


class EchoFilter:
    """Drops the beginning of an answer if the server repeats there the text that the answer
    continues. Holds text back only as long as it may be the repetition."""

    def __init__(self, continues: str) -> None:
        self._left = continues
        self._held = ""

    def feed(self, text: str) -> str:
        """What is new in this delta."""
        if not self._left:
            return text
        whole = self._held + text
        if whole.startswith(self._left):
            rest, self._left, self._held = whole[len(self._left) :], "", ""
            return rest
        if self._left.startswith(whole):
            self._held = whole
            return ""
        return self.end() + text

    def end(self) -> str:
        """The text that was held back, which is no repetition after all."""
        held, self._left, self._held = self._held, "", ""
        return held


def missing_parts(live_parts: Iterable[LivePart], content: Iterable[Part]) -> tuple[Part, ...]:
    """What `content`, a message, says after these live parts of it; nothing if they are no
    beginning of it."""
    shown = rebuild_partial(live_parts).content
    stored = [part for part in content if _part_bytes(part)]
    if len(shown) > len(stored):
        return ()
    for index, part in enumerate(shown[:-1]):
        if _rest(part, stored[index]) != ():
            return ()
    if not shown:
        return tuple(stored)
    rest = _rest(shown[-1], stored[len(shown) - 1])
    return () if rest is None else (*rest, *stored[len(shown) :])


def _rest(shown: Part, stored: Part) -> tuple[Part, ...] | None:
    """None if `shown` is no beginning of `stored`."""
    match shown, stored:
        case (TextPart(), TextPart()) | (ReasoningPart(), ReasoningPart()):
            if not stored.text.startswith(shown.text):
                return None
            rest = stored.text[len(shown.text) :]
            return (type(stored)(text=rest),) if rest else ()
        case (ToolCallPart(), ToolCallPart()) if shown.tool_call_id == stored.tool_call_id:
            is_same = (shown.args, shown.args_text) == (stored.args, stored.args_text)
            return () if is_same else (stored,)
        case _:
            return () if type(shown) is type(stored) else None


def _is_provider_result(part: KnownPart) -> bool:
    """A provider-executed result has the role `tool` when shown, but belongs to the answer."""
    return isinstance(part, ToolResultPart) and part.provider_executed


def _is_complete(result: ToolResultPart) -> bool:
    """A delta is a preview and no result."""
    return result.result_delta is None and parse_json(storable_json(result.result)) is not UNSET


def _message(result: ToolResultPart) -> Draft:
    return Draft(
        role="tool", content=(msgspec.structs.replace(result, result=storable_json(result.result)),)
    )


class _PartialContent:
    """Collects live parts into content. A call is placed where its first delta was shown."""

    def __init__(self, at: str | None) -> None:
        self.call_ids: set[ToolCallId] = set()
        self._at = at
        self._parts: list[Part] = []
        self._calls: dict[ToolCallId, int] = {}
        self._pieces: dict[ToolCallId, list[str]] = {}

    def add(self, part: KnownPart) -> None:
        match part:
            case TextPart():
                self._parts.append(TextPart(text=part.text))
            case ReasoningPart():
                began = part.created_at or self._at
                self._parts.append(
                    ReasoningPart(text=part.text, created_at=began, completed_at=self._at)
                )
            case ToolCallPart():
                self._call(part)
            case ToolResultPart() if _is_complete(part):
                self._parts.append(part)
            case SourcePart():
                self._parts.append(part)
            case _:
                pass

    def _call(self, part: ToolCallPart) -> None:
        index = self._calls.setdefault(part.tool_call_id, len(self._parts))
        if index == len(self._parts):
            self._parts.append(part)
            self._pieces[part.tool_call_id] = []
            if not part.provider_executed:
                self.call_ids.add(part.tool_call_id)
        if part.args_delta is None:
            # The complete call takes precedence over deltas before and after it.
            self._parts[index] = part
            self._pieces.pop(part.tool_call_id, None)
        elif part.tool_call_id in self._pieces:
            self._pieces[part.tool_call_id].append(part.args_delta)

    def content(self) -> tuple[Part, ...]:
        parts = list(self._parts)
        for call_id, pieces in self._pieces.items():
            index = self._calls[call_id]
            call = parts[index]
            if isinstance(call, ToolCallPart):
                written = "".join(pieces)
                args = storable_args(written)
                begun = msgspec.structs.replace(
                    call,
                    args=args,
                    args_text=args_text(args, written),
                    args_delta=None,
                    created_at=call.created_at or self._at,
                )
                parts[index] = mark_cut(begun)
        return merge_text(_join_reasoning(parts))


def _join_reasoning(parts: Iterable[Part]) -> Iterator[Part]:
    for kind, run in groupby(parts, key=type):
        deltas = list(run)
        if kind is ReasoningPart and len(deltas) > 1:
            whole = "".join(part.text for part in deltas if isinstance(part, ReasoningPart))
            yield msgspec.structs.replace(deltas[0], text=whole)
        else:
            yield from deltas
