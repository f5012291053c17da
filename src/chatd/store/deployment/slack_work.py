"""The events of Slack that chatd acts upon, the threads that have a chat, and chatd's messages in
them.

Events and threads are queues: a row is claimed by moving its due time, so what a process that died
had claimed is due again. All is for the server itself, except the list of events.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Actor, require_permission
from chatd.domain.chat.messages import Draft, decode_parts, needs_next_step
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.repositories import EventOutcome
from chatd.domain.deployment.slack import MAX_WAITING_EVENTS, SlackEvent, SlackEventKind
from chatd.domain.ids import ChatId, MessageId, ToolCallId
from chatd.store.database.conn import Conn, Row, json_text

_EVENT: Final[LiteralString] = """
    e.id, e.connection_id, e.event, e.created_at, e.attempts, e.due_at, e.ended_at, e.outcome,
    e.detail, e.chat_id"""
_THREAD: Final[LiteralString] = """
    t.id, t.connection_id, t.channel, t.thread_ts, t.chat_id, t.request, t.shown_message,
    t.shown_version, t.attempts, t.claim"""
_POST: Final[LiteralString] = """
    p.id, p.thread_id, p.key, p.ts, p.digest, p.tool_call_id, p.fingerprint, p.body, p.is_closed,
    p.created_at"""

# A reply without a mention counts only where a chat is, or is about to be.
STORE: Final[LiteralString] = """
    WITH waiting AS (
        SELECT count(*) AS n FROM slack_events WHERE connection_id = $1 AND due_at IS NOT NULL),
    stored AS (
        INSERT INTO slack_events (connection_id, key, place, event)
        SELECT $1, $2, $3, $4::json FROM waiting
        WHERE n < $5 AND ($6::boolean OR EXISTS (
            SELECT FROM slack_threads t
            WHERE t.connection_id = $1 AND t.channel = $7 AND t.thread_ts = $8)
          OR EXISTS (
            SELECT FROM slack_events e
            WHERE e.connection_id = $1 AND e.place = $3 AND e.due_at IS NOT NULL))
        ON CONFLICT (connection_id, key) DO NOTHING RETURNING id)
    SELECT EXISTS (SELECT FROM stored) AS stored, (SELECT n FROM waiting) AS waiting"""
# In order for each thread: an event waits for the earlier ones there.
CLAIM: Final[LiteralString] = f"""
    UPDATE slack_events e
    SET due_at = now() + $2::float8 * interval '1 s', attempts = e.attempts + 1
    FROM (
        SELECT w.id FROM slack_events w
        JOIN slack_connections c ON c.id = w.connection_id
        WHERE w.due_at <= now() AND w.place LIKE 'press %' = $3
          AND (c.rest_until IS NULL OR c.rest_until <= now())
          AND NOT EXISTS (
            SELECT FROM slack_events f
            WHERE f.connection_id = w.connection_id AND f.place = w.place
              AND f.due_at IS NOT NULL AND f.id < w.id)
        ORDER BY w.due_at LIMIT $1 FOR UPDATE OF w SKIP LOCKED) claimed
    WHERE e.id = claimed.id RETURNING {_EVENT}"""
RENEW: Final[LiteralString] = """
    UPDATE slack_events e SET due_at = now() + $3::float8 * interval '1 s'
    FROM unnest($1::bigint[], $2::int[]) AS held (id, attempts)
    WHERE e.id = held.id AND e.attempts = held.attempts AND e.due_at IS NOT NULL"""
# Only of the attempt that was claimed: a late end of an earlier one changes nothing.
END: Final[LiteralString] = """
    UPDATE slack_events SET due_at = NULL, ended_at = now(), outcome = $3, detail = $4,
        chat_id = $5, event = $6::json
    WHERE id = $1 AND attempts = $2 AND due_at IS NOT NULL"""
RETRY: Final[LiteralString] = """
    UPDATE slack_events SET due_at = now() + $3::float8 * interval '1 s', detail = $4
    WHERE id = $1 AND attempts = $2 AND due_at IS NOT NULL"""
LIST: Final[LiteralString] = f"""
    SELECT {_EVENT} FROM slack_events e
    WHERE e.connection_id = $1 AND ($2::bigint IS NULL OR e.id < $2) ORDER BY e.id DESC LIMIT $3"""
DELETE_ENDED: Final[LiteralString] = """
    DELETE FROM slack_events WHERE id IN (
        SELECT id FROM slack_events
        WHERE ended_at < now() - $1::float8 * interval '1 s' ORDER BY ended_at LIMIT $2)"""

PLACE: Final[LiteralString] = f"""
    WITH made AS (
        INSERT INTO slack_threads (id, connection_id, channel, thread_ts) VALUES ($1, $2, $3, $4)
        ON CONFLICT (connection_id, channel, thread_ts) DO NOTHING RETURNING *)
    SELECT {_THREAD} FROM made t
    UNION ALL SELECT {_THREAD} FROM slack_threads t
    WHERE t.connection_id = $2 AND t.channel = $3 AND t.thread_ts = $4
      AND NOT EXISTS (SELECT FROM made)"""
FIND: Final[LiteralString] = f"""
    SELECT {_THREAD} FROM slack_threads t
    WHERE t.connection_id = $1 AND t.channel = $2 AND t.thread_ts = $3"""
GET_THREAD: Final[LiteralString] = f"SELECT {_THREAD} FROM slack_threads t WHERE t.id = $1"
# Before the message is sent: what the chat says from here on answers it. What is still shown of an
# earlier request stays to be shown.
BEGIN: Final[LiteralString] = """
    UPDATE slack_threads t SET request = $2, chat_id = $3,
        shown_message = CASE WHEN is_shown OR chat_id IS DISTINCT FROM $3 THEN $4
            ELSE shown_message END,
        shown_version = CASE WHEN chat_id IS DISTINCT FROM $3 THEN 0 ELSE shown_version END
    WHERE id = $1 AND (request <> $2 OR chat_id IS DISTINCT FROM $3)"""
# A process shows the thread now: another one must not, or both post the same.
_IS_CLAIMED: Final[LiteralString] = "attempts > 0 AND failure = '' AND NOT is_shown"
# After it was sent.
SHOW: Final[LiteralString] = f"""
    UPDATE slack_threads SET is_shown = false, failure = '', shown_version = 0,
        due_at = CASE WHEN {_IS_CLAIMED} THEN due_at ELSE now() END,
        attempts = CASE WHEN {_IS_CLAIMED} THEN attempts ELSE 0 END
    WHERE id = $1 AND request = $2"""
HURRY: Final[LiteralString] = f"""
    UPDATE slack_threads SET is_shown = false, shown_version = 0,
        due_at = CASE WHEN {_IS_CLAIMED} OR failure <> '' AND NOT is_shown THEN due_at
            ELSE now() END,
        attempts = CASE WHEN is_shown THEN 0 ELSE attempts END
    WHERE id = $1 AND chat_id IS NOT NULL"""
CLAIM_THREADS: Final[LiteralString] = f"""
    UPDATE slack_threads t
    SET due_at = now() + $2::float8 * interval '1 s', attempts = t.attempts + 1,
        claim = t.claim + 1, failure = ''
    FROM (
        SELECT w.id FROM slack_threads w
        JOIN slack_connections c ON c.id = w.connection_id AND c.enabled
        LEFT JOIN chats h ON h.id = w.chat_id
        WHERE NOT w.is_shown AND w.due_at <= now()
          AND (c.rest_until IS NULL OR c.rest_until <= now())
          AND (h.id IS NULL OR h.snapshot_version > w.shown_version)
        ORDER BY w.due_at LIMIT $1 FOR UPDATE OF w SKIP LOCKED) claimed
    WHERE t.id = claimed.id RETURNING {_THREAD}"""
RENEW_THREADS: Final[LiteralString] = f"""
    UPDATE slack_threads t SET due_at = now() + $3::float8 * interval '1 s'
    FROM unnest($1::uuid[], $2::bigint[]) AS held (id, claim)
    WHERE t.id = held.id AND t.claim = held.claim AND {_IS_CLAIMED}"""
# Not the end, if another request has begun since: `request` is then another one. Nor if the chat
# has changed since it was read: the request may have been sent after that.
SHOWN: Final[LiteralString] = """
    UPDATE slack_threads SET shown_version = CASE WHEN request = $2 THEN $3::bigint ELSE 0 END,
        is_shown = CASE WHEN request = $2 THEN $4::boolean AND NOT EXISTS (
                SELECT FROM chats h WHERE h.id = chat_id AND h.snapshot_version > $3)
            ELSE is_shown END, attempts = 0,
        failure = '', due_at = now() + $5::float8 * interval '1 s'
    WHERE id = $1 AND claim = $6"""
ADVANCE: Final[LiteralString] = """
    UPDATE slack_threads SET shown_message = $2
    WHERE id = $1 AND shown_message < $2 AND chat_id = $3"""
POSTPONE: Final[LiteralString] = """
    UPDATE slack_threads SET due_at = now() + coalesce($3::float8, 0) * interval '1 s',
        failure = $4, is_shown = $3::float8 IS NULL AND request = $2
    WHERE id = $1 AND claim = $5"""
DELETE_THREADS: Final[LiteralString] = """
    DELETE FROM slack_threads WHERE id IN (
        SELECT t.id FROM slack_threads t
        WHERE t.created_at < now() - interval '2 days'
          AND (SELECT c.id FROM chats c WHERE c.id = t.chat_id) IS NULL LIMIT $1)"""
LIST_ANSWERS: Final[LiteralString] = """
    SELECT m.id, m.content, m.finish_reason FROM chat_messages m
    WHERE m.chat_id = $1 AND m.id > $2 AND m.role = 'assistant' AND NOT m.deleted
      AND NOT m.compressed
    ORDER BY m.id LIMIT $3"""

LIST_POSTS: Final[LiteralString] = f"""
    SELECT {_POST} FROM slack_posts p
    WHERE p.thread_id = $1 AND (NOT p.is_closed OR p.key = ANY ($2::text[]))
    ORDER BY p.created_at"""
GET_POST: Final[LiteralString] = f"SELECT {_POST} FROM slack_posts p WHERE p.id = $1"
LAST_TS: Final[LiteralString] = """
    SELECT max(ts) FROM slack_posts WHERE thread_id = $1 AND created_at < $2"""
# Only of the claim that is the newest: a process that lost its thread posts nothing.
BEGIN_POST: Final[LiteralString] = f"""
    INSERT INTO slack_posts AS p (id, thread_id, key, tool_call_id, fingerprint, body)
    SELECT $1, t.id, $3, $4, $5, $6::json FROM slack_threads t WHERE t.id = $2 AND t.claim = $7
    ON CONFLICT (thread_id, key) DO NOTHING RETURNING {_POST}"""
SET_TS: Final[LiteralString] = "UPDATE slack_posts SET ts = $2, digest = $3 WHERE id = $1"
CLOSE_POST: Final[LiteralString] = "UPDATE slack_posts SET is_closed = true WHERE id = $1"

_DECODER: Final = msgspec.json.Decoder(SlackEvent)
StoreResult = Literal["stored", "known", "full"]


class StoredSlackEvent(Struct, frozen=True, kw_only=True):
    id: int
    connection_id: UUID
    event: SlackEvent
    created_at: datetime
    attempts: int
    due_at: datetime | None
    ended_at: datetime | None
    outcome: EventOutcome
    detail: str
    chat_id: ChatId | None


class SlackThread(Struct, frozen=True, kw_only=True):
    id: UUID
    connection_id: UUID
    channel: str
    thread_ts: str
    chat_id: ChatId | None
    request: str
    shown_message: int
    shown_version: int
    attempts: int
    claim: int


class SlackPost(Struct, frozen=True, kw_only=True):
    """`ts` is None from before it is posted until after it."""

    id: UUID
    thread_id: UUID
    key: str
    ts: str | None
    digest: str
    tool_call_id: ToolCallId | None
    fingerprint: str | None
    body: str | None
    is_closed: bool
    created_at: datetime


class ShownAnswer(Struct, frozen=True, kw_only=True):
    """A message of the model. `text` is empty if it only leads to the next step."""

    id: MessageId
    text: str


async def store_event(conn: Conn, connection_id: UUID, event: SlackEvent) -> StoreResult:
    row = await conn.fetchrow(
        STORE,
        connection_id,
        event.key,
        event.place,
        json_text(event),
        MAX_WAITING_EVENTS,
        event.is_kept,
        event.channel,
        event.thread_ts,
    )
    assert row is not None
    if row["stored"]:
        return "stored"
    return "full" if row["waiting"] >= MAX_WAITING_EVENTS else "known"


async def claim_events(
    conn: Conn, kind: SlackEventKind, *, limit: int, claim_s: float
) -> Sequence[StoredSlackEvent]:
    """The events that are due; other replicas get them only after `claim_s`."""
    return _events(await conn.fetch(CLAIM, limit, claim_s, kind == "press"))


async def renew_events(conn: Conn, held: Sequence[tuple[int, int]], *, claim_s: float) -> None:
    """Claims, by the ids and the attempts of their events."""
    ids, attempts = [one[0] for one in held], [one[1] for one in held]
    await conn.execute(RENEW, ids, attempts, claim_s)


async def renew_threads(conn: Conn, held: Sequence[tuple[UUID, int]], *, claim_s: float) -> None:
    """Claims, by the ids of the threads and the numbers of the claims."""
    ids, claims = [one[0] for one in held], [one[1] for one in held]
    await conn.execute(RENEW_THREADS, ids, claims, claim_s)


async def end_event(
    conn: Conn,
    event: StoredSlackEvent,
    outcome: EventOutcome,
    detail: str = "",
    chat_id: ChatId | None = None,
) -> None:
    """What was said is not kept."""
    kept = json_text(msgspec.structs.replace(event.event, text="", files=()))
    await conn.execute(END, event.id, event.attempts, outcome, detail, chat_id, kept)


async def retry_event(conn: Conn, event: StoredSlackEvent, after_s: float, detail: str) -> None:
    await conn.execute(RETRY, event.id, event.attempts, after_s, detail)


async def list_events(
    conn: Conn, actor: Actor, connection_id: UUID, *, before: int | None, limit: int
) -> Sequence[StoredSlackEvent]:
    """Newest first."""
    require_permission(actor, "config.read")
    return _events(await conn.fetch(LIST, connection_id, before, limit))


async def delete_ended(conn: Conn, *, after_s: float, limit: int) -> int:
    status = await conn.execute(DELETE_ENDED, after_s, limit)
    return int(status.rpartition(" ")[2])


async def delete_threads(conn: Conn, *, limit: int) -> int:
    """Delete the threads of chats that were removed."""
    status = await conn.execute(DELETE_THREADS, limit)
    return int(status.rpartition(" ")[2])


async def place_thread(
    conn: Conn, connection_id: UUID, event: SlackEvent, *, thread_id: UUID
) -> SlackThread:
    """The thread of the event, new if there is none."""
    args = (thread_id, connection_id, event.channel, event.thread_ts)
    row = await conn.fetchrow(PLACE, *args)
    if row is None:  # another replica inserted it after this statement began
        row = await conn.fetchrow(PLACE, *args)
    assert row is not None
    return _thread(row)


async def find_thread(conn: Conn, connection_id: UUID, event: SlackEvent) -> SlackThread | None:
    row = await conn.fetchrow(FIND, connection_id, event.channel, event.thread_ts)
    return None if row is None else _thread(row)


async def get_thread(conn: Conn, thread_id: UUID) -> SlackThread | None:
    row = await conn.fetchrow(GET_THREAD, thread_id)
    return None if row is None else _thread(row)


async def begin_request(
    conn: Conn, thread: SlackThread, event: SlackEvent, chat_id: ChatId, last_message: int
) -> None:
    """Before the message is sent. Repeated, it changes nothing."""
    await conn.execute(BEGIN, thread.id, event.key, chat_id, last_message)


async def show(conn: Conn, thread: SlackThread, event: SlackEvent) -> None:
    """Called after the message was sent: the thread shows what the chat does."""
    await conn.execute(SHOW, thread.id, event.key)


async def hurry(conn: Conn, thread_id: UUID) -> None:
    """Show the chat again now, after a press."""
    await conn.execute(HURRY, thread_id)


async def claim_threads(conn: Conn, *, limit: int, claim_s: float) -> Sequence[SlackThread]:
    """The threads whose messages are behind their chat."""
    return [_thread(row) for row in await conn.fetch(CLAIM_THREADS, limit, claim_s)]


async def set_shown(
    conn: Conn, thread: SlackThread, chat: Chat | None, *, is_final: bool, pause_s: float
) -> None:
    version = 0 if chat is None else chat.snapshot_version
    args = (thread.id, thread.request, version, is_final, pause_s, thread.claim)
    await conn.execute(SHOWN, *args)


async def advance(conn: Conn, thread: SlackThread, message_id: MessageId) -> None:
    """All answers up to this message are posted."""
    await conn.execute(ADVANCE, thread.id, message_id, thread.chat_id)


async def postpone(conn: Conn, thread: SlackThread, after_s: float | None, failure: str) -> None:
    """None: it is given up until the next request."""
    args = (thread.id, thread.request, after_s, failure, thread.claim)
    await conn.execute(POSTPONE, *args)


async def list_answers(
    conn: Conn, chat_id: ChatId, *, after: int, limit: int
) -> Sequence[ShownAnswer]:
    """The messages of the model after this one, oldest first."""
    rows = await conn.fetch(LIST_ANSWERS, chat_id, after, limit)
    answers: list[ShownAnswer] = []
    for row in rows:
        content = tuple(decode_parts(row["content"]))
        draft = Draft(role="assistant", content=content, finish_reason=row["finish_reason"])
        texts = [part.text for part in content if isinstance(part, TextPart)]
        text = "" if needs_next_step(draft) else "".join(texts).strip()
        answers.append(ShownAnswer(id=row["id"], text=text))
    return answers


# Posts


async def list_posts(
    conn: Conn, thread: SlackThread, keys: Sequence[str]
) -> Mapping[str, SlackPost]:
    """The posts that may still change, and those with these keys, by key."""
    rows = await conn.fetch(LIST_POSTS, thread.id, list(keys))
    return {row["key"]: _post(row) for row in rows}


async def get_post(conn: Conn, post_id: UUID) -> SlackPost | None:
    row = await conn.fetchrow(GET_POST, post_id)
    return None if row is None else _post(row)


async def last_ts(conn: Conn, post: SlackPost) -> str | None:
    """The id of the newest message of chatd in the thread before this one, as far as known."""
    return await conn.fetchval(LAST_TS, post.thread_id, post.created_at)


async def begin_post(
    conn: Conn,
    thread: SlackThread,
    post_id: UUID,
    key: str,
    *,
    tool_call_id: ToolCallId | None = None,
    fingerprint: str | None = None,
    body: str | None = None,
) -> SlackPost | None:
    """Before it is posted. None: another process has claimed the thread since."""
    row = await conn.fetchrow(
        BEGIN_POST, post_id, thread.id, key, tool_call_id, fingerprint, body, thread.claim
    )
    return None if row is None else _post(row)


async def set_ts(conn: Conn, post: SlackPost, ts: str, digest: str) -> None:
    await conn.execute(SET_TS, post.id, ts, digest)


async def close_post(conn: Conn, post: SlackPost) -> None:
    """It does not change any more."""
    await conn.execute(CLOSE_POST, post.id)


def _events(rows: Sequence[Row]) -> Sequence[StoredSlackEvent]:
    """The events, except those of a newer version of chatd that this one cannot read: a replica of
    that version gets them when the claim ends."""
    found: list[StoredSlackEvent] = []
    for row in rows:
        values = {name: row[name] for name in StoredSlackEvent.__struct_fields__}
        with suppress(msgspec.DecodeError):
            values["event"] = _DECODER.decode(row["event"])
            found.append(StoredSlackEvent(**values))
    return found


def _thread(row: Row) -> SlackThread:
    return SlackThread(**{name: row[name] for name in SlackThread.__struct_fields__})


def _post(row: Row) -> SlackPost:
    return SlackPost(**{name: row[name] for name in SlackPost.__struct_fields__})
