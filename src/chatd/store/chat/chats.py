"""Read, lock and list chats, and set single columns that have no version.

Also the cheap statements of the poll, each for many chats or owners at once. The poll finds changes
of which no hint arrived.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.access.permissions import (
    Actor,
    Permission,
    UserActor,
    is_allowed,
    require_allowed,
    require_permission,
)
from chatd.domain.chat.messages import Message, PendingCall, QueuedMessage
from chatd.domain.chat.row import AgentWait, Chat, ChatError, DiffStatus, RetryState, Setbacks
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat.takeover import LostOwner, Takeover
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.chat_views.search import ChatSource
from chatd.domain.ids import ChangeId, ChatId, McpServerId, MessageId, ProjectId, UserId
from chatd.store.chat.messages import (
    MAX_READ_BYTES,
    MESSAGE_COLUMNS,
    QUEUE_COLUMNS,
    messages_from_json,
    queue_from_json,
    take_within_bytes,
)
from chatd.store.database.conn import Conn, Row, json_text, strip_unstorable
from chatd.store.database.row_access import chat_condition, chat_reach, shared_roots, visible_chats

T = TypeVar("T")

_ERROR = msgspec.json.Decoder(ChatError)
_RETRY = msgspec.json.Decoder(RetryState)
_SETBACKS = msgspec.json.Decoder(Setbacks)
_AGENT_WAIT = msgspec.json.Decoder(AgentWait)
_LOST = msgspec.json.Decoder(LostOwner)
_TAKEOVER = msgspec.json.Decoder(Takeover)
_DIFF_STATUS = msgspec.json.Decoder(DiffStatus)
_CALLS = msgspec.json.Decoder(tuple[PendingCall, ...])
_LABELS = msgspec.json.Decoder(dict[str, str])

# $4: whether deleted chats count too.
GET: Final[LiteralString] = f"""
    SELECT c.* FROM chats c WHERE c.id = $1 AND {chat_condition("$2", "$3")}
      AND (c.deleted_at IS NULL OR $4)"""

GET_MANY: Final[LiteralString] = f"""
    SELECT c.* FROM chats c WHERE c.id = ANY ($1::uuid[]) AND {chat_condition("$2", "$3")}"""

LOCK: Final[LiteralString] = "SELECT id FROM chats WHERE id = $1 FOR NO KEY UPDATE"
LOCK_FILES: Final[LiteralString] = """
    SELECT pg_advisory_xact_lock(hashtextextended('files of ' || $1::uuid::text, 0))"""

LOCK_TREE: Final[LiteralString] = f"""
    SELECT c.* FROM chats c WHERE c.root_chat_id = $1 AND {chat_condition("$2", "$3")}
    ORDER BY (c.id <> c.root_chat_id), c.id FOR NO KEY UPDATE OF c"""

_QUEUE: Final[LiteralString] = f"""
    (SELECT json_agg(q ORDER BY NOT q.steer, q.position) FROM (
        SELECT {QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = c.id) q)"""

# One statement, so that row, queue and message have the same version.
LOAD: Final[LiteralString] = f"""
    SELECT c.*,
        CASE WHEN c.queue_len > 0 AND $2 THEN {_QUEUE} END AS queue,
        CASE WHEN $3::bigint IS NOT NULL THEN (SELECT json_agg(m) FROM (
            SELECT {MESSAGE_COLUMNS} FROM chat_messages
            WHERE chat_id = c.id AND id = $3) m) END AS target,
        CASE WHEN $6 THEN ARRAY(SELECT file_id FROM chat_files WHERE chat_id = c.id) END AS files
    FROM chats c
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$4", "$5")}"""

_SHOWN: Final[LiteralString] = """
    id, revision, role, visibility, CASE WHEN deleted THEN '[]' ELSE content END AS content,
    content_version, compressed, deleted, model_config_id, reasoning_effort, created_by, usage,
    cost_micros, runtime_ms, provider_response_id, finish_reason, created_at"""

_CHANGED_MESSAGES: Final[LiteralString] = f"""
    SELECT * FROM (
        SELECT {_SHOWN} FROM chat_messages WHERE chat_id = c.id AND revision > $2 OFFSET 0) changed
    ORDER BY id DESC LIMIT $3"""
_NEWEST_MESSAGES: Final[LiteralString] = f"""
    SELECT {MESSAGE_COLUMNS} FROM chat_messages WHERE chat_id = c.id AND NOT deleted
    ORDER BY id DESC LIMIT $2"""

# Changes after version $2: the newest $3 messages, deleted ones without content. OFFSET 0 above
# keeps the order out of the inner query: the planner does not know $2 and would walk the whole chat
# backwards to find one new row.
LOAD_CHANGES: Final[LiteralString] = f"""
    SELECT c.*, m.messages, m.found,
        CASE WHEN c.queue_version > $2 AND c.queue_len > 0 THEN {_QUEUE} END AS queue
    FROM chats c, LATERAL {take_within_bytes(_CHANGED_MESSAGES, order="id DESC", max_bytes="$4")} m
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$5", "$6")}"""

# The same for a viewer without a version: the newest $2 messages that are not deleted.
LOAD_NEWEST: Final[LiteralString] = f"""
    SELECT c.*, m.messages, m.found,
        CASE WHEN c.queue_len > 0 THEN {_QUEUE} END AS queue
    FROM chats c, LATERAL {take_within_bytes(_NEWEST_MESSAGES, order="id DESC", max_bytes="$3")} m
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$4", "$5")}"""

HAS_CHANGE: Final[LiteralString] = """
    SELECT EXISTS (
        SELECT FROM chat_messages WHERE chat_id = $1 AND revision = $2 AND change_id = $3)"""

# The search index reads the title again.
SET_TITLE: Final[LiteralString] = f"""
    WITH named AS (
        UPDATE chats c SET title = $3
        WHERE c.id = $1 AND c.title = $2 AND {chat_condition("$4", "$5")} RETURNING c.*),
    marked AS (
        UPDATE chat_search_state SET title = NULL
        WHERE chat_id = (SELECT id FROM named))
    SELECT * FROM named"""


SET_DIFF_STATUS: Final[LiteralString] = f"""
    UPDATE chats c SET diff_status = $2::jsonb
    WHERE c.id = $1 AND c.diff_status IS DISTINCT FROM $2::jsonb AND {chat_condition("$3", "$4")}
    RETURNING c.*"""


class ChatChanges(Struct, frozen=True, kw_only=True):
    """`queue` is None if it did not change; `truncated`: more messages changed than were read."""

    chat: Chat
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...] | None
    truncated: bool


