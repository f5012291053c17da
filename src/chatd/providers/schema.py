"""Tool schemas and tool names, made such that every vendor takes them. The one place for it.

Schemas come from our own tools, from MCP servers and from API callers; what
is wrong with them is put right here rather than refused, because one odd tool
must not stop a chat. Meaning is kept: a schema accepts after normalising what
it accepted before, or more.
"""

import hashlib
import re
from collections.abc import Collection, Iterable
from typing import Final, TypeGuard

import msgspec
from msgspec import Raw

from chatd.domain.model.protocol import ToolSpec

MAX_NAME: Final = 128
_MAX_DEPTH: Final = 64

Schema = dict[str, object]

# Keywords whose value is a schema, a list of schemas, or names with a schema each. All others are
# values, where a key called "type" is just a key.
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


def normalised(schema: Raw) -> Schema:
    """A schema of an object, with properties. What cannot be read accepts anything."""
    try:
        parsed: object = msgspec.json.decode(schema)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parsed = None
    top = _unfolded(parsed) if _is_object(parsed) else {}
    # Whatever else it may be, the input of a tool is an object; a reference that is still here
    # leads nowhere.
    clean = _object({key: top[key] for key in top if key not in ("type", "$ref")}, 0)
    clean["type"] = "object"
    clean.setdefault("properties", {})
    return clean


def closed(schema: Raw) -> Schema:
    """The same, and no object in it may have properties that are not named: for answers."""
    clean = normalised(schema)
    _close(clean)
    return clean


def _close(value: object) -> None:
    if _is_object(value):
        if value.get("type") == "object":
            value["additionalProperties"] = False
        for key, inner in value.items():
            if key in _NAMED and _is_object(inner):
                for member in inner.values():
                    _close(member)
            elif key in _ONE or key in _MANY:
                _close(inner)
    elif _is_list(value):
        for inner in value:
            _close(inner)


def by_name(tools: Iterable[ToolSpec]) -> list[ToolSpec]:
    """In one order always: a prompt cache holds only as long as the tools do not move."""
    return sorted(tools, key=lambda tool: tool.name)


def _is_object(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _schema(value: object, depth: int) -> object:
    if not _is_object(value):
        return value if isinstance(value, bool) else {}
    return _object(value, depth) if depth < _MAX_DEPTH else {}


def _object(schema: Schema, depth: int) -> Schema:
    clean: Schema = {}
    for key, value in schema.items():
        if key == "required":
            if names := _names(value):
                clean[key] = names
        elif key in _NAMED:
            members = value if _is_object(value) else {}
            clean[key] = {name: _schema(inner, depth + 1) for name, inner in members.items()}
        elif key in _MANY or (key in _ONE and _is_list(value)):
            if _is_list(value) and value:
                clean[key] = [_schema(inner, depth + 1) for inner in value]
        elif key in _ONE:
            clean[key] = _schema(value, depth + 1)
        else:
            clean[key] = value
    return _typed(clean)


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if _is_list(value) else []


def _typed(schema: Schema) -> Schema:
    """One type, or a choice between schemas of one type each; arrays say what they hold."""
    kind = schema.get("type")
    if _is_list(kind):
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
        rest["allOf"] = [*(both if _is_list(both) else []), {"anyOf": already}]
    return {**rest, "anyOf": choices}


# Vendors want an object at the top, not a reference to one and not a choice between several.


def _unfolded(schema: Schema) -> Schema:
    schema = _followed(schema)
    branches = {
        key: [_followed(inner, schema) for inner in value if _is_object(inner)]
        for key in ("allOf", "anyOf", "oneOf")
        if _is_list(value := schema.get(key))
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
    return found if _is_object(found) else {}


def _followed(schema: Schema, root: Schema | None = None) -> Schema:
    """`schema` itself, or the definition it refers to, if it does and that is here."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: object = schema if root is None else root
    for step in reference[2:].split("/"):
        found = found.get(step) if _is_object(found) else None
    if not _is_object(found) or "$ref" in found:
        return schema
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    return {**found, **rest}


# Names


class ToolNames:
    """What tools are called on a wire, and back. A name that fits is its own wire name.

    A name that had to be changed and then meets another gets a tail, made of the name itself.
    `letter_first`: the wire wants a letter or an underscore at the beginning.
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        reserved: Collection[str] = (),
        limit: int = MAX_NAME,
        letter_first: bool = False,
    ) -> None:
        self._limit = limit
        self._lead = re.compile(r"[A-Za-z_]" if letter_first else r"")
        self._wire: dict[str, str] = {}
        self._own: dict[str, str] = {}
        unique = sorted(set(names))
        taken = set(reserved)
        fitting = [n for n in unique if self._fits(n) and n not in taken]
        for name in [*fitting, *(n for n in unique if n not in set(fitting))]:
            wire = self._plain(name, limit)
            if wire in taken or (wire != name and len(name) > limit):
                wire = self._tailed(name)
            taken.add(wire)
            self._wire[name] = wire
            self._own[wire] = name

    def wire(self, name: str) -> str:
        """Also for a name of history whose tool is gone."""
        return self._wire.get(name) or self._plain(name, self._limit)

    def own(self, wire: str) -> str:
        """Also for a name the model has made up, which nobody will know either."""
        return self._own.get(wire, wire)

    def _fits(self, name: str) -> bool:
        return self._plain(name, self._limit) == name

    def _plain(self, name: str, limit: int) -> str:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"
        return (plain if self._lead.match(plain) else f"_{plain}")[:limit]

    def _tailed(self, name: str) -> str:
        tail = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
        return f"{self._plain(name, self._limit - 9)}_{tail}"
