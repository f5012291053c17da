"""The last bytes that a terminal has printed."""

from __future__ import annotations


class OutputRing:
    """Positions count all bytes ever written. The oldest bytes are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self.end = 0

    @property
    def start(self) -> int:
        return self.end - len(self._kept)

    def write(self, data: bytes) -> None:
        self._kept += data
        self.end += len(data)
        # In steps, so that not every write moves all bytes.
        if len(self._kept) > 2 * self._max_bytes:
            del self._kept[: len(self._kept) - self._max_bytes]

    def replay_start(self) -> int:
        """Where a new viewer begins: the oldest byte, or the first whole line of the rest."""
        if self.start == 0:
            return 0
        first = max(len(self._kept) - self._max_bytes, 0)
        newline = self._kept.find(b"\n", first)
        return self.start + (first if newline < 0 else newline + 1)

    def read(self, position: int, limit: int) -> bytes:
        """From the position on, or from the oldest byte if that is dropped."""
        first = max(position - self.start, 0)
        return bytes(self._kept[first : first + limit])
