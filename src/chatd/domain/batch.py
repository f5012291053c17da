"""Which calls of a batch run, in which order, and which are refused before anything runs.

Owns the checks that need no tool to be asked: that the tool exists and may be called, that it
is not called beside others if it must be alone, that its input is a JSON object. Does not own
running.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.heal import parse
from chatd.domain.input_check import ambiguous_key
from chatd.domain.model import ToolSpec
from chatd.domain.parts import ToolCall
from chatd.domain.tool_output import Answered, failed

MUST_BE_ALONE: Final = "This tool must be called alone. Call it again, without others."
SKIPPED: Final = "Not run: another call of this batch must be made alone. Call it again later."
NOT_JSON: Final = "The arguments were not valid JSON. Send the call again with a JSON object."
NOT_AN_OBJECT: Final = "The arguments must be a JSON object. Send the call again with one."
_NAMES_SHOWN: Final = 50


class Plannable(Protocol):
    """What is asked of a tool before it runs."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def serial(self) -> bool: ...
    @property
    def exclusive(self) -> bool: ...


class Toolbox(Struct, frozen=True, kw_only=True):
    """The tools of a turn by name, and former names of some. `active` None: all may be called.

    `lenient` are tools of others, whose input is theirs to judge once it is a JSON object.
    """

    tools: Mapping[str, Plannable]
    aliases: Mapping[str, str] = {}
    active: frozenset[str] | None = None
    lenient: frozenset[str] = frozenset()

    def resolve(self, name: str) -> str:
        return name if name in self.tools else self.aliases.get(name, name)


class Batch(Struct, frozen=True, kw_only=True):
    """All of `concurrent` at once; when they have settled, `serial` one by one. The calls have
    the tool's present name. `rejected` are answered already."""

    concurrent: tuple[ToolCall, ...] = ()
    serial: tuple[ToolCall, ...] = ()
    rejected: tuple[Answered, ...] = ()


def plan_batch(calls: Sequence[ToolCall], box: Toolbox) -> Batch:
    """The provider's own calls are not ours to answer and are left out."""
    ours = [call for call in calls if not call.provider_executed]
    if len(ours) > 1 and any(_exclusive(call, box) for call in ours):
        return Batch(rejected=tuple(_refused(call, box) for call in ours))
    concurrent: list[ToolCall] = []
    serial: list[ToolCall] = []
    rejected: list[Answered] = []
    for call in ours:
        objection = _objection(call, box)
        if objection is not None:
            rejected.append(_answered(call, objection))
            continue
        name = box.resolve(call.tool_name)
        line = serial if box.tools[name].serial else concurrent
        line.append(msgspec.structs.replace(call, tool_name=name))
    return Batch(concurrent=tuple(concurrent), serial=tuple(serial), rejected=tuple(rejected))


def _exclusive(call: ToolCall, box: Toolbox) -> bool:
    tool = box.tools.get(box.resolve(call.tool_name))
    return tool is not None and tool.exclusive


def _refused(call: ToolCall, box: Toolbox) -> Answered:
    return _answered(call, MUST_BE_ALONE if _exclusive(call, box) else SKIPPED)


def _answered(call: ToolCall, reason: str) -> Answered:
    return Answered(
        call_id=call.tool_call_id,
        name=call.tool_name,
        output=failed(reason),
        mcp_server_config_id=call.mcp_server_config_id,
    )


def _objection(call: ToolCall, box: Toolbox) -> str | None:
    name = box.resolve(call.tool_name)
    tool = box.tools.get(name)
    if tool is None:
        return _unknown(call.tool_name, box)
    if box.active is not None and name not in box.active:
        return f"The tool {name!r} is not active in this turn."
    value = parse(call.args)
    if value is UNSET:
        return NOT_JSON
    if not isinstance(value, dict):
        return NOT_AN_OBJECT
    if name in box.lenient or (key := ambiguous_key(call.args, tool.spec.input_schema)) is None:
        return None
    return f"The arguments name {key!r} in more than one way. Send the call again with it once."


def _unknown(name: str, box: Toolbox) -> str:
    usable = sorted(box.tools if box.active is None else box.active & box.tools.keys())
    shown = ", ".join(usable[:_NAMES_SHOWN]) or "none"
    more = f", and {len(usable) - _NAMES_SHOWN} more" if len(usable) > _NAMES_SHOWN else ""
    return f"There is no tool named {name!r}. Tools: {shown}{more}."
