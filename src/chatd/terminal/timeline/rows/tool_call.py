"""A tool call with what is known of its result, wherever the parts of both come from."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from chatd.domain.chat.events import RequestedCall
from chatd.domain.chat.parts import KnownPart, ToolCallPart, ToolResultPart
from chatd.domain.text import parse_json
from chatd.terminal.timeline.rows.json_values import (
    JsonObject,
    as_object,
    number_of,
    parse_partial,
    text_of,
)

CallState = Literal[
    "streaming", "running", "waiting", "background", "done", "failed", "interrupted"
]
"""`streaming`: the model writes the arguments. `waiting`: somebody outside must answer.
`background`: the call has returned, what it started goes on."""

_GOING: Final[frozenset[CallState]] = frozenset({"streaming", "running", "waiting", "background"})


class CallRecord(Struct, frozen=True, kw_only=True):
    """Everything received of one call."""

    call: ToolCallPart | None = None
    result: ToolResultPart | None = None

    def add(self, part: ToolCallPart | ToolResultPart) -> "CallRecord":
        """With a later part of the same call. A committed part takes the place of a live one."""
        if isinstance(part, ToolCallPart):
            return replace(self, call=part)
        return replace(self, result=part)

    @property
    def is_open(self) -> bool:
        return not _is_complete(self.result)


class CallContext(Struct, frozen=True, kw_only=True):
    """How a chat stands, as far as its open calls are concerned."""

    is_busy: bool = False
    requested: Mapping[str, RequestedCall] = {}


class ToolCall(Struct, frozen=True, kw_only=True):
    """One call as a row has it. Arguments and result stay encoded until `CallFacts` reads them."""

    id: str
    name: str
    state: CallState
    call: ToolCallPart | None
    result: ToolResultPart | None
    request: RequestedCall | None = None

    @property
    def is_media(self) -> bool:
        return self.result is not None and self.result.is_media

    @property
    def is_going(self) -> bool:
        return self.state in _GOING


class CallFacts(Struct, frozen=True, kw_only=True):
    """A call with its arguments and result decoded, for its card. `args_text` is the model's own
    text if it is no valid JSON; `live_output` is what a running tool has printed so far."""

    call: ToolCall
    args: JsonObject
    args_text: str
    result_value: object
    live_output: str
    started_at: float | None
    ended_at: float | None

    @property
    def result(self) -> JsonObject:
        return as_object(self.result_value)

    @property
    def state(self) -> CallState:
        return self.call.state

    @property
    def error(self) -> str:
        """Why the call failed, in the tool's own words."""
        if isinstance(self.result_value, str) and self.state == "failed":
            return self.result_value
        return text_of(self.result, "error", "last_error")

    @property
    def duration_s(self) -> float | None:
        """How long it took, by the tool's own word if it gives one."""
        own = number_of(self.result, "wall_duration_ms")
        if own is not None:
            return max(0.0, own / 1000)
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)


def call_id_of(part: KnownPart) -> str | None:
    return part.tool_call_id if isinstance(part, ToolCallPart | ToolResultPart) else None


def view_call(call_id: str, record: CallRecord, context: CallContext) -> ToolCall:
    part = record.call or record.result
    request = context.requested.get(call_id) if record.is_open else None
    return ToolCall(
        id=call_id,
        name="" if part is None else part.tool_name,
        state=_state(call_id, record, context),
        call=record.call,
        result=record.result,
        request=request,
    )


def read_call(call: ToolCall) -> CallFacts:
    part, result = call.call, call.result
    args_text, args = "", None
    if part is not None and part.args is not UNSET:
        args = parse_json(part.args)
    elif part is not None and part.args_text is not None:
        args, args_text = parse_partial(part.args_text), part.args_text
    elif part is not None and part.args_delta is not None:
        args, args_text = parse_partial(part.args_delta), part.args_delta
    value = None if result is None or result.result is UNSET else parse_json(result.result)
    return CallFacts(
        call=call,
        args=as_object(args),
        args_text=args_text,
        result_value=None if value is UNSET else value,
        live_output="" if result is None or _is_complete(result) else result.result_delta or "",
        started_at=None if part is None else moment(part.created_at),
        ended_at=None if not _is_complete(result) or result is None else moment(result.created_at),
    )


def _state(call_id: str, record: CallRecord, context: CallContext) -> CallState:
    if record.result is not None and _is_complete(record.result):
        return _outcome(record.result)
    part = record.call
    if not context.is_busy or (part is not None and part.cut):
        return "interrupted"
    if call_id in context.requested:
        return "waiting"
    is_written = part is not None and (part.args is not UNSET or part.args_delta is None)
    return "running" if is_written else "streaming"


def _outcome(part: ToolResultPart) -> CallState:
    result = as_object(parse_json(part.result))
    error = text_of(result, "error")
    # The report of a stopped command says so itself. `wait_agent` has the same word, no process.
    if part.interrupted or (result.get("interrupted") is True and result.get("running") is True):
        return "interrupted"
    if part.is_error:
        return "failed"
    if result.get("running") is True:
        return "background"
    is_bad = result.get("success") is False or error != ""
    return "failed" if is_bad or number_of(result, "exit_code") not in (None, 0) else "done"


def _is_complete(result: ToolResultPart | None) -> bool:
    return result is not None and (result.result is not UNSET or result.result_delta is None)


def moment(text: str | None) -> float | None:
    """Seconds since the epoch; None if there is no time, or it cannot be read."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
