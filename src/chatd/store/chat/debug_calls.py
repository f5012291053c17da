"""Debug records of model calls: written behind. Those with whom a chat is shared do not read them:
they contain the prompts of its owner."""

from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.access.permissions import Actor
from chatd.domain.answer.debug_calls import DebugCall, DebugDocument, DebugKind
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.ids import ChatId, MessageId, ModelConfigId
from chatd.store.conn import Conn, Row, json_or_none, strip_unstorable
from chatd.store.errors import MissingReference
from chatd.store.row_access import chat_condition, chat_reach

DEBUG_CALLS_KEPT_PER_CHAT: Final = 200
MAX_DEBUG_CALLS_PER_DELETE: Final = 500

_USAGE = msgspec.json.Decoder(TokenUsage)

INSERT: Final[LiteralString] = """
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

_COLUMNS: Final[LiteralString] = """
    d.id, d.kind, d.model_config_id, d.provider, d.model, d.attempt, d.history_version,
    d.turn_message_id, d.started_at, d.duration_ms, d.first_part_ms, d.error, d.error_kind,
    d.status_code, d.finish_reason, d.usage, d.is_cut"""

LIST: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, NULL AS request, NULL AS response
    FROM debug_calls d JOIN chats c ON c.id = d.chat_id
    WHERE d.chat_id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}
      AND ($4::timestamptz IS NULL OR (d.started_at, d.id) < ($4, $5::uuid))
    ORDER BY d.started_at DESC, d.id DESC LIMIT $6"""

GET: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, d.request, d.response FROM debug_calls d JOIN chats c ON c.id = d.chat_id
    WHERE d.id = $4 AND d.chat_id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}"""

DELETE_OLD: Final[LiteralString] = """
    DELETE FROM debug_calls WHERE id IN (
        SELECT id FROM debug_calls WHERE started_at < now() - $1::interval
        ORDER BY started_at LIMIT $2 FOR UPDATE SKIP LOCKED)"""


class StoredDebugCall(Struct, frozen=True, kw_only=True):
    """Without `request` and `response` in a list."""

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


async def insert(conn: Conn, call: DebugCall, document: DebugDocument) -> None:
    """Nothing for a chat that was deleted meanwhile. Twice writes once."""
    finished = call.answer.finished
    error = None if call.error is None else strip_unstorable(call.error)
    try:
        await conn.execute(
            INSERT,
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


async def list_of_chat(
    conn: Conn, actor: Actor, chat_id: ChatId, before: DebugCallPosition | None, *, limit: int
) -> list[StoredDebugCall]:
    """Newest first. Empty for a chat whose records the actor may not read."""
    at, last = before or (None, None)
    reach = chat_reach(actor, "debug.read")
    return [_stored(row) for row in await conn.fetch(LIST, chat_id, *reach, at, last, limit)]


async def get(conn: Conn, actor: Actor, chat_id: ChatId, call_id: UUID) -> StoredDebugCall | None:
    """None also for a chat whose records the actor may not read."""
    row = await conn.fetchrow(GET, chat_id, *chat_reach(actor, "debug.read"), call_id)
    return None if row is None else _stored(row)


async def delete_old(conn: Conn, after: timedelta) -> int:
    """Delete some records older than `after`; call again until it returns 0."""
    status = await conn.execute(DELETE_OLD, after, MAX_DEBUG_CALLS_PER_DELETE)
    return int(status.rpartition(" ")[2])


def _stored(row: Row) -> StoredDebugCall:
    columns = dict(row)
    for name in ("request", "response"):
        columns[name] = None if columns[name] is None else Raw(columns[name].encode())
    usage = columns["usage"]
    columns["usage"] = TokenUsage() if usage is None else _USAGE.decode(usage)
    return StoredDebugCall(**columns)
