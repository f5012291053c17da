"""Function tools of OpenAI's APIs: names, strict schemas, ids of calls."""

import hashlib
from collections.abc import Collection, Iterator
from typing import Final

from msgspec import Struct

from chatd.domain.model.protocol import ModelRequest
from chatd.providers.tool_schema import (
    Schema,
    ToolNames,
    is_list,
    is_object,
    normalize_schema,
    sort_by_name,
)

MAX_FUNCTION_NAME_CHARS: Final = 64
OUTPUT_SCHEMA_NAME: Final = "answer"
"""The name of the schema of an answer; the API requires one."""
MAX_CALL_ID_CHARS: Final = 40
"""The limit of Chat Completions. Responses takes 64."""


class FunctionTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Responses takes a missing `strict` as true, so requests to it always set `strict`."""

    name: str
    description: str = ""
    parameters: Schema
    strict: bool | None = None


def build_tool_names(request: ModelRequest, reserved: Collection[str] = ()) -> ToolNames:
    return ToolNames(
        (tool.name for tool in request.tools), reserved=reserved, max_chars=MAX_FUNCTION_NAME_CHARS
    )


def build_functions(
    request: ModelRequest, names: ToolNames, *, strict: bool | None
) -> list[FunctionTool]:
    """`strict` applies where a schema allows it; None omits it for servers that do not know it."""
    found: list[FunctionTool] = []
    for tool in sort_by_name(request.tools):
        schema = normalize_schema(tool.input_schema)
        found.append(
            FunctionTool(
                name=names.to_wire(tool.name),
                description=tool.description,
                parameters=schema,
                strict=None if strict is None else strict and is_strict(schema),
            )
        )
    return found


def is_strict(schema: object) -> bool:
    """True if all objects forbid additional properties and require all their properties. The API
    rejects a request that asks for strictness with any other schema."""
    if not is_object(schema):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or is_object(properties):
        names = set(properties) if is_object(properties) else set[str]()
        required = schema.get("required")
        listed = set(required) if is_list(required) else set[object]()
        if schema.get("additionalProperties") is not False or names - listed:
            return False
    return all(is_strict(inner) for inner in _inner(schema))


def _inner(schema: Schema) -> Iterator[object]:
    for key in ("properties", "$defs", "definitions"):
        if is_object(named := schema.get(key)):
            yield from named.values()
    for key in ("anyOf", "oneOf", "allOf"):
        if is_list(choices := schema.get(key)):
            yield from choices
    yield schema.get("items")


def fit_call_id(call_id: str) -> str:
    """Shorten long call ids of other providers. Equal ids stay equal."""
    if len(call_id) <= MAX_CALL_ID_CHARS:
        return call_id
    tail = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{call_id[: MAX_CALL_ID_CHARS - 13]}_{tail}"
