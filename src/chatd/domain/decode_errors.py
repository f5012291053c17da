"""Errors of refused input, for people: which field, what was expected, what there is to choose.

msgspec's messages name Python types; these functions rewrite them for the API, the settings and
provider options. Values in lists of tables are never shown: they include provider keys.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Final, Literal, TypeGuard, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, UnsetType

from chatd.domain.text import clip

MAX_SHOWN_VALUE_CHARS: Final = 61
TYPE_NAMES: Final[Mapping[str, str]] = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "text",
    "uuid": "a UUID",
}
_TOML_TYPE_NAMES: Final = {**TYPE_NAMES, "object": "a table", "Path": "a path", "str": "a text"}
_PATTERNS: Final[Mapping[str, str]] = {
    r"\S": "must not be empty",
    r"^[a-zA-Z0-9_-]{1,64}$": "must have 1 to 64 letters, digits, _ or -",
    r"^[A-Za-z0-9]+(-[A-Za-z0-9]+)*$": "must have letters and digits, with single - between them",
}
_COMPARISONS: Final = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_ITEMS: Final[Mapping[str, str]] = {"array": "items", "str": "characters", "object": "entries"}

_AT: Final = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`$")
_FIELD: Final = re.compile(r"^Object (missing required|contains unknown) field `(?P<name>.*)`$")
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]|\.([^.\[]+)")
_TYPE: Final = re.compile(r"Expected `(?P<types>[^`]+)`(?:, got `[^`]+`)?$")
_BOUND: Final = re.compile(r"Expected `(?:int|float)[^`]*` (?P<how><=|>=|<|>) (?P<bound>\S+)$")
_LENGTH: Final = re.compile(
    r"Expected `(?P<type>array|str|object)[^`]*` of length (?P<how><=|>=) (?P<bound>\d+)$"
)
_PATTERN: Final = re.compile(r"Expected `str` matching regex (?P<pattern>.+)$")
_POSITION: Final = re.compile(r".+ \(byte (?P<at>\d+)\)$")


# JSON from API clients, and provider options


def describe_decode_error(error: msgspec.ValidationError, kind: object) -> tuple[str, str]:
    """The field, such as `content[0].text`, and what is wrong with it. The field is empty if
    the whole value of type `kind` is wrong."""
    message, path = _split(error)
    text = _describe(message, kind, path)
    if (field := _FIELD.match(message)) is not None:
        path += f".{field['name']}"
    return path.removeprefix("."), text


def _describe(message: str, kind: object, path: str) -> str:
    if (found := _BOUND.match(message)) is not None:
        if (found["how"], found["bound"]) == ("<=", "0"):
            return "must be 0"
        return f"must be {_COMPARISONS[found['how']]} {found['bound']}"
    if (found := _LENGTH.match(message)) is not None:
        if (found["how"], found["bound"]) == (">=", "1"):
            return "must not be empty"
        return f"must have {_COMPARISONS[found['how']]} {found['bound']} {_ITEMS[found['type']]}"
    if (found := _PATTERN.match(message)) is not None:
        pattern = found["pattern"].strip("'\"").replace("\\\\", "\\")
        return _PATTERNS.get(pattern, "does not have the required form")
    if (found := _TYPE.match(message)) is not None:
        types = found["types"].split(" | ")
        return f"must be {' or '.join(TYPE_NAMES.get(name, name) for name in types)}"
    if (found := _FIELD.match(message)) is not None:
        return "is required" if found[1] == "missing required" else "is not a known field"
    if message.startswith(("Invalid enum value", "Invalid value")):
        choices = ", ".join(_choices(kind, None, _steps(path)))
        return f"must be one of {choices}" if choices else "is not one of the choices"
    if message == "Invalid UUID":
        return "must be a UUID"
    if "out of range" in message:
        return "is too large a number"
    return message.replace("`", "")


def describe_invalid_json(error: Exception, body: bytes) -> str:
    if not body.strip():
        return "is empty; send a JSON object"
    if (found := _POSITION.match(str(error))) is not None:
        return f"is not valid JSON: error at byte {found['at']}"
    if _is_json(body):
        return "has a \\u escape of half a surrogate pair"
    if "truncated" in str(error):
        return "is not valid JSON: it ends too early"
    return "is not valid JSON in UTF-8"


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


# Settings: values of keys, and entries in lists of tables


def describe_type(kind: object) -> str:
    """What a key of this type accepts."""
    metas = [arg for arg in get_args(kind) if isinstance(arg, Meta)]
    base = get_args(kind)[0] if metas else kind
    expected = next((meta.extra["expected"] for meta in metas if meta.extra), None)
    if expected is not None:
        return str(expected)
    if get_origin(base) is Literal:
        return f"one of {', '.join(get_args(base))}"
    if base is int or base is float:
        return f"{TYPE_NAMES[base.__name__]} {_describe_range(metas)}".strip()
    if base is str:
        return "a text that is not empty"
    return _TOML_TYPE_NAMES.get(getattr(base, "__name__", ""), "something else")


def _describe_range(metas: list[Meta]) -> str:
    bounds = {
        name: next((bound for meta in metas if (bound := getattr(meta, name)) is not None), None)
        for name in ("ge", "gt", "le")
    }
    if bounds["ge"] is not None and bounds["le"] is not None:
        return f"from {bounds['ge']} to {bounds['le']}"
    if bounds["gt"] is not None and bounds["le"] is not None:
        return f"above {bounds['gt']} and up to {bounds['le']}"
    return ""


def show_value(value: object) -> str:
    """A simple value as it was written, clipped. Of lists and tables only the type."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value}"
        case str() if not value:
            return "nothing"
        case str():
            clipped = clip(value, MAX_SHOWN_VALUE_CHARS)
            return '"' + "".join(c if c.isprintable() else "?" for c in clipped) + '"'
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return "something else"


