"""The part of a file that a Range header asks for."""

import re
from typing import Final

from msgspec import Struct

_RANGE: Final = re.compile(r"\s*bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*")


class ByteRange(Struct, frozen=True):
    """From `start` up to, but without, `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class RangeOutside(Exception):
    """The range begins after the end of the file."""


def select_range(header: str | None, size: int) -> ByteRange | None:
    """None for the whole file: there is no header, or one that a server may ignore, such as one
    with several ranges. Raises RangeOutside."""
    found = None if header is None else _RANGE.fullmatch(header)
    if found is None or found[1] == found[2] == "":
        return None
    if not found[1]:
        length = min(int(found[2]), size)
        if length == 0:
            raise RangeOutside
        return ByteRange(size - length, size)
    start = int(found[1])
    last = int(found[2]) if found[2] else size - 1
    if found[2] and last < start:
        return None
    if start >= size:
        raise RangeOutside
    return ByteRange(start, min(last + 1, size))
