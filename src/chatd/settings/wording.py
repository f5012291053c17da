"""Refusals in words: what a key takes, what it was given, and which entry of a list is wrong.

Owns the way from the decoder's messages to sentences. Of a list of tables no value is ever shown:
keys of providers are in there.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from chatd.settings.keys import fields, is_section

LONGEST: Final = 60
KINDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "Path": "a path",
    "str": "a text",
}
_AT: Final = re.compile(r" - at (?:`key` in )?`\$(.*)`$")
_FIELD: Final = re.compile(r"^Object (missing required|contains unknown) field `(.*)`$")
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]|\.([^.\[]+)")


def allowed(kind: object) -> str:
    """What a key of this type takes."""
    metas = [arg for arg in get_args(kind) if isinstance(arg, Meta)]
    base = get_args(kind)[0] if metas else kind
    said = next((meta.extra["expected"] for meta in metas if meta.extra), None)
    if said is not None:
        return str(said)
    if get_origin(base) is Literal:
        return f"one of {', '.join(get_args(base))}"
    if base is int or base is float:
        return f"{KINDS[base.__name__]} {_range(metas)}".strip()
    if base is str:
        return "a text that is not empty"
    return KINDS.get(getattr(base, "__name__", ""), "something else")


def shown(value: object) -> str:
    """A value as whoever wrote it sees it. Of what is no simple value, the kind only."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value}"
        case str() if not value:
            return "nothing"
        case str():
            cut = value if len(value) <= LONGEST else f"{value[:LONGEST]}…"
            return '"' + "".join(letter if letter.isprintable() else "?" for letter in cut) + '"'
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return "something else"


def refused_entry(kind: object, value: object, error: msgspec.ValidationError) -> str:
    """What is wrong with which entry of a list of tables, as it goes on after the list's name."""
    said = str(error)
    at = _AT.search(said)
    path = at[1] if at else ""
    said = _AT.sub("", said)
    steps = [index or name for index, name in _STEP.findall(path)]
    if (field := _FIELD.fullmatch(said)) is not None:
        known = _fields_at(kind, value, steps)
        said = f"{field[2]} is missing" if field[1][0] == "m" else _unknown(field[2], known)
    elif said.startswith("Invalid ") and (choice := _choice_at(kind, value, steps)):
        said = f"expected one of {choice}"
    else:
        said = _plain(said)
    return _placed(value, steps, said)


def unknown_key(kind: object, value: object) -> str | None:
    """What to say of the first key that no such table has, if there is one: what is also read from
    elsewhere passes over such keys, and a person's slip would be passed over with them."""
    for steps, name, known in _strangers(kind, value, []):
        return _placed(value, steps, _unknown(name, known))
    return None


def nearest(unknown: str, known: Iterable[str]) -> str:
    """A question, if there is a name that it may be a slip of."""
    close = difflib.get_close_matches(unknown, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def _range(metas: list[Meta]) -> str:
    def first(*found: float | None) -> float | None:
        return next((bound for bound in found if bound is not None), None)

    least = first(*(meta.ge for meta in metas))
    above = first(*(meta.gt for meta in metas))
    most = first(*(meta.le for meta in metas))
    if least is not None and most is not None:
        return f"from {least} to {most}"
    if above is not None and most is not None:
        return f"above {above} and up to {most}"
    return ""


def _entry(value: object, steps: list[str]) -> str:
    """` "claude"` by its name, or `, number 2` if it has none. Nothing of what is no list."""
    if not steps or not isinstance(value, list) or not steps[0].isdigit():
        return ""
    entries = msgspec.convert(value, list[object])
    number = int(steps[0])
    entry = entries[number] if number < len(entries) else None
    if isinstance(entry, dict):
        name = msgspec.convert(entry, dict[str, object], strict=False).get("name")
        if isinstance(name, str) and name:
            return f" {shown(name)}"
    return f", number {number + 1}"


def _placed(value: object, steps: list[str], said: str) -> str:
    inner = [f"number {int(step) + 1}" if step.isdigit() else step for step in steps[1:]]
    return ": ".join([_entry(value, steps), *(step for step in inner if step != "..."), said])


def _unknown(name: str, known: Iterable[str]) -> str:
    listed = ", ".join(known)
    hint = nearest(name, known) or (f"; there are {listed}" if listed else "")
    return f"unknown key {name}{hint}"


def _strangers(
    kind: object, value: object, steps: list[str]
) -> Iterator[tuple[list[str], str, list[str]]]:
    kind = _table(kind, value)
    if isinstance(value, list | tuple) and get_origin(kind) is tuple:
        for number, each in enumerate(msgspec.convert(value, list[object])):
            yield from _strangers(get_args(kind)[0], each, [*steps, str(number)])
    if isinstance(value, dict) and is_section(kind):
        known = fields(kind)
        tag = kind.__struct_config__.tag_field
        for name, inner in msgspec.convert(value, dict[str, object]).items():
            if name in known:
                yield from _strangers(known[name], inner, [*steps, name])
            elif name != tag:
                yield steps, name, list(known)


def _fields_at(kind: object, value: object, steps: list[str]) -> list[str]:
    """The keys of the table at that place."""
    found = _at(kind, value, steps)
    return list(fields(found)) if is_section(found) else []


def _choice_at(kind: object, value: object, steps: list[str]) -> str:
    """What there is to choose from at that place: of texts, or of kinds of tables by their tag."""
    found = _at(kind, value, steps)
    if get_origin(found) is Literal:
        return ", ".join(map(str, get_args(found)))
    around = _at(kind, value, steps[:-1])
    return ", ".join(str(table.__struct_config__.tag) for table in _tables(around))


def _at(kind: object, value: object, steps: list[str]) -> object:
    for step in steps:
        kind = _table(kind, value)
        if step.isdigit() and isinstance(value, list):
            kind = get_args(kind)[0]
            value = msgspec.convert(value, list[object])[int(step)]
        elif is_section(kind) and isinstance(value, dict):
            kind = fields(kind).get(step)
            value = msgspec.convert(value, dict[str, object]).get(step)
        else:
            return None
    return _table(kind, value)


def _table(kind: object, value: object) -> object:
    """Of several kinds of tables, the one that the value says it is."""
    kind = _bare(kind)
    if isinstance(value, dict):
        given = msgspec.convert(value, dict[str, object])
        for table in _tables(kind):
            config = table.__struct_config__
            if config.tag_field is not None and given.get(config.tag_field) == config.tag:
                return table
    return kind


def _tables(kind: object) -> list[type[msgspec.Struct]]:
    return [arg for arg in get_args(kind) if is_section(arg)]


def _bare(kind: object) -> object:
    """Without what is noted on it, and without `or nothing`. Several kinds stay several."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        others = [arg for arg in get_args(kind) if arg is not type(None)]
        return _bare(others[0]) if len(others) == 1 else kind
    return kind


def _plain(said: str) -> str:
    """`Expected `int | null`, got `str`` in words."""
    said = said.replace("`str` of length >= 1", "a text that is not empty")
    said = re.sub(r"`([^`]*)`", lambda match: _kinds(match[1]), said)
    return said[0].lower() + said[1:]


def _kinds(names: str) -> str:
    found = [KINDS.get(name, name) for name in names.split(" | ") if name != "null"]
    return " or ".join(found)