def describe_entry_error(kind: object, value: object, error: msgspec.ValidationError) -> str:
    """What is wrong with which entry of a list of tables. Continues after the list's name."""
    message, path = _split(error)
    steps = _steps(path)
    if (field := _FIELD.match(message)) is not None:
        known = _names(_at(kind, value, steps))
        missing = field[1] == "missing required"
        text = f"{field['name']} is missing" if missing else _unknown(field["name"], known)
    elif message.startswith("Invalid ") and (choices := _choices(kind, value, steps)):
        text = f"expected one of {', '.join(choices)}"
    else:
        text = message.replace("`str` of length >= 1", "a text that is not empty")
        text = re.sub(r"`([^`]*)`", lambda match: _toml_types(match[1]), text)
        text = text[0].lower() + text[1:]
    return _place(value, steps, text)


def describe_unknown_key(kind: object, value: object) -> str | None:
    """The first key in `value` that its table does not have. For types that are also decoded
    from elsewhere and therefore ignore unknown keys."""
    for steps, name, known in _unknown_keys(kind, value, []):
        return _place(value, steps, _unknown(name, known))
    return None


def describe_unknown_field(kind: object, value: object) -> tuple[str, str] | None:
    """The same for JSON of a client: the path of the field, and what is wrong with it."""
    for steps, name, known in _unknown_keys(kind, value, []):
        path = "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in [*steps, name])
        return path.removeprefix("."), f"is not a known field{suggest_name(name, known)}"
    return None


