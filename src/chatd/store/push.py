"""Subscriptions of browsers to web push, and the key that signs for all replicas.

A subscription is a webhook of the kind `push`: its deliveries are claimed and finished with those
of other webhooks."""

from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import UserActor, row_filter
from chatd.domain.chat.messages import decode_parts
from chatd.domain.chat.parts import TextPart
from chatd.domain.deployment.push import MAX_SUBSCRIPTIONS_PER_USER, PUSH_EVENTS
from chatd.domain.deployment.webhooks import Webhook
from chatd.domain.errors import Conflict
from chatd.domain.ids import ChatId
from chatd.store.conn import Conn
from chatd.store.sealed_columns import SealedColumn
from chatd.store.webhooks import WEBHOOK_COLUMNS, webhook_from_row

SIGNING_KEY: Final = SealedColumn(table="push_keys", column="private_key")
_NAME: Final = "vapid"

# The same browser again: its new keys replace the old ones. The browser may have been another
# user's, whose chats it must not show any more. Subscriptions that have ended take no place.
SUBSCRIBE: Final[LiteralString] = f"""
    WITH former AS (
        DELETE FROM webhooks WHERE kind = 'push' AND id <> $1
          AND (url = $3 OR (owner_id = $2 AND NOT enabled)))
    INSERT INTO webhooks (id, owner_id, url, events, secret, kind)
    SELECT $1, $2, $3, $4::text[], $5, 'push'
    WHERE (SELECT count(*) FROM webhooks
           WHERE owner_id = $2 AND kind = 'push' AND enabled AND id <> $1) < $6
    ON CONFLICT (id) DO UPDATE SET secret = EXCLUDED.secret, events = EXCLUDED.events,
        enabled = true, disabled_by = NULL, failing_since = NULL, updated_at = now()
    WHERE webhooks.owner_id = EXCLUDED.owner_id AND webhooks.kind = 'push'
    RETURNING {WEBHOOK_COLUMNS}"""
LIST: Final[LiteralString] = f"""
    SELECT {WEBHOOK_COLUMNS} FROM webhooks WHERE owner_id = $1 AND kind = 'push'
    ORDER BY created_at, id LIMIT $2"""
DELETE: Final[LiteralString] = """
    DELETE FROM webhooks
    WHERE id = $1 AND kind = 'push' AND ($2::uuid IS NULL OR owner_id = $2) RETURNING id"""
INSERT_PING: Final[LiteralString] = """
    INSERT INTO webhook_deliveries (webhook_id, event)
    SELECT id, 'ping' FROM webhooks
    WHERE id = $1 AND kind = 'push' AND ($2::uuid IS NULL OR owner_id = $2)
    RETURNING id"""
GET_KEY: Final[LiteralString] = "SELECT id, private_key FROM push_keys WHERE name = $1"
INSERT_KEY: Final[LiteralString] = """
    INSERT INTO push_keys (id, name, private_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"""
LAST_ANSWER: Final[LiteralString] = """
    SELECT content FROM chat_messages
    WHERE chat_id = $1 AND role = 'assistant' AND NOT deleted ORDER BY id DESC LIMIT 1"""


class StoredSigningKey(Struct, frozen=True, kw_only=True):
    """`sealed` is bound to the row's `id`."""

    id: UUID
    sealed: str


async def subscribe(
    conn: Conn, actor: UserActor, subscription_id: UUID, *, endpoint: str, secret: str
) -> Webhook:
    """`secret`: the sealed keys of the browser. Raises Conflict if the user has too many."""
    row_filter(actor, "account.write")
    args = (subscription_id, actor.user_id, endpoint, list(PUSH_EVENTS), secret)
    row = await conn.fetchrow(SUBSCRIBE, *args, MAX_SUBSCRIPTIONS_PER_USER)
    if row is None:
        raise Conflict(
            f"You have {MAX_SUBSCRIPTIONS_PER_USER} browsers with notifications. Remove one first.",
            code="too_many_subscriptions",
        )
    return webhook_from_row(row)


async def list_own(conn: Conn, actor: UserActor) -> list[Webhook]:
    row_filter(actor, "account.read")
    rows = await conn.fetch(LIST, actor.user_id, MAX_SUBSCRIPTIONS_PER_USER)
    return [webhook_from_row(row) for row in rows]


async def delete(conn: Conn, actor: UserActor, subscription_id: UUID) -> bool:
    owner = row_filter(actor, "account.write").owner_id
    return await conn.fetchval(DELETE, subscription_id, owner) is not None


async def insert_ping(conn: Conn, actor: UserActor, subscription_id: UUID) -> int | None:
    owner = row_filter(actor, "account.write").owner_id
    return await conn.fetchval(INSERT_PING, subscription_id, owner)


async def load_signing_key(conn: Conn) -> StoredSigningKey | None:
    row = await conn.fetchrow(GET_KEY, _NAME)
    return None if row is None else StoredSigningKey(id=row["id"], sealed=row["private_key"])


async def insert_signing_key(conn: Conn, key: StoredSigningKey) -> None:
    """Does nothing if another replica was first."""
    await conn.execute(INSERT_KEY, key.id, _NAME, key.sealed)


async def last_answer(conn: Conn, chat_id: ChatId) -> str | None:
    """The text of the last answer of a chat, for a message to its owner."""
    content = await conn.fetchval(LAST_ANSWER, chat_id)
    if content is None:
        return None
    texts = [part.text for part in decode_parts(content) if isinstance(part, TextPart)]
    return " ".join(texts) or None
