"""A tool as an MCP server lists it: its schema for the model, its effect, its arguments."""

import json
from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec
from msgspec import Raw, Struct

from chatd.domain.text import clip, parse_json, replace_json_surrogates, replace_surrogates

MAX_TOOLS_PER_SERVER: Final = 1000
"""Further tools of a server are left out."""
MAX_LIST_CHARS: Final = 4 * 1024 * 1024
"""Of all descriptions and schemas of a server. Further tools are left out."""
MAX_SCHEMA_BYTES: Final = 64 * 1024
"""A tool with a larger schema is left out."""
MAX_DESCRIPTION_CHARS: Final = 4096
MAX_TOOL_NAME_CHARS: Final = 256

MODEL_INTENT: Final = "model_intent"
_WRAPPED: Final = "properties"

_Object = Mapping[str, object]


class ListedTool(Struct, frozen=True, kw_only=True):
    """`name` is the server's. `schema` is a normalised JSON schema of an object."""

    name: str
    description: str
    schema: Raw
    effect: Literal["read", "idempotent", "once"] = "once"


class McpOrigin(Struct, frozen=True, kw_only=True):
    """The server of a tool. `config_id` is None for a server of the workspace."""

    name: str
    config_id: str | None = None


def mcp_origin(tool: object) -> McpOrigin | None:
    """Only tools of MCP servers have one."""
    found = getattr(tool, "mcp_origin", None)
    return found if isinstance(found, McpOrigin) else None


def read_listed_tool(entry: object) -> ListedTool | None:
    """One entry of `tools/list`; None if it has no usable name or its schema is too large."""
    if not isinstance(entry, dict):
        return None
    fields = cast("_Object", entry)
    name = fields.get("name")
    if not isinstance(name, str) or not name or len(name) > MAX_TOOL_NAME_CHARS:
        return None
    schema = normalise_schema(fields.get("inputSchema"))
    if len(bytes(schema)) > MAX_SCHEMA_BYTES:
        return None
    return ListedTool(
        name=replace_surrogates(name),
        description=clip(_description(fields), MAX_DESCRIPTION_CHARS),
        schema=schema,
        effect=effect_of(fields.get("annotations")),
    )


class ToolList:
    """Collects the tools of one server, up to the limits; of two with one name the first counts."""

    def __init__(self) -> None:
        self._found: dict[str, ListedTool] = {}
        self._chars = 0

    @property
    def is_full(self) -> bool:
        return len(self._found) >= MAX_TOOLS_PER_SERVER or self._chars >= MAX_LIST_CHARS

    def add(self, entry: object) -> None:
        tool = None if self.is_full else read_listed_tool(entry)
        if tool is not None and tool.name not in self._found:
            self._found[tool.name] = tool
            self._chars += len(tool.description) + len(bytes(tool.schema))

    def tools(self) -> tuple[ListedTool, ...]:
        return tuple(self._found[name] for name in sorted(self._found))


def _description(fields: _Object) -> str:
    for value in (fields.get("description"), fields.get("title")):
        if isinstance(value, str) and value.strip():
            return replace_surrogates(value)
    return ""


def effect_of(annotations: object) -> Literal["read", "idempotent", "once"]:
    """By the server's hints. Without one a call must not run twice."""
    hints = cast("_Object", annotations if isinstance(annotations, dict) else {})
    if hints.get("readOnlyHint") is True:
        return "read"
    return "idempotent" if hints.get("idempotentHint") is True else "once"


def normalise_schema(schema: object) -> Raw:
    """A schema of an object whose `properties` and `required` are never null. What is nested in it
    is repaired for each provider."""
    given = cast("_Object", schema if isinstance(schema, dict) else {})
    properties, required = given.get("properties"), given.get("required")
    clean: dict[str, object] = {
        **given,
        "type": "object",
        "properties": cast("object", properties) if isinstance(properties, dict) else {},
        "required": cast("object", required) if isinstance(required, list) else [],
    }
    return Raw(replace_json_surrogates(json.dumps(clean, separators=(",", ":"))).encode())


def wrap_with_intent(schema: Raw) -> Raw:
    """The model says why it calls the tool; the arguments move into `properties`."""
    wrapped = {
        "type": "object",
        "properties": {
            MODEL_INTENT: {
                "type": "string",
                "description": "Why you call this tool, in one short sentence for the user.",
            },
            _WRAPPED: schema,
        },
        "required": [MODEL_INTENT, _WRAPPED],
    }
    return Raw(msgspec.json.encode(wrapped))


def unwrap_intent(args: Raw) -> Raw:
    """The arguments of the server's tool. Models also send the flat form, with or without the
    intent; text that is no object passes unchanged."""
    value = parse_json(args)
    if not isinstance(value, dict):
        return args
    fields = cast("dict[str, object]", value)
    inner = fields.get(_WRAPPED)
    if isinstance(inner, dict) and fields.keys() <= {MODEL_INTENT, _WRAPPED}:
        return Raw(msgspec.json.encode(inner))
    if MODEL_INTENT not in fields:
        return args
    return Raw(msgspec.json.encode({k: v for k, v in fields.items() if k != MODEL_INTENT}))
