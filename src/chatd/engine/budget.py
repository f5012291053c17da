"""The spend limit of each owner of chats, by period."""

from msgspec import Struct

from chatd.domain.chat.row import Chat, ChatError
from chatd.store.chat import usage
from chatd.store.chat.usage import Period
from chatd.store.conn import Conn


class SpendLimit(Struct, frozen=True, kw_only=True):
    """In micros of a dollar, for each owner and period. `refuses_unpriced`: models without a price
    cannot be used."""

    micros: int
    period: Period = "month"
    refuses_unpriced: bool = False


class OwnerBudget:
    """Satisfies `ports.Budget`: one limit, the same for every owner of chats."""

    def __init__(self, conn: Conn, limit: SpendLimit) -> None:
        self._conn = conn
        self._limit = limit

    async def check(self, chat: Chat) -> ChatError | None:
        spent = await usage.spent_micros(self._conn, chat.owner_id, self._limit.period)
        if spent < self._limit.micros:
            return None
        return ChatError(
            kind="usage_limit",
            message=f"The spend limit of {_dollars(self._limit.micros)} for this"
            f" {self._limit.period} is reached: {_dollars(spent)} were spent.",
        )


def _dollars(micros: int) -> str:
    return f"${micros / 1_000_000:.2f}"
