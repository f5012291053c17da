"""Links that answer one call once: made for a notification, found by their secret, and claimed by
the first press."""

import hmac
from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import UserActor
from chatd.domain.access.secret_text import digest
from chatd.domain.deployment.answer_links import (
    ANSWER_LINK_LIFETIME_S,
    AnswerLink,
    LinkDecision,
    answer_digest_text,
)
from chatd.domain.ids import ChatId, ToolCallId, UserId
from chatd.store.account import audit
from chatd.store.database.conn import Conn, DatabaseSession, Row
from chatd.store.database.row_access import SHARING_ENABLED

_COLUMNS: Final[LiteralString] = """
    a.id, a.chat_id, a.tool_call_id, a.user_id, a.fingerprint, a.created_at,
    a.expires_at, a.decision, a.used_at"""
INSERT: Final[LiteralString] = """
    INSERT INTO answer_links (id, chat_id, tool_call_id, user_id, fingerprint, secret_sha256,
        expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, least(now() + $7::interval, $8::timestamptz))"""
# By the secret, so without an actor. The user must still be allowed to answer, and the settings
# too.
FIND: Final[LiteralString] = f"""
    SELECT a.secret_sha256, u.role, u.username, {SHARING_ENABLED} AS sharing, {_COLUMNS}
    FROM answer_links a JOIN users u ON u.id = a.user_id
        JOIN chats c ON c.id = a.chat_id AND c.owner_id = a.user_id
    WHERE a.secret_sha256 = $1 AND a.expires_at > now() AND c.deleted_at IS NULL
      AND u.status = 'active' AND u.deleted_at IS NULL
      AND coalesce((
        SELECT (document ->> 'answer_links')::boolean FROM deployment_settings), false)"""
# If a press was not finished, a denial replaces an approval, but not the reverse.
CLAIM: Final[LiteralString] = """
    UPDATE answer_links SET decision = $2, used_at = now()
    WHERE id = $1 AND (decision IS NULL OR decision = 'approve' AND $2 = 'deny')
      AND expires_at > now() RETURNING id"""
DELETE_EXPIRED: Final[LiteralString] = """
    DELETE FROM answer_links WHERE id IN (
        SELECT id FROM answer_links WHERE expires_at < now()
        ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)"""


class NewAnswerLink(Struct, frozen=True, kw_only=True):
    """`deadline`: when the call expires."""

    id: UUID
    chat_id: ChatId
    tool_call_id: ToolCallId
    user_id: UserId
    fingerprint: str
    secret: str
    deadline: datetime | None


class FoundAnswerLink(Struct, frozen=True, kw_only=True):
    """`actor` is its user, as the user is now."""

    link: AnswerLink
    actor: UserActor
    username: str


async def insert(conn: Conn, new: NewAnswerLink) -> None:
    await conn.execute(
        INSERT,
        new.id,
        new.chat_id,
        new.tool_call_id,
        new.user_id,
        new.fingerprint,
        digest(answer_digest_text(new.secret)),
        timedelta(seconds=ANSWER_LINK_LIFETIME_S),
        new.deadline,
    )


async def find(conn: Conn, secret: str) -> FoundAnswerLink | None:
    """None if the link is unknown or has expired, or may not be used: no caller can tell which."""
    key = digest(answer_digest_text(secret))
    row = await conn.fetchrow(FIND, key)
    if row is None or not hmac.compare_digest(row["secret_sha256"], key):
        return None
    user_id = UserId(row["user_id"])
    return FoundAnswerLink(
        link=_link(row),
        actor=UserActor(user_id=user_id, role=row["role"], reads_shared=row["sharing"]),
        username=row["username"],
    )


async def claim(
    session: DatabaseSession,
    found: FoundAnswerLink,
    decision: LinkDecision,
    *,
    ip: str | None = None,
) -> bool:
    """False if an earlier press was first. The claim comes before the answer: if the process dies
    between them, the next press gives the answer of the first."""
    link = found.link
    if await session.fetchval(CLAIM, link.id, decision) is None:
        return False
    await audit.record(
        session,
        found.actor,
        action="call.answer_by_link",
        object_type="chat",
        object_id=link.chat_id,
        ip=ip,
        detail={"tool_call_id": link.tool_call_id, "decision": decision, "link_id": str(link.id)},
    )
    return True


async def delete_expired(conn: Conn, *, limit: int) -> int:
    status = await conn.execute(DELETE_EXPIRED, limit)
    return int(status.rpartition(" ")[2])


def _link(row: Row) -> AnswerLink:
    return msgspec.convert({name: row[name] for name in AnswerLink.__struct_fields__}, AnswerLink)
