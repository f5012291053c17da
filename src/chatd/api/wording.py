"""A decoder's complaint in words for people: what was expected, not what the code calls it.

Owns the words. Where the complaint is about is for `reading` to say.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import inspect

_KINDS: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
    "uuid": "a UUID",
}
_PATTERNS: Final[Mapping[str, str]] = {
    r"\S": "must not be empty",
    r"^[a-zA-Z0-9_-]{1,64}$": "must have 1 to 64 letters, digits, _ or -",
    r"^[a-z][a-z0-9_-]{0,31}$": (
        "must have 1 to 32 small letters, digits, _ or -, and begin with a letter"
    ),
    r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$": "must have letters and digits, with single - between them",
}
_TYPE: Final = re.compile(r"Expected `(?P<kinds>[^`]+)`(?:, got `(?P<got>[^`]+)`)?$")
_BOUND: Final = re.compile(r"Expected `(?:int|float)[^`]*` (?P<how><=|>=|<|>) (?P<bound>\S+)$")
_LENGTH: Final = re.compile(
    r"Expected `(?P<kind>array|str|object)[^`]*` of length (?P<how><=|>=) (?P<bound>\d+)$"
)
_PATTERN: Final = re.compile(r"Expected `str` matching regex (?P<pattern>.+)$")
_BOUNDS: Final = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_PIECES: Final[Mapping[str, str]] = {"array": "items", "str": "characters", "object": "entries"}
_PLACE: Final = re.compile(r"(?P<what>.+) \(byte (?P<at>\d+)\)$")


def in_words(said: str, kind: object, path: str) -> str:
    """`said` is the complaint without its place; `kind` the type of the whole, `path` the way
    from there to what is wrong."""
    if (found := _BOUND.match(said)) is not None:
        if (found["how"], found["bound"]) == ("<=", "0"):
            return "must be 0"
        return f"must be {_BOUNDS[found['how']]} {found['bound']}"
    if (found := _LENGTH.match(said)) is not None:
        if (found["how"], found["bound"]) == (">=", "1"):
            return "must not be empty"
        pieces = _PIECES[found["kind"]]
        return f"must have {_BOUNDS[found['how']]} {found['bound']} {pieces}"
    if (found := _PATTERN.match(said)) is not None:
        pattern = found["pattern"].strip("'\"").replace("\\\\", "\\")
        return _PATTERNS.get(pattern, "is not written as it should be")
    if (found := _TYPE.match(said)) is not None:
        return f"must be {_named(found['kinds'])}"
    return _otherwise(said, kind, path)


def _named(kinds: str) -> str:
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds.split(" | "))


def _otherwise(said: str, kind: object, path: str) -> str:
    if said.startswith(("Invalid enum value", "Invalid value")):
        choices = _choices(kind, path)
        return f"must be one of {', '.join(choices)}" if choices else "is not one of the choices"
    if said == "Invalid UUID":
        return "must be a UUID"
    if "missing required field" in said:
        return "is required"
    if "contains unknown field" in said:
        return "is not a field that is known here"
    if "out of range" in said:
        return "is too large a number"
    return said.replace("`", "")


def not_json(said: str, body: bytes) -> str:
    if not body.strip():
        return "a JSON object is needed, and nothing was sent"
    if (found := _PLACE.match(said)) is not None:
        return f"is not valid JSON: something is wrong at byte {found['at']}"
    if _is_json(body):
        return "holds half of a character: a \\u escape without its other half"
    if "truncated" in said:
        return "is not valid JSON: it ends too early"
    return "is not valid JSON in UTF-8"


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


# What there is to choose from


def _choices(kind: object, path: str) -> list[str]:
    """Of the place that the path leads to, by the types on the way."""
    found = [inspect.type_info(kind)]
    for step in re.findall(r"[^.\[\]]+", path):
        tags = [str(one.tag) for one in _structs(found) if one.tag_field == step]
        if tags:
            return tags
        found = list(_below(found, step))
    return [
        str(value)
        for one in _flat(found)
        if isinstance(one, inspect.LiteralType)
        for value in one.values
    ]


def _below(kinds: Iterable[inspect.Type], step: str) -> Iterable[inspect.Type]:
    for kind in _flat(kinds):
        match kind:
            case inspect.StructType():
                yield from (field.type for field in kind.fields if field.encode_name == step)
            case inspect.VarTupleType() | inspect.ListType():
                yield kind.item_type
            case inspect.DictType():
                yield kind.value_type
            case _:
                pass


def _structs(kinds: Iterable[inspect.Type]) -> Iterable[inspect.StructType]:
    return (kind for kind in _flat(kinds) if isinstance(kind, inspect.StructType))


def _flat(kinds: Iterable[inspect.Type]) -> Iterable[inspect.Type]:
    for kind in kinds:
        if isinstance(kind, inspect.UnionType):
            yield from kind.types
        elif isinstance(kind, inspect.Metadata):
            yield from _flat([kind.type])
        else:
            yield kind
