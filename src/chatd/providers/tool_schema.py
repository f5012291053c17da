"""Tool schemas and tool names in a form that every provider accepts.

Schemas come from chatd's tools, from MCP servers and from API clients. Invalid parts are repaired
instead of rejected, because one bad tool must not stop a chat. A normalized schema accepts at least
what the original accepts.
"""

import hashlib
import re
from collections.abc import Collection, Iterable
from functools import cached_property, lru_cache
from typing import Final, TypeGuard

import msgspec
from msgspec import Raw

from chatd.domain.model.protocol import ToolSpec

MAX_TOOL_NAME_CHARS: Final = 128
_MAX_DEPTH: Final = 64

Schema = dict[str, object]

# Keywords with a schema, a list of schemas, or a mapping to schemas. The values of all others are
# plain data, in which a key "type" has no meaning.
_ONE: Final = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"additionalItems", "unevaluatedItems", "unevaluatedProperties"}
)
_MANY: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NAMED: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_OF_ARRAY: Final = frozenset(
    {"items", "prefixItems", "additionalItems", "contains", "minItems", "maxItems", "uniqueItems"}
)
_OF_OBJECT: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "propertyNames", "required"}
    | {"minProperties", "maxProperties"}
)


def normalize_schema(schema: Raw) -> Schema:
    """A schema of type object with properties. An unreadable schema accepts any object."""
    try:
        parsed: object = msgspec.json.decode(schema)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parsed = None
    top = _unfolded(parsed) if is_object(parsed) else {}
    # The input of a tool is always an object. A reference that is still here has no target.
    clean = _object({key: top[key] for key in top if key not in ("type", "$ref")}, 0)
    clean["type"] = "object"
    clean.setdefault("properties", {})
    return clean


MAX_KEPT_SCHEMA_BYTES: Final = 16 * 1024
MAX_KEPT_SCHEMAS: Final = 1024


def encode_schema(schema: Raw) -> Raw:
    """A normalized schema as JSON. The schemas of tools recur in every step of every chat, so the
    result is kept."""
    raw = bytes(schema)
    return _kept_schema(raw) if len(raw) <= MAX_KEPT_SCHEMA_BYTES else _encode_schema(raw)


def _encode_schema(raw: bytes) -> Raw:
    return Raw(msgspec.json.encode(normalize_schema(Raw(raw))))


_kept_schema: Final = lru_cache(MAX_KEPT_SCHEMAS)(_encode_schema)


def close_schema(schema: Raw) -> Schema:
    """Normalize, and forbid additional properties: for the schema of an answer."""
    clean = normalize_schema(schema)
    _close(clean)
    return clean


def _close(value: object) -> None:
    if is_object(value):
        if value.get("type") == "object":
            value["additionalProperties"] = False
        for key, inner in value.items():
            if key in _NAMED and is_object(inner):
                for member in inner.values():
                    _close(member)
            elif key in _ONE or key in _MANY:
                _close(inner)
    elif is_list(value):
        for inner in value:
            _close(inner)


def sort_by_name(tools: Iterable[ToolSpec]) -> list[ToolSpec]:
    """A stable order: a prompt cache is lost when tools change places."""
    return sorted(tools, key=lambda tool: tool.name)


