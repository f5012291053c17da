"""Tool outputs as stored in history: valid JSON, clipped to a share of the context limit."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from chatd.domain.chat.messages import Draft
from chatd.domain.chat.parts import FilePart, ToolResultPart, validate_json
from chatd.domain.chat.row import AgentWait
from chatd.domain.ids import ToolCallId
from chatd.domain.text import parse_json, replace_json_surrogates, replace_surrogates

MAX_MEDIA_BYTES: Final = 10 * 1024 * 1024

_BYTES_PER_TOKEN: Final = 3
_MIN_BUDGET_BYTES: Final = 16 * 1024
_DEFAULT_BUDGET_BYTES: Final = 64 * 1024
_MIN_SHARE_BYTES: Final = 1024
_MARKER_BYTES: Final = 256
_MIN_MARKED_BYTES: Final = 512


class ToolMedia(Struct, frozen=True, kw_only=True):
    media_type: str
    data: bytes


class ToolOutput(Struct, frozen=True, kw_only=True):
    """A tool's result. The text of an error says what went wrong and what to do next.

    `structured`: the text of an error is the tool's own JSON object with the key `error`.
    `files` are shown to people beside the result. With a `wait` the call has no result yet: the
    turn is suspended, and the call is run again.
    """

    text: str
    is_error: bool = False
    media: ToolMedia | None = None
    structured: bool = False
    files: tuple[FilePart, ...] = ()
    wait: AgentWait | None = None


class AnsweredCall(Struct, frozen=True, kw_only=True):
    call_id: ToolCallId
    name: str
    output: ToolOutput
    mcp_server_config_id: str | None = None


def error_output(text: str) -> ToolOutput:
    return ToolOutput(text=text, is_error=True)


def output_budget_bytes(context_limit: int | None) -> int:
    """A third of the context, at three bytes per token (a low estimate)."""
    if context_limit is None or context_limit <= 0:
        return _DEFAULT_BUDGET_BYTES
    return max(context_limit // 3 * _BYTES_PER_TOKEN, _MIN_BUDGET_BYTES)


def clip_middle(text: str, budget: int) -> str:
    """Keep the head (two thirds of `budget` bytes) and the tail, with a note between them."""
    text = replace_surrogates(text)
    data = text.encode()
    if len(data) <= budget:
        return text
    if budget <= _MIN_MARKED_BYTES:
        return data[: max(budget, 0)].decode("utf-8", "ignore")
    available = budget - _MARKER_BYTES
    # A character cut in two is dropped.
    head = data[: available * 2 // 3].decode("utf-8", "ignore")
    tail = data[len(data) - (available - available * 2 // 3) :].decode("utf-8", "ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    marker = (
        f"\n\n[{missing} bytes left out here."
        " Ask for less: a range of lines, a filter, or a narrower search.]\n\n"
    )
    return head + marker + tail


def fit_outputs(answers: Sequence[AnsweredCall], context_limit: int | None) -> list[AnsweredCall]:
    """Clip each result to the budget, and all of a batch together: ten results that fit alone must
    not overflow the next prompt together."""
    budget = output_budget_bytes(context_limit)
    share = _share([len(replace_surrogates(a.output.text).encode()) for a in answers], budget)
    return [_fit_output(answer, min(budget, share)) for answer in answers]


def _fit_output(answer: AnsweredCall, budget: int) -> AnsweredCall:
    output = msgspec.structs.replace(answer.output, text=clip_middle(answer.output.text, budget))
    if output.media is not None and len(output.media.data) > MAX_MEDIA_BYTES:
        media = output.media
        note = f"[{len(media.data)} bytes of {media.media_type} were left out: too large.]"
        text = f"{output.text}\n{note}" if output.text else note
        output = msgspec.structs.replace(output, text=text, media=None)
    return msgspec.structs.replace(answer, output=output)


def _share(sizes: Sequence[int], budget: int) -> int:
    """The largest limit per result under which the batch fits; small results stay whole."""
    left, count = budget, len(sizes)
    for size in sorted(min(size, budget) for size in sizes):
        if size * count > left:
            return max(left // count, _MIN_SHARE_BYTES)
        left -= size
        count -= 1
    return budget


def result_json(output: ToolOutput) -> Raw:
    """JSON stays as it is, other text becomes `{"output": ...}`, an error `{"error": ...}`."""
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
    return Draft(role="tool", content=(part, *answer.output.files))
