"""Random requests from the OpenAPI document: valid, invalid and unusual ones. Seeded, so that a
failure can be repeated."""

import os
import random
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Struct

Json: TypeAlias = dict[str, object]

_ODD: Final = msgspec.json.decode(
    rb"""[null, true, 0, -1, 2147483648, 9223372036854775808, -1e25, 1.5, 1e308, "", " ", "\u0000",
    "a\nb", "'; DROP TABLE chats; --", "\ud83d\ude00", "../../etc/passwd", "%00", "null", [], {},
    [[]], [null, null], {"": null}, {"$ref": "#"}, "00000000-0000-0000-0000-000000000000"]""",
    type=tuple[object, ...],
)
ODD: Final = (*_ODD, "x" * 5000, "ä" * 300)
CASES: Final = int(os.environ.get("FUZZ_CASES", "10"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
BYTES: Final = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"content":' * 50,
    b"[" * 2000,
    b'"\\ud800"',
)


class Operation(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    parameters: tuple[Json, ...]
    body: Json | None
    statuses: frozenset[int]


class GeneratedRequest(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]


def operations(document: Json) -> list[Operation]:
    """All operations but the streams, which do not end."""
    found: list[Operation] = []
    for path, methods in cast("dict[str, dict[str, Json]]", document["paths"]).items():
        for method, one in methods.items():
            if "events" in cast("list[str]", one["tags"]):
                continue
            body = cast("Json | None", one.get("requestBody"))
            content = None if body is None else cast("dict[str, Json]", body["content"])
            found.append(
                Operation(
                    method=method.upper(),
                    path=path,
                    parameters=tuple(cast("list[Json]", one["parameters"])),
                    body=None if content is None else _object(_first_kind(content), "schema"),
                    statuses=frozenset(map(int, cast("Json", one["responses"]))),
                )
            )
    return found


def _first_kind(content: dict[str, Json]) -> Json:
    """JSON, or a file of any type."""
    return content.get("application/json") or next(iter(content.values()))


def _object(holder: Json, name: str) -> Json:
    return cast("Json", holder[name])


class RequestGenerator:
    """`known` are ids of existing chats and models."""

    def __init__(self, document: Json, known: Sequence[UUID], seed: int) -> None:
        components = cast("Json", document["components"])
        self._shapes = cast("dict[str, Json]", components["schemas"])
        self._known = known
        self._chance = random.Random(seed)

    def of(self, operation: Operation) -> GeneratedRequest:
        path, query = operation.path, list[str]()
        headers: dict[str, str] = {}
        for parameter in operation.parameters:
            name, where = str(parameter["name"]), parameter["in"]
            value = self._parameter(_object(parameter, "schema"))
            if where == "path":
                path = path.replace(f"{{{name}}}", quote(value or "x", safe=""))
            elif self._chance.random() < 0.4:
                if where == "query":
                    query.append(f"{name}={quote(value, safe='')}")
                elif value.isascii() and value.isprintable():
                    headers[name] = value
        if query:
            path = f"{path}?{'&'.join(query)}"
        body = None if operation.body is None else self._body(operation.body)
        return GeneratedRequest(method=operation.method, path=path, body=body, headers=headers)

    def _parameter(self, schema: Json) -> str:
        if schema.get("format") == "uuid" and self._chance.random() < 0.8:
            return str(self._chance.choice(self._known))
        value = _first(self._value(schema, 0))
        return value if isinstance(value, str) else msgspec.json.encode(_sane(value)).decode()

    def _body(self, schema: Json) -> bytes:
        if self._chance.random() < 0.1 or schema.get("format") == "binary":
            return self._chance.choice(BYTES)
        return msgspec.json.encode(_sane(self._value(schema, 0)))

    def _value(self, schema: Json, depth: int) -> object:
        """Usually valid by the schema; now and then some part of it is wrong."""
        if self._chance.random() < 0.06 or depth > 8:
            return self._chance.choice(ODD)
        if "$ref" in schema:
            return self._value(self._shapes[str(schema["$ref"]).rpartition("/")[2]], depth + 1)
        if isinstance(choices := schema.get("anyOf"), list):
            return self._value(self._chance.choice(cast("list[Json]", choices)), depth + 1)
        if isinstance(values := schema.get("enum"), list):
            return self._chance.choice(cast("list[object]", values))
        return self._typed(schema, depth)

    def _typed(self, schema: Json, depth: int) -> object:
        chance = self._chance
        match schema.get("type"):
            case "string" if schema.get("format") == "uuid":
                return str(chance.choice(self._known))
            case "string":
                return chance.choice(("hello", "a", "a:b", "archived:true", "k", "plan"))
            case "integer" | "number":
                least = cast("int", schema.get("minimum", 0))
                return chance.choice((least, least + 1, schema.get("maximum", 7)))
            case "boolean":
                return chance.random() < 0.5
            case "null":
                return None
            case "array":
                items = cast("Json", schema.get("items", {}))
                return [self._value(items, depth + 1) for _ in range(chance.randint(0, 2))]
            case "object":
                return self._filled(schema, depth)
            case _:
                return chance.choice(({"type": "object"}, {}, "text", 1))

    def _filled(self, schema: Json, depth: int) -> Json:
        required = cast("list[str]", schema.get("required", []))
        fields = cast("dict[str, Json]", schema.get("properties", {}))
        made = {
            name: self._value(field, depth + 1)
            for name, field in fields.items()
            if self._chance.random() < (0.97 if name in required else 0.25)
        }
        if isinstance(more := schema.get("additionalProperties"), dict):
            made["key"] = self._value(cast("Json", more), depth + 1)
        if self._chance.random() < 0.03:
            made["unheard_of"] = self._chance.choice(ODD)
        return made


def _first(value: object) -> object:
    """A parameter has one value; one that takes several gets one of them."""
    if not isinstance(value, list):
        return value
    several = cast("list[object]", value)
    return several[0] if several else ""


def _sane(value: object) -> object:
    """What JSON can carry: numbers that are too large become text."""
    match value:
        case int() if abs(value) >= 2**63:
            return str(value)
        case list():
            return [_sane(one) for one in cast("list[object]", value)]
        case dict():
            return {name: _sane(one) for name, one in cast("Json", value).items()}
        case _:
            return value
