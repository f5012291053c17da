"""Parameters in the OpenAPI document: of paths, of queries, and headers.

The example of a parameter that may be left out is in its schema: as the parameter's own, Swagger UI
would send it.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, cast

import msgspec
from msgspec import Struct

from chatd.api.openapi.schemas import Json, SchemaCollection, build_example
from chatd.api.openapi.texts import HEADERS
from chatd.domain.description import CHAT_ID

_UUID: Final[Mapping[str, object]] = {"type": "string", "format": "uuid"}
_NUMBER: Final[Mapping[str, object]] = {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}
_PATH_PARAMETERS: Final[Mapping[str, tuple[str, Mapping[str, object], object]]] = {
    "message_id": ("The id of the message in this chat.", _NUMBER, 7),
    "queue_id": ("The id of the queued message in this chat.", _NUMBER, 3),
}


def path_parameters(path: str) -> list[Json]:
    names = [piece[1:-1] for piece in path.split("/") if piece.startswith("{")]
    return [_path_parameter(name) for name in names]


def _path_parameter(name: str) -> dict[str, object]:
    """A parameter that is not in the table is the UUID of what its name says."""
    thing = name.removesuffix("_id").replace("_", " ")
    otherwise = (f"The id of the {thing}.", _UUID, CHAT_ID)
    text, schema, example = _PATH_PARAMETERS.get(name, otherwise)
    return {
        "in": "path",
        "name": name,
        "required": True,
        "description": text,
        "schema": dict(schema),
        "example": example,
    }


def query_parameters(kind: type[Struct] | None, schemas: SchemaCollection) -> list[Json]:
    fields = () if kind is None else msgspec.structs.fields(kind)
    return [_query_parameter(field, schemas) for field in fields]


def _query_parameter(field: msgspec.structs.FieldInfo, schemas: SchemaCollection) -> Json:
    schema = _without_null(schemas.add(field.type))
    if field.default is not msgspec.NODEFAULT and field.default not in (None, ()):
        schema["default"] = field.default
    with suppress(ValueError):
        schema["examples"] = [build_example(schema, {})]
    return {
        "in": "query",
        "name": field.encode_name,
        "required": False,
        "description": schema.pop("description", ""),
        "schema": schema,
    }


def _without_null(schema: Json) -> Json:
    """A parameter may be left out, but it cannot be null."""
    choices = cast("list[Json]", schema.get("anyOf", []))
    values = [choice for choice in choices if choice != {"type": "null"}]
    if len(values) != 1 or len(values) == len(choices):
        return schema
    return {**values[0], **{name: value for name, value in schema.items() if name != "anyOf"}}


def header_parameter(name: str, schema: Json) -> Json:
    header = HEADERS[name]
    return {
        "in": "header",
        "name": name,
        "required": False,
        "description": header["description"],
        "schema": schema | {"examples": [header["example"]]},
    }
