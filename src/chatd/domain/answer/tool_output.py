"""Tool outputs as stored in history: valid JSON, and short enough for the next prompt.

The one rule for long output. The results of a step share a budget of bytes, small ones stay whole,
and each of the others gets an equal share of what is left. A result that is a JSON object stays
one: only its long strings are cut, each in its middle, so that an exit code, a path or a process id
is always there. Other text is cut in its middle. What was cut says how many bytes are missing, and
where the whole result is if it was saved.

Tools do not cut. The sources of results only bound what they hold in memory: the workspace agent
keeps the beginning and the end of a command's output, and a connection the bytes of a reply.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.messages import Draft
from chatd.domain.chat.parts import FilePart, ToolResultPart, validate_json
from chatd.domain.chat.row import AgentWait
from chatd.domain.ids import ToolCallId
from chatd.domain.text import Json, parse_json, replace_json_surrogates, replace_surrogates

MAX_MEDIA_BYTES: Final = 10 * 1024 * 1024

_BYTES_PER_TOKEN: Final = 3
_MIN_BUDGET_BYTES: Final = 16 * 1024
_DEFAULT_BUDGET_BYTES: Final = 64 * 1024
STEP_OUTPUT_BYTES: Final = 100 * 1024
"""Of all results of a step together, however large the model's context is."""
SAVED_ABOVE_BYTES: Final = 16 * 1024
"""A longer result is saved as soon as it is there, a shorter one only if its step cuts it."""
_MIN_SHARE_BYTES: Final = 1024
_MIN_MARKED_BYTES: Final = 512
_MARKER_BYTES: Final = 256
_FITTING_TRIES: Final = 4
ASK_FOR_LESS_TEXT: Final = "Ask for less: a range of lines, a filter, or a narrower search."


class ToolMedia(Struct, frozen=True, kw_only=True):
    media_type: str
    data: bytes


class ToolOutput(Struct, frozen=True, kw_only=True):
    """A tool's result. The text of an error says what went wrong and what to do next.

    `structured`: the text of an error is the tool's own JSON object with the key `error`.
    `files` are shown to people beside the result. With a `wait` the call has no result yet: the
    turn is suspended, and the call is run again. `saved` says where the whole text is, if it is
    too long for history.
    """

    text: str
    is_error: bool = False
    media: ToolMedia | None = None
    structured: bool = False
    files: tuple[FilePart, ...] = ()
    wait: AgentWait | None = None
    saved: str = ""


class AnsweredCall(Struct, frozen=True, kw_only=True):
    call_id: ToolCallId
    name: str
    output: ToolOutput
    mcp_server_config_id: str | None = None
    changed_args: Json = UNSET


def error_output(text: str) -> ToolOutput:
    return ToolOutput(text=text, is_error=True)