def _read(decoder: msgspec.json.Decoder[T], text: str | None) -> T | None:
    return None if text is None else decoder.decode(text)


def read_takeover(text: str | None) -> Takeover | None:
    return _read(_TAKEOVER, text)


def read_diff_status(text: str | None) -> DiffStatus | None:
    return _read(_DIFF_STATUS, text)


def read_mcp_servers(ids: Sequence[UUID] | None) -> tuple[McpServerId, ...] | None:
    return None if ids is None else tuple(McpServerId(one) for one in ids)


def chat_from_row(row: Row) -> Chat:
    columns = dict(row)
    client_tools: str | None = columns["client_tools"]
    columns.update(
        labels=_LABELS.decode(columns["labels"]),
        client_tools=UNSET if client_tools is None else Raw(client_tools),
        last_error=_read(_ERROR, columns["last_error"]),
        retry_state=_read(_RETRY, columns["retry_state"]),
        setbacks=_read(_SETBACKS, columns["setbacks"]),
        diff_status=read_diff_status(columns["diff_status"]),
        agent_wait=_read(_AGENT_WAIT, columns["agent_wait"]),
        lost=_read(_LOST, columns["lost"]),
        takeover=read_takeover(columns["takeover"]),
        pending_calls=_CALLS.decode(columns["pending_calls"]),
        recent_changes=tuple(columns["recent_changes"]),
        mcp_server_ids=read_mcp_servers(columns["mcp_server_ids"]),
    )
    return Chat(**{name: columns[name] for name in Chat.__struct_fields__})


