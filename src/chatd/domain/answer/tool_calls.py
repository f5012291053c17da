"""Plans a tool batch: how many calls an answer may make, which run in which order, and which are
rejected before they run.

Also the call key, the idempotency key of a tool call's effect.
"""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, Protocol, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.answer.tool_output import STEP_OUTPUT_BYTES, AnsweredCall, error_output
from chatd.domain.chat.messages import Draft, notice_draft
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.ids import ChatId, ToolCallId
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.text import Json, parse_json

_NO_SCHEMA: Final[Mapping[str, object]] = {}


class StepLimits(Struct, frozen=True, kw_only=True):
    """`calls` of one answer run at most, `concurrent_calls` of them at once, and their results
    have `output_bytes` together."""

    calls: int = 128
    concurrent_calls: int = 32
    output_bytes: int = STEP_OUTPUT_BYTES


DEFAULT_STEP_LIMITS: Final = StepLimits()


def kept_calls(limit: int) -> int:
    """How many calls of an answer are stored: those that run, and as many again, each with an error
    result. Later calls are dropped: every reader of the chat would pay for them."""
    return 2 * limit


def surplus_notice(made: int, limit: int) -> Draft | None:
    """Tells people that an answer made more calls than may run."""
    if made <= limit:
        return None
    text = f"The model made {made} tool calls in one answer. The first {limit} were accepted."
    if made > kept_calls(limit):
        text += f" Only the first {kept_calls(limit)} are stored."
    return notice_draft("calls_over_limit", text, {"calls": str(made), "limit": str(limit)})


def refuse_surplus(calls: Sequence[ToolCallPart], limit: int) -> dict[ToolCallId, str]:
    """The calls of an answer that do not run because it makes too many, with their results."""
    if len(calls) <= limit:
        return {}
    text = (
        f"Not run: of the calls of one answer the first {limit} run, and {kept_calls(limit)} are"
        " kept. Look at their results first, then call again, with fewer calls at once."
    )
    return {call.tool_call_id: text for call in calls[limit:]}


class _Fields(list[tuple[str, object]]):
    """A JSON object with its duplicate keys."""


def find_ambiguous_key(args: Json, schema: Raw) -> str | None:
    """A duplicate key, or one that differs only in case from a schema property, at any depth.

    Parsers differ in which duplicate they use and in whether case matters, so a policy could check
    one value while the tool uses another.
    """
    if args is UNSET:
        return None
    try:
        value: object = json.loads(bytes(args), object_pairs_hook=_Fields)
    except (ValueError, RecursionError):
        return None
    todo: list[tuple[object, Mapping[str, object]]] = [(value, _mapping(parse_json(schema)))]
    while todo:
        item, known = todo.pop()
        if isinstance(item, _Fields):
            if (found := _find_ambiguous(item, known)) is not None:
                return found
            todo.extend((value, _field_schema(known, key)) for key, value in item)
        elif isinstance(item, list):
            item_schema = _mapping(known.get("items"))
            todo.extend((value, item_schema) for value in cast("list[object]", item))
    return None


def _find_ambiguous(fields: _Fields, schema: Mapping[str, object]) -> str | None:
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


ARGS_NOT_JSON_TEXT: Final = (
    "The arguments were not valid JSON. Send the call again with a JSON object."
)
CUT_CALL_TEXT: Final = (
    "Not run: the answer was cut off, so the arguments may be incomplete. Send the call again, with"
    " shorter arguments if they were long."
)
ARGS_NOT_OBJECT_TEXT: Final = "The arguments must be a JSON object. Send the call again with one."
_NAMES_SHOWN: Final = 50


class ToolTraits(Protocol):
    """What planning needs to know of a tool."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def serial(self) -> bool: ...


class ToolSet(Struct, frozen=True, kw_only=True):
    """The tools of a turn by name. `aliases` maps former names. `refused` tools cannot be called
    now; the text says why.

    `lenient` tools are not chatd's: they check their input, which here must only be an object.
    """

    tools: Mapping[str, ToolTraits]
    aliases: Mapping[str, str] = {}
    refused: Mapping[str, str] = {}
    lenient: frozenset[str] = frozenset()

    def resolve(self, name: str) -> str:
        return name if name in self.tools else self.aliases.get(name, name)


class ToolBatch(Struct, frozen=True, kw_only=True):
    """`concurrent` calls run at once, then `serial` ones one by one, all under their tool's current
    name. `rejected` calls have their answer already."""

    concurrent: tuple[ToolCallPart, ...] = ()
    serial: tuple[ToolCallPart, ...] = ()
    rejected: tuple[AnsweredCall, ...] = ()


def plan_batch(calls: Sequence[ToolCallPart], tools: ToolSet) -> ToolBatch:
    """Provider-executed calls are left out."""
    local = [call for call in calls if not call.provider_executed]
    concurrent: list[ToolCallPart] = []
    serial: list[ToolCallPart] = []
    rejected: list[AnsweredCall] = []
    for call in local:
        objection = _find_objection(call, tools)
        if objection is not None:
            rejected.append(_reject(call, objection))
            continue
        name = tools.resolve(call.tool_name)
        runnable = serial if tools.tools[name].serial else concurrent
        runnable.append(msgspec.structs.replace(call, tool_name=name))
    return ToolBatch(concurrent=tuple(concurrent), serial=tuple(serial), rejected=tuple(rejected))


def _reject(call: ToolCallPart, reason: str) -> AnsweredCall:
    return AnsweredCall(
        call_id=call.tool_call_id,
        name=call.tool_name,
        output=error_output(reason),
        mcp_server_config_id=call.mcp_server_config_id,
    )


def _find_objection(call: ToolCallPart, tools: ToolSet) -> str | None:
    if call.cut:
        return CUT_CALL_TEXT
    name = tools.resolve(call.tool_name)
    if (refusal := tools.refused.get(name)) is not None:
        return refusal
    tool = tools.tools.get(name)
    if tool is None:
        return _unknown_tool_text(call.tool_name, tools)
    value = parse_json(call.args)
    if value is UNSET:
        return ARGS_NOT_JSON_TEXT
    if not isinstance(value, dict):
        return ARGS_NOT_OBJECT_TEXT
    if (
        name in tools.lenient
        or (key := find_ambiguous_key(call.args, tool.spec.input_schema)) is None
    ):
        return None
    return f"The arguments have the key {key!r} more than once. Send the call again with it once."


def _unknown_tool_text(name: str, tools: ToolSet) -> str:
    usable = sorted(tools.tools.keys() - tools.refused.keys())
    shown = ", ".join(usable[:_NAMES_SHOWN]) or "none"
    more = f", and {len(usable) - _NAMES_SHOWN} more" if len(usable) > _NAMES_SHOWN else ""
    return f"There is no tool named {name!r}. Tools: {shown}{more}."


_HEADER_SAFE: Final = re.compile(r"[!-~]([ -~]{0,398}[!-~])?")
"""Must not change: a worker of another version that takes a call over must get the same key."""


def call_key(chat_id: ChatId, history_version: int, call_id: ToolCallId) -> str:
    """The same for every worker that runs the call. It has the history version, because after an
    edit a model may use a call id again."""
    return f"{chat_id}:{history_version}:{_header_safe(call_id)}"


def _header_safe(call_id: str) -> str:
    """The id if it fits into a header, else its hash."""
    if _HEADER_SAFE.fullmatch(call_id):
        return call_id
    return f"sha256:{sha256(call_id.encode(errors='surrogatepass')).hexdigest()}"
