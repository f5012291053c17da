"""Refusals in words: what a key takes, what it was given, and which entry of a list is wrong.

Owns the way from the decoder's messages to sentences. Of a list of tables no value is ever shown:
keys of providers are in there.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
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
        said = _wrong_field(kind, steps, missing=field[1].startswith("m"), name=field[2])
    else:
        said = _plain(said)
    return "".join([_entry(value, steps), *(f": {step}" for step in steps[1:]), f": {said}"])


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


def _wrong_field(kind: object, steps: list[str], *, missing: bool, name: str) -> str:
    if missing:
        return f"{name} is missing"
    known = _fields_at(kind, steps)
    hint = nearest(name, known)
    if not hint and known:
        hint = f"; there are {', '.join(known)}"
    return f"unknown key {name}{hint}"


def _fields_at(kind: object, steps: list[str]) -> Mapping[str, object]:
    """The keys of the table at that place, if there is only one kind of table there."""
    known: Mapping[str, object] = {}
    for step in ("", *steps):
        if step:
            kind = get_args(_bare(kind))[0] if step.isdigit() else known.get(step)
        table = _bare(kind)
        known = fields(table) if is_section(table) else {}
    return known


def _bare(kind: object) -> object:
    """Without what is noted on it, and without `or nothing`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        others = [arg for arg in get_args(kind) if arg is not type(None)]
        return _bare(others[0]) if len(others) == 1 else None
    return kind


def _plain(said: str) -> str:
    """`Expected `int | null`, got `str`` in words."""
    said = said.replace("`str` of length >= 1", "a text that is not empty")
    said = re.sub(r"`([^`]*)`", lambda match: _kinds(match[1]), said)
    return said[0].lower() + said[1:]


def _kinds(names: str) -> str:
    found = [KINDS.get(name, name) for name in names.split(" | ") if name != "null"]
    return " or ".join(found)
