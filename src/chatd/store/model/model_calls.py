"""Model calls: open calls before they are sent, usage events when they are paid, sums per day, and
debug records.

A step's commit only appends an event, so chats of one owner do not contend for a row. The roll-up
takes events older than the longest statement, so no event is inserted behind it. A sum
(`store.model.spend`, `store.model.costs`) is the rolled-up days plus the events since.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.access.permissions import Actor
from chatd.domain.answer.debug_calls import DebugCall, DebugDocument, DebugKind
from chatd.domain.chat.messages import TokenUsage, UsageEntry
from chatd.domain.chat.row import Chat, Episode
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, UserId, WorkerId
from chatd.store.database.conn import (
    Conn,
    MissingReference,
    Row,
    json_or_none,
    json_text,
    strip_unstorable,
)
from chatd.store.database.row_access import chat_condition, chat_reach

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
    """Record a call once, however often it is called. With `corrects` the entry replaces an
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


# Open calls: model calls without recorded usage.
#
# A row is written before the request is sent, so that the call of a worker that dies is found.
# `sent` says whether the request may have been sent. The statement that records the usage deletes
# the row.

# The driver looks up the types of arrays in every new session, and those of JSON never.
WRITE_OPEN_CALLS: Final[LiteralString] = """
    WITH discarded AS (
        DELETE FROM open_calls o
        WHERE o.call_id IN (SELECT json_array_elements_text($2::json)::uuid))
    INSERT INTO open_calls (call_id, owner_id, chat_id, root_chat_id, worker_id, epoch,
        history_version, attempt, reserved_micros, record, sent)
    SELECT c.id, c.owner_id, c.chat_id, c.root_chat_id, c.worker_id, c.epoch, c.history_version,
        c.attempt, c.reserved_micros, c.record, c.sent
    FROM json_to_recordset($1::json) AS c (id uuid, owner_id uuid, chat_id uuid,
        root_chat_id uuid, worker_id uuid, epoch bigint, history_version bigint, attempt integer,
        reserved_micros bigint, record json, sent boolean)
    ON CONFLICT (call_id) DO UPDATE SET sent = true WHERE excluded.sent AND NOT open_calls.sent"""

FORGET_UNSENT: Final[LiteralString] = """
    DELETE FROM open_calls WHERE call_id = $1 AND NOT sent RETURNING call_id"""

_COLUMNS: Final[LiteralString] = """call_id, owner_id, chat_id, root_chat_id, worker_id, epoch,
    history_version, attempt, reserved_micros, record, sent"""

LIST_OF_CHAT: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM open_calls
    WHERE root_chat_id = $1 AND chat_id = $2 AND epoch < $3 LIMIT $4"""

LIST_OF_WORKERS: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM open_calls WHERE worker_id = ANY ($1::uuid[]) LIMIT $2"""

# A worker that stopped in good order may still be writing its usage.
LIST_ABANDONED: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM open_calls o
    WHERE o.at < now() - interval '1 day' OR o.at < now() - interval '30 s'
        AND NOT EXISTS (SELECT FROM chat_workers w WHERE w.worker_id = o.worker_id) LIMIT $1"""

# A record of another version that no replica has read: its reservation must not count for ever.
GIVE_UP: Final[LiteralString] = """
    DELETE FROM open_calls WHERE at < now() - interval '2 days' RETURNING chat_id"""

MAX_CALLS_LISTED: Final = 1_000


class OpenCall(Struct, frozen=True, kw_only=True):
    """`record` is an encoded `StartedCall`. `reserved_micros` is what the call costs at least.
    `sent`: the request may have been sent."""

    id: UUID
    owner_id: UserId
    chat_id: ChatId
    root_chat_id: ChatId
    worker_id: WorkerId
    epoch: int
    history_version: int
    attempt: int
    reserved_micros: int | None
    record: Raw
    sent: bool = True

    @property
    def episode(self) -> Episode:
        return Episode(self.chat_id, self.history_version, self.attempt)


async def forget_unsent(conn: Conn, call_id: UUID) -> bool:
    """False if the call was sent since it was read, or is settled."""
    return await conn.fetchval(FORGET_UNSENT, call_id) is not None


async def write_open_calls(
    conn: Conn, opened: Sequence[OpenCall], discarded: Sequence[UUID]
) -> None:
    """Write the rows of calls that are about to be sent, and delete those of calls that were not.
    Writing a row again only marks it as sent."""
    await conn.execute(WRITE_OPEN_CALLS, json_text(opened), json_text(discarded))


async def list_before(conn: Conn, chat: Chat) -> list[OpenCall]:
    """The open calls of the chat's earlier owners."""
    rows = await conn.fetch(LIST_OF_CHAT, chat.root_chat_id, chat.id, chat.epoch, MAX_CALLS_LISTED)
    return [_open_call(row) for row in rows]


async def list_of_workers(conn: Conn, workers: Sequence[WorkerId]) -> list[OpenCall]:
    rows = await conn.fetch(LIST_OF_WORKERS, list(workers), MAX_CALLS_LISTED)
    return [_open_call(row) for row in rows]


async def list_abandoned(conn: Conn) -> list[OpenCall]:
    """Calls of workers that are gone, and calls older than any call can be."""
    return [_open_call(row) for row in await conn.fetch(LIST_ABANDONED, MAX_CALLS_LISTED)]


async def give_up(conn: Conn) -> list[ChatId]:
    """Delete the calls that could not be recorded for two days. The chats of these calls."""
    return [ChatId(row["chat_id"]) for row in await conn.fetch(GIVE_UP)]


