"""Tool calls with what is known of their results, from JSON whose shape nothing guarantees and that
may not be complete."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, cast

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from chatd.domain.chat.parts import KnownPart, ToolCallPart, ToolResultPart
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.text import parse_json

JsonObject = Mapping[str, object]
NOTHING: Final[JsonObject] = {}

MAX_PARTIAL_CHARS: Final = 200_000
"""Limit for arguments that are still being written, which are parsed again with each update."""
_MAX_DEPTH: Final = 64


def as_object(value: object) -> JsonObject:
    """The value if it is an object; else an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else NOTHING


def text_of(value: JsonObject, *names: str) -> str:
    """The first of these fields that is a text and not empty."""
    for name in names:
        if isinstance(found := value.get(name), str) and found:
            return found
    return ""


def number_of(value: JsonObject, name: str) -> int | float | None:
    found = value.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def list_of(value: JsonObject, name: str) -> Sequence[object]:
    found = value.get(name)
    return cast("Sequence[object]", found) if isinstance(found, list) else ()


def objects_of(value: JsonObject, name: str) -> Sequence[JsonObject]:
    return [found for item in list_of(value, name) if (found := as_object(item))]


def texts_of(value: JsonObject, name: str) -> Sequence[str]:
    return [item for item in list_of(value, name) if isinstance(item, str)]


def parse_partial(text: str) -> object:
    """What is known so far of a JSON text that is still being written; None: nothing yet."""
    text = text[:MAX_PARTIAL_CHARS]
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _PartialReader(text).read()


class _End(Exception):
    """The text ends inside a value of which nothing can be shown."""


_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)("?)', re.DOTALL)
_LITERAL: Final = re.compile(r"[^\s,\]}]+")
_CUT_ESCAPE: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")


class _PartialReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> object:
        try:
            return self._value()
        except _End:
            return None

    def _value(self) -> object:
        self._skip_space()
        match self._text[self._at : self._at + 1]:
            case "":
                raise _End
            case '"':
                return self._string()[0]
            case "{" | "[" as opening:
                return self._nested(opening)
            case _:
                return self._literal()

    def _nested(self, opening: str) -> object:
        if self._depth >= _MAX_DEPTH:
            raise _End
        self._depth += 1
        self._at += 1
        value = self._object() if opening == "{" else self._array()
        self._depth -= 1
        return value

    def _object(self) -> object:
        value: dict[str, object] = {}
        while self._has_next("}"):
            if self._text[self._at] != '"':
                break
            name, is_closed = self._string()
            self._skip_space()
            if not is_closed or self._text[self._at : self._at + 1] != ":":
                break
            self._at += 1
            try:
                value[name] = self._value()
            except _End:
                break
        return value

    def _array(self) -> object:
        value: list[object] = []
        while self._has_next("]"):
            before = self._at
            try:
                value.append(self._value())
            except _End:
                break
            if self._at == before:
                break
        return value

    def _has_next(self, close: str) -> bool:
        """True if an item follows. Steps over the comma, or over `close`."""
        self._skip_space()
        if self._text[self._at : self._at + 1] == ",":
            self._at += 1
            self._skip_space()
        if self._text[self._at : self._at + 1] != close:
            return self._at < len(self._text)
        self._at += 1
        return False

    def _string(self) -> tuple[str, bool]:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise _End
        self._at = found.end()
        inner, is_closed = found[1], bool(found[2])
        if not is_closed:
            # An escape that is cut in two is left out until the rest of it is there.
            inner = _CUT_ESCAPE.sub(r"\1", self._text[found.start() + 1 :])
            self._at = len(self._text)
        quoted = '"' + inner.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'
        try:
            return msgspec.json.decode(quoted, type=str), is_closed
        except (msgspec.DecodeError, UnicodeError):
            return inner, is_closed

    def _literal(self) -> object:
        found = _LITERAL.match(self._text, self._at)
        # A number at the end of the text may get more digits.
        if found is None or found.end() >= len(self._text):
            self._at = len(self._text)
            raise _End
        self._at = found.end()
        try:
            return msgspec.json.decode(found[0])
        except msgspec.DecodeError as error:
            raise _End from error

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at


# A tool call with what is known of its result, wherever the parts of both come from.

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
        """Add a later part of the same call. A committed part replaces a live one."""
        if isinstance(part, ToolCallPart):
            return replace(self, call=part)
        return replace(self, result=part)

    @property
    def is_open(self) -> bool:
        return not _is_complete(self.result)


class CallContext(Struct, frozen=True, kw_only=True):
    """The state of a chat, as far as its open calls are concerned."""

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


# A call in a few words.

_CAMEL: Final = re.compile(r"([a-z0-9])([A-Z])")
_PUNCTUATION: Final = re.compile(r"[_\-.]+")
_SUBJECTS: Final = ("command", "path", "title", "query", "pattern", "name", "process_id")
_MAX_CHARS: Final = 400


def call_text(call: ToolCall) -> str:
    facts = read_call(call)
    files = objects_of(facts.args, "files")
    subject = text_of(facts.args, *_SUBJECTS) or (text_of(files[0], "path") if files else "")
    return first_line(f"{humanize(call.name)} {subject}")


def server_of(name: str) -> str:
    """The MCP server of `github__create_issue`. A repository names its servers as it likes, so
    those say where they are from."""
    first, _, rest = name.partition("__")
    if first == "workspace" and "__" in rest:
        return f"workspace: {rest.partition('__')[0]}"
    return first if rest else ""


def humanize(name: str) -> str:
    """`github__create_issue` is "Create issue"."""
    own = _CAMEL.sub(r"\1 \2", name[:_MAX_CHARS].rsplit("__", 1)[-1])
    words = _PUNCTUATION.sub(" ", own).strip().lower()
    return words[:1].upper() + words[1:] if words else name[:_MAX_CHARS]


def first_line(text: str) -> str:
    return text[: _MAX_CHARS * 4].strip().partition("\n")[0][:_MAX_CHARS]
