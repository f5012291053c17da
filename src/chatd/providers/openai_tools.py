"""Function tools as OpenAI's wires want them: names, strict schemas, ids of calls."""

import hashlib
from collections.abc import Collection, Iterator
from typing import Final, TypeGuard

from msgspec import Struct

from chatd.domain.model.protocol import ModelRequest
from chatd.providers.schema import Schema, ToolNames, by_name, normalised

MAX_NAME: Final = 64
SCHEMA_NAME: Final = "answer"
"""What an answer is called whose schema we ask for."""
MAX_CALL_ID: Final = 40
"""Chat Completions takes no longer ones; Responses takes 64."""


class Function(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Responses API takes silence about `strict` for a yes, so there it is always said."""

    name: str
    description: str = ""
    parameters: Schema
    strict: bool | None = None


def names_of(request: ModelRequest, reserved: Collection[str] = ()) -> ToolNames:
    return ToolNames((tool.name for tool in request.tools), reserved=reserved, limit=MAX_NAME)


def functions(request: ModelRequest, names: ToolNames, *, strict: bool | None) -> list[Function]:
    """`strict`: where it is possible; None says nothing about it, for servers that know it not."""
    found: list[Function] = []
    for tool in by_name(request.tools):
        schema = normalised(tool.input_schema)
        found.append(
            Function(
                name=names.wire(tool.name),
                description=tool.description,
                parameters=schema,
                strict=None if strict is None else strict and is_strict(schema),
            )
        )
    return found


def is_strict(schema: object) -> bool:
    """Every object in it is closed and needs all its properties. The API refuses to be strict
    about anything else, so asking for it would cost the whole request."""
    if not _is_schema(schema):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or _is_schema(properties):
        names = set(properties) if _is_schema(properties) else set[str]()
        required = schema.get("required")
        listed = set(required) if _is_list(required) else set[object]()
        if schema.get("additionalProperties") is not False or names - listed:
            return False
    return all(is_strict(inner) for inner in _inner(schema))


def _inner(schema: Schema) -> Iterator[object]:
    for key in ("properties", "$defs", "definitions"):
        if _is_schema(named := schema.get(key)):
            yield from named.values()
    for key in ("anyOf", "oneOf", "allOf"):
        if _is_list(choices := schema.get(key)):
            yield from choices
    yield schema.get("items")


def _is_schema(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def wire_call_id(call_id: str) -> str:
    """Calls of other vendors may have longer ids. The same id is always cut the same way."""
    if len(call_id) <= MAX_CALL_ID:
        return call_id
    tail = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{call_id[: MAX_CALL_ID - 13]}_{tail}"