def output_budget_bytes(context_limit: int | None) -> int:
    """A third of the context, at three bytes per token (a low estimate)."""
    if context_limit is None or context_limit <= 0:
        return _DEFAULT_BUDGET_BYTES
    return max(context_limit // 3 * _BYTES_PER_TOKEN, _MIN_BUDGET_BYTES)


def clip_middle(text: str, budget: int, advice: str = ASK_FOR_LESS_TEXT) -> str:
    """Keep the head (two thirds of `budget` bytes) and the tail, with a note between them."""
    text = replace_surrogates(text)
    data = text.encode()
    if len(data) <= budget:
        return text
    reserved = max(_MARKER_BYTES, 64 + len(advice.encode()))
    if budget <= max(_MIN_MARKED_BYTES, reserved):
        return data[: max(budget, 0)].decode("utf-8", "ignore")
    available = budget - reserved
    # A character cut in two is dropped.
    head = data[: available * 2 // 3].decode("utf-8", "ignore")
    tail = data[len(data) - (available - available * 2 // 3) :].decode("utf-8", "ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n\n[{missing} bytes left out here. {advice}]\n\n{tail}"


def fit_outputs(
    answers: Sequence[AnsweredCall],
    context_limit: int | None,
    max_bytes: int = STEP_OUTPUT_BYTES,
) -> list[AnsweredCall]:
    """Cut each result to its share, by the rule above."""
    share = share_bytes(answers, context_limit, max_bytes)
    return [_fit_output(answer, share) for answer in answers]


def share_bytes(
    answers: Sequence[AnsweredCall],
    context_limit: int | None,
    max_bytes: int = STEP_OUTPUT_BYTES,
) -> int:
    """How many bytes each result of a step may have. Longer ones are cut."""
    budget = min(output_budget_bytes(context_limit), max_bytes)
    return min(budget, _share([_size(answer.output.text) for answer in answers], budget))


def is_long(output: ToolOutput, limit: int = SAVED_ABOVE_BYTES) -> bool:
    """Whether the whole text must be saved for the model, and is not."""
    return not output.saved and _size(output.text) > limit


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(replace_surrogates(text).encode())


def _cut(output: ToolOutput, budget: int) -> str:
    if _size(output.text) <= budget:
        return replace_surrogates(output.text)
    advice = output.saved or ASK_FOR_LESS_TEXT
    value = parse_json(replace_json_surrogates(output.text))
    if isinstance(value, dict) and (output.structured or not output.is_error):
        fitted = _cut_object(cast("dict[str, Any]", value), budget, advice)
        if fitted is not None:
            return fitted
    return clip_middle(output.text, budget, advice)


def _cut_object(value: dict[str, Any], budget: int, advice: str) -> str | None:
    """The object with its long strings cut. None if it is long for another reason."""
    strings: list[str] = []
    _collect_strings(value, strings)
    sizes = [_json_size(text) for text in strings]
    rest = _json_size(value) - sum(sizes)
    room = budget - rest
    for _ in range(_FITTING_TRIES):
        if room <= 0:
            return None
        # Escapes make a string longer in JSON than it is; a cut keeps that proportion.
        share = _share(sizes, room, least=0)
        whole = {
            text: max(share * len(text.encode()) // size, 0)
            for text, size in zip(strings, sizes, strict=True)
            if size > share
        }
        fitted = _with_cuts(value, whole, advice)
        encoded = msgspec.json.encode(_update_truncation(value, fitted)).decode()
        if _size(encoded) <= budget:
            return encoded
        room -= _size(encoded) - budget
    return None


def _json_size(value: object) -> int:
    return len(msgspec.json.encode(value))


def _collect_strings(value: object, found: list[str]) -> None:
    todo: list[object] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            todo.extend(cast("dict[str, object]", item).values())
        elif isinstance(item, list):
            todo.extend(cast("list[object]", item))


def _with_cuts(value: Any, budgets: Mapping[str, int], advice: str) -> Any:
    """A copy of JSON in which these strings are cut. As deep as the decoder allows."""
    match value:
        case str():
            return clip_middle(value, budgets[value], advice) if value in budgets else value
        case dict():
            fields = cast("dict[str, Any]", value)
            return {key: _with_cuts(item, budgets, advice) for key, item in fields.items()}
        case list():
            return [_with_cuts(item, budgets, advice) for item in cast("list[Any]", value)]
        case _:
            return value


def _update_truncation(before: Mapping[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The report of a command counts in `truncated` what is missing of its `output`."""
    was, now = before.get("output"), after.get("output")
    if not isinstance(was, str) or not isinstance(now, str) or was == now:
        return after
    known = before.get("truncated")
    told = cast("dict[str, Any]", known) if isinstance(known, dict) else {}
    original = told.get("original_bytes")
    original = original if isinstance(original, int) else _size(was)
    kept = min(_size(now), original)
    truncated = {
        "original_bytes": original,
        "retained_bytes": kept,
        "omitted_bytes": original - kept,
        "strategy": "head_tail",
    }
    return {**after, "truncated": truncated}


def _fit_output(answer: AnsweredCall, budget: int) -> AnsweredCall:
    output = msgspec.structs.replace(answer.output, text=_cut(answer.output, budget))
    if output.media is not None and len(output.media.data) > MAX_MEDIA_BYTES:
        media = output.media
        note = f"[{len(media.data)} bytes of {media.media_type} were left out: too large.]"
        text = f"{output.text}\n{note}" if output.text else note
        output = msgspec.structs.replace(output, text=text, media=None)
    return msgspec.structs.replace(answer, output=output)


def _share(sizes: Sequence[int], budget: int, *, least: int = _MIN_SHARE_BYTES) -> int:
    """The largest limit per result under which the batch fits; small results stay whole."""
    left, count = budget, len(sizes)
    for size in sorted(min(size, budget) for size in sizes):
        if size * count > left:
            return max(left // count, least)
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
        changed_args=answer.changed_args,
        created_at=at,
    )
    return Draft(role="tool", content=(part, *answer.output.files))
