"""When a chat's context is too full, and which rows the model still sees after a summary.

Owns the reading of history around a boundary. Does not own the summary: neither the prompt
that asks for it nor the rows that hold it.

A compaction leaves three compressed rows: the summary as a user message that only the model
sees, and a call with its result for people. The first is the boundary.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.messages import Message, Usage

DEFAULT_THRESHOLD: Final = 70

Status = Literal["none", "needed", "still_over_limit"]


class Fill(Struct, frozen=True, kw_only=True):
    """How much of a context window the latest step took. Unknown numbers are 0."""

    tokens: int = 0
    limit: int = 0

    @property
    def percent(self) -> int:
        return self.tokens * 100 // self.limit if self.limit > 0 else 0

    def reaches(self, threshold: int) -> bool:
        known = self.tokens > 0 and self.limit > 0
        return known and self.tokens * 100 >= threshold * self.limit


def boundary(history: Sequence[Message]) -> Message | None:
    """The newest summary. The result shown to people is compressed too, but `both` sees it:
    only a row for the model alone cuts."""
    summaries = (
        row for row in history if row.compressed and not row.deleted and row.visibility == "model"
    )
    return max(summaries, key=lambda row: row.id, default=None)


def prompt_rows(history: Sequence[Message]) -> list[Message]:
    """What the model sees, by id: system rows, the newest summary, all that came after it."""
    cut = boundary(history)
    kept = [row for row in history if row is cut or _survives(row, cut)]
    return sorted(kept, key=lambda row: row.id)


def _survives(row: Message, cut: Message | None) -> bool:
    if row.deleted or row.compressed or row.visibility == "user":
        return False
    return cut is None or row.role == "system" or row.id > cut.id


def compactable(history: Sequence[Message]) -> bool:
    """Something was answered since the last summary."""
    return bool(_answers(history))


def _answers(history: Sequence[Message]) -> list[Message]:
    return [row for row in prompt_rows(history) if row.role == "assistant"]


def measure(history: Sequence[Message], limit: int | None) -> Fill:
    """The fill at the newest answer that was counted. A limit that the provider itself
    reported with that answer is worth more than the configured one."""
    for row in reversed(_answers(history)):
        if (tokens := _context_tokens(row.usage)) > 0:
            reported = row.usage.context_limit if row.usage is not None else None
            return Fill(tokens=tokens, limit=max(reported or limit or 0, 0))
    return Fill(limit=max(limit or 0, 0))


def _context_tokens(usage: Usage | None) -> int:
    if usage is None:
        return 0
    if usage.context_tokens is not None:
        return usage.context_tokens
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens
    return read or usage.total_tokens


def effective_threshold(percent: int) -> int:
    return percent if 0 <= percent <= 100 else DEFAULT_THRESHOLD


def status(history: Sequence[Message], limit: int | None, threshold: int) -> Status:
    """A threshold of 100 turns compaction off.

    If the first answer after a summary was over the threshold already, summaries do not help:
    the system prompt, the tools and the summary are too much, and the next one would be, too.
    """
    percent = effective_threshold(threshold)
    fill = measure(history, limit)
    if percent == 100 or not fill.reaches(percent):
        return "none"
    if boundary(history) is None:
        return "needed"
    first = _context_tokens(_answers(history)[0].usage)
    over = Fill(tokens=first, limit=fill.limit).reaches(percent)
    return "still_over_limit" if over else "needed"
