"""Ratings of answers: a thumb of the chat's owner, with a comment if there is one.

A rating belongs to its message. So an answer that is repeated has no rating yet, and that of the
earlier version is there again when the version is shown.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import UserActor, require_permission
from chatd.domain.chat_views.ratings import Rating, RatingRecord, RatingValue
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.ids import ChatId, MessageId
from chatd.store.account import audit
from chatd.store.chat import chats
from chatd.store.database.conn import Conn, DatabaseSession, strip_unstorable
from chatd.store.database.row_access import chat_condition, chat_reach

# Of the owner's own chat, which the caller has checked; an answer that the chat shows now.
SAVE: Final[LiteralString] = """
    INSERT INTO message_ratings AS r (chat_id, message_id, user_id, value, comment)
    SELECT m.chat_id, m.id, $3, $4, $5 FROM chat_messages m
    JOIN chats c ON c.id = m.chat_id AND c.owner_id = $3
    WHERE m.chat_id = $1 AND m.id = $2 AND m.role = 'assistant' AND NOT m.deleted
      AND m.visibility <> 'model'
    ON CONFLICT (chat_id, message_id, user_id) DO UPDATE
    SET value = excluded.value, comment = excluded.comment, updated_at = clock_timestamp()
    RETURNING message_id, value, comment, updated_at"""
DELETE: Final[LiteralString] = """
    DELETE FROM message_ratings WHERE chat_id = $1 AND message_id = $2 AND user_id = $3"""
LIST: Final[LiteralString] = f"""
    SELECT r.message_id, r.value, r.comment, r.updated_at
    FROM chats c JOIN message_ratings r ON r.chat_id = c.id AND r.user_id = c.owner_id
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")} AND r.message_id > $4
    ORDER BY r.message_id LIMIT $5"""
LIST_ALL: Final[LiteralString] = """
    SELECT r.chat_id, r.message_id, r.user_id, u.username, r.value, r.comment, r.updated_at,
        m.model_config_id, coalesce(g.name, '') AS model, coalesce(t.name, '') AS template
    FROM message_ratings r
        JOIN chat_messages m ON m.chat_id = r.chat_id AND m.id = r.message_id
        JOIN chats c ON c.id = r.chat_id AND c.deleted_at IS NULL
        JOIN users u ON u.id = r.user_id
        LEFT JOIN model_configs g ON g.id = m.model_config_id
        LEFT JOIN workspaces w ON w.id = c.workspace_id
        LEFT JOIN templates t ON t.id = w.template_id
    WHERE (r.updated_at, r.chat_id, r.message_id)
          < (coalesce($1::timestamptz, 'infinity'), $2::uuid, $3::bigint)
      AND ($4::timestamptz IS NULL OR r.updated_at >= $4)
      AND ($5::text IS NULL OR r.value = $5)
    ORDER BY r.updated_at DESC, r.chat_id DESC, r.message_id DESC LIMIT $6"""

MAX_EXPORTED: Final = 100_000
_ANY_CHAT: Final = UUID(int=2**128 - 1)
_PAST_THE_END: Final = 2**63 - 1


class RatingFilter(Struct, frozen=True, kw_only=True):
    since: datetime | None = None
    value: RatingValue | None = None


class RatingPosition(Struct, frozen=True, array_like=True):
    """The position of a rating among all, newest first."""

    at: datetime
    chat_id: UUID
    message_id: int


async def save(
    conn: Conn,
    actor: UserActor,
    chat_id: ChatId,
    message_id: MessageId,
    *,
    value: RatingValue,
    comment: str,
) -> Rating:
    """Rate an answer of the actor's own chat; replaces an earlier rating. Raises NotFound,
    Forbidden, Conflict."""
    await _require_own(conn, actor, chat_id)
    text = strip_unstorable(comment.strip())
    row = await conn.fetchrow(SAVE, chat_id, message_id, actor.user_id, value, text)
    if row is None:
        raise Conflict("The chat has no such answer. Only answers are rated.", code="not_an_answer")
    return msgspec.convert(dict(row), Rating)


async def delete(conn: Conn, actor: UserActor, chat_id: ChatId, message_id: MessageId) -> None:
    """Does nothing if there is none. Raises NotFound, Forbidden."""
    await _require_own(conn, actor, chat_id)
    await conn.execute(DELETE, chat_id, message_id, actor.user_id)


async def list_page(
    conn: Conn, actor: UserActor, chat_id: ChatId, *, after: int, limit: int
) -> Sequence[Rating]:
    """The ratings by the chat's owner, by message. Raises Forbidden."""
    reach = chat_reach(actor, "versions.read")
    rows = await conn.fetch(LIST, chat_id, *reach, after, limit)
    return [msgspec.convert(dict(row), Rating) for row in rows]


async def list_all(
    conn: Conn,
    actor: UserActor,
    wanted: RatingFilter,
    *,
    before: RatingPosition | None,
    limit: int,
) -> Sequence[RatingRecord]:
    """Ratings of all users, newest first. Raises Forbidden."""
    require_permission(actor, "config.read")
    at, chat, message = (None, _ANY_CHAT, _PAST_THE_END)
    if before is not None:
        at, chat, message = before.at, before.chat_id, before.message_id
    rows = await conn.fetch(LIST_ALL, at, chat, message, wanted.since, wanted.value, limit)
    return [msgspec.convert(dict(row), RatingRecord) for row in rows]


async def record_export(
    session: DatabaseSession, actor: UserActor, wanted: RatingFilter, *, ip: str | None
) -> None:
    require_permission(actor, "config.read")
    detail = {
        name: value for name, value in msgspec.to_builtins(wanted).items() if value is not None
    }
    await audit.record(
        session,
        actor,
        action="rating.export",
        object_type="rating",
        object_id="rating",
        ip=ip,
        detail=detail,
    )


async def _require_own(conn: Conn, actor: UserActor, chat_id: ChatId) -> None:
    if await chats.get_for_command(conn, actor, chat_id, "chats.write") is None:
        raise NotFound("There is no such chat.")
