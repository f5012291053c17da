"""Messages and queued messages as they are stored: columns, values, and the history of a prompt."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.aio import run_other_tasks
from chatd.domain.access.permissions import Actor, WorkerActor
from chatd.domain.chat.change import AppendedMessage, Change
from chatd.domain.chat.messages import (
    Message,
    QueuedMessage,
    Role,
    TokenUsage,
    Visibility,
    decode_parts,
)
from chatd.domain.ids import ChatId
from chatd.domain.tool_modes import ModeChoice
from chatd.domain.tool_policy.rules import PolicyLayer
from chatd.store.database.conn import Conn, Row
from chatd.store.database.row_access import chat_condition, chat_reach
from chatd.store.deployment.tool_policies import layers_of, read_layers


class _Stored(Struct, frozen=True, kw_only=True):
    """A message or queued message from a JSON column, its content not yet decoded."""

    id: int
    content: Raw
    content_version: int
    model_config_id: UUID | None
    reasoning_effort: str | None
    created_by: UUID | None


class _StoredMessage(_Stored, frozen=True, kw_only=True):
    revision: int
    role: Role
    visibility: Visibility
    compressed: bool
    deleted: bool
    usage: TokenUsage | None
    cost_micros: int | None
    runtime_ms: int | None
    provider_response_id: str | None
    finish_reason: str | None
    created_at: datetime


class _StoredQueued(_Stored, frozen=True, kw_only=True):
    mode: ModeChoice | None
    position: int
    steer: bool
    created_at: datetime


_USAGE = msgspec.json.Decoder(TokenUsage)


_PROMOTED = msgspec.json.Decoder(tuple[_Stored, ...])


_MESSAGES = msgspec.json.Decoder(tuple[_StoredMessage, ...])


_QUEUED = msgspec.json.Decoder(tuple[_StoredQueued, ...])


MESSAGE_COLUMNS: Final = """
    id, revision, role, visibility, content, content_version, compressed, deleted,
    model_config_id, reasoning_effort, created_by, usage, cost_micros, runtime_ms,
    provider_response_id, finish_reason, created_at"""


QUEUE_COLUMNS: Final = """
    id, position, steer, content, content_version, model_config_id, reasoning_effort, mode,
    created_by, created_at"""


# Of one read: a chat may be larger than the memory of a process or one value of PostgreSQL.
MAX_READ_BYTES: Final = 16 * 1024 * 1024


MAX_HISTORY_BYTES: Final = 64 * 1024 * 1024
"""Limit for one chat in the memory of its worker. Older messages are not sent."""

DECODED_SLICE_CHARS: Final = 256 * 1024
_ROW_OVERHEAD_CHARS: Final = 512


def take_within_bytes(
    rows: LiteralString, *, order: LiteralString, max_bytes: LiteralString
) -> LiteralString:
    """SQL for the first of these messages up to `max_bytes`, and for the count of all."""
    return f"""(
        SELECT json_agg(s ORDER BY {order}) FILTER (WHERE ahead < {max_bytes}) AS messages,
            count(*) AS found
        FROM (SELECT *, sum(octet_length(content::text)) OVER (ORDER BY {order})
                  - octet_length(content::text) AS ahead
            FROM ({rows}) r) s)"""


def message_from_row(row: Row) -> Message:
    columns = dict(row)
    columns.pop("layers", None)
    usage: str | None = columns["usage"]
    columns.update(
        content=decode_parts(columns["content"]),
        usage=None if usage is None else _USAGE.decode(usage),
    )
    return Message(**columns)


def messages_from_json(text: str | None) -> tuple[Message, ...]:
    if text is None:
        return ()
    return tuple(Message(**_fields(stored)) for stored in _MESSAGES.decode(text))


def queue_from_json(text: str | None) -> tuple[QueuedMessage, ...]:
    if text is None:
        return ()
    return tuple(_queued(stored) for stored in _QUEUED.decode(text))


def _queued(stored: _StoredQueued) -> QueuedMessage:
    fields = _fields(stored)
    del fields["content_version"]
    return QueuedMessage(**fields)


def _fields(stored: _Stored) -> dict[str, Any]:
    fields = msgspec.structs.asdict(stored)
    fields["content"] = decode_parts(bytes(stored.content))
    return fields


def messages_written(change: Change, row: Row) -> tuple[Message, ...]:
    """The messages that a change has added, including promoted ones, in id order."""
    version, written_at = change.after.snapshot_version, row["written_at"]
    appended = tuple(_appended(added, version, written_at) for added in change.messages)
    if row["promoted"] is None:
        return appended
    promoted = sorted(_PROMOTED.decode(row["promoted"]), key=lambda stored: stored.id)
    return (
        *appended,
        *(
            Message(role="user", revision=version, created_at=written_at, **_fields(stored))
            for stored in promoted
        ),
    )


def _appended(added: AppendedMessage, version: int, written_at: datetime) -> Message:
    # Field by field: through a dict it takes three times as long, in every commit.
    draft = added.draft
    return Message(
        id=added.id,
        revision=version,
        created_at=written_at,
        role=draft.role,
        content=draft.content,
        visibility=draft.visibility,
        content_version=draft.content_version,
        compressed=draft.compressed,
        model_config_id=draft.model_config_id,
        reasoning_effort=draft.reasoning_effort,
        created_by=draft.created_by,
        usage=draft.usage,
        cost_micros=draft.cost_micros,
        runtime_ms=draft.runtime_ms,
        provider_response_id=draft.provider_response_id,
        finish_reason=draft.finish_reason,
    )


# The boundary is the newest summary; its mark says which messages directly before it stay, from
# `start` on (none if the mark is forged). Of the messages before `start` only the system's are
# read, and the user's last one if it stays; of those from there on the newest within $2 bytes and
# the system's. Old notices to people are left out, but not the one that is said once in a chat:
# `effort_notice` looks for it. Ordered by id, because rows of one commit share their time. The
# newest row has the chat's tool policies.
HISTORY: Final[LiteralString] = f"""
    WITH boundary AS MATERIALIZED (
        SELECT coalesce(b.id, 0) AS id,
            CASE WHEN b.mark->>'kept' ~ '^[0-9]{{1,6}}$' THEN (b.mark->>'kept')::int ELSE 0 END
                AS kept,
            coalesce(b.mark->>'keeps_prompt' = 'true', false) AS keeps_prompt,
            (SELECT json_agg(l) FROM (
                {layers_of("c.root_chat_id", "c.owner_id", "c.workspace_id")}) l) AS layers
        FROM chats c LEFT JOIN LATERAL (
            SELECT id, (SELECT part FROM json_array_elements(content) part
                WHERE part->>'type' = 'boundary' LIMIT 1) AS mark
            FROM chat_messages
            WHERE chat_id = $1 AND compressed AND visibility = 'model' AND NOT deleted
            ORDER BY id DESC LIMIT 1) b ON true
        WHERE c.id = $1 AND {chat_condition("$3", "$4")}),
    start AS MATERIALIZED (
        SELECT coalesce((SELECT min(kept.id) FROM (
            SELECT id FROM chat_messages
            WHERE chat_id = $1 AND NOT deleted AND id < (SELECT id FROM boundary)
            ORDER BY id DESC LIMIT (SELECT kept FROM boundary)) kept), id) AS id
        FROM boundary)
    SELECT {MESSAGE_COLUMNS},
        CASE WHEN newer_bytes = 0 THEN (SELECT layers FROM boundary) END AS layers
    FROM (
        SELECT *, sum(octet_length(content::text)) OVER (ORDER BY id DESC)
            - octet_length(content::text) AS newer_bytes
        FROM chat_messages
        WHERE chat_id = $1 AND id >= (SELECT id FROM start) AND NOT deleted) recent
    WHERE newer_bytes < $2 OR (role = 'system' AND visibility <> 'user') OR compressed
    UNION ALL
    SELECT {MESSAGE_COLUMNS}, NULL FROM chat_messages
    WHERE chat_id = $1 AND id < (SELECT id FROM start) AND NOT deleted
      AND NOT compressed AND role = 'system'
      AND (visibility <> 'user' OR content::text LIKE '%"effort_not_sent"%')
    UNION ALL
    (SELECT {MESSAGE_COLUMNS}, NULL FROM chat_messages
    WHERE chat_id = $1 AND id < (SELECT id FROM start) AND (SELECT keeps_prompt FROM boundary)
      AND NOT deleted AND NOT compressed AND role = 'user' AND visibility <> 'model'
    ORDER BY id DESC LIMIT 1)
    ORDER BY id"""


IS_COMPACTABLE: Final[LiteralString] = f"""
    WITH boundary AS MATERIALIZED (
        SELECT id, content FROM chat_messages
        WHERE chat_id = $1 AND compressed AND visibility = 'model' AND NOT deleted
        ORDER BY id DESC LIMIT 1)
    SELECT EXISTS (SELECT FROM chats c WHERE c.id = $1 AND {chat_condition("$2", "$3")})
    AND (EXISTS (SELECT FROM boundary, json_array_elements(content) part
            WHERE part->>'type' = 'boundary')
        OR EXISTS (SELECT FROM chat_messages
            WHERE chat_id = $1 AND role = 'assistant' AND visibility <> 'user'
              AND NOT deleted AND NOT compressed
              AND id > coalesce((SELECT id FROM boundary), 0)))"""


async def load_history(
    conn: Conn, actor: Actor, chat_id: ChatId, max_bytes: int = MAX_HISTORY_BYTES
) -> list[Message]:
    """The messages from which the next action is chosen and the prompt is built. Includes messages
    that only users see: the decision reads them, the prompt leaves them out."""
    reach = chat_reach(actor, "chats.read")
    return await decode_in_slices(await conn.fetch(HISTORY, chat_id, max_bytes, *reach))


async def load_history_and_policy(
    conn: Conn, actor: WorkerActor, chat_id: ChatId
) -> tuple[list[Message], tuple[PolicyLayer, ...]]:
    """The same, with the tool policies of the chat's calls, from wide to narrow."""
    reach = chat_reach(actor, "chats.read")
    rows = await conn.fetch(HISTORY, chat_id, MAX_HISTORY_BYTES, *reach)
    layers = read_layers(rows[-1]["layers"]) if rows else ()
    return await decode_in_slices(rows), layers


