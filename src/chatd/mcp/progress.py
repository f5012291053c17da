"""Progress of an MCP call as lines for viewers, few enough for a server that sends thousands."""

from collections.abc import Callable
from typing import Final

from chatd.domain.ports import Clock
from chatd.domain.text import clip, replace_surrogates

MAX_PROGRESS_LINES: Final = 200
MIN_PROGRESS_GAP_S: Final = 0.1
_MAX_LINE_CHARS: Final = 500


class ProgressLines:
    def __init__(self, show: Callable[[str], None], clock: Clock) -> None:
        self._show = show
        self._clock = clock
        self._lines = 0
        self._next_at = 0.0

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = self._clock.monotonic()
        if self._lines >= MAX_PROGRESS_LINES or now < self._next_at:
            return
        self._lines += 1
        self._next_at = now + MIN_PROGRESS_GAP_S
        self._show(f"{progress_line(progress, total, message)}\n")


def progress_line(progress: float, total: float | None, message: str | None) -> str:
    share = f"{progress:g}" if not total else f"{progress:g} of {total:g}"
    text = clip(" ".join(replace_surrogates(message or "").split()), _MAX_LINE_CHARS)
    return f"{share}: {text}" if text else share
