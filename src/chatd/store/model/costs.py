"""Costs: sums of usage by user, model, chat tree and day over a range of days.

Days are of UTC, and a range ends before its last day. The sums by day, model and user are the
rolled-up days and the events since; those by chat come from the events, which retention deletes
after a while.
"""

from collections.abc import Sequence
from datetime import date
from typing import Final, LiteralString, TypeVar

from msgspec import Struct

from chatd.aio import run_other_tasks
from chatd.domain.access.permissions import Actor, UserActor, has_permission, require_permission
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChatId, UserId
from chatd.store.database.conn import Conn, Row

_SUMS: Final[LiteralString] = """
    sum(c.calls)::bigint AS calls, sum(c.unpriced_calls)::bigint AS unpriced_calls,
    sum(c.input_tokens)::bigint AS input_tokens, sum(c.output_tokens)::bigint AS output_tokens,
    sum(c.cache_read_tokens)::bigint AS cache_read_tokens,
    sum(c.cache_creation_tokens)::bigint AS cache_creation_tokens,
    sum(c.cost_micros)::bigint AS cost_micros"""

_COUNTS: Final[LiteralString] = """1 AS calls,
    (e.cost_micros IS NULL)::int AS unpriced_calls, e.input_tokens, e.output_tokens,
    e.cache_read_tokens, e.cache_creation_tokens, coalesce(e.cost_micros, 0) AS cost_micros"""

_EVENT: Final[LiteralString] = f"""
    SELECT e.owner_id, (e.at AT TIME ZONE 'UTC')::date AS day, e.provider, e.model, {_COUNTS}
    FROM usage_events e"""

# The roll-up ends at usage_rolled_up.until: later events are not in usage_daily.
_CALLS_OF_USER: Final[LiteralString] = f"""
    calls AS (
        SELECT owner_id, day, provider, model, calls, unpriced_calls, input_tokens, output_tokens,
            cache_read_tokens, cache_creation_tokens, cost_micros
        FROM usage_daily WHERE owner_id = $1 AND day >= $2 AND day < $3
        UNION ALL
        {_EVENT}
        WHERE e.owner_id = $1 AND e.at < $3::timestamp AT TIME ZONE 'UTC'
          AND e.at >= greatest($2::timestamp AT TIME ZONE 'UTC',
                               (SELECT until FROM usage_rolled_up)))"""
_CALLS_OF_ALL: Final[LiteralString] = f"""
    calls AS (
        SELECT owner_id, day, provider, model, calls, unpriced_calls, input_tokens, output_tokens,
            cache_read_tokens, cache_creation_tokens, cost_micros
        FROM usage_daily WHERE day >= $1 AND day < $2
        UNION ALL
        {_EVENT}
        WHERE e.at < $2::timestamp AT TIME ZONE 'UTC'
          AND e.at >= greatest($1::timestamp AT TIME ZONE 'UTC',
                               (SELECT until FROM usage_rolled_up)))"""

BY_MODEL: Final[LiteralString] = f"""
    WITH {_CALLS_OF_USER}
    SELECT c.provider, c.model, {_SUMS} FROM calls c GROUP BY 1, 2
    ORDER BY cost_micros DESC, 1, 2 LIMIT 1000"""
BY_DAY: Final[LiteralString] = f"""
    WITH {_CALLS_OF_USER} SELECT c.day, {_SUMS} FROM calls c GROUP BY 1 ORDER BY 1"""
# The newest days first, so that a cut leaves the oldest out.
BY_DAY_AND_MODEL: Final[LiteralString] = f"""
    WITH {_CALLS_OF_USER}
    SELECT c.day, c.provider, c.model, {_SUMS} FROM calls c GROUP BY 1, 2, 3
    ORDER BY 1 DESC, cost_micros DESC, 2, 3 LIMIT $4"""