async def get(conn: Conn, actor: Actor, chat_id: ChatId) -> Chat | None:
    """None also for a chat that the actor may not read."""
    reach = chat_reach(actor, "chats.read")
    return _chat_or_none(await conn.fetchrow(GET, chat_id, *reach, False))  # noqa: FBT003


async def get_for_command(
    conn: Conn,
    actor: Actor,
    chat_id: ChatId,
    permission: Permission,
    *,
    with_deleted: bool = False,
) -> Chat | None:
    """None also for a chat that the actor may not read. Raises Forbidden for one that the actor
    may not change. `with_deleted`: deleted chats too, for those who may change them."""
    reach = visible_chats(actor, permission)
    chat = _chat_or_none(await conn.fetchrow(GET, chat_id, *reach, with_deleted))
    if chat is not None and chat.deleted_at is not None:
        return chat if is_allowed(actor, permission, chat.owner_id) else None
    if chat is not None:
        require_allowed(actor, permission, chat.owner_id)
    return chat


async def get_many(conn: Conn, actor: Actor, chat_ids: list[ChatId]) -> list[Chat]:
    """In no particular order, deleted ones too; chats that the actor may not read are left out."""
    rows = await conn.fetch(GET_MANY, chat_ids, *chat_reach(actor, "chats.read"))
    return [chat_from_row(row) for row in rows]


async def load_for_transition(
    conn: Conn,
    actor: Actor,
    chat_id: ChatId,
    permission: Permission,
    *,
    with_queue: bool = False,
    message_id: MessageId | None = None,
    with_files: bool = False,
) -> LoadedChat | None:
    """None also for a chat that the actor may not read. Raises Forbidden for one on which the
    actor lacks the permission."""
    reach = visible_chats(actor, permission)
    row = await conn.fetchrow(LOAD, chat_id, with_queue, message_id, *reach, with_files)
    if row is None:
        return None
    chat = chat_from_row(row)
    if permission != "chats.read":
        require_allowed(actor, permission, chat.owner_id)
    target = messages_from_json(row["target"])
    return LoadedChat(
        chat=chat,
        queue=queue_from_json(row["queue"]),
        target=target[0] if target else None,
        files=frozenset(row["files"] or ()),
    )


async def load_changes_since(
    conn: Conn,
    actor: Actor,
    chat_id: ChatId,
    version: int,
    *,
    limit: int = 1000,
    max_bytes: int = MAX_READ_BYTES,
) -> ChatChanges | None:
    """From version 0: all messages that are not deleted."""
    reach = chat_reach(actor, "chats.read")
    if version == 0:
        row = await conn.fetchrow(LOAD_NEWEST, chat_id, limit + 1, max_bytes, *reach)
    else:
        row = await conn.fetchrow(LOAD_CHANGES, chat_id, version, limit + 1, max_bytes, *reach)
    if row is None:
        return None
    chat = chat_from_row(row)
    messages = messages_from_json(row["messages"])[:limit]
    return ChatChanges(
        chat=chat,
        messages=messages[::-1],
        queue=queue_from_json(row["queue"])
        if chat.queue_version > version or version == 0
        else None,
        truncated=len(messages) < row["found"],
    )


async def has_change(conn: Conn, chat_id: ChatId, version: int, change_id: ChangeId) -> bool:
    """Whether a message still has the revision that this change gave it. False if the change
    wrote no message, or a later one has deleted them."""
    return await conn.fetchval(HAS_CHANGE, chat_id, version, change_id)


async def lock(conn: Conn, chat_id: ChatId) -> None:
    """Wait for running writes, so that the next attempt cannot conflict."""
    await conn.fetchval(LOCK, chat_id)


async def lock_files(conn: Conn, chat_id: ChatId) -> None:
    """Until the end of the transaction no other one adds files to the chat, so they can be counted.
    Not by the row's lock, because a tool would then wait behind every commit."""
    await conn.fetchval(LOCK_FILES, chat_id)


