"""Reads JSON of models and tools, whose shape nothing guarantees, and JSON that is not complete."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

JsonObject = Mapping[str, object]
NOTHING: Final[JsonObject] = {}

MAX_PARTIAL_CHARS: Final = 200_000
"""Of arguments that are still being written: so much is read, again with each update."""
_MAX_DEPTH: Final = 64


def as_object(value: object) -> JsonObject:
    """The value if it is an object; else an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else NOTHING


def text_of(value: JsonObject, *names: str) -> str:
    """The first of these fields that is a text and not empty."""
    for name in names:
        if isinstance(found := value.get(name), str) and found:
            return found
    return ""


def number_of(value: JsonObject, name: str) -> int | float | None:
    found = value.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def list_of(value: JsonObject, name: str) -> Sequence[object]:
    found = value.get(name)
    return cast("Sequence[object]", found) if isinstance(found, list) else ()


def objects_of(value: JsonObject, name: str) -> Sequence[JsonObject]:
    return [found for item in list_of(value, name) if (found := as_object(item))]


def texts_of(value: JsonObject, name: str) -> Sequence[str]:
    return [item for item in list_of(value, name) if isinstance(item, str)]


def parse_partial(text: str) -> object:
    """What is known so far of a JSON text that is still being written; None: nothing yet."""
    text = text[:MAX_PARTIAL_CHARS]
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _PartialReader(text).read()


class _End(Exception):
    """The text ends inside a value of which nothing can be shown."""


_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)("?)', re.DOTALL)
_LITERAL: Final = re.compile(r"[^\s,\]}]+")
_CUT_ESCAPE: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")


class _PartialReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> object:
        try:
            return self._value()
        except _End:
            return None

    def _value(self) -> object:
        self._skip_space()
        match self._text[self._at : self._at + 1]:
            case "":
                raise _End
            case '"':
                return self._string()[0]
            case "{" | "[" as opening:
                return self._nested(opening)
            case _:
                return self._literal()

    def _nested(self, opening: str) -> object:
        if self._depth >= _MAX_DEPTH:
            raise _End
        self._depth += 1
        self._at += 1
        value = self._object() if opening == "{" else self._array()
        self._depth -= 1
        return value

    def _object(self) -> object:
        value: dict[str, object] = {}
        while self._has_next("}"):
            if self._text[self._at] != '"':
                break
            name, is_closed = self._string()
            self._skip_space()
            if not is_closed or self._text[self._at : self._at + 1] != ":":
                break
            self._at += 1
            try:
                value[name] = self._value()
            except _End:
                break
        return value

    def _array(self) -> object:
        value: list[object] = []
        while self._has_next("]"):
            before = self._at
            try:
                value.append(self._value())
            except _End:
                break
            if self._at == before:
                break
        return value

    def _has_next(self, close: str) -> bool:
        """True if an item follows. Steps over the comma, or over `close`."""
        self._skip_space()
        if self._text[self._at : self._at + 1] == ",":
            self._at += 1
            self._skip_space()
        if self._text[self._at : self._at + 1] != close:
            return self._at < len(self._text)
        self._at += 1
        return False

    def _string(self) -> tuple[str, bool]:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise _End
        self._at = found.end()
        inner, is_closed = found[1], bool(found[2])
        if not is_closed:
            # An escape that is cut in two is left out until the rest of it is there.
            inner = _CUT_ESCAPE.sub(r"\1", self._text[found.start() + 1 :])
            self._at = len(self._text)
        quoted = '"' + inner.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'
        try:
            return msgspec.json.decode(quoted, type=str), is_closed
        except (msgspec.DecodeError, UnicodeError):
            return inner, is_closed

    def _literal(self) -> object:
        found = _LITERAL.match(self._text, self._at)
        # A number at the end of the text may get more digits.
        if found is None or found.end() >= len(self._text):
            self._at = len(self._text)
            raise _End
        self._at = found.end()
        try:
            return msgspec.json.decode(found[0])
        except msgspec.DecodeError as error:
            raise _End from error

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at