ALL_BY_DAY_AND_MODEL: Final[LiteralString] = f"""
    WITH {_CALLS_OF_ALL}
    SELECT c.day, c.provider, c.model, {_SUMS} FROM calls c GROUP BY 1, 2, 3
    ORDER BY 1 DESC, cost_micros DESC, 2, 3 LIMIT $3"""
ALL_BY_MODEL: Final[LiteralString] = f"""
    WITH {_CALLS_OF_ALL}
    SELECT c.provider, c.model, {_SUMS} FROM calls c GROUP BY 1, 2
    ORDER BY cost_micros DESC, 1, 2 LIMIT 1000"""
BY_CHAT: Final[LiteralString] = f"""
    WITH calls AS (
        SELECT e.root_chat_id, {_COUNTS} FROM usage_events e
        WHERE e.owner_id = $1 AND e.at >= $2::timestamp AT TIME ZONE 'UTC'
          AND e.at < $3::timestamp AT TIME ZONE 'UTC'),
    trees AS (
        SELECT c.root_chat_id, {_SUMS} FROM calls c GROUP BY 1
        ORDER BY cost_micros DESC, 1 LIMIT $4)
    SELECT t.*, (SELECT r.title FROM chats r
                 WHERE r.id = t.root_chat_id AND r.deleted_at IS NULL) AS chat_title
    FROM trees t ORDER BY t.cost_micros DESC, t.root_chat_id"""

# $3 is a part of a name, in lower case. The sums are made before the page is cut.
BY_USER: Final[LiteralString] = f"""
    WITH {_CALLS_OF_ALL},
    owners AS (SELECT c.owner_id, {_SUMS} FROM calls c GROUP BY 1)
    SELECT o.owner_id AS user_id, o.calls, o.unpriced_calls, o.input_tokens, o.output_tokens,
        o.cache_read_tokens, o.cache_creation_tokens, o.cost_micros, u.username, u.name,
        u.avatar_url
    FROM owners o JOIN users u ON u.id = o.owner_id
    WHERE ($3 = '' OR strpos(lower(u.username || ' ' || u.name), $3) > 0)
      AND ($4::bigint IS NULL OR (o.cost_micros, o.owner_id) < ($4, $5::uuid))
    ORDER BY o.cost_micros DESC, o.owner_id DESC LIMIT $6"""

EXPORT: Final[LiteralString] = f"""
    WITH {_CALLS_OF_ALL}
    SELECT c.day, c.owner_id AS user_id, u.username,
        coalesce((SELECT string_agg(g.name, ';' ORDER BY lower(g.name)) FROM group_members m
                  JOIN groups g ON g.id = m.group_id WHERE m.user_id = c.owner_id), '') AS groups,
        c.provider, c.model, {_SUMS}
    FROM calls c JOIN users u ON u.id = c.owner_id
    GROUP BY c.day, c.owner_id, u.username, c.provider, c.model
    ORDER BY c.day, lower(u.username), c.owner_id, c.provider, c.model LIMIT $3"""

FIND_USER: Final[LiteralString] = "SELECT EXISTS (SELECT FROM users WHERE id = $1)"

MAX_CHATS_SUMMED: Final = 200
MAX_DAYS_AND_MODELS: Final = 5000
MAX_EXPORTED_ROWS: Final = 100_000
ROWS_PER_SLICE: Final = 500
"""Rows of an export between pauses in which other tasks run."""


class CostSums(Struct, frozen=True, kw_only=True):
    calls: int = 0
    unpriced_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    cost_micros: int = 0


C = TypeVar("C", bound=CostSums)


class ModelCost(CostSums, frozen=True, kw_only=True):
    provider: str
    model: str


class DayCost(CostSums, frozen=True, kw_only=True):
    day: date


class DayModelCost(CostSums, frozen=True, kw_only=True):
    day: date
    provider: str
    model: str


class ChatCost(CostSums, frozen=True, kw_only=True):
    """`chat_title` is None for a chat that was deleted."""

    root_chat_id: ChatId
    chat_title: str | None