async def lock_tree(conn: Conn, actor: Actor, root: ChatId, permission: Permission) -> list[Chat]:
    """Lock the root first, then by id. All code that locks several chats uses this order.

    Two statements: the snapshot of the first does not contain a subagent that was created while
    this waited for the root's lock."""
    await lock(conn, root)
    rows = await conn.fetch(LOCK_TREE, root, *chat_reach(actor, permission))
    return [chat_from_row(row) for row in rows]


async def set_title(
    conn: Conn, actor: Actor, chat_id: ChatId, *, expected: str, title: str
) -> Chat | None:
    """Compare and set, so that a generated title does not replace one that a user has set."""
    reach = chat_reach(actor, "chats.write")
    row = await conn.fetchrow(SET_TITLE, chat_id, expected, strip_unstorable(title), *reach)
    return _chat_or_none(row)


async def set_diff_status(
    conn: Conn, actor: Actor, chat_id: ChatId, status: DiffStatus
) -> Chat | None:
    """None if it is the same already, or the actor may not write to the chat."""
    reach = chat_reach(actor, "chats.write")
    row = await conn.fetchrow(SET_DIFF_STATUS, chat_id, json_text(status), *reach)
    return _chat_or_none(row)


def _chat_or_none(row: Row | None) -> Chat | None:
    return None if row is None else chat_from_row(row)


class ChatListFilter(Struct, frozen=True, kw_only=True):
    """`after` is the time and id of the last row of the previous page. A `status` of None and
    `pinned` of None let all chats pass."""

    source: ChatSource = "mine"
    archived: bool = False
    labels: Mapping[str, str] = {}
    status: PublicStatus | None = None
    pinned: bool | None = None
    project_id: ProjectId | None = None
    after: tuple[datetime, ChatId] | None = None
    limit: int = 50


# The first page compares with infinity, so that every page is a range of the index. With
# "$3 IS NULL OR ..." it would be a filter, and a late page a scan.
_PAGE: Final[LiteralString] = """
    owner_id = $1 AND parent_chat_id IS NULL AND archived = $2 AND deleted_at IS NULL
      AND (updated_at, id) < (coalesce($3, 'infinity'::timestamptz), coalesce($4, $1))"""
# Without the chats that programs start by the hundred, unless they wait for a person: the rule of
# `is_listed`. In a CASE, because the planner takes hardly any row to pass the plain condition.
_LISTED: Final[LiteralString] = """
    CASE WHEN labels = '{}' THEN true
         WHEN labels @> '{"chatd/listed": "no"}'
             THEN status = 'requires_action' AND pending_calls::text LIKE '%"asks":%'
         ELSE true END"""
LIST: Final[LiteralString] = f"""
    SELECT * FROM chats WHERE {_PAGE} AND {_LISTED}
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
LIST_LABELLED: Final[LiteralString] = f"""
    SELECT * FROM chats WHERE {_PAGE} AND labels @> $6 AND labels <> '{{}}'
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
# A pin belongs to the owner: chats that others share are not pinned.
FILTERS: Final[LiteralString] = """
    ($6::jsonb IS NULL OR labels @> $6)
    AND ($7::text IS NULL
         OR $7 = CASE WHEN status = 'running' AND worker_id IS NULL AND agent_wait IS NULL
                      THEN 'pending' ELSE status END)
    AND ($8::boolean IS NULL OR $8 = (pin_order > 0 AND owner_id = $1))"""
LIST_FILTERED: Final[LiteralString] = f"""
    SELECT * FROM chats WHERE {_PAGE} AND {FILTERS}
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
# For filters that most chats pass, so that a walk over the list soon has a page. The planner takes
# half of the rows to pass a CASE, and hardly any to pass the plain conditions, whose values it does
# not know: for these it would read and sort all chats of the owner.
LIST_MOST: Final[LiteralString] = f"""
    SELECT * FROM chats
    WHERE {_PAGE} AND CASE WHEN {FILTERS} THEN {_LISTED} ELSE false END
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
# For statuses that few chats have, by the index of these. A range of one status, by which the rows
# are ordered first: for `=` the planner, which does not know the status, would walk over all chats.
_STORED: Final[LiteralString] = "CASE $7::text WHEN 'pending' THEN 'running' ELSE $7 END"
LIST_RARE: Final[LiteralString] = f"""
    SELECT * FROM chats WHERE {_PAGE} AND {FILTERS}
      AND status <> 'waiting' AND status BETWEEN {_STORED} AND {_STORED}
    ORDER BY status, updated_at DESC, id DESC LIMIT $5"""