def _open_call(row: Row) -> OpenCall:
    return OpenCall(
        id=row["call_id"],
        owner_id=row["owner_id"],
        chat_id=row["chat_id"],
        root_chat_id=row["root_chat_id"],
        worker_id=row["worker_id"],
        epoch=row["epoch"],
        history_version=row["history_version"],
        attempt=row["attempt"],
        reserved_micros=row["reserved_micros"],
        record=Raw(row["record"]),
        sent=row["sent"],
    )


# Debug records of model calls: written behind. Those with whom a chat is shared do not read them:
# they contain the prompts of its owner.

DEBUG_CALLS_KEPT_PER_CHAT: Final = 200
MAX_DEBUG_CALLS_PER_DELETE: Final = 500

_USAGE = msgspec.json.Decoder(TokenUsage)

INSERT_DEBUG_CALL: Final[LiteralString] = """
    WITH trimmed AS (
        DELETE FROM debug_calls WHERE id IN (
            SELECT id FROM debug_calls WHERE chat_id = $2
            ORDER BY started_at DESC, id DESC OFFSET $18::bigint - 1))
    INSERT INTO debug_calls (id, chat_id, kind, model_config_id, provider, model, attempt,
        history_version, turn_message_id, started_at, duration_ms, first_part_ms, error,
        error_kind, status_code, finish_reason, usage, request, response, is_cut)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $19, $20,
        $21)
    ON CONFLICT (id) DO NOTHING"""

_DEBUG_COLUMNS: Final[LiteralString] = """
    d.id, d.kind, d.model_config_id, d.provider, d.model, d.attempt, d.history_version,
    d.turn_message_id, d.started_at, d.duration_ms, d.first_part_ms, d.error, d.error_kind,
    d.status_code, d.finish_reason, d.usage, d.is_cut"""

LIST_DEBUG_CALLS: Final[LiteralString] = f"""
    SELECT {_DEBUG_COLUMNS}, NULL AS request, NULL AS response
    FROM debug_calls d JOIN chats c ON c.id = d.chat_id
    WHERE d.chat_id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}
      AND ($4::timestamptz IS NULL OR (d.started_at, d.id) < ($4, $5::uuid))
    ORDER BY d.started_at DESC, d.id DESC LIMIT $6"""

GET_DEBUG_CALL: Final[LiteralString] = f"""
    SELECT {_DEBUG_COLUMNS}, d.request, d.response
    FROM debug_calls d JOIN chats c ON c.id = d.chat_id
    WHERE d.id = $4 AND d.chat_id = $1 AND c.deleted_at IS NULL
      AND {chat_condition("$2", "$3")}"""

DELETE_OLD_DEBUG_CALLS: Final[LiteralString] = """
    DELETE FROM debug_calls WHERE id IN (
        SELECT id FROM debug_calls WHERE started_at < now() - $1::interval
        ORDER BY started_at LIMIT $2 FOR UPDATE SKIP LOCKED)"""


class StoredDebugCall(Struct, frozen=True, kw_only=True):
    """A debug record; lists leave out `request` and `response`."""

    id: UUID
    kind: DebugKind
    model_config_id: ModelConfigId | None
    provider: str
    model: str
    attempt: int
    history_version: int
    turn_message_id: MessageId | None
    started_at: datetime
    duration_ms: int
    first_part_ms: int | None
    error: str | None
    error_kind: str | None
    status_code: int | None
    finish_reason: str | None
    usage: TokenUsage
    is_cut: bool
    request: Raw | None
    response: Raw | None


DebugCallPosition = tuple[datetime, UUID]


async def insert_debug_call(conn: Conn, call: DebugCall, document: DebugDocument) -> None:
    """Writes nothing for a chat that has been deleted. Writing twice stores one record."""
    finished = call.answer.finished
    error = None if call.error is None else strip_unstorable(call.error)
    try:
        await conn.execute(
            INSERT_DEBUG_CALL,
            call.id,
            call.chat_id,
            call.kind,
            call.model_config_id,
            call.provider,
            call.model,
            call.attempt,
            call.history_version,
            call.turn_message_id,
            call.started_at,
            call.duration_ms,
            call.first_part_ms,
            error,
            call.error_kind,
            call.status_code,
            None if finished is None else finished.reason,
            json_or_none(call.answer.usage),
            DEBUG_CALLS_KEPT_PER_CHAT,
            document.request,
            document.response,
            document.is_cut,
        )
    except MissingReference:
        return


async def list_debug_calls(
    conn: Conn, actor: Actor, chat_id: ChatId, before: DebugCallPosition | None, *, limit: int
) -> list[StoredDebugCall]:
    """Newest first. Empty for a chat whose records the actor may not read."""
    at, last = before or (None, None)
    reach = chat_reach(actor, "debug.read")
    return [
        _stored(row) for row in await conn.fetch(LIST_DEBUG_CALLS, chat_id, *reach, at, last, limit)
    ]


async def get_debug_call(
    conn: Conn, actor: Actor, chat_id: ChatId, call_id: UUID
) -> StoredDebugCall | None:
    """None also for a chat whose records the actor may not read."""
    row = await conn.fetchrow(GET_DEBUG_CALL, chat_id, *chat_reach(actor, "debug.read"), call_id)
    return None if row is None else _stored(row)


async def delete_old_debug_calls(conn: Conn, after: timedelta) -> int:
    """Delete some records older than `after`; call again until it returns 0."""
    status = await conn.execute(DELETE_OLD_DEBUG_CALLS, after, MAX_DEBUG_CALLS_PER_DELETE)
    return int(status.rpartition(" ")[2])


def _stored(row: Row) -> StoredDebugCall:
    columns = dict(row)
    for name in ("request", "response"):
        columns[name] = None if columns[name] is None else Raw(columns[name].encode())
    usage = columns["usage"]
    columns["usage"] = TokenUsage() if usage is None else _USAGE.decode(usage)
    return StoredDebugCall(**columns)
