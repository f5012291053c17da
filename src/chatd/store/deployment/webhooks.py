"""Webhooks and their deliveries, and the browsers that subscribed to push, which are webhooks too.

A delivery is claimed by moving its due time: if the process that sends it dies, it is due again
after the claim. The owner of a webhook reads and changes it; only the sender claims.
"""

from collections.abc import Sequence
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.access.permissions import Actor, UserActor, row_filter
from chatd.domain.chat.messages import decode_parts
from chatd.domain.chat.parts import TextPart
from chatd.domain.deployment.webhooks import (
    MAX_SUBSCRIPTIONS_PER_USER,
    MAX_WEBHOOKS_PER_USER,
    PUSH_EVENTS,
    Delivery,
    DeliveryReply,
    Webhook,
    WebhookKind,
)
from chatd.domain.errors import Conflict
from chatd.domain.ids import ChatId
from chatd.store.database.conn import Conn, Row
from chatd.store.database.sealed_columns import SealedColumn

SECRET_COLUMN: Final = SealedColumn(table="webhooks", column="secret")
WEBHOOK_COLUMNS: Final[LiteralString] = (
    "id, owner_id, url, events, enabled, disabled_by, failing_since, created_at, updated_at"
)
_DELIVERY: Final[LiteralString] = (
    "d.id, d.webhook_id, d.event, d.chat_id, d.version, d.title, d.labels, d.error, d.action,"
    " d.more, d.created_at, d.attempts"
)

INSERT: Final[LiteralString] = f"""
    INSERT INTO webhooks (id, owner_id, url, events, secret)
    SELECT $1, $2, $3, $4::text[], $5
    WHERE (SELECT count(*) FROM webhooks WHERE owner_id = $2 AND kind = 'http') < $6
    RETURNING {WEBHOOK_COLUMNS}"""
GET: Final[LiteralString] = f"""
    SELECT {WEBHOOK_COLUMNS} FROM webhooks
    WHERE id = $1 AND kind = 'http' AND ($2::uuid IS NULL OR owner_id = $2)"""
LIST: Final[LiteralString] = f"""
    SELECT {WEBHOOK_COLUMNS} FROM webhooks WHERE owner_id = $1 AND kind = 'http'
    ORDER BY created_at, id LIMIT $2"""
# What was due when it was disabled is not delivered when it is enabled again.
UPDATE: Final[LiteralString] = f"""
    WITH ended AS (
        UPDATE webhook_deliveries d
        SET due_at = NULL, ended_at = now(), failure = 'The webhook was disabled.'
        FROM webhooks w
        WHERE w.id = $1 AND w.kind = 'http' AND ($2::uuid IS NULL OR w.owner_id = $2)
          AND NOT w.enabled AND $5
          AND d.webhook_id = w.id AND d.due_at IS NOT NULL AND d.event <> 'ping')
    UPDATE webhooks SET url = coalesce($3, url), events = coalesce($4::text[], events),
        enabled = coalesce($5, enabled),
        disabled_by = CASE WHEN $5 THEN NULL ELSE disabled_by END,
        failing_since = CASE WHEN $5 THEN NULL ELSE failing_since END, updated_at = now()
    WHERE id = $1 AND kind = 'http' AND ($2::uuid IS NULL OR owner_id = $2)
    RETURNING {WEBHOOK_COLUMNS}"""
DELETE: Final[LiteralString] = """
    DELETE FROM webhooks
    WHERE id = $1 AND kind = 'http' AND ($2::uuid IS NULL OR owner_id = $2) RETURNING id"""
INSERT_PING: Final[LiteralString] = """
    INSERT INTO webhook_deliveries (webhook_id, event)
    SELECT id, 'ping' FROM webhooks
    WHERE id = $1 AND kind = 'http' AND ($2::uuid IS NULL OR owner_id = $2)
    RETURNING id"""
LIST_DELIVERIES: Final[LiteralString] = f"""
    SELECT {_DELIVERY}, d.due_at, d.ended_at, d.delivered, d.reply_status, d.failure
    FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook_id
    WHERE d.webhook_id = $1 AND w.kind = 'http' AND ($2::uuid IS NULL OR w.owner_id = $2)
      AND ($3::bigint IS NULL OR d.id < $3)
    ORDER BY d.id DESC LIMIT $4"""

