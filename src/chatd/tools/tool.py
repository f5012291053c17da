"""A tool for models: its description, its arguments (schema and reader from one struct), its
handler.

Every failure is a result that tells the model what to do next: a refusal by the workspace, an
unreachable workspace, wrong arguments.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Protocol, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec import Meta, Raw, Struct, inspect

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError, Unavailable
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import ToolContext, ToolEffect
from chatd.domain.text import clip, parse_json
from chatd.domain.tool_modes import ToolOrigin
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable, WorkspaceUnavailable
from chatd.domain.workspace.runners import RUNNER_WAIT_S
from chatd.workspaces.agents.agent_client import AgentClient


class WorkspaceAccess(Protocol):
    async def connect(self, context: ToolContext) -> AgentClient:
        """Connect to the agent of the chat's workspace, within a bounded time. Raises
        WorkspaceUnavailable and AgentUnreachable."""
        ...


# The arguments of a tool: one frozen struct yields the JSON schema for the model and the reader.
#
# The reader accepts what models commonly write instead of the declared type: `"12"` for an integer,
# `"true"` for a flag, `null` for a missing argument. It ignores unknown arguments. Its errors name
# the argument, the allowed type and the value. The engine has checked before that the arguments are
# one JSON object without repeated keys.

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_SHOWN_CHARS: Final = 61

A = TypeVar("A", bound=Struct)
_Object = Mapping[str, object]

Seconds = Annotated[float, Meta(extra_json_schema={"type": ["string", "number"]})]
"""A duration: `"30s"`, `"1m30s"`, or a number of seconds."""
Ignored = Annotated[object, Meta(extra_json_schema={"type": "string"})]
"""A text for people who watch. Tools do not read it, so it may be anything."""
NOT_BLANK: Final = Meta(pattern=r"\S")
NOT_EMPTY: Final = Meta(min_length=1)
AT_LEAST_1: Final = Meta(ge=1)


def argument(description: str, hint: str = "", *, former_name: str = "") -> Meta:
    """`hint` follows `is required:` in the error; `former_name` is one that models have learnt."""
    return Meta(description=description, extra={"hint": hint, "former_name": former_name})


def schema_of(arguments: type[Struct]) -> Raw:
    return Raw(msgspec.json.encode(_schema(inspect.type_info(arguments))))


def read_arguments(arguments: type[A], args: Raw) -> A:
    value = parse_json(args)
    values = cast("_Object", value if isinstance(value, dict) else {})
    return cast("A", _read_struct(_struct_info(arguments), values, ""))


def parse_duration(text: str) -> float | None:
    """Seconds, from `90s`, `1m30s`, `500ms` or a bare number; None if it is none of these."""
    text = text.strip()
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text):
        return float(text)
    if not text or not re.fullmatch(rf"(?:{_DURATION.pattern})+", text):
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in _DURATION.findall(text))


def _schema(kind: inspect.Type) -> dict[str, object]:
    match kind:
        case inspect.Metadata():
            return {
                **_schema(kind.type),
                **cast("_Object", cast("Any", kind).extra_json_schema or {}),
            }
        case inspect.StructType():
            return {
                "type": "object",
                "properties": {field.name: _schema(field.type) for field in kind.fields},
                "required": [field.name for field in kind.fields if field.required],
            }
        case inspect.ListType():
            return {"type": "array", "items": _schema(kind.item_type)}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _schema(kind.value_type)}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(kind.values)}
        case inspect.IntType():
            return {"type": "integer"}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.StrType() | inspect.UUIDType():
            return {"type": "string"}
        case _:
            return {}  # the annotation names the type


@cache
def _struct_info(arguments: type[Struct]) -> inspect.StructType:
    return cast("inspect.StructType", inspect.type_info(arguments))


def _read_struct(info: inspect.StructType, values: _Object, place: str) -> object:
    """`place` is the path to `values` in the call, such as `files[1].`."""
    found: dict[str, object] = {}
    for field in info.fields:
        kind, extra = _unwrap(field.type)
        value = values.get(field.name)
        if _is_missing(kind, value):
            value = values.get(str(extra.get("former_name")))
        if not _is_missing(kind, value):
            found[field.name] = _read(kind, value, f"{place}{field.name}", str(extra.get("hint")))
        elif field.required:
            is_list = isinstance(kind, inspect.ListType)
            needed = "must be a list that is not empty" if is_list else "is required"
            raise ToolError(f"{place}{field.name} {needed}: {extra.get('hint')}")
    return info.cls(**found)


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, _Object]:
    if isinstance(kind, inspect.Metadata):
        return kind.type, cast("_Object", cast("Any", kind).extra or {})
    return kind, {}


def _is_missing(kind: inspect.Type, value: object) -> bool:
    match kind:
        case _ if value is None:
            return True
        case inspect.ListType():
            return not isinstance(value, list) or not value
        case inspect.StrType(pattern=None):
            return value == "" and kind.min_length is not None
        case inspect.StrType() | inspect.LiteralType() | inspect.UUIDType() | inspect.FloatType():
            return isinstance(value, str) and not value.strip()
        case _:
            return False


def _read(kind: inspect.Type, value: object, path: str, hint: str = "") -> object:
    match kind:
        case inspect.StrType():
            return _read_text(value, path)
        case inspect.IntType():
            return _read_integer(kind, value, path)
        case inspect.BoolType():
            return _read_flag(value, path)
        case inspect.FloatType():
            return _read_seconds(value, path)
        case inspect.LiteralType():
            return _read_choice(kind, value, path)
        case inspect.UUIDType():
            return _read_uuid(value, path, hint)
        case inspect.DictType():
            return _read_texts(value, path)
        case inspect.ListType():
            items = enumerate(cast("list[object]", value))
            return [_read(kind.item_type, item, f"{path}[{index}]") for index, item in items]
        case inspect.StructType():
            return _read_struct(kind, _read_object(value, path, "an object"), f"{path}.")
        case _:
            return value


def _read_text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _invalid(path, "a string", value)
    return value


def _read_object(value: object, path: str, allowed: str) -> _Object:
    if not isinstance(value, dict):
        raise _invalid(path, allowed, value)
    return cast("_Object", value)


def _read_choice(kind: inspect.LiteralType, value: object, path: str) -> object:
    if value not in kind.values:
        raise _invalid(path, " or ".join(json.dumps(each) for each in kind.values), value)
    return value


def _read_integer(kind: inspect.IntType, value: object, path: str) -> int:
    found = value
    if isinstance(found, str) and re.fullmatch(r"-?\d{1,18}", found.strip()):
        found = int(found)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int):
        raise _invalid(path, "a whole number", value)
    if kind.ge is not None and found < kind.ge:
        raise _invalid(path, f"at least {kind.ge}", found)
    return found


def _read_flag(value: object, path: str) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in ("true", "false"):
        raise _invalid(path, "true or false", value)
    return word == "true"


def _read_seconds(value: object, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    seconds = parse_duration(value) if isinstance(value, str) else None
    if seconds is None:
        raise _invalid(path, 'a duration such as "30s", "5m" or "1m30s"', value)
    return seconds


def _read_uuid(value: object, path: str, hint: str) -> UUID:
    try:
        return UUID(_read_text(value, path).strip())
    except ValueError:
        raise ToolError(f"{_invalid(path, 'a UUID', value).message} Give {hint}") from None


def _read_texts(value: object, path: str) -> dict[str, str]:
    """A map of strings. Numbers and flags are converted."""
    items = _read_object(value, path, "an object of strings").items()
    return {key: _plain_text(each, f"{path}.{key}") for key, each in items}


def _plain_text(value: object, path: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"{value:g}"
        case _:
            return _read_text(value, path)


def _invalid(path: str, allowed: str, value: object) -> ToolError:
    match value:
        case list():
            shown = "a list"
        case dict():
            shown = "an object"
        case str():
            shown = json.dumps(clip(value, _MAX_SHOWN_CHARS), ensure_ascii=False)
        case _:
            shown = json.dumps(value, ensure_ascii=False)
    return ToolError(f"{path} must be {allowed}, not {shown}.")


_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_ROOT_TOOL: Final = re.compile(r"\b(?:list_templates|(?:create|start|stop)_workspace)\b")

ToolHandler = Callable[[ToolContext, A], Awaitable[ToolOutput]]

RETRY_ADVICE_TEXT: Final = (
    "Try again in a moment; if it goes on, call stop_workspace, then start_workspace."
)
SUBAGENT_ADVICE_TEXT: Final = (
    "You cannot create or start a workspace: if it does not help to try again in a moment, say so"
    " in your report."
)
BEGUN_BEFORE_TEXT: Final = (
    "A server of chatd that has stopped since may have begun this call, so its outcome is unknown:"
    " it may have taken effect. Once the workspace answers again, check that before you repeat the"
    " call."
)
DATABASE_AWAY_TEXT: Final = (
    "chatd's own database did not answer, so the outcome of this call is unknown. Check what the"
    " call has changed before you repeat it."
)


class WorkspaceTool(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`. The call key names each effect, so that a repeat after a crash has no
    second effect."""

    spec: ToolSpec
    handle: Callable[[ToolContext, Raw], Awaitable[ToolOutput]]
    effect: ToolEffect = "idempotent"
    serial: bool = False
    origin: ToolOrigin = "chatd"
    stops_turn: bool = False
    timeout_s: float = 60.0

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        try:
            return await self.handle(context, args)
        except (ToolError, AgentRefused) as error:
            return error_output(_told_to(context.chat, error.message))
        except WorkspaceUnavailable as error:
            return self._unreached_output(context, error.message)
        except AgentUnreachable as error:
            return self._unreached_output(context, f"{error.message} {RETRY_ADVICE_TEXT}")
        except Unavailable:
            # Its message is for operators: it may name hosts.
            return error_output(DATABASE_AWAY_TEXT)

    def _unreached_output(self, context: ToolContext, text: str) -> ToolOutput:
        """This attempt had no effect. An earlier one under the same key may have had one."""
        if context.may_have_run and self.effect != "read":
            text = f"{text} {BEGUN_BEFORE_TEXT}"
        return error_output(_told_to(context.chat, text))

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


