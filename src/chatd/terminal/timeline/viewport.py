"""Which lines of which rows are visible, and how they move. Pure: heights come from outside.

The place of the first visible line is a row and a line of it, not a count of all lines above: rows
above can come, go and change their height without moving what is read. Only rows near the place
are asked for their height, so a chat of 10,000 messages costs no more than one of ten.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Place(NamedTuple):
    """Line `line` of the row `row`."""

    row: int
    line: int


TOP = Place(0, 0)


class Heights(Protocol):
    """How many lines each row has; at least one."""

    def __len__(self) -> int: ...

    def height(self, row: int) -> int: ...


class Viewport:
    """It follows the end while the end is in reach; any move upwards ends that at once, and only
    a move downwards to the end begins it again."""

    def __init__(self) -> None:
        self.lines = 1
        self.top = TOP
        self.is_following = True

    def settle(self, heights: Heights) -> None:
        """Rows, heights or the size of the view have changed: find a valid place near the old one.
        Goes to the end if it follows."""
        end = self._last_top(heights)
        if self.is_following:
            self.top = end
            return
        row = min(max(self.top.row, 0), max(len(heights) - 1, 0))
        line = self.top.line if row == self.top.row else 0
        if len(heights) and line >= heights.height(row):
            line = heights.height(row) - 1
        self.top = min(self._moved(Place(row, 0), line, heights), end)

    def scroll(self, lines: int, heights: Heights) -> None:
        """Down, or up if it is negative."""
        end = self._last_top(heights)
        if lines < 0:
            self.top = self._moved(self.top, lines, heights)
            self.is_following = end == TOP
            return
        self.top = min(self._moved(self.top, lines, heights), end)
        self.is_following = self.top == end

    def go_to(self, place: Place, heights: Heights) -> None:
        """Show this place as the first line, or as near to it as the end allows."""
        end = self._last_top(heights)
        self.top = min(self._moved(Place(place.row, 0), place.line, heights), end)
        self.is_following = self.top == end == TOP

    def put(self, place: Place, at: int, heights: Heights) -> None:
        """Show this place at line `at` of the view, as far as the end allows."""
        was_following = self.is_following
        self.go_to(self._moved(place, -at, heights), heights)
        self.is_following = was_following and self.is_at_end(heights)

    def follow(self, heights: Heights) -> None:
        self.is_following = True
        self.settle(heights)

    def is_at_end(self, heights: Heights) -> bool:
        return self.top >= self._last_top(heights)

    def visible(self, heights: Heights) -> Iterator[Place]:
        """As many places as the view has lines, or fewer."""
        row, line = self.top
        for _ in range(self.lines):
            if row >= len(heights):
                return
            yield Place(row, line)
            line += 1
            if line >= heights.height(row):
                row, line = row + 1, 0

    def show_row(self, row: int, heights: Heights) -> None:
        """Scroll as little as is needed to see the row; its beginning, if it is long."""
        shown = {place.row: place for place in self.visible(heights)}
        if row < self.top.row or (row == self.top.row and self.top.line > 0):
            self.go_to(Place(row, 0), heights)
            return
        height = min(heights.height(row), self.lines)
        if row not in shown or shown[row].line < height - 1:
            bottom = self._moved(Place(row, 0), height - self.lines, heights)
            self.put(max(bottom, self.top), 0, heights)

    def _last_top(self, heights: Heights) -> Place:
        """The place of the first line when the last line is at the bottom."""
        missing = self.lines
        for row in range(len(heights) - 1, -1, -1):
            height = heights.height(row)
            if height >= missing:
                return Place(row, height - missing)
            missing -= height
        return TOP

    def _moved(self, place: Place, lines: int, heights: Heights) -> Place:
        row, line = place.row, place.line + lines
        while line < 0 and row > 0:
            row -= 1
            line += heights.height(row)
        while row < len(heights) and line >= heights.height(row):
            line -= heights.height(row)
            row += 1
        if row >= len(heights):
            return Place(max(len(heights) - 1, 0), 0)
        return Place(row, max(line, 0))