# At most $2 of each webhook, so that a slow receiver does not hold up the others. A ping is sent
# also if the webhook is disabled. Deliveries of suspended users wait.
CLAIM: Final[LiteralString] = f"""
    UPDATE webhook_deliveries d
    SET due_at = now() + $3::float8 * interval '1 s', attempts = d.attempts + 1
    FROM (
        SELECT due.id, w.url, w.secret, w.kind,
            coalesce(extract(epoch FROM now() - w.failing_since), 0)::float8 AS failing_for_s
        FROM webhooks w JOIN users u ON u.id = w.owner_id AND u.status = 'active', LATERAL (
            SELECT id FROM webhook_deliveries
            WHERE webhook_id = w.id AND due_at <= now() AND (w.enabled OR event = 'ping')
            ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED) due
        LIMIT $1) claimed
    WHERE d.id = claimed.id
    RETURNING {_DELIVERY}, claimed.url, claimed.secret, claimed.kind, claimed.failing_for_s"""
# Only of the attempt that was claimed: a late answer of an earlier one changes nothing.
FINISH: Final[LiteralString] = """
    WITH finished AS (
        UPDATE webhook_deliveries SET reply_status = $3, failure = $4, delivered = $5,
            due_at = CASE WHEN $6::float8 IS NULL THEN NULL
                ELSE now() + $6::float8 * interval '1 s' END,
            ended_at = CASE WHEN $6::float8 IS NULL THEN now() END
        WHERE id = $1 AND attempts = $2 AND ended_at IS NULL
        RETURNING webhook_id, event)
    UPDATE webhooks w SET
        failing_since = CASE WHEN $5 THEN NULL ELSE coalesce(w.failing_since, now()) END,
        enabled = w.enabled AND $7::text IS NULL,
        disabled_by = CASE WHEN w.enabled AND $7::text IS NOT NULL THEN $7 ELSE w.disabled_by END
    FROM finished f
    WHERE w.id = f.webhook_id
      AND (w.failing_since IS NOT NULL OR NOT $5 OR $7::text IS NOT NULL)"""
HAS_ANY: Final[LiteralString] = "SELECT EXISTS (SELECT FROM webhooks)"
DELETE_ENDED: Final[LiteralString] = """
    DELETE FROM webhook_deliveries WHERE id IN (
        SELECT id FROM webhook_deliveries
        WHERE ended_at < now() - $1::float8 * interval '1 s' ORDER BY ended_at LIMIT $2)"""

_LABELS: Final = msgspec.json.Decoder(dict[str, str])


class ClaimedDelivery(Struct, frozen=True, kw_only=True):
    """`sealed_secret` is opened by the sender. `failing_for_s`: how long nothing has succeeded."""

    delivery: Delivery
    kind: WebhookKind
    url: str
    sealed_secret: str
    failing_for_s: float


class DeliveryRecord(Struct, frozen=True, kw_only=True):
    delivery: Delivery
    row: Row


async def insert(
    conn: Conn, actor: UserActor, webhook_id: UUID, *, url: str, events: Sequence[str], secret: str
) -> Webhook:
    """`secret` is sealed. Raises Conflict if the user has too many."""
    row_filter(actor, "account.write")
    args = (webhook_id, actor.user_id, url, list(events), secret, MAX_WEBHOOKS_PER_USER)
    row = await conn.fetchrow(INSERT, *args)
    if row is None:
        raise Conflict(
            f"You have {MAX_WEBHOOKS_PER_USER} webhooks. Delete one first.",
            code="too_many_webhooks",
        )
    return webhook_from_row(row)


async def get(conn: Conn, actor: Actor, webhook_id: UUID) -> Webhook | None:
    owner = row_filter(actor, "account.read").owner_id
    row = await conn.fetchrow(GET, webhook_id, owner)
    return None if row is None else webhook_from_row(row)


async def list_own(conn: Conn, actor: UserActor) -> list[Webhook]:
    row_filter(actor, "account.read")
    return [
        webhook_from_row(r) for r in await conn.fetch(LIST, actor.user_id, MAX_WEBHOOKS_PER_USER)
    ]


async def update(
    conn: Conn,
    actor: UserActor,
    webhook_id: UUID,
    *,
    url: str | None,
    events: Sequence[str] | None,
    enabled: bool | None,
) -> Webhook | None:
    """None leaves a field as it is. Enabling it forgets why it was disabled."""
    owner = row_filter(actor, "account.write").owner_id
    chosen = None if events is None else list(events)
    row = await conn.fetchrow(UPDATE, webhook_id, owner, url, chosen, enabled)
    return None if row is None else webhook_from_row(row)