# By the index of pins.
LIST_OWN_PINS: Final[LiteralString] = f"""
    SELECT * FROM chats WHERE {_PAGE} AND pin_order > 0 AND {FILTERS}
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
# All shares of the user are read for a page, each by its key. $9: whether sharing is enabled.
LIST_SHARED: Final[LiteralString] = f"""
    SELECT * FROM chats WHERE $9::boolean AND id = ANY ({shared_roots("$1")})
      AND owner_id <> $1 AND parent_chat_id IS NULL AND archived = $2 AND deleted_at IS NULL
      AND (updated_at, id) < (coalesce($3, 'infinity'::timestamptz), coalesce($4, $1))
      AND {FILTERS}
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
LIST_ALL: Final[LiteralString] = f"""
    SELECT * FROM (({LIST}) UNION ALL ({LIST_SHARED})) either
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
LIST_ALL_FILTERED: Final[LiteralString] = f"""
    SELECT * FROM (({LIST_FILTERED}) UNION ALL ({LIST_SHARED})) either
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
LIST_ALL_RARE: Final[LiteralString] = f"""
    SELECT * FROM (({LIST_RARE}) UNION ALL ({LIST_SHARED})) either
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
LIST_ALL_MOST: Final[LiteralString] = f"""
    SELECT * FROM (({LIST_MOST}) UNION ALL ({LIST_SHARED})) either
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
# $9: whether chats of others are listed, $10: whether own ones are, $11: the project.
IN_PROJECT: Final[LiteralString] = """
    project_id = $11 AND parent_chat_id IS NULL
      AND (owner_id = $1 AND $10::boolean OR owner_id <> $1 AND $9::boolean AND EXISTS (
          SELECT FROM project_members m WHERE m.project_id = $11 AND m.user_id = $1))"""
LIST_IN_PROJECT: Final[LiteralString] = f"""
    SELECT * FROM chats WHERE {IN_PROJECT} AND archived = $2 AND deleted_at IS NULL
      AND (updated_at, id) < (coalesce($3, 'infinity'::timestamptz), coalesce($4, $1))
      AND {FILTERS}
    ORDER BY updated_at DESC, id DESC LIMIT $5"""
LIST_PINNED: Final[LiteralString] = """
    SELECT * FROM chats WHERE owner_id = $1 AND pin_order > 0 ORDER BY pin_order, id LIMIT 200"""
LIST_CHILDREN: Final[LiteralString] = f"""
    SELECT c.* FROM chats c
    WHERE c.root_chat_id = ANY ($1::uuid[]) AND c.parent_chat_id IS NOT NULL
      AND c.deleted_at IS NULL AND {chat_condition("$3", "$4")}
    ORDER BY c.root_chat_id, c.created_at, c.id LIMIT $2"""


async def list_roots(conn: Conn, actor: UserActor, list_filter: ChatListFilter) -> list[Chat]:
    """The user's own chats, or those that are shared with the user by name, by a group or by a
    project, or both;
    newest first. The order is total, so pages neither repeat nor skip an unchanged chat."""
    values = filter_values(actor, list_filter)
    if list_filter.project_id is not None:
        others = actor.reads_shared and list_filter.source != "mine"
        own = list_filter.source != "shared"
        which = (*values, others, own, list_filter.project_id)
        return [chat_from_row(row) for row in await conn.fetch(LIST_IN_PROJECT, *which)]
    statement, count = _list_statement(list_filter)
    rows = await conn.fetch(statement, *(*values, actor.reads_shared)[:count])
    return [chat_from_row(row) for row in rows]


