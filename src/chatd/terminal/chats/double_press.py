"""Whether a key was pressed again soon enough to mean more."""

from typing import Final

from chatd.domain.ports import Clock

AGAIN_WITHIN_S: Final = 2.0
"""Of two presses of Esc or Ctrl-C."""


class DoublePress:
    """Two presses count together only at the same place, such as a chat."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: float | None = None
        self._place: object = None

    def is_waiting(self, place: object) -> bool:
        """Whether the next press there would be the second."""
        now = self._clock.monotonic()
        is_soon = self._at is not None and now - self._at <= AGAIN_WITHIN_S
        return is_soon and place == self._place

    def press(self, place: object) -> bool:
        """True for the second of two presses; a third is a first again."""
        is_second = self.is_waiting(place)
        self._at = None if is_second else self._clock.monotonic()
        self._place = place
        return is_second
