"""Usage events: insert them, roll them up by day, and sum those of a chat's tree.

A step's commit only appends an event, so chats of one owner do not contend for a row. The roll-up
takes events older than the longest statement, so no event is inserted behind it. A sum
(`store.spend`, `store.costs`) is the rolled-up days plus the events since.
"""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.messages import UsageEntry
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, UserId
from chatd.store.conn import Conn, json_or_none

ROLL_UP: Final[LiteralString] = """
    WITH was AS MATERIALIZED (
        SELECT until FROM usage_rolled_up LIMIT 1 FOR UPDATE),
    span AS MATERIALIZED (
        SELECT was.until AS since, least(now() - $1::float8 * interval '1 s',
            (SELECT min(at) FROM usage_events WHERE at >= was.until)
                + $2::float8 * interval '1 s') AS until
        FROM was),
    moved AS (
        UPDATE usage_rolled_up r SET until = span.until FROM span
        WHERE r.one AND span.until > span.since RETURNING span.since, span.until),
    added AS (
        INSERT INTO usage_daily AS d (owner_id, day, provider, model, calls, unpriced_calls,
            input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens,
            cache_read_tokens, cost_micros)
        SELECT e.owner_id, (e.at AT TIME ZONE 'UTC')::date, e.provider, e.model, count(*),
            count(*) FILTER (WHERE e.cost_micros IS NULL), sum(e.input_tokens),
            sum(e.output_tokens), sum(e.reasoning_tokens), sum(e.cache_creation_tokens),
            sum(e.cache_read_tokens), coalesce(sum(e.cost_micros), 0)
        FROM usage_events e, moved m
        WHERE e.at >= m.since AND e.at < m.until
        GROUP BY 1, 2, 3, 4
        ON CONFLICT (owner_id, day, provider, model) DO UPDATE SET
            calls = d.calls + excluded.calls,
            unpriced_calls = d.unpriced_calls + excluded.unpriced_calls,
            input_tokens = d.input_tokens + excluded.input_tokens,
            output_tokens = d.output_tokens + excluded.output_tokens,
            reasoning_tokens = d.reasoning_tokens + excluded.reasoning_tokens,
            cache_creation_tokens = d.cache_creation_tokens + excluded.cache_creation_tokens,
            cache_read_tokens = d.cache_read_tokens + excluded.cache_read_tokens,
            cost_micros = d.cost_micros + excluded.cost_micros)
    SELECT coalesce((SELECT until FROM moved) < now() - $1::float8 * interval '1 s', false)"""

SUM_TREE_COST: Final[LiteralString] = """
    SELECT count(*) AS calls, count(*) FILTER (WHERE cost_micros IS NULL) AS unpriced_calls,
        count(*) FILTER (WHERE estimated) AS estimated_calls,
        coalesce(sum(cost_micros), 0)::bigint AS cost_micros
    FROM usage_events WHERE root_chat_id = $1"""

# For calls outside a step, such as the one for a title. Never before the end of the roll-up. The
# worker of a call replaces an estimate of another worker, until the roll-up may be reading it.
INSERT_USAGE: Final[LiteralString] = """
    WITH closed AS (
        DELETE FROM open_calls WHERE call_id = $19)
    INSERT INTO usage_events AS e (at, owner_id, chat_id, root_chat_id, kind, model_config_id,
        provider, model, input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens,
        cache_read_tokens, cost_micros, price, runtime_ms, ok, web_searches, estimated, call_id)
    SELECT greatest(now(), (SELECT until FROM usage_rolled_up)), $1, $2, $3, $4, $5, $6, $7, $8,
        $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19
    ON CONFLICT (call_id) WHERE call_id IS NOT NULL DO UPDATE SET
        input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
        reasoning_tokens = excluded.reasoning_tokens,
        cache_creation_tokens = excluded.cache_creation_tokens,
        cache_read_tokens = excluded.cache_read_tokens, cost_micros = excluded.cost_micros,
        price = excluded.price, runtime_ms = excluded.runtime_ms, ok = excluded.ok,
        web_searches = excluded.web_searches, estimated = excluded.estimated
    WHERE $20 AND e.estimated AND e.at >= (SELECT until FROM usage_rolled_up)
      AND e.at > now() - $21::float8 * interval '1 s'"""

_ROLL_UP_MIN_AGE_S: Final = 300.0
_MAX_CORRECTION_AGE_S: Final = 200.0
"""A roll-up that began before the correction does not read younger events."""
_MAX_ROLL_UP_SPAN_S: Final = 86_400.0


class Payer(Struct, frozen=True, kw_only=True):
    """The chat of a call, its tree and its owner."""

    owner_id: UserId
    chat_id: ChatId
    root_chat_id: ChatId

    @classmethod
    def of(cls, chat: Chat) -> "Payer":
        return cls(owner_id=chat.owner_id, chat_id=chat.id, root_chat_id=chat.root_chat_id)


class TreeCost(Struct, frozen=True, kw_only=True):
    calls: int
    unpriced_calls: int
    estimated_calls: int
    cost_micros: int


async def roll_up(conn: Conn, *, min_age_s: float = _ROLL_UP_MIN_AGE_S) -> bool:
    """Roll up at most one day of events; True if more are left."""
    return bool(await conn.fetchval(ROLL_UP, min_age_s, _MAX_ROLL_UP_SPAN_S))


async def insert_usage(
    conn: Conn, payer: Payer, entry: UsageEntry, *, corrects: bool = True
) -> bool:
    """A call that is recorded already is not recorded again. With `corrects` the entry replaces an
    estimate. False if nothing was written."""
    tokens = entry.usage
    status = await conn.execute(
        INSERT_USAGE,
        payer.owner_id,
        payer.chat_id,
        payer.root_chat_id,
        entry.kind,
        entry.model_config_id,
        entry.provider,
        entry.model,
        tokens.input_tokens,
        tokens.output_tokens,
        tokens.reasoning_tokens,
        tokens.cache_creation_tokens,
        tokens.cache_read_tokens,
        entry.cost_micros,
        json_or_none(entry.price),
        entry.runtime_ms,
        entry.ok,
        tokens.web_searches,
        tokens.estimated,
        entry.call_id,
        corrects,
        _MAX_CORRECTION_AGE_S,
    )
    return status != "INSERT 0 0"


async def tree_cost(conn: Conn, root: ChatId) -> TreeCost:
    row = await conn.fetchrow(SUM_TREE_COST, root)
    assert row is not None  # an aggregate has one row
    return TreeCost(**dict(row))