# What has changed since a version, deleted messages included, and the chat's tool policies. One row
# without a message if nothing has.
HISTORY_SINCE: Final[LiteralString] = f"""
    SELECT m.*, p.layers FROM (
        SELECT (SELECT json_agg(l) FROM (
            {layers_of("c.root_chat_id", "c.owner_id", "c.workspace_id")}) l) AS layers
        FROM chats c WHERE c.id = $1 AND {chat_condition("$3", "$4")}) p
    LEFT JOIN LATERAL (
        SELECT {MESSAGE_COLUMNS} FROM chat_messages
        WHERE chat_id = $1 AND revision > $2) m ON true
    ORDER BY m.id"""


async def load_changes_and_policy(
    conn: Conn, actor: WorkerActor, chat_id: ChatId, version: int
) -> tuple[list[Message], tuple[PolicyLayer, ...]] | None:
    """The messages that have changed since a version, deleted ones included, and the tool policies
    of the chat's calls. None if there is no such chat."""
    rows = await conn.fetch(HISTORY_SINCE, chat_id, version, *chat_reach(actor, "chats.read"))
    if not rows:
        return None
    changed = [row for row in rows if row["id"] is not None]
    return await decode_in_slices(changed), read_layers(rows[0]["layers"])


async def decode_in_slices(rows: Sequence[Row]) -> list[Message]:
    """Let other tasks run after each slice."""
    decoded: list[Message] = []
    size = 0
    for row in rows:
        decoded.append(message_from_row(row))
        size += len(row["content"]) + _ROW_OVERHEAD_CHARS
        if size >= DECODED_SLICE_CHARS:
            size = 0
            await run_other_tasks()
    return decoded


async def is_compactable(conn: Conn, actor: Actor, chat_id: ChatId) -> bool:
    """The same rule as in `domain.prompt.compaction`. False if the actor may not change the
    chat."""
    reach = chat_reach(actor, "chats.write")
    return await conn.fetchval(IS_COMPACTABLE, chat_id, *reach)
