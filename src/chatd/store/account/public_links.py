"""Public links of chats: made, updated and revoked by their owners, and read by their secret.

Whether a link is valid is decided by the statement that reads by it, at each read: by the settings,
the link's end, the chat and its owner. Every write is audited.
"""

import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import UserActor, require_allowed, row_filter
from chatd.domain.access.secret_text import digest
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.public_links import (
    MAX_LINKS_PER_CHAT,
    LinkChoices,
    PublicLink,
    link_digest_text,
    require_link_rules,
)
from chatd.domain.errors import Conflict, Forbidden, NotFound
from chatd.domain.ids import ChatId, MessageId, UserId
from chatd.store.account import audit
from chatd.store.chat import chats
from chatd.store.chat.messages import (
    MAX_READ_BYTES,
    MESSAGE_COLUMNS,
    messages_from_json,
    take_within_bytes,
)
from chatd.store.database.conn import Conn, DatabaseSession, Row
from chatd.store.database.row_access import SHARING_ENABLED

READ_NOTED_EVERY: Final = timedelta(minutes=1)
"""How often the time of the latest read is written."""

_ENABLED: Final[LiteralString] = f"""
    ({SHARING_ENABLED} AND coalesce((
        SELECT (document ->> 'public_links')::boolean FROM deployment_settings), false))"""
_COLUMNS: Final[LiteralString] = """
    l.id, l.chat_id, c.title AS chat_title, c.owner_id, u.username AS owner_username, l.with_tools,
    l.with_files, c.next_message_id > upper(l.shown) AS has_newer, l.created_at, l.updated_at,
    l.expires_at, l.last_read_at"""
_SHOWN: Final[LiteralString] = """
    coalesce((SELECT range_agg(int8range(m.id, m.id + 1)) FROM chat_messages m
              WHERE m.chat_id = c.id AND NOT m.deleted), '{[0,1)}'::int8multirange)"""
_OF_CHAT: Final[LiteralString] = """
    FROM public_links l JOIN chats c ON c.id = l.chat_id JOIN users u ON u.id = c.owner_id"""

INSERT: Final[LiteralString] = f"""
    INSERT INTO public_links (id, chat_id, secret_sha256, shown, with_tools, with_files, expires_at)
    SELECT $1, c.id, $2, {_SHOWN}, $3, $4, now() + $5::interval
    FROM chats c WHERE c.id = $6 AND c.owner_id = $7 AND c.parent_chat_id IS NULL
      AND c.deleted_at IS NULL
      AND (SELECT count(*) FROM public_links o
           WHERE o.chat_id = c.id AND o.expires_at > now()) < $8
    RETURNING id"""
GET: Final[LiteralString] = f"""
    SELECT {_COLUMNS} {_OF_CHAT}
    WHERE l.id = $1 AND c.deleted_at IS NULL AND ($2::uuid IS NULL OR c.owner_id = $2)"""
LIST_OF_CHAT: Final[LiteralString] = f"""
    SELECT {_COLUMNS} {_OF_CHAT}
    WHERE l.chat_id = $1 AND l.expires_at > now() AND c.deleted_at IS NULL
    ORDER BY l.created_at, l.id LIMIT $2"""
LIST: Final[LiteralString] = f"""
    SELECT {_COLUMNS} {_OF_CHAT}
    WHERE (l.created_at, l.id) < (coalesce($2::timestamptz, 'infinity'), coalesce($3::uuid, l.id))
      AND l.expires_at > now() AND c.deleted_at IS NULL AND ($1::uuid IS NULL OR c.owner_id = $1)
    ORDER BY l.created_at DESC, l.id DESC LIMIT $4"""
UPDATE: Final[LiteralString] = f"""
    UPDATE public_links l SET shown = {_SHOWN}, updated_at = clock_timestamp() FROM chats c
    WHERE l.id = $1 AND c.id = l.chat_id AND c.owner_id = $2 AND l.expires_at > now()
    RETURNING l.id"""
DELETE: Final[LiteralString] = """
    DELETE FROM public_links l USING chats c
    WHERE l.id = $1 AND c.id = l.chat_id AND ($2::uuid IS NULL OR c.owner_id = $2)
    RETURNING l.id"""
DELETE_EXPIRED: Final[LiteralString] = """
    DELETE FROM public_links WHERE id IN (
        SELECT id FROM public_links WHERE expires_at < now()
        ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)"""