async def delete(conn: Conn, actor: UserActor, webhook_id: UUID) -> bool:
    owner = row_filter(actor, "account.write").owner_id
    return await conn.fetchval(DELETE, webhook_id, owner) is not None


async def insert_ping(conn: Conn, actor: UserActor, webhook_id: UUID) -> int | None:
    owner = row_filter(actor, "account.write").owner_id
    return await conn.fetchval(INSERT_PING, webhook_id, owner)


async def list_deliveries(
    conn: Conn, actor: UserActor, webhook_id: UUID, *, before: int | None, limit: int
) -> list[DeliveryRecord]:
    """Newest first."""
    owner = row_filter(actor, "account.read").owner_id
    rows = await conn.fetch(LIST_DELIVERIES, webhook_id, owner, before, limit)
    return [DeliveryRecord(delivery=_delivery(row), row=row) for row in rows]


async def claim(
    conn: Conn, *, limit: int, per_webhook: int, claim_s: float
) -> list[ClaimedDelivery]:
    """Deliveries that are due; other senders get them only after `claim_s`."""
    return [
        ClaimedDelivery(
            delivery=_delivery(row),
            kind=row["kind"],
            url=row["url"],
            sealed_secret=row["secret"],
            failing_for_s=row["failing_for_s"],
        )
        for row in await conn.fetch(CLAIM, limit, per_webhook, claim_s)
    ]


async def has_any(conn: Conn) -> bool:
    """Whether any user has a webhook."""
    return await conn.fetchval(HAS_ANY)


async def finish(
    conn: Conn,
    delivery: Delivery,
    reply: DeliveryReply,
    *,
    retry_after_s: float | None,
    disable: str | None,
) -> None:
    """Record one attempt. Without `retry_after_s` it was the last one. `disable` says why the
    webhook is disabled."""
    await conn.execute(
        FINISH,
        delivery.id,
        delivery.attempts,
        reply.status,
        reply.failure,
        reply.is_success,
        retry_after_s,
        disable,
    )


async def delete_ended(conn: Conn, *, after_s: float, limit: int) -> int:
    status = await conn.execute(DELETE_ENDED, after_s, limit)
    return int(status.rpartition(" ")[2])


def webhook_from_row(row: Row) -> Webhook:
    return msgspec.convert(dict(row), Webhook)


def _delivery(row: Row) -> Delivery:
    error: str | None = row["error"]
    action: str | None = row["action"]
    return Delivery(
        id=row["id"],
        webhook_id=row["webhook_id"],
        event=row["event"],
        chat_id=None if row["chat_id"] is None else ChatId(row["chat_id"]),
        version=row["version"],
        title=row["title"],
        labels={} if row["labels"] is None else _LABELS.decode(row["labels"]),
        error=None if error is None else Raw(error.encode()),
        action=None if action is None else Raw(action.encode()),
        more=row["more"],
        created_at=row["created_at"],
        attempts=row["attempts"],
    )


# Subscriptions of browsers to web push, and the key that signs for all replicas.
#
# A subscription is a webhook of the kind `push`: its deliveries are claimed and finished with those
# of other webhooks.

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
LIST_PUSH: Final[LiteralString] = f"""
    SELECT {WEBHOOK_COLUMNS} FROM webhooks WHERE owner_id = $1 AND kind = 'push'
    ORDER BY created_at, id LIMIT $2"""
DELETE_PUSH: Final[LiteralString] = """
    DELETE FROM webhooks
    WHERE id = $1 AND kind = 'push' AND ($2::uuid IS NULL OR owner_id = $2) RETURNING id"""
INSERT_PUSH_PING: Final[LiteralString] = """
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


async def list_own_push(conn: Conn, actor: UserActor) -> list[Webhook]:
    row_filter(actor, "account.read")
    rows = await conn.fetch(LIST_PUSH, actor.user_id, MAX_SUBSCRIPTIONS_PER_USER)
    return [webhook_from_row(row) for row in rows]


async def delete_push(conn: Conn, actor: UserActor, subscription_id: UUID) -> bool:
    owner = row_filter(actor, "account.write").owner_id
    return await conn.fetchval(DELETE_PUSH, subscription_id, owner) is not None


async def insert_push_ping(conn: Conn, actor: UserActor, subscription_id: UUID) -> int | None:
    owner = row_filter(actor, "account.write").owner_id
    return await conn.fetchval(INSERT_PUSH_PING, subscription_id, owner)


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
