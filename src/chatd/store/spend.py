"""What counts against the spend limits of a user and of a chat, and the limits themselves.

The sum is what is booked (rolled-up days and the events since) and what open calls have reserved.
Periods begin at midnight UTC by the database's clock; weeks on Monday.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.spend import LimitRules, Period, SpendAccount, effective_limit
from chatd.domain.ids import UserId
from chatd.store import config_changes
from chatd.store.conn import Conn, DatabaseSession, Row

# LIMIT 1 tells the planner what the tables' constraints do not: there is at most one default. For
# tables without statistics it would expect hundreds of rows, and a sum for every pair of them.
_RULES: Final[LiteralString] = """
    rules AS (
        SELECT coalesce(d.period, $2::text) AS period,
            (SELECT l.micros FROM user_spend_limits l WHERE l.user_id = $1) AS user_micros,
            (SELECT min(l.micros) FROM group_members m
                JOIN group_spend_limits l ON l.group_id = m.group_id
                WHERE m.user_id = $1) AS group_micros,
            d.micros AS default_micros, d.one IS NOT NULL AS is_default_stored
        FROM (SELECT) nothing LEFT JOIN (SELECT * FROM default_spend_limit LIMIT 1) d ON true),
    span AS (
        SELECT date_trunc(r.period, now() AT TIME ZONE 'UTC') AS since,
            date_trunc(r.period, now() AT TIME ZONE 'UTC') + ('1 ' || r.period)::interval AS until
        FROM rules r)"""

# $3 is the call that asks, and does not count itself. $4 is the root of a chat with a budget.
READ: Final[LiteralString] = f"""
    WITH {_RULES}
    SELECT r.*, s.since AT TIME ZONE 'UTC' AS period_start, s.until AT TIME ZONE 'UTC' AS resets_at,
        coalesce((SELECT sum(u.cost_micros) FROM usage_daily u
                  WHERE u.owner_id = $1 AND u.day >= s.since::date), 0)::bigint
        + coalesce((SELECT sum(e.cost_micros) FROM usage_events e
                    WHERE e.owner_id = $1 AND e.at >= greatest(s.since AT TIME ZONE 'UTC',
                        (SELECT until FROM usage_rolled_up))), 0)::bigint AS spent_micros,
        coalesce((SELECT sum(o.reserved_micros) FROM open_calls o
                  WHERE o.owner_id = $1 AND o.call_id IS DISTINCT FROM $3::uuid), 0)::bigint
            AS reserved_micros,
        CASE WHEN $4::uuid IS NOT NULL THEN
            coalesce((SELECT sum(e.cost_micros) FROM usage_events e
                      WHERE e.root_chat_id = $4), 0)::bigint END AS tree_spent_micros,
        CASE WHEN $4 IS NOT NULL THEN
            coalesce((SELECT sum(o.reserved_micros) FROM open_calls o
                      WHERE o.root_chat_id = $4 AND o.call_id IS DISTINCT FROM $3), 0)::bigint END
            AS tree_reserved_micros
    FROM rules r, span s"""

SET_RESERVED: Final[LiteralString] = "UPDATE open_calls SET reserved_micros = $2 WHERE call_id = $1"

HAS_LIMITS: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM user_spend_limits) OR EXISTS (SELECT FROM group_spend_limits)
        OR EXISTS (SELECT FROM default_spend_limit)"""

WARN: Final[LiteralString] = """
    INSERT INTO spend_warnings (user_id, period_start, percent, spent_micros, limit_micros)
    SELECT u.id, $2, w.percent, $4, $5 FROM users u, unnest($3::smallint[]) AS w (percent)
    WHERE u.id = $1
    ON CONFLICT DO NOTHING RETURNING percent"""

LIST_WARNINGS: Final[LiteralString] = """
    SELECT percent, spent_micros, limit_micros, at FROM spend_warnings
    WHERE user_id = $1 AND period_start = $2 ORDER BY percent"""


class DefaultLimit(Struct, frozen=True, kw_only=True):
    """The default of the settings, which holds while the database has none."""

    micros: int | None = None
    period: Period = "month"


class Spending(Struct, frozen=True, kw_only=True):
    """What a user has spent in this period. `user` is None if the user has no limit, `chat` if the
    chat has no budget."""

    period: Period
    period_start: datetime
    resets_at: datetime
    spent_micros: int
    reserved_micros: int
    user: SpendAccount | None = None
    chat: SpendAccount | None = None

    @property
    def accounts(self) -> tuple[SpendAccount, ...]:
        return tuple(account for account in (self.user, self.chat) if account is not None)


class SpendWarning(Struct, frozen=True, kw_only=True):
    percent: int
    spent_micros: int
    limit_micros: int
    at: datetime


async def has_limits(conn: Conn) -> bool:
    """Whether an administrator has set any limit."""
    return bool(await conn.fetchval(HAS_LIMITS))


async def read_spending(
    conn: Conn,
    user_id: UserId,
    default: DefaultLimit,
    *,
    chat: Chat | None = None,
    call_id: UUID | None = None,
) -> Spending:
    """`call_id` is the open call that asks, and is not counted."""
    budget = None if chat is None else chat.max_cost_micros
    root = None if chat is None or budget is None else chat.root_chat_id
    row = await conn.fetchrow(READ, user_id, default.period, call_id, root)
    assert row is not None  # `rules` has one row
    tree = None
    if budget is not None:
        tree = SpendAccount(
            limit_micros=budget,
            spent_micros=row["tree_spent_micros"],
            reserved_micros=row["tree_reserved_micros"],
            source="chat",
        )
    return Spending(
        period=row["period"],
        period_start=row["period_start"],
        resets_at=row["resets_at"],
        spent_micros=row["spent_micros"],
        reserved_micros=row["reserved_micros"],
        user=_account(row, default),
        chat=tree,
    )


async def set_reserved(conn: Conn, call_id: UUID, micros: int) -> None:
    await conn.execute(SET_RESERVED, call_id, micros)


async def warn(
    session: DatabaseSession, user_id: UserId, account: SpendAccount, percents: Sequence[int]
) -> Sequence[int]:
    """Record warnings; the ones that are new. All replicas hear of these."""
    rows = await session.fetch(
        WARN,
        user_id,
        account.period_start,
        list(percents),
        account.spent_micros,
        account.limit_micros,
    )
    if rows:
        await config_changes.publish(session, ConfigChange(kind="spend_warning", id=str(user_id)))
    return [row["percent"] for row in rows]


async def list_warnings(
    conn: Conn, user_id: UserId, period_start: datetime
) -> Sequence[SpendWarning]:
    rows = await conn.fetch(LIST_WARNINGS, user_id, period_start)
    return [SpendWarning(**dict(row)) for row in rows]


def _account(row: Row, default: DefaultLimit) -> SpendAccount | None:
    group = row["group_micros"]
    limit = effective_limit(
        LimitRules(
            user_micros=row["user_micros"],
            group_micros=() if group is None else (group,),
            default_micros=row["default_micros"],
            is_default_stored=row["is_default_stored"],
            settings_micros=default.micros,
        )
    )
    if limit is None:
        return None
    return SpendAccount(
        limit_micros=limit[0],
        source=limit[1],
        spent_micros=row["spent_micros"],
        reserved_micros=row["reserved_micros"],
        period=row["period"],
        period_start=row["period_start"],
        resets_at=row["resets_at"],
    )
