"""What a tool gave back, made fit for history: valid text, JSON, and not too much of it."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from chatd.domain.chat.messages import Draft
from chatd.domain.chat.parts import ToolResultPart, validate_json
from chatd.domain.ids import ToolCallId
from chatd.domain.text import parse_json, replace_json_surrogates, replace_surrogates

MAX_MEDIA_BYTES: Final = 10 * 1024 * 1024

_BYTES_PER_TOKEN: Final = 3
_LEAST_BUDGET: Final = 16 * 1024
_UNKNOWN_BUDGET: Final = 64 * 1024
_LEAST_SHARE: Final = 1024
_MARKER_ROOM: Final = 256
_TOO_SMALL_FOR_A_MARKER: Final = 512


class ToolMedia(Struct, frozen=True, kw_only=True):
    media_type: str
    data: bytes


class ToolOutput(Struct, frozen=True, kw_only=True):
    """A tool's answer. `text` of an error says what went wrong and what to do next.

    `structured`: the text of an error is a JSON object of the tool's own, with an `error` in it.
    """

    text: str
    is_error: bool = False
    media: ToolMedia | None = None
    structured: bool = False


class AnsweredCall(Struct, frozen=True, kw_only=True):
    """A call and what its tool answered."""

    call_id: ToolCallId
    name: str
    output: ToolOutput
    mcp_server_config_id: str | None = None


def error_output(text: str) -> ToolOutput:
    return ToolOutput(text=text, is_error=True)


def output_budget_bytes(context_limit: int | None) -> int:
    """A third of the context for one result, at a cautious three bytes a token."""
    if context_limit is None or context_limit <= 0:
        return _UNKNOWN_BUDGET
    return max(context_limit // 3 * _BYTES_PER_TOKEN, _LEAST_BUDGET)


def clip_middle(text: str, budget: int) -> str:
    """Two thirds of the room for the head, one for the tail, and a word on what is missing."""
    text = replace_surrogates(text)
    data = text.encode()
    if len(data) <= budget:
        return text
    if budget <= _TOO_SMALL_FOR_A_MARKER:
        return data[: max(budget, 0)].decode("utf-8", "ignore")
    room = budget - _MARKER_ROOM
    # A character that is cut in two goes with the part left out.
    head = data[: room * 2 // 3].decode("utf-8", "ignore")
    tail = data[len(data) - (room - room * 2 // 3) :].decode("utf-8", "ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    marker = (
        f"\n\n[{missing} bytes left out here."
        " Ask for less: a range of lines, a filter, or a narrower search.]\n\n"
    )
    return head + marker + tail


def fit_outputs(answers: Sequence[AnsweredCall], context_limit: int | None) -> list[AnsweredCall]:
    """Each result within its budget, and all of a batch within one: ten results that fit
    alone must not overflow the next prompt together."""
    budget = output_budget_bytes(context_limit)
    share = _share([len(replace_surrogates(a.output.text).encode()) for a in answers], budget)
    return [_fitted(answer, min(budget, share)) for answer in answers]


def _fitted(answer: AnsweredCall, budget: int) -> AnsweredCall:
    output = msgspec.structs.replace(answer.output, text=clip_middle(answer.output.text, budget))
    if output.media is not None and len(output.media.data) > MAX_MEDIA_BYTES:
        note = f"[{len(output.media.data)} bytes of {output.media.media_type} were too much.]"
        text = f"{output.text}\n{note}" if output.text else note
        output = msgspec.structs.replace(output, text=text, media=None)
    return msgspec.structs.replace(answer, output=output)


def _share(sizes: Sequence[int], budget: int) -> int:
    """The largest cap under which the whole batch fits: small results keep all they have."""
    left, count = budget, len(sizes)
    for size in sorted(min(size, budget) for size in sizes):
        if size * count > left:
            return max(left // count, _LEAST_SHARE)
        left -= size
        count -= 1
    return budget


def result_json(output: ToolOutput) -> Raw:
    """JSON text stays what it is; other text is wrapped; an error names itself."""
    text = replace_surrogates(output.text)
    if output.is_error:
        own = _own_error(text) if output.structured else None
        return own or Raw(msgspec.json.encode({"error": text}))
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
        return validate_json(replace_json_surrogates(text))
    except ValueError:
        return Raw(msgspec.json.encode({"output": text}))


def _own_error(text: str) -> Raw | None:
    try:
        raw = validate_json(replace_json_surrogates(text))
    except ValueError:
        return None
    value = parse_json(raw)
    return raw if isinstance(value, dict) and "error" in value else None


def result_message(answer: AnsweredCall, at: str | None = None) -> Draft:
    part = ToolResultPart(
        tool_call_id=answer.call_id,
        tool_name=answer.name,
        result=result_json(answer.output),
        is_error=answer.output.is_error,
        is_media=answer.output.media is not None and not answer.output.is_error,
        mcp_server_config_id=answer.mcp_server_config_id,
        created_at=at,
    )
    return Draft(role="tool", content=(part,))
