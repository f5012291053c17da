"""Input of a tool call that two readers could read differently.

JSON lets a key come twice, and readers differ in which one counts and in whether case matters.
A policy that looks at one value while the tool acts on the other is no policy, so such input is
refused.
"""

import json
from collections.abc import Mapping
from typing import Final, cast

from msgspec import UNSET, Raw

from chatd.domain.heal import parse
from chatd.domain.parts import Json

_NO_SCHEMA: Final[Mapping[str, object]] = {}


class _Fields(list[tuple[str, object]]):
    """An object of JSON, with keys that come twice."""


def ambiguous_key(args: Json, schema: Raw) -> str | None:
    """A key that comes twice in one object, or that differs only in case from a name the schema
    has there. Looks into arrays and free-form maps too."""
    if args is UNSET:
        return None
    try:
        value: object = json.loads(bytes(args), object_pairs_hook=_Fields)
    except (ValueError, RecursionError):
        return None
    left: list[tuple[object, Mapping[str, object]]] = [(value, _mapping(parse(schema)))]
    while left:
        item, known = left.pop()
        if isinstance(item, _Fields):
            if (found := _ambiguous(item, known)) is not None:
                return found
            left.extend((value, _field_schema(known, key)) for key, value in item)
        elif isinstance(item, list):
            of_items = _mapping(known.get("items"))
            left.extend((value, of_items) for value in cast("list[object]", item))
    return None


def _ambiguous(fields: _Fields, schema: Mapping[str, object]) -> str | None:
    named = _mapping(schema.get("properties"))
    folded = {name.casefold() for name in named}
    seen: set[str] = set()
    for key, _ in fields:
        if key in seen or (key not in named and key.casefold() in folded):
            return key
        seen.add(key)
    return None


def _field_schema(schema: Mapping[str, object], key: str) -> Mapping[str, object]:
    named = _mapping(schema.get("properties"))
    return _mapping(named.get(key, schema.get("additionalProperties")))


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else _NO_SCHEMA
