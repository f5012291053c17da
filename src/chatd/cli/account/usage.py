"""The work of `chatd usage`: what model calls have cost."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.work import read_items
from chatd.cli.output import dollars, print_json, print_notice, print_table
from chatd.client.server import ServerApi

Grouping = Literal["model", "chat", "user", "day"]

MAX_USERS: Final = 1000
_DAYS: Final = re.compile(r"(\d{1,4})\s*(d|w|m)")
_DAY_COUNTS: Final = {"d": 1, "w": 7, "m": 30}
_TOTAL_HEADINGS: Final = ("COST", "CALLS", "INPUT", "CACHED", "OUTPUT")


class CostRow(Struct, frozen=True, kw_only=True):
    """A sum; which of the names it has depends on what it is the sum of."""

    total_cost_micros: int = 0
    call_count: int = 0
    unpriced_call_count: int = 0
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    total_cache_read_tokens: int = 0
    total_cache_creation_tokens: int = 0
    model: str = ""
    provider: str = ""
    root_chat_id: str = ""
    chat_title: str | None = None
    username: str = ""
    name: str = ""
    day: date | None = None


class CostSummary(CostRow, frozen=True, kw_only=True):
    start_date: date
    end_date: date
    by_model: tuple[CostRow, ...] = ()
    by_chat: tuple[CostRow, ...] = ()
    by_day: tuple[CostRow, ...] = ()


async def show_usage(
    api: ServerApi, *, since: str | None, grouping: Grouping, as_json: bool
) -> None:
    """The caller's own; by user that of all users, for those who may see it."""
    start = None if since is None else str(read_since(since, datetime.now(UTC).date()))
    if grouping == "user":
        items = await read_items(api, "/cost/users", MAX_USERS, start_date=start)
        if as_json:
            print_json(items)
            return
        rows = [msgspec.json.decode(item, type=CostRow) for item in items]
        _print_rows(rows, grouping)
        return
    raw = await api.get("/cost/me/summary", Raw, start_date=start)
    if as_json:
        print_json(raw)
        return
    found = msgspec.json.decode(raw, type=CostSummary)
    groups = {"model": found.by_model, "chat": found.by_chat, "day": found.by_day}
    _print_rows([*groups[grouping]], grouping)
    print_notice(total_line(found))


def _print_rows(rows: list[CostRow], grouping: Grouping) -> None:
    headings = (*_TOTAL_HEADINGS, grouping.upper())
    print_table(headings, [usage_row(row, grouping) for row in rows])


def usage_row(row: CostRow, grouping: Grouping) -> tuple[str, ...]:
    names = {
        "model": f"{row.provider}/{row.model}",
        "chat": f"{row.root_chat_id}  {row.chat_title or '(deleted)'}",
        "user": f"{row.username}  {row.name}".strip(),
        "day": str(row.day),
    }
    cost = dollars(row.total_cost_micros)
    return (
        f"{cost}+" if row.unpriced_call_count else cost,
        f"{row.call_count:,}",
        f"{row.total_input_tokens:,}",
        f"{row.total_cache_read_tokens:,}",
        f"{row.total_output_tokens:,}",
        names[grouping],
    )


def total_line(found: CostSummary) -> str:
    last = found.end_date - timedelta(days=1)
    line = f"{dollars(found.total_cost_micros)} from {found.start_date} to {last}"
    if found.unpriced_call_count:
        line += f"; of {found.unpriced_call_count:,} calls no price is known"
    return line


def read_since(text: str, today: date) -> date:
    """The first day: `7d`, `4w`, `3m`, or a date. Raises UsageProblem."""
    if (found := _DAYS.fullmatch(text.strip())) is not None:
        count = max(int(found[1]) * _DAY_COUNTS[found[2]], 1)
        return today - timedelta(days=count - 1)
    try:
        first = date.fromisoformat(text)
    except ValueError:
        raise UsageProblem(f"--since {text!r}: write 7d, 4w, 3m or 2026-11-01") from None
    if first > today:
        raise UsageProblem(f"--since {text!r}: this day has not come yet")
    return first
