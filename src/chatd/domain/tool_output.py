"""What a tool gave back, made fit for history: valid text, JSON, and not too much of it."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.messages import Draft
from chatd.domain.parts import ToolResult

_BYTES_PER_TOKEN: Final = 3
_LEAST_BUDGET: Final = 16 * 1024
_UNKNOWN_BUDGET: Final = 64 * 1024
_MARKER_ROOM: Final = 256
_TOO_SMALL_FOR_A_MARKER: Final = 512


class Media(Struct, frozen=True, kw_only=True):
    media_type: str
    data: bytes


class ToolOutput(Struct, frozen=True, kw_only=True):
    """A tool's answer. `text` of an error says what went wrong and what to do next."""

    text: str
    is_error: bool = False
    media: Media | None = None


class Answered(Struct, frozen=True, kw_only=True):
    """A call and what its tool answered."""

    call_id: ToolCallId
    name: str
    output: ToolOutput


def budget_bytes(context_limit: int | None) -> int:
    """A third of the context for one result, at a cautious three bytes a token."""
    if context_limit is None or context_limit <= 0:
        return _UNKNOWN_BUDGET
    return max(context_limit // 3 * _BYTES_PER_TOKEN, _LEAST_BUDGET)


def cut(text: str, budget: int) -> str:
    """Two thirds of the room for the head, one for the tail, and a word on what is missing."""
    data = text.encode("utf-8", "replace")
    if len(data) <= budget:
        return data.decode()
    if budget <= _TOO_SMALL_FOR_A_MARKER:
        return data[: max(budget, 0)].decode("utf-8", "ignore")
    room = budget - _MARKER_ROOM
    head, tail = data[: room * 2 // 3], data[len(data) - (room - room * 2 // 3) :]
    marker = (
        f"\n\n[{len(data) - len(head) - len(tail)} bytes left out here."
        " Ask for less: a range of lines, a filter, or a narrower search.]\n\n"
    )
    return head.decode("utf-8", "ignore") + marker + tail.decode("utf-8", "ignore")


def fit(answers: Sequence[Answered], context_limit: int | None) -> list[Answered]:
    """Each result within its budget, and all of a batch within one: ten results that fit
    alone must not overflow the next prompt together."""
    budget = budget_bytes(context_limit)
    sizes = [min(len(a.output.text.encode("utf-8", "replace")), budget) for a in answers]
    share = _share(sizes, budget)
    return [
        msgspec.structs.replace(
            answer,
            output=msgspec.structs.replace(
                answer.output, text=cut(answer.output.text, min(budget, share))
            ),
        )
        for answer in answers
    ]


def _share(sizes: Sequence[int], budget: int) -> int:
    """The largest cap under which the whole batch fits: small results keep all they have."""
    left, count = budget, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return max(left // count, _LEAST_BUDGET // 8)
        left -= size
        count -= 1
    return budget


def result_json(output: ToolOutput) -> Raw:
    """JSON text stays what it is; other text is wrapped; an error names itself."""
    text = output.text.encode("utf-8", "replace").decode()
    if output.is_error:
        return Raw(msgspec.json.encode({"error": text}))
    if output.media is not None:
        media = {
            "data": b64encode(output.media.data).decode(),
            "mime_type": output.media.media_type,
            "text": text,
        }
        return Raw(msgspec.json.encode(media))
    if not text:
        return Raw(b"{}")
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return Raw(msgspec.json.encode({"output": text}))
    return Raw(text.encode())


def result_message(answer: Answered, at: str | None = None) -> Draft:
    part = ToolResult(
        tool_call_id=answer.call_id,
        tool_name=answer.name,
        result=result_json(answer.output),
        is_error=answer.output.is_error,
        is_media=answer.output.media is not None and not answer.output.is_error,
        created_at=at,
    )
    return Draft(role="tool", content=(part,))
