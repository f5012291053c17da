"""The spend limit of each owner of chats, by period."""

from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.ports import Clock
from chatd.store.chat import usage
from chatd.store.conn import Conn

Period = Literal["day", "week", "month"]


class SpendLimit(Struct, frozen=True, kw_only=True):
    """In micros of a dollar, for each owner and period."""

    micros: int
    period: Period = "month"


class OwnerBudget:
    """Satisfies `ports.Budget`: one limit, the same for every owner of chats."""

    def __init__(self, conn: Conn, clock: Clock, limit: SpendLimit) -> None:
        self._conn = conn
        self._clock = clock
        self._limit = limit

    async def check(self, chat: Chat) -> ChatError | None:
        since = period_start(self._clock.now(), self._limit.period)
        spent = await usage.spent_micros(self._conn, chat.owner_id, since)
        if spent < self._limit.micros:
            return None
        return ChatError(
            kind="usage_limit",
            message=f"The spend limit of {_dollars(self._limit.micros)} for this"
            f" {self._limit.period} is reached: {_dollars(spent)} were spent.",
        )


def period_start(now: datetime, period: Period) -> datetime:
    """Midnight of the period's first day in the time zone of `now`; weeks start on Monday."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case "day":
            return midnight
        case "week":
            return midnight - timedelta(days=midnight.weekday())
        case "month":
            return midnight.replace(day=1)


def _dollars(micros: int) -> str:
    return f"${micros / 1_000_000:.2f}"
