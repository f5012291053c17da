"""Joins live parts into the parts that they become."""

from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from chatd.client.state import LiveAnswer, LiveEpisode
from chatd.domain.chat.events import PartPayload
from chatd.domain.chat.parts import KnownPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

Parts = tuple[KnownPart, ...]


def add_live_part(live: LiveAnswer | None, payload: PartPayload) -> LiveAnswer | None:
    """The answer with one more part. One that it has is ignored: after a reconnect the server sends
    all parts of the episode again. So is one after a gap, which the server never makes. The first
    part of another attempt replaces the answer."""
    episode = LiveEpisode(history_version=payload.history_version, attempt=payload.attempt)
    known = live if live is not None and live.episode == episode else None
    if payload.seq != (0 if known is None else known.seq) + 1:
        return live
    parts = _join(() if known is None else known.parts, payload.part)
    return LiveAnswer(episode=episode, seq=payload.seq, parts=parts)


def _join(parts: Parts, part: KnownPart) -> Parts:
    last = parts[-1] if parts else None
    match part:
        case TextPart() if isinstance(last, TextPart):
            return (*parts[:-1], replace(last, text=last.text + part.text))
        case ReasoningPart() if isinstance(last, ReasoningPart):
            return (*parts[:-1], replace(last, text=last.text + part.text))
        case ToolCallPart():
            return _join_call(parts, part)
        case ToolResultPart():
            return _join_result(parts, part)
        case _:
            return (*parts, part)


def _join_call(parts: Parts, part: ToolCallPart) -> Parts:
    """Arguments are collected in `args_delta`. The complete call takes their place."""
    index = _find(
        parts, lambda one: isinstance(one, ToolCallPart) and one.tool_call_id == part.tool_call_id
    )
    known = parts[index] if index is not None else None
    if index is None or not isinstance(known, ToolCallPart):
        return (*parts, part)
    if known.args_delta is None:
        return parts
    if part.args_delta is not None:
        part = replace(known, args_delta=known.args_delta + part.args_delta, args=UNSET)
    return (*parts[:index], part, *parts[index + 1 :])


def _join_result(parts: Parts, part: ToolResultPart) -> Parts:
    index = _find(
        parts, lambda one: isinstance(one, ToolResultPart) and one.tool_call_id == part.tool_call_id
    )
    known = parts[index] if index is not None else None
    if index is None or not isinstance(known, ToolResultPart):
        return (*parts, part)
    if known.result_delta is None:
        return parts
    if part.result_delta is not None:
        part = replace(known, result_delta=known.result_delta + part.result_delta)
    return (*parts[:index], part, *parts[index + 1 :])


def _find(parts: Parts, fits: Callable[[KnownPart], bool]) -> int | None:
    return next((index for index, part in enumerate(parts) if fits(part)), None)