class UserCost(CostSums, frozen=True, kw_only=True):
    user_id: UserId
    username: str
    name: str
    avatar_url: str | None


class ExportedCost(CostSums, frozen=True, kw_only=True):
    day: date
    user_id: UserId
    username: str
    groups: str
    provider: str
    model: str


class DayRange(Struct, frozen=True, kw_only=True):
    """From `start` up to, but not including, `end`."""

    start: date
    end: date


async def require_readable(conn: Conn, actor: UserActor, user_id: UserId) -> None:
    """A user reads its own costs, and with the permission `costs.read` those of all users. Raises
    NotFound, also for a user that the actor may not read."""
    if actor.user_id == user_id:
        require_permission(actor, "account.read")
        return
    is_known = await conn.fetchval(FIND_USER, user_id)
    if not is_known or not has_permission(actor, "costs.read"):
        raise NotFound("There is no such user.")


async def by_model(conn: Conn, user_id: UserId, days: DayRange) -> Sequence[ModelCost]:
    return [
        _of(ModelCost, row) for row in await conn.fetch(BY_MODEL, user_id, days.start, days.end)
    ]


async def by_day(conn: Conn, user_id: UserId, days: DayRange) -> Sequence[DayCost]:
    return [_of(DayCost, row) for row in await conn.fetch(BY_DAY, user_id, days.start, days.end)]


async def by_day_and_model(conn: Conn, user_id: UserId, days: DayRange) -> Sequence[DayModelCost]:
    """At most `MAX_DAYS_AND_MODELS`, the newest days first."""
    rows = await conn.fetch(BY_DAY_AND_MODEL, user_id, days.start, days.end, MAX_DAYS_AND_MODELS)
    return [_of(DayModelCost, row) for row in rows]


async def all_by_day_and_model(conn: Conn, actor: Actor, days: DayRange) -> Sequence[DayModelCost]:
    """Sums of all users. At most `MAX_DAYS_AND_MODELS`, the newest days first."""
    require_permission(actor, "costs.read")
    rows = await conn.fetch(ALL_BY_DAY_AND_MODEL, days.start, days.end, MAX_DAYS_AND_MODELS)
    return [_of(DayModelCost, row) for row in rows]


async def all_by_model(conn: Conn, actor: Actor, days: DayRange) -> Sequence[ModelCost]:
    """Sums of all users."""
    require_permission(actor, "costs.read")
    return [_of(ModelCost, row) for row in await conn.fetch(ALL_BY_MODEL, days.start, days.end)]


async def by_chat(conn: Conn, user_id: UserId, days: DayRange) -> Sequence[ChatCost]:
    """The most expensive trees."""
    rows = await conn.fetch(BY_CHAT, user_id, days.start, days.end, MAX_CHATS_SUMMED)
    return [_of(ChatCost, row) for row in rows]


async def by_user(
    conn: Conn,
    actor: Actor,
    days: DayRange,
    *,
    name_contains: str = "",
    after: tuple[int, UserId] | None = None,
    limit: int,
) -> Sequence[UserCost]:
    require_permission(actor, "costs.read")
    cost, user_id = (None, None) if after is None else after
    rows = await conn.fetch(
        BY_USER, days.start, days.end, name_contains.lower(), cost, user_id, limit
    )
    return [_of(UserCost, row) for row in rows]


async def export(conn: Conn, actor: Actor, days: DayRange) -> Sequence[ExportedCost]:
    """One row for each day, user and model; at most `MAX_EXPORTED_ROWS` and one more."""
    require_permission(actor, "costs.read")
    rows = await conn.fetch(EXPORT, days.start, days.end, MAX_EXPORTED_ROWS + 1)
    found: list[ExportedCost] = []
    for start in range(0, len(rows), ROWS_PER_SLICE):
        found += [_of(ExportedCost, row) for row in rows[start : start + ROWS_PER_SLICE]]
        await run_other_tasks()
    return found


def _of(kind: type[C], row: Row) -> C:
    return kind(**dict(row))