def suggest_name(unknown: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` if a known name is similar, else nothing."""
    close = difflib.get_close_matches(unknown, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def _toml_types(names: str) -> str:
    return " or ".join(_TOML_TYPE_NAMES.get(n, n) for n in names.split(" | ") if n != "null")


def _unknown(name: str, known: Iterable[str]) -> str:
    listed = ", ".join(known)
    return f"unknown key {name}" + (
        suggest_name(name, known) or (f"; there are {listed}" if listed else "")
    )


def _place(value: object, steps: list[str], text: str) -> str:
    inner = [f"number {int(step) + 1}" if step.isdigit() else step for step in steps[1:]]
    return ": ".join([_entry(value, steps), *(step for step in inner if step != "..."), text])


def _entry(value: object, steps: list[str]) -> str:
    """` "claude"` by its name, `, number 2` if it has none, nothing if `value` is no list."""
    items: object = value
    if not steps or not isinstance(value, list) or not steps[0].isdigit():
        return ""
    name = _child(_child(items, steps[0]), "name")
    named = isinstance(name, str) and name
    return f" {show_value(name)}" if named else f", number {int(steps[0]) + 1}"


def _unknown_keys(
    kind: object, value: object, steps: list[str]
) -> Iterator[tuple[list[str], str, list[str]]]:
    kind = _resolve(kind, value)
    if isinstance(value, list | tuple) and get_origin(kind) is tuple:
        for number, item in enumerate(msgspec.convert(value, list[object])):
            yield from _unknown_keys(get_args(kind)[0], item, [*steps, str(number)])
    if isinstance(value, dict) and _is_struct(kind):
        known = _fields(kind)
        for name, inner in msgspec.convert(value, dict[str, object]).items():
            if name in known:
                yield from _unknown_keys(known[name], inner, [*steps, name])
            elif name != kind.__struct_config__.tag_field:
                yield steps, name, list(known)


# The place in a type that a path leads to. Of a tagged union, the value chooses the member; if
# there is no value, every member counts.


def _split(error: msgspec.ValidationError) -> tuple[str, str]:
    message = str(error)
    if (at := _AT.search(message)) is None:
        return message, ""
    return message[: at.start()], at["path"]


def _steps(path: str) -> list[str]:
    return [index or name for index, name in _STEP.findall(path)]


def _choices(kind: object, value: object, steps: list[str]) -> list[str]:
    found = _at(kind, value, steps)
    if get_origin(found) is Literal:
        return [str(choice) for choice in get_args(found)]
    return [str(member.__struct_config__.tag) for member in _members(_at(kind, value, steps[:-1]))]


def _at(kind: object, value: object, steps: list[str]) -> object:
    kind = _resolve(kind, value)
    for step in steps:
        if get_origin(kind) in (tuple, list, dict):
            kind = get_args(kind)[-1 if get_origin(kind) is dict else 0]
        else:
            structs = [kind] if _is_struct(kind) else _members(kind)
            kind = next((f[step] for s in structs if step in (f := _fields(s))), None)
        value = _child(value, step)
        kind = _resolve(kind, value)
    return kind


def _child(value: object, step: str) -> object:
    if isinstance(value, list) and step.isdigit():
        items = msgspec.convert(value, list[object])
        return items[int(step)] if int(step) < len(items) else None
    if isinstance(value, dict):
        return msgspec.convert(value, dict[str, object], strict=False).get(step)
    return None


def _resolve(kind: object, value: object) -> object:
    """Without annotations and `| None`; of a tagged union, the member that the value names."""
    if get_origin(kind) is Annotated:
        return _resolve(get_args(kind)[0], value)
    if get_origin(kind) in (Union, UnionType):
        others = [arg for arg in get_args(kind) if arg not in (type(None), UnsetType)]
        if len(others) == 1:
            return _resolve(others[0], value)
        for member in _members(kind):
            config = member.__struct_config__
            if config.tag_field is not None and _child(value, config.tag_field) == config.tag:
                return member
    return kind


def _members(kind: object) -> list[type[Struct]]:
    return [arg for arg in get_args(kind) if _is_struct(arg)]


def _names(kind: object) -> list[str]:
    return list(_fields(kind)) if _is_struct(kind) else []


def _fields(struct: type[Struct]) -> dict[str, object]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def _is_struct(kind: object) -> TypeGuard[type[Struct]]:
    return isinstance(kind, type) and issubclass(kind, Struct)