# By the secret: no actor. The owner must still be one who may share.
_VALID: Final[LiteralString] = f"""
    {_OF_CHAT}
    WHERE l.secret_sha256 = $1 AND l.expires_at > now() AND c.deleted_at IS NULL
      AND u.status = 'active' AND u.deleted_at IS NULL AND {_ENABLED}"""
_MESSAGES: Final[LiteralString] = f"""
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = link.chat_id AND (chat_id, id) > (link.chat_id, $2)
      AND (chat_id, id) < (link.chat_id, upper(link.shown)) AND link.shown @> id
      AND NOT deleted AND visibility <> 'model' AND role <> 'system' ORDER BY id LIMIT $3"""
READ: Final[LiteralString] = f"""
    SELECT link.secret_sha256, link.id, link.chat_id, link.chat_title, link.owner_id,
        link.owner_username, link.with_tools, link.with_files, link.has_newer, link.created_at,
        link.updated_at, link.expires_at, link.last_read_at, m.messages, m.found
    FROM (SELECT l.secret_sha256, l.shown, {_COLUMNS} {_VALID}) link,
        LATERAL {take_within_bytes(_MESSAGES, order="id", max_bytes="$4")} m"""
READ_MESSAGE: Final[LiteralString] = f"""
    SELECT link.secret_sha256, link.with_files, link.owner_id,
        (SELECT json_agg(m) FROM (
            SELECT {MESSAGE_COLUMNS} FROM chat_messages
            WHERE chat_id = link.chat_id AND id = $2 AND link.shown @> id) m) AS messages
    FROM (SELECT l.secret_sha256, l.shown, l.with_files, l.chat_id, c.owner_id {_VALID}) link"""
NOTE_READ: Final[LiteralString] = """
    UPDATE public_links SET last_read_at = now()
    WHERE id = $1 AND coalesce(last_read_at < now() - $2::interval, true)"""


class NewPublicLink(LinkChoices, frozen=True, kw_only=True):
    id: UUID
    chat_id: ChatId
    secret: str
    days: int


class LinkRules(Struct, frozen=True, kw_only=True):
    """The limits and switches of the settings."""

    enabled: bool
    max_days: int


class SharedPage(Struct, frozen=True, kw_only=True):
    link: PublicLink
    messages: tuple[Message, ...]
    has_more: bool


class SharedFileOwner(Struct, frozen=True, kw_only=True):
    """A message that has a file, and the user as whom it is read."""

    message: Message
    actor: UserActor


async def insert(
    session: DatabaseSession,
    actor: UserActor,
    new: NewPublicLink,
    rules: LinkRules,
    *,
    ip: str | None = None,
) -> PublicLink:
    """Add a link to the actor's own chat. Raises NotFound, Forbidden, Conflict, InvalidInput."""
    chat = await _require_chat(session, actor, new.chat_id)
    _require_owner(actor, chat.owner_id)
    require_link_rules(
        enabled=rules.enabled and actor.reads_shared,
        max_days=rules.max_days,
        days=new.days,
        is_root=chat.is_root,
    )
    await chats.lock(session, chat.id)
    made = await session.fetchval(
        INSERT,
        new.id,
        digest(link_digest_text(new.secret)),
        new.with_tools,
        new.with_files,
        timedelta(days=new.days),
        chat.id,
        actor.user_id,
        MAX_LINKS_PER_CHAT,
    )
    if made is None:
        raise Conflict(
            f"A chat has at most {MAX_LINKS_PER_CHAT} public links. Revoke one first.",
            code="too_many_public_links",
        )
    link = await _require_link(session, actor, new.id)
    await _record(session, actor, "public_link.create", link, ip=ip)
    return link


async def list_of_chat(conn: Conn, actor: UserActor, chat_id: ChatId) -> Sequence[PublicLink]:
    """The oldest first. Raises NotFound, and Forbidden for a reader."""
    chat = await chats.get_for_command(conn, actor, chat_id, "shares.read")
    if chat is None:
        raise NotFound("There is no such chat.")
    return [_link(row) for row in await conn.fetch(LIST_OF_CHAT, chat.id, MAX_LINKS_PER_CHAT)]


async def list_page(
    conn: Conn,
    actor: UserActor,
    *,
    everyone: bool,
    before: tuple[datetime, UUID] | None,
    limit: int,
) -> Sequence[PublicLink]:
    """The newest first: the actor's own, or those of all users that the actor may see. Raises
    Forbidden."""
    owner = row_filter(actor, "shares.read").owner_id
    if everyone and owner is not None:
        raise Forbidden("Only administrators and viewers see the links of all users.")
    at, link_id = (None, None) if before is None else before
    rows = await conn.fetch(LIST, None if everyone else actor.user_id, at, link_id, limit)
    return [_link(row) for row in rows]


