"""Whether a key was pressed again soon enough to mean more."""

from typing import Final

from chatd.domain.ports import Clock

AGAIN_WITHIN_S: Final = 2.0
"""Of two presses of Esc or Ctrl-C."""


class DoublePress:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: float | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the next press would be the second."""
        now = self._clock.monotonic()
        return self._at is not None and now - self._at <= AGAIN_WITHIN_S

    def press(self) -> bool:
        """True for the second of two presses; a third is a first again."""
        is_second = self.is_waiting
        self._at = None if is_second else self._clock.monotonic()
        return is_second