def _list_statement(wanted: ChatListFilter) -> tuple[LiteralString, int]:
    """The statement and how many of the parameters it has. A pin is the owner's, so that all
    pinned chats are own ones."""
    is_filtered = wanted.status is not None or wanted.pinned is not None
    passes_most = wanted.status in (None, "waiting") and not wanted.labels
    is_rare = wanted.status not in (None, "waiting")
    match wanted.source:
        case "shared":
            return LIST_SHARED, 9
        case _ if wanted.pinned:
            return LIST_OWN_PINS, 8
        case "all" if is_filtered and passes_most:
            return LIST_ALL_MOST, 9
        case "all" if is_rare:
            return LIST_ALL_RARE, 9
        case "all":
            return (LIST_ALL_FILTERED if is_filtered or wanted.labels else LIST_ALL), 9
        case "mine" if is_rare:
            return LIST_RARE, 8
        case "mine" if is_filtered:
            return (LIST_MOST if passes_most else LIST_FILTERED), 8
        case "mine":
            return (LIST_LABELLED, 6) if wanted.labels else (LIST, 5)


def filter_values(actor: UserActor, list_filter: ChatListFilter) -> tuple[object, ...]:
    """The parameters $1 to $8 of a list of chats."""
    require_permission(actor, "chats.read")
    at, chat_id = list_filter.after or (None, None)
    return (
        actor.user_id,
        list_filter.archived,
        at,
        chat_id,
        list_filter.limit,
        json_text(list_filter.labels) if list_filter.labels else None,
        list_filter.status,
        list_filter.pinned,
    )


async def list_pinned(conn: Conn, actor: UserActor) -> list[Chat]:
    """The user's own chats."""
    require_permission(actor, "chats.read")
    return [chat_from_row(row) for row in await conn.fetch(LIST_PINNED, actor.user_id)]


async def list_children(
    conn: Conn, actor: Actor, roots: list[ChatId], *, limit: int = 1000
) -> list[Chat]:
    reach = chat_reach(actor, "chats.read")
    return [chat_from_row(row) for row in await conn.fetch(LIST_CHILDREN, roots, limit, *reach)]


LIST_VERSIONS: Final[LiteralString] = f"""
    SELECT c.id, c.snapshot_version, coalesce(c.recent_changes[1], 0) AS change_id
    FROM chats c
    WHERE c.id = ANY ($1::uuid[]) AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}"""

# One index look-up for each owner and each value of `archived`: the planner may turn a plain
# condition into a scan.
LIST_RECENTLY_ACTIVE: Final[LiteralString] = """
    SELECT c.* FROM unnest($1::uuid[]) AS o (owner_id),
        unnest('{true, false}'::boolean[]) AS half (archived),
    LATERAL (
        SELECT * FROM chats
        WHERE owner_id = o.owner_id AND parent_chat_id IS NULL AND archived = half.archived
          AND updated_at > now() - $2::float8 * interval '1 s'
        ORDER BY updated_at DESC, id DESC LIMIT $3) c"""


class ChatVersion(Struct, frozen=True, kw_only=True):
    """A version and the change that wrote it. The same version with another change id means that
    the database was restored to an earlier state."""

    version: int
    change_id: ChangeId


async def list_versions(
    conn: Conn, actor: Actor, chat_ids: list[ChatId]
) -> dict[ChatId, ChatVersion]:
    """Chats that the actor may not read are left out."""
    reach = chat_reach(actor, "chats.read")
    return {
        row["id"]: ChatVersion(version=row["snapshot_version"], change_id=row["change_id"])
        for row in await conn.fetch(LIST_VERSIONS, chat_ids, *reach)
    }


async def list_recently_active(
    conn: Conn, owners: list[UserId], *, max_age_s: float, limit_per_owner: int = 100
) -> list[Chat]:
    """Root chats of these owners with an `updated_at` of the last `max_age_s`, deleted ones too."""
    return [
        chat_from_row(row)
        for row in await conn.fetch(LIST_RECENTLY_ACTIVE, owners, max_age_s, limit_per_owner)
    ]
