"""File names as git prints them: in quotes, with bytes as octal numbers, if they are unusual."""

import re
from collections.abc import Mapping
from typing import Final

_TOKEN: Final = re.compile(rb"\\[0-7]{1,3}|\\.|[^\\]+", re.DOTALL)
_ESCAPES: Final[Mapping[bytes, bytes]] = {
    b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r",
}  # fmt: skip
_NAME: Final = r'("(?:[^"\\]|\\.)*"|\S+)'
_TWO_NAMES: Final = re.compile(f"{_NAME} {_NAME}")


def unquote_name(name: str) -> str:
    if len(name) < 2 or name[0] != '"' or name[-1] != '"':
        return name
    tokens = _TOKEN.findall(name[1:-1].encode())
    return b"".join(_decode(token) for token in tokens).decode(errors="replace")


def _decode(token: bytes) -> bytes:
    if token[:1] != b"\\":
        return token
    if token[1:2] in b"01234567":
        return bytes([int(token[1:], 8) & 0xFF])
    return _ESCAPES.get(token[1:], token[1:])


def side_name(line: str) -> str | None:
    """The name in a line `--- a/x` or `+++ b/x`; None for /dev/null. A tab ends a name that has
    spaces."""
    name = line[4:].partition("\t")[0]
    if name == "/dev/null":
        return None
    return re.sub(r"^[ab]/", "", unquote_name(name))


def split_names(names: str) -> tuple[str, str]:
    """Of `a/x b/x`. Names with spaces are not quoted: then both are the same, or a later line of
    the diff tells them."""
    if (match := _TWO_NAMES.fullmatch(names)) is not None:
        old, new = unquote_name(match.group(1)), unquote_name(match.group(2))
        return old.removeprefix("a/"), new.removeprefix("b/")
    half = (len(names) - 1) // 2
    old, new = names[:half], names[half + 1 :]
    if old[2:] == new[2:]:
        return old[2:], new[2:]
    return names, names