def is_object(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _schema(value: object, depth: int) -> object:
    if not is_object(value):
        return value if isinstance(value, bool) else {}
    return _object(value, depth) if depth < _MAX_DEPTH else {}


def _object(schema: Schema, depth: int) -> Schema:
    clean: Schema = {}
    for key, value in schema.items():
        if key == "required":
            if names := _names(value):
                clean[key] = names
        elif key in _NAMED:
            members = value if is_object(value) else {}
            clean[key] = {name: _schema(inner, depth + 1) for name, inner in members.items()}
        elif key in _MANY or (key in _ONE and is_list(value)):
            if is_list(value) and value:
                clean[key] = [_schema(inner, depth + 1) for inner in value]
        elif key in _ONE:
            clean[key] = _schema(value, depth + 1)
        else:
            clean[key] = value
    return _typed(clean)


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if is_list(value) else []


def _typed(schema: Schema) -> Schema:
    """Give a schema one type, or a choice between schemas of one type; give arrays `items`."""
    kind = schema.get("type")
    if is_list(kind):
        kinds = list(dict.fromkeys(name for name in kind if isinstance(name, str)))
        del schema["type"]
        if len(kinds) > 1:
            return _choice(schema, kinds)
        if kinds:
            schema["type"] = kinds[0]
    elif "type" in schema and not isinstance(kind, str):
        del schema["type"]
    if schema.get("type") == "array" and "items" not in schema:
        schema["items"] = {}
    return schema


def _choice(schema: Schema, kinds: list[str]) -> Schema:
    moved = {"array": _OF_ARRAY, "object": _OF_OBJECT}
    choices: list[object] = []
    for kind in kinds:
        own = {key: schema[key] for key in schema if key in moved.get(kind, ())}
        choices.append(_typed({"type": kind, **own}))
    taken = frozenset[str]().union(*(moved.get(kind, frozenset[str]()) for kind in kinds))
    rest = {key: value for key, value in schema.items() if key not in taken}
    if (already := rest.pop("anyOf", None)) is not None:
        both = rest.pop("allOf", None)
        rest["allOf"] = [*(both if is_list(both) else []), {"anyOf": already}]
    return {**rest, "anyOf": choices}


# Providers require an object at the top, neither a reference nor a choice.


def _unfolded(schema: Schema) -> Schema:
    schema = _followed(schema)
    branches = {
        key: [_followed(inner, schema) for inner in value if is_object(inner)]
        for key in ("allOf", "anyOf", "oneOf")
        if is_list(value := schema.get(key))
    }
    merged = {key: value for key, value in schema.items() if key not in branches}
    if not branches:
        return merged
    properties = _properties(schema)
    required = _names(schema.get("required"))
    for key, members in branches.items():
        for member in members:
            properties = {**_properties(member), **properties}
        wanted = [_names(member.get("required")) for member in members]
        if key == "allOf":
            required += [name for names in wanted for name in names]
        elif wanted:
            required += [name for name in wanted[0] if all(name in names for names in wanted)]
    return {**merged, "properties": properties, "required": list(dict.fromkeys(required))}


def _properties(schema: Schema) -> Schema:
    found = schema.get("properties")
    return found if is_object(found) else {}


def _followed(schema: Schema, root: Schema | None = None) -> Schema:
    """The definition that `schema` refers to, if it exists; else `schema`."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: object = schema if root is None else root
    for step in reference[2:].split("/"):
        found = found.get(step) if is_object(found) else None
    if not is_object(found) or "$ref" in found:
        return schema
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**found, **rest}


# Names


class ToolNames:
    """Translates tool names to names that an API accepts, and back. A valid name stays unchanged.

    A changed name that collides with another gets a hash of the original name as its suffix.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        reserved: Collection[str] = (),
        max_chars: int = MAX_TOOL_NAME_CHARS,
        starts_with_letter: bool = False,
    ) -> None:
        self._limit = max_chars
        self._lead = re.compile(r"[A-Za-z_]" if starts_with_letter else r"")
        self._wire: dict[str, str] = {}
        self._own: dict[str, str] = {}
        unique = sorted(set(names))
        taken = set(reserved)
        fitting = [n for n in unique if self._fits(n) and n not in taken]
        for name in [*fitting, *(n for n in unique if n not in set(fitting))]:
            wire = self._plain(name, max_chars)
            if wire in taken or (wire != name and len(name) > max_chars):
                wire = self._tailed(name)
            taken.add(wire)
            self._wire[name] = wire
            self._own[wire] = name

    @cached_property
    def wire_names(self) -> tuple[tuple[str, str], ...]:
        """All translations, to compare two of these."""
        return tuple(self._wire.items())

    @staticmethod
    @lru_cache(256)
    def of(
        names: tuple[str, ...],
        *,
        reserved: tuple[str, ...] = (),
        max_chars: int = MAX_TOOL_NAME_CHARS,
        starts_with_letter: bool = False,
    ) -> "ToolNames":
        """The same tools recur in every step of every chat, so the translation is kept."""
        return ToolNames(
            names, reserved=reserved, max_chars=max_chars, starts_with_letter=starts_with_letter
        )

    def to_wire(self, name: str) -> str:
        """Also translates names in history of tools that no longer exist."""
        return self._wire.get(name) or self._plain(name, self._limit)

    def from_wire(self, wire: str) -> str:
        """A name that the model has invented stays unchanged."""
        return self._own.get(wire, wire)

    def _fits(self, name: str) -> bool:
        return self._plain(name, self._limit) == name

    def _plain(self, name: str, limit: int) -> str:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"
        return (plain if self._lead.match(plain) else f"_{plain}")[:limit]

    def _tailed(self, name: str) -> str:
        tail = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
        return f"{self._plain(name, self._limit - 9)}_{tail}"
