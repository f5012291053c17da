"""The types in the OpenAPI document: their schemas, and examples built from those of their fields.

msgspec generates the schemas. This leaves out what clients never see, describes the field that
names a type, and gives each type an example. A type with a `ClassVar` named `openapi_example` has
that one instead, for a body of which not all fields go together.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, cast

import msgspec
from msgspec import Struct
from msgspec.inspect import StructType, Type, multi_type_info

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