def _told_to(chat: Chat, text: str) -> str:
    return text if chat.is_root else subagent_text(text)


def subagent_text(text: str) -> str:
    """An error without the advice to call tools that only root chats have."""
    sentences = _SENTENCE_END.split(text)
    kept = [sentence for sentence in sentences if not _ROOT_TOOL.search(sentence)]
    return text if len(kept) == len(sentences) else " ".join([*kept, SUBAGENT_ADVICE_TEXT])


def workspace_tool(
    name: str,
    description: str,
    arguments: type[A],
    handler: ToolHandler[A],
    *,
    effect: ToolEffect = "idempotent",
    serial: bool = False,
    stops_turn: bool = False,
    timeout_s: float = 60.0,
) -> WorkspaceTool:
    """`timeout_s` bounds a call whose runner is connected; any call may wait for its runner."""

    async def handle(context: ToolContext, args: Raw) -> ToolOutput:
        return await handler(context, read_arguments(arguments, args))

    spec = ToolSpec(name=name, description=description, input_schema=schema_of(arguments))
    return WorkspaceTool(
        spec=spec,
        handle=handle,
        effect=effect,
        serial=serial,
        stops_turn=stops_turn,
        timeout_s=timeout_s + RUNNER_WAIT_S,
    )


def json_output(value: object) -> ToolOutput:
    return ToolOutput(text=msgspec.json.encode(value).decode())
