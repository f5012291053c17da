"""What a supervisor was asked to keep, for the one that follows it. Standard library only.

In memory that has no name and no place on a disk, because orders hold keys: whoever starts the
supervisors has it open, and it is gone when all of them are. Written twice over, so that a writer
that is killed in the middle leaves what was there before.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Final

NOBODY_YET: Final = 0
NOTHING_KNOWN: Final = 3


class Memory:
    """Lines, which hold no line ends. Made before the fork, used on both sides of it."""

    def __init__(self) -> None:
        self._copies = (os.memfd_create("orders"), os.memfd_create("orders"))
        self._which = os.memfd_create("which")
        self._point(NOBODY_YET)

    @property
    def begun(self) -> bool:
        """Whether anything was ever written."""
        return self._current() != NOBODY_YET

    def write(self, lines: Iterable[bytes]) -> None:
        """All at once: what was there before is forgotten. Better nothing than what is not true
        any more: who was stopped must not come back."""
        number = 2 if self._current() == 1 else 1
        copy = self._copies[number - 1]
        data = memoryview(b"".join(line + b"\n" for line in lines))
        try:
            os.truncate(copy, 0)
            place = 0
            while place < len(data):
                place += os.pwrite(copy, data[place:], place)
        except OSError:
            number = NOTHING_KNOWN
        self._point(number)
        with contextlib.suppress(OSError):
            os.truncate(self._copies[0 if number == 2 else 1], 0)

    def read(self) -> list[bytes]:
        number = self._current()
        if number not in (1, 2):
            return []
        copy = self._copies[number - 1]
        return os.pread(copy, os.fstat(copy).st_size, 0).splitlines()

    def _current(self) -> int:
        return os.pread(self._which, 1, 0)[0]

    def _point(self, number: int) -> None:
        """One byte, so it is done or not."""
        os.pwrite(self._which, bytes([number]), 0)
