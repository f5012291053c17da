"""The work of `chatd usage`: what model calls have cost."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

from chatd.cli.api_session import UsageProblem
from chatd.cli.output import dollars, print_json, print_notice, print_table
from chatd.client.resources import CostByChat, CostByDay, CostByModel, CostByUser, CostSummary
from chatd.client.server import ServerApi

Grouping = Literal["model", "chat", "user", "day"]
CostRow = CostByModel | CostByChat | CostByUser | CostByDay

MAX_USERS: Final = 1000
_DAYS: Final = re.compile(r"(\d{1,4})\s*(d|w|m)")
_DAY_COUNTS: Final = {"d": 1, "w": 7, "m": 30}
_TOTAL_HEADINGS: Final = ("COST", "CALLS", "INPUT", "CACHED", "OUTPUT")


async def show_usage(
    api: ServerApi, *, since: str | None, grouping: Grouping, as_json: bool
) -> None:
    """The caller's own; by user that of all users, for those who may see it."""
    start = None if since is None else str(read_since(since, datetime.now(UTC).date()))
    headings = (*_TOTAL_HEADINGS, grouping.upper())
    if grouping == "user":
        listed = api.list_user_costs(start_date=start)
        if as_json:
            print_json(await listed.raw_items(MAX_USERS))
            return
        print_table(headings, [usage_row(row) for row in await listed.items(MAX_USERS)])
        return
    summary = api.get_my_costs(start_date=start)
    if as_json:
        print_json(await summary.raw())
        return
    found = await summary
    groups = {"model": found.by_model, "chat": found.by_chat, "day": found.by_day}
    print_table(headings, [usage_row(row) for row in groups[grouping]])
    print_notice(total_line(found))


def usage_row(row: CostRow) -> tuple[str, ...]:
    match row:
        case CostByModel():
            name = f"{row.provider}/{row.model}"
        case CostByChat():
            name = f"{row.root_chat_id}  {row.chat_title or '(deleted)'}"
        case CostByUser():
            name = f"{row.username}  {row.name}".strip()
        case CostByDay():
            name = str(row.day)
    cost = dollars(row.total_cost_micros)
    return (
        f"{cost}+" if row.unpriced_call_count else cost,
        f"{row.call_count:,}",
        f"{row.total_input_tokens:,}",
        f"{row.total_cache_read_tokens:,}",
        f"{row.total_output_tokens:,}",
        name,
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