async def update(
    session: DatabaseSession, actor: UserActor, link_id: UUID, *, ip: str | None = None
) -> PublicLink:
    """Show what the chat has now. Raises NotFound, Forbidden."""
    link = await _require_link(session, actor, link_id)
    _require_owner(actor, link.owner_id)
    if await session.fetchval(UPDATE, link_id, actor.user_id) is None:
        raise NotFound("There is no such public link.")
    await _record(session, actor, "public_link.update", link, ip=ip)
    return await _require_link(session, actor, link_id)


async def revoke(
    session: DatabaseSession, actor: UserActor, link_id: UUID, *, ip: str | None = None
) -> None:
    """Called for the owner or an administrator. Raises NotFound, Forbidden."""
    link = await _require_link(session, actor, link_id)
    require_allowed(actor, "chats.share", link.owner_id)
    owner = row_filter(actor, "chats.share").owner_id
    if await session.fetchval(DELETE, link_id, owner) is None:
        raise NotFound("There is no such public link.")
    await _record(session, actor, "public_link.revoke", link, ip=ip)


async def delete_expired(conn: Conn, *, limit: int) -> int:
    status = await conn.execute(DELETE_EXPIRED, limit)
    return int(status.rpartition(" ")[2])


async def read(conn: Conn, secret: str, *, after: MessageId, limit: int) -> SharedPage | None:
    """The link and messages after `after`, the oldest first. None if the link is unknown, was
    revoked or has expired, or if links are disabled: no caller can tell which."""
    key = digest(link_digest_text(secret))
    row = await conn.fetchrow(READ, key, after, limit + 1, MAX_READ_BYTES)
    if row is None or not hmac.compare_digest(row["secret_sha256"], key):
        return None
    messages = messages_from_json(row["messages"])[:limit]
    return SharedPage(link=_link(row), messages=messages, has_more=len(messages) < row["found"])


async def read_message(conn: Conn, secret: str, message_id: MessageId) -> SharedFileOwner | None:
    """The message whose files a link shows; None also if the link shows no files."""
    key = digest(link_digest_text(secret))
    row = await conn.fetchrow(READ_MESSAGE, key, message_id)
    if row is None or not hmac.compare_digest(row["secret_sha256"], key) or not row["with_files"]:
        return None
    messages = messages_from_json(row["messages"])
    if not messages:
        return None
    owner = UserActor(user_id=UserId(row["owner_id"]), role="member", reads_shared=False)
    return SharedFileOwner(message=messages[0], actor=owner)


async def note_read(conn: Conn, link_id: UUID) -> None:
    await conn.execute(NOTE_READ, link_id, READ_NOTED_EVERY)


def _require_owner(actor: UserActor, owner_id: UserId) -> None:
    if actor.user_id != owner_id:
        raise Forbidden(
            "Only the owner makes public links of a chat. Administrators may revoke them."
        )


async def _require_link(conn: Conn, actor: UserActor, link_id: UUID) -> PublicLink:
    """A link of a chat that the actor may share, or stop sharing. Raises NotFound, Forbidden."""
    found = await conn.fetchrow(GET, link_id, row_filter(actor, "chats.share").owner_id)
    if found is None:
        raise NotFound("There is no such public link.")
    return _link(found)


async def _require_chat(conn: Conn, actor: UserActor, chat_id: ChatId) -> Chat:
    chat = await chats.get_for_command(conn, actor, chat_id, "chats.share")
    if chat is None:
        raise NotFound("There is no such chat.")
    return chat


async def _record(
    session: DatabaseSession, actor: UserActor, action: str, link: PublicLink, *, ip: str | None
) -> None:
    await audit.record(
        session,
        actor,
        action=action,
        object_type="chat",
        object_id=link.chat_id,
        ip=ip,
        detail={
            "owner_id": str(link.owner_id),
            "link_id": str(link.id),
            "with_tools": link.with_tools,
            "with_files": link.with_files,
            "expires_at": link.expires_at.isoformat(),
        },
    )


def _link(row: Row) -> PublicLink:
    names = PublicLink.__struct_fields__
    return PublicLink(**{name: row[name] for name in names})
