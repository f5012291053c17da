"""Which calls of a batch run, in which order, and which are refused before anything runs.

Owns the checks that need no tool to be asked: that the tool exists and may be called, that it
is not called beside others if it must be alone, that its input is a JSON object. Does not own
running.

Input of a tool call that two readers could read differently.

JSON lets a key come twice, and readers differ in which one counts and in whether case matters.
A policy that looks at one value while the tool acts on the other is no policy, so such input is
refused.

The name of a tool call's effect: the same for whoever runs the call again, and for nobody else.

Owns that it can travel: it goes into headers and rows, and a call's id is whatever a provider says.
"""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, Protocol, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.answer.tool_output import AnsweredCall, error_output
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.ids import ChatId, ToolCallId
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.text import Json, parse_json

_NO_SCHEMA: Final[Mapping[str, object]] = {}


class _Fields(list[tuple[str, object]]):
    """An object of JSON, with keys that come twice."""


def find_ambiguous_key(args: Json, schema: Raw) -> str | None:
    """A key that comes twice in one object, or that differs only in case from a name the schema
    has there. Looks into arrays and free-form maps too."""
    if args is UNSET:
        return None
    try:
        value: object = json.loads(bytes(args), object_pairs_hook=_Fields)
    except (ValueError, RecursionError):
        return None
    left: list[tuple[object, Mapping[str, object]]] = [(value, _mapping(parse_json(schema)))]
    while left:
        item, known = left.pop()
        if isinstance(item, _Fields):
            if (found := _ambiguous(item, known)) is not None:
                return found
            left.extend((value, _field_schema(known, key)) for key, value in item)
        elif isinstance(item, list):
            of_items = _mapping(known.get("items"))
            left.extend((value, of_items) for value in cast("list[object]", item))
    return None


def _ambiguous(fields: _Fields, schema: Mapping[str, object]) -> str | None:
    named = _mapping(schema.get("properties"))
    folded = {name.casefold() for name in named}
    seen: set[str] = set()
    for key, _ in fields:
        if key in seen or (key not in named and key.casefold() in folded):
            return key
        seen.add(key)
    return None


def _field_schema(schema: Mapping[str, object], key: str) -> Mapping[str, object]:
    named = _mapping(schema.get("properties"))
    return _mapping(named.get(key, schema.get("additionalProperties")))


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else _NO_SCHEMA


EXCLUSIVE_TOOL_TEXT: Final = "This tool must be called alone. Call it again, without others."
SKIPPED_CALL_TEXT: Final = (
    "Not run: another call of this batch must be made alone. Call it again later."
)
ARGS_NOT_JSON_TEXT: Final = (
    "The arguments were not valid JSON. Send the call again with a JSON object."
)
ARGS_NOT_OBJECT_TEXT: Final = "The arguments must be a JSON object. Send the call again with one."
_NAMES_SHOWN: Final = 50


class ToolTraits(Protocol):
    """What is asked of a tool before it runs."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def serial(self) -> bool: ...
    @property
    def exclusive(self) -> bool: ...


class ToolSet(Struct, frozen=True, kw_only=True):
    """The tools of a turn by name, and former names of some. `active` None: all may be called.

    `lenient` are tools of others, whose input is theirs to judge once it is a JSON object.
    """

    tools: Mapping[str, ToolTraits]
    aliases: Mapping[str, str] = {}
    active: frozenset[str] | None = None
    lenient: frozenset[str] = frozenset()

    def resolve(self, name: str) -> str:
        return name if name in self.tools else self.aliases.get(name, name)


class ToolBatch(Struct, frozen=True, kw_only=True):
    """All of `concurrent` at once; when they have settled, `serial` one by one. The calls have
    the tool's present name. `rejected` are answered already."""

    concurrent: tuple[ToolCallPart, ...] = ()
    serial: tuple[ToolCallPart, ...] = ()
    rejected: tuple[AnsweredCall, ...] = ()


def plan_batch(calls: Sequence[ToolCallPart], box: ToolSet) -> ToolBatch:
    """The provider's own calls are not ours to answer and are left out."""
    ours = [call for call in calls if not call.provider_executed]
    if len(ours) > 1 and any(_exclusive(call, box) for call in ours):
        return ToolBatch(rejected=tuple(_refused(call, box) for call in ours))
    concurrent: list[ToolCallPart] = []
    serial: list[ToolCallPart] = []
    rejected: list[AnsweredCall] = []
    for call in ours:
        objection = _objection(call, box)
        if objection is not None:
            rejected.append(_answered(call, objection))
            continue
        name = box.resolve(call.tool_name)
        line = serial if box.tools[name].serial else concurrent
        line.append(msgspec.structs.replace(call, tool_name=name))
    return ToolBatch(concurrent=tuple(concurrent), serial=tuple(serial), rejected=tuple(rejected))


def _exclusive(call: ToolCallPart, box: ToolSet) -> bool:
    tool = box.tools.get(box.resolve(call.tool_name))
    return tool is not None and tool.exclusive


def _refused(call: ToolCallPart, box: ToolSet) -> AnsweredCall:
    return _answered(call, EXCLUSIVE_TOOL_TEXT if _exclusive(call, box) else SKIPPED_CALL_TEXT)


def _answered(call: ToolCallPart, reason: str) -> AnsweredCall:
    return AnsweredCall(
        call_id=call.tool_call_id,
        name=call.tool_name,
        output=error_output(reason),
        mcp_server_config_id=call.mcp_server_config_id,
    )


def _objection(call: ToolCallPart, box: ToolSet) -> str | None:
    name = box.resolve(call.tool_name)
    tool = box.tools.get(name)
    if tool is None:
        return _unknown(call.tool_name, box)
    if box.active is not None and name not in box.active:
        return f"The tool {name!r} is not active in this turn."
    value = parse_json(call.args)
    if value is UNSET:
        return ARGS_NOT_JSON_TEXT
    if not isinstance(value, dict):
        return ARGS_NOT_OBJECT_TEXT
    if (
        name in box.lenient
        or (key := find_ambiguous_key(call.args, tool.spec.input_schema)) is None
    ):
        return None
    return f"The arguments name {key!r} in more than one way. Send the call again with it once."


def _unknown(name: str, box: ToolSet) -> str:
    usable = sorted(box.tools if box.active is None else box.active & box.tools.keys())
    shown = ", ".join(usable[:_NAMES_SHOWN]) or "none"
    more = f", and {len(usable) - _NAMES_SHOWN} more" if len(usable) > _NAMES_SHOWN else ""
    return f"There is no tool named {name!r}. Tools: {shown}{more}."


_PLAIN: Final = re.compile(r"[!-~]([ -~]{0,398}[!-~])?")
"""What a header and an agent have always taken: whoever takes a call over may be another version,
and must come to the same name."""


def call_key(chat_id: ChatId, history_version: int, call_id: ToolCallId) -> str:
    """After an edit a model may use a call's id again, so the history at which it was called is
    part of the name."""
    return f"{chat_id}:{history_version}:{_travelling(call_id)}"


def _travelling(call_id: str) -> str:
    """As it is, if every header takes it; else something as good."""
    if _PLAIN.fullmatch(call_id):
        return call_id
    return f"sha256:{sha256(call_id.encode(errors='surrogatepass')).hexdigest()}"
