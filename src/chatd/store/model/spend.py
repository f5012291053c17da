"""What counts against the spend limits of a user and of a chat, and the limits themselves.

The sum is what is booked (rolled-up days and the events since) and what open calls have reserved.
Periods begin at midnight UTC by the database's clock; weeks on Monday.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.spend import LimitRules, Period, SpendAccount, effective_limit
from chatd.domain.errors import NotFound
from chatd.domain.ids import GroupId, UserId
from chatd.store.account import audit
from chatd.store.database import notifications
from chatd.store.database.conn import Conn, DatabaseSession, Row

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
    """Record warnings; returns the new ones, which all replicas hear of."""
    rows = await session.fetch(
        WARN,
        user_id,
        account.period_start,
        list(percents),
        account.spent_micros,
        account.limit_micros,
    )
    if rows:
        await notifications.publish(session, ConfigChange(kind="spend_warning", id=str(user_id)))
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


# Spend limits that administrators set. Every write is audited, and published to all replicas.

GET_DEFAULT: Final[LiteralString] = "SELECT micros, period, updated_at FROM default_spend_limit"
SET_DEFAULT: Final[LiteralString] = """
    INSERT INTO default_spend_limit AS d (micros, period, updated_by) VALUES ($1, $2, $3)
    ON CONFLICT (one) DO UPDATE SET micros = excluded.micros, period = excluded.period,
        updated_at = now(), updated_by = excluded.updated_by
    RETURNING micros, period, updated_at"""
DELETE_DEFAULT: Final[LiteralString] = "DELETE FROM default_spend_limit"

_USER_COLUMNS: Final[LiteralString] = "u.id AS user_id, u.username, u.name, u.avatar_url, l.micros"
LIST_USERS: Final[LiteralString] = f"""
    SELECT {_USER_COLUMNS} FROM user_spend_limits l JOIN users u ON u.id = l.user_id
    WHERE u.deleted_at IS NULL AND lower(u.username) > $1 ORDER BY lower(u.username) LIMIT $2"""
SET_USER: Final[LiteralString] = f"""
    WITH l AS (
        INSERT INTO user_spend_limits AS o (user_id, micros)
        SELECT id, $2 FROM users WHERE id = $1 AND deleted_at IS NULL
        ON CONFLICT (user_id) DO UPDATE SET micros = excluded.micros, updated_at = now()
        RETURNING user_id, micros)
    SELECT {_USER_COLUMNS} FROM l JOIN users u ON u.id = l.user_id"""
DELETE_USER: Final[LiteralString] = "DELETE FROM user_spend_limits WHERE user_id = $1"

_GROUP_COLUMNS: Final[LiteralString] = """
    g.id AS group_id, g.name AS group_name, l.micros,
    (SELECT count(*) FROM group_members m WHERE m.group_id = g.id) AS member_count"""
LIST_GROUPS: Final[LiteralString] = f"""
    SELECT {_GROUP_COLUMNS} FROM group_spend_limits l JOIN groups g ON g.id = l.group_id
    WHERE lower(g.name) > $1 ORDER BY lower(g.name) LIMIT $2"""
SET_GROUP: Final[LiteralString] = f"""
    WITH l AS (
        INSERT INTO group_spend_limits AS o (group_id, micros)
        SELECT id, $2 FROM groups WHERE id = $1
        ON CONFLICT (group_id) DO UPDATE SET micros = excluded.micros, updated_at = now()
        RETURNING group_id, micros)
    SELECT {_GROUP_COLUMNS} FROM l JOIN groups g ON g.id = l.group_id"""
DELETE_GROUP: Final[LiteralString] = "DELETE FROM group_spend_limits WHERE group_id = $1"


class StoredDefault(Struct, frozen=True, kw_only=True):
    """`micros` None: no default limit."""

    micros: int | None
    period: Period
    updated_at: datetime


class UserLimit(Struct, frozen=True, kw_only=True):
    user_id: UserId
    username: str
    name: str
    avatar_url: str | None
    micros: int


class GroupLimit(Struct, frozen=True, kw_only=True):
    group_id: GroupId
    group_name: str
    member_count: int
    micros: int


async def get_default(conn: Conn, actor: Actor) -> StoredDefault | None:
    """The stored default; None: that of the settings applies."""
    require_permission(actor, "config.read")
    row = await conn.fetchrow(GET_DEFAULT)
    return None if row is None else StoredDefault(**dict(row))


async def set_default(
    session: DatabaseSession, actor: UserActor, micros: int | None, period: Period
) -> StoredDefault:
    require_permission(actor, "config.write")
    row = await session.fetchrow(SET_DEFAULT, micros, period, actor.user_id)
    assert row is not None
    detail = {"spend_limit_micros": micros, "period": period}
    await _finish(session, actor, "spend_limit.set_default", "default", detail)
    return StoredDefault(**dict(row))


async def delete_default(session: DatabaseSession, actor: UserActor) -> None:
    """Delete the stored default: that of the settings applies again."""
    require_permission(actor, "config.write")
    await session.execute(DELETE_DEFAULT)
    await _finish(session, actor, "spend_limit.delete_default", "default", {})


async def list_users(
    conn: Conn, actor: Actor, *, after: str = "", limit: int
) -> Sequence[UserLimit]:
    require_permission(actor, "config.read")
    return [UserLimit(**dict(row)) for row in await conn.fetch(LIST_USERS, after.lower(), limit)]


async def set_user(
    session: DatabaseSession, actor: UserActor, user_id: UserId, micros: int
) -> UserLimit:
    """Raises NotFound."""
    require_permission(actor, "config.write")
    row = await session.fetchrow(SET_USER, user_id, micros)
    if row is None:
        raise NotFound("There is no such user.")
    await _finish(session, actor, "spend_limit.set_user", user_id, {"spend_limit_micros": micros})
    return UserLimit(**dict(row))


async def delete_user(session: DatabaseSession, actor: UserActor, user_id: UserId) -> None:
    """Raises NotFound."""
    require_permission(actor, "config.write")
    if (await session.execute(DELETE_USER, user_id)).endswith(" 0"):
        raise NotFound("The user has no spend limit of its own.")
    await _finish(session, actor, "spend_limit.delete_user", user_id, {})


async def list_groups(
    conn: Conn, actor: Actor, *, after: str = "", limit: int
) -> Sequence[GroupLimit]:
    require_permission(actor, "config.read")
    return [GroupLimit(**dict(row)) for row in await conn.fetch(LIST_GROUPS, after.lower(), limit)]


async def set_group(
    session: DatabaseSession, actor: UserActor, group_id: GroupId, micros: int
) -> GroupLimit:
    """Raises NotFound."""
    require_permission(actor, "config.write")
    row = await session.fetchrow(SET_GROUP, group_id, micros)
    if row is None:
        raise NotFound("There is no such group.")
    await _finish(session, actor, "spend_limit.set_group", group_id, {"spend_limit_micros": micros})
    return GroupLimit(**dict(row))


async def delete_group(session: DatabaseSession, actor: UserActor, group_id: GroupId) -> None:
    """Raises NotFound."""
    require_permission(actor, "config.write")
    if (await session.execute(DELETE_GROUP, group_id)).endswith(" 0"):
        raise NotFound("The group has no spend limit.")
    await _finish(session, actor, "spend_limit.delete_group", group_id, {})


async def _finish(
    session: DatabaseSession,
    actor: UserActor,
    action: str,
    object_id: UUID | str,
    detail: Mapping[str, object],
) -> None:
    await audit.record(
        session,
        actor,
        action=action,
        object_type="spend_limit",
        object_id=object_id,
        detail=detail,
    )
    await notifications.publish(session, ConfigChange(kind="limit", id=str(object_id)))
