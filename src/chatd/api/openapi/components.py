"""The types and parameters in the OpenAPI document: their schemas, and examples built from those of
their fields.

msgspec generates the schemas. This leaves out what clients never see, describes the field that
names a type, and gives each type an example. A type with a `ClassVar` named `openapi_example` has
that one instead, for a body of which not all fields go together. The example of a parameter that
may be left out is in its schema: as the parameter's own, Swagger UI would send it.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, cast

import msgspec
from msgspec import Struct
from msgspec.inspect import StructType, Type, multi_type_info

from chatd.domain.description import CHAT_ID, RUNNER_ID, STREAM_CURSOR

Json = dict[str, object]

INTERNAL_TYPES: Final = frozenset({"BoundaryPart", "InstructionPart"})
"""Types in a union that are stored but never sent."""
_REF: Final = "#/components/schemas/{name}"
_MAX_DEPTH: Final = 30


class SchemaCollection:
    """Collects the types in use. `components` generates their schemas together."""

    def __init__(self) -> None:
        self._types: list[object] = []
        self._references: dict[object, Json] = {}

    def add(self, kind: object) -> Json:
        """The schema of the type, with references to components."""
        if kind in self._references:
            return dict(self._references[kind])
        self._types.append(kind)
        (schema,), _ = msgspec.json.schema_components((kind,), ref_template=_REF)
        self._references[kind] = cast("Json", _without_internal(schema))
        return dict(self._references[kind])

    def components(self) -> dict[str, Json]:
        _, found = msgspec.json.schema_components(self._types, ref_template=_REF)
        schemas = {
            name: cast("Json", _without_internal(schema))
            for name, schema in sorted(found.items())
            if name not in INTERNAL_TYPES
        }
        given = _given_examples(self._types)
        for name, schema in schemas.items():
            _describe_tag(schema)
            if name in given:
                schema["examples"] = [given[name]]
        for schema in schemas.values():
            with suppress(ValueError):
                schema.setdefault("examples", [build_example(schema, schemas)])
        return schemas


def build_example(schema: Json, components: dict[str, Json], depth: int = 0) -> object:
    """An example of a value: the one of its type, or one built from the examples of its fields.
    Raises ValueError if a field has none."""
    if depth > _MAX_DEPTH:
        raise ValueError("an example refers to itself")
    if examples := schema.get("examples"):
        return cast("list[object]", examples)[0]
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return build_example(components[name], components, depth + 1)
    for one_of in ("enum", "anyOf"):
        if one_of in schema:
            first = cast("list[object]", schema[one_of])[0]
            return first if one_of == "enum" else build_example(_object(first), components, depth)
    match schema.get("type"):
        case "boolean":
            return schema.get("default", True)
        case "array":
            return [build_example(_object(schema["items"]), components, depth + 1)]
        case "object" if "properties" in schema:
            fields = cast("dict[str, Json]", schema["properties"])
            return {
                name: _field_example(name, field, components, depth + 1)
                for name, field in fields.items()
            }
        case _:
            raise ValueError(f"no example: {schema}")


def _field_example(name: str, field: Json, components: dict[str, Json], depth: int) -> object:
    try:
        return build_example(field, components, depth)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _describe_tag(schema: Json) -> None:
    """The field that names the type of an object in a union."""
    fields = cast("dict[str, Json]", schema.get("properties", {}))
    for field in fields.values():
        if field.keys() == {"enum"}:
            (value,) = cast("list[str]", field["enum"])
            field["description"] = f"Always `{value}`."


def _without_internal(value: object) -> object:
    """The schema without fields marked as internal and without internal types."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [_without_internal(item) for item in items if not _is_internal(item)]
    if isinstance(value, dict):
        fields = cast("Json", value)
        return {
            name: _without_internal(field)
            for name, field in fields.items()
            if not _is_internal(field)
        }
    return value


def _is_internal(value: object) -> bool:
    match value:
        case {"x-internal": True}:
            return True
        case {"$ref": str() as ref}:
            return ref.rpartition("/")[2] in INTERNAL_TYPES
        case str():
            return value.startswith("#/") and value.rpartition("/")[2] in INTERNAL_TYPES
        case _:
            return False


def _given_examples(types: Iterable[object]) -> dict[str, object]:
    found: dict[str, object] = {}
    pending: list[Type] = list(multi_type_info(types))
    seen: set[type[Struct]] = set()
    while pending:
        info = pending.pop()
        if isinstance(info, StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            example: object = getattr(info.cls, "openapi_example", None)
            if example is not None:
                found[info.cls.__name__] = example
            pending += [field.type for field in info.fields]
        else:
            pending += _inner_types(info)
    return found


def _inner_types(info: Type) -> list[Type]:
    single = [getattr(info, name, None) for name in ("type", "item_type", "value_type")]
    several = [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    return [inner for inner in (*single, *several) if isinstance(inner, Type)]


def _object(value: object) -> Json:
    return cast("Json", value)


HEADERS: Final[Mapping[str, Mapping[str, object]]] = {
    "Location": {
        "description": "The path of the new object.",
        "schema": {"type": "string"},
        "example": f"/api/v1/chats/{CHAT_ID}",
    },
    "Idempotency-Replayed": {
        "description": "`true`: an earlier request with the same key took effect, not this one.",
        "schema": {"type": "string"},
        "example": "true",
    },
    "Idempotency-Key": {
        "description": "Makes the request safe to repeat: the same key and body take effect once,"
        " for 24 hours.",
        "example": "b1946ac9-2f1d-4c4e-8d6a-7f0e1d2c3b4a",
    },
    "Last-Event-ID": {
        "description": "The `id:` of the last event that the client has. Without it: the whole"
        " state, then what changes.",
        "example": STREAM_CURSOR,
    },
    "Retry-After": {
        "description": "Seconds to wait before a retry.",
        "schema": {"type": "integer"},
        "example": 1,
    },
    "WWW-Authenticate": {
        "description": "How to authenticate.",
        "schema": {"type": "string"},
        "example": 'Bearer realm="chatd"',
    },
}
_UUID: Final[Mapping[str, object]] = {"type": "string", "format": "uuid"}
_NUMBER: Final[Mapping[str, object]] = {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}
_PATH_PARAMETERS: Final[Mapping[str, tuple[str, Mapping[str, object], object]]] = {
    "message_id": ("The id of the message in this chat.", _NUMBER, 7),
    "runner_id": (
        "The id of the runner, which it has in its data directory; of a server, that of its host.",
        {"type": "string", "minLength": 1, "maxLength": 128},
        RUNNER_ID,
    ),
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
