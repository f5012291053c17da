"""Read a chat with its subagents for an export, and write an import.

An export reads in batches and still shows one state of each chat: up to its last message at the
start, with the messages that were deleted since, and with the lines that another version of a
message had replaced. An import is one transaction.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from chatd.domain.access.permissions import Actor, Permission, UserActor
from chatd.domain.chat.messages import (
    Draft,
    Message,
    PendingCall,
    Role,
    Visibility,
    decode_parts,
    encode_parts,
    public_parts,
)
from chatd.domain.chat.parts import NoticePart, UnknownPart
from chatd.domain.chat.row import Chat, LineEnd
from chatd.domain.chat_views.copied_versions import NO_VERSIONS, CopiedVersion, CopiedVersions
from chatd.domain.chat_views.ratings import GivenRating
from chatd.domain.chat_views.transfer import (
    ChatLine,
    MessageLine,
    close_calls,
    closing_results,
    content_fields,
    fork_title,
    one_line,
)
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.ids import ChangeId, ChatId, MessageId, ModelConfigId, UserId
from chatd.domain.tool_policy.rules import ToolPolicy, ToolRule, decode_policy, without_permissions
from chatd.store.chat import chats, versions
from chatd.store.chat.chats import chat_from_row
from chatd.store.chat.messages import MESSAGE_COLUMNS, messages_from_json, take_within_bytes
from chatd.store.chat.versions import NewVersion
from chatd.store.database.conn import (
    Conn,
    DatabaseSession,
    json_or_none,
    json_text,
    strip_unstorable,
)
from chatd.store.database.pool import Pool
from chatd.store.database.row_access import chat_condition, visible_chats
from chatd.store.deployment.mcp_servers import keep_usable
from chatd.store.workspace import workspaces
from chatd.store.workspace.workspaces import NewWorkspace

MAX_MESSAGES_PER_READ: Final = 200
MAX_BYTES_PER_READ: Final = 4 * 1024 * 1024
MAX_MESSAGES_PER_WRITE: Final = 200
MAX_BYTES_PER_WRITE: Final = 4 * 1024 * 1024
MAX_CHATS_PER_READ: Final = 200

LOAD_ROOT: Final[LiteralString] = f"""
    SELECT c.* FROM chats c
    WHERE c.id = $1 AND c.parent_chat_id IS NULL AND c.deleted_at IS NULL
      AND {chat_condition("$2", "$3")}"""
# A subagent is younger than its parent.
LOAD_SUBAGENTS: Final[LiteralString] = """
    SELECT c.* FROM chats c
    WHERE c.root_chat_id = $1 AND c.owner_id = $2 AND c.id <> $1
      AND (c.created_at, c.id) > ($3, $4::uuid)
    ORDER BY c.created_at, c.id LIMIT $5"""

# Also messages that were deleted after the version with which the export began, and hidden ones.
_MESSAGES: Final[LiteralString] = """
    SELECT id, role, visibility, content, content_version, compressed, model_config_id,
        reasoning_effort, usage, provider_response_id, finish_reason, created_at,
        (SELECT json_build_object('value', r.value, 'comment', r.comment)
         FROM message_ratings r JOIN chats c ON c.id = r.chat_id AND c.owner_id = r.user_id
         WHERE r.chat_id = chat_messages.chat_id AND r.message_id = chat_messages.id) AS rating,
        deleted AND deleted_at IS NULL AS is_cleared
    FROM chat_messages
    WHERE chat_id = $1 AND id > $2 AND id < $3
      AND (NOT deleted OR revision > $4 OR id = ANY ($7::bigint[]))
    ORDER BY id LIMIT $5"""
LOAD_MESSAGES: Final[LiteralString] = f"""
    SELECT m.messages, m.found
    FROM {take_within_bytes(_MESSAGES, order="id", max_bytes="$6")} m"""

INSERT_CHAT: Final[LiteralString] = f"""
    INSERT INTO chats (id, owner_id, root_chat_id, parent_chat_id, title, labels, created_at,
        model_config_id, reasoning_effort, client_tools, mcp_server_ids, mode, status,
        snapshot_version, history_version, next_message_id, recent_changes)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, {keep_usable("$13::uuid[]")}, $14, 'waiting',
        1, 1, $11, ARRAY[$12::bigint])
    RETURNING *"""
INSERT_MESSAGES: Final[LiteralString] = """
    INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
        content_version, compressed, model_config_id, reasoning_effort, created_by, usage,
        provider_response_id, finish_reason, created_at, change_id, deleted, deleted_at)
    SELECT m.chat_id, $1, 1, m.id, m.role, m.visibility, m.content::json, m.content_version,
        m.compressed, m.model_config_id, m.reasoning_effort,
        CASE WHEN m.role = 'user' AND m.visibility <> 'model' AND NOT m.compressed
            THEN $2::uuid END,
        m.usage::json, m.provider_response_id, m.finish_reason, m.created_at, $3,
        m.hidden, CASE WHEN m.hidden THEN now() END
    FROM unnest($4::uuid[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::smallint[],
        $10::boolean[], $11::uuid[], $12::text[], $13::text[], $14::text[], $15::text[],
        $16::timestamptz[], $17::boolean[])
        AS m (chat_id, id, role, visibility, content, content_version, compressed,
            model_config_id, reasoning_effort, usage, provider_response_id, finish_reason,
            created_at, hidden)"""
INSERT_RATINGS: Final[LiteralString] = """
    INSERT INTO message_ratings (chat_id, message_id, user_id, value, comment)
    SELECT r.chat_id, r.message_id, $1, r.value, r.comment
    FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::text[])
        AS r (chat_id, message_id, value, comment)"""
LOAD_RULES: Final[LiteralString] = "SELECT policy FROM tool_policies WHERE chat_id = $1"
INSERT_RULES: Final[LiteralString] = """
    INSERT INTO tool_policies (chat_id, policy, updated_by) VALUES ($1, $2::jsonb, $3)"""
# Only the importing user's own files: a link lets the chat read the file.
LINK_FILES: Final[LiteralString] = """
    INSERT INTO chat_files (chat_id, file_id)
    SELECT $1, id FROM files WHERE id = ANY ($3::uuid[]) AND owner_id = $2 LIMIT $4"""
MARK_READ: Final[LiteralString] = """
    INSERT INTO chat_read_marks (user_id, chat_id, message_id)
    SELECT owner_id, id, next_message_id - 1 FROM chats
    WHERE root_chat_id = $1 AND next_message_id > 1"""


_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


class ExportedMessage(Struct, frozen=True, kw_only=True):
    """A message as it is stored. `line` and `version_of` are as those of a MessageLine, with stored
    ids. `is_cleared`: retention has removed its content."""

    id: int
    role: Role
    visibility: Visibility
    content: Raw
    content_version: int
    compressed: bool
    model_config_id: UUID | None
    reasoning_effort: str | None
    usage: Raw
    provider_response_id: str | None
    finish_reason: str | None
    created_at: datetime
    rating: GivenRating | None = None
    is_cleared: bool = False
    line: int | None = None
    version_of: int | None = None

    def message(self) -> Message:
        return Message(
            id=MessageId(self.id),
            revision=0,
            role=self.role,
            visibility=self.visibility,
            content=decode_parts(bytes(self.content)),
            compressed=self.compressed,
            created_at=self.created_at,
        )

    def as_readers_see(self) -> "ExportedMessage | None":
        """Without internal fields and what only the model sees. None if nothing is left."""
        if self.visibility == "model":
            return None
        parts = public_parts(decode_parts(bytes(self.content)))
        known = [part for part in parts if not isinstance(part, UnknownPart)]
        if self.role == "system":
            known = [part for part in known if isinstance(part, NoticePart)]
        return replace(
            self,
            visibility="user" if self.role == "system" else self.visibility,
            content=Raw(encode_parts(known).encode()),
            compressed=False,  # the summary that replaces it is not exported
            provider_response_id=None,
            rating=None,
        )


_MESSAGES_DECODER: Final = msgspec.json.Decoder(tuple[ExportedMessage, ...])


async def load_root(
    conn: Conn, actor: Actor, root: ChatId, permission: Permission = "chats.read"
) -> Chat | None:
    """None also for a chat that the actor may not see. `permission` is that of the request."""
    row = await conn.fetchrow(LOAD_ROOT, root, *visible_chats(actor, permission))
    return None if row is None else chat_from_row(row)


async def read_family(conn: Conn, root: Chat) -> AsyncGenerator[Chat]:
    """The root chat, then all of its subagents, read in batches. The caller has loaded
    the root for its actor."""
    yield root
    at, last = _EARLIEST, root.id
    while True:
        rows = await conn.fetch(
            LOAD_SUBAGENTS, root.id, root.owner_id, at, last, MAX_CHATS_PER_READ
        )
        if not rows:
            return
        for row in rows:
            chat = chat_from_row(row)
            at, last = chat.created_at, chat.id
            yield chat


async def read_rules(conn: Conn, root: Chat) -> tuple[ToolRule, ...]:
    """The rules of the chat's own tool policy. The caller has loaded the root for its actor."""
    return decode_policy(await conn.fetchval(LOAD_RULES, root.id)).rules


async def read_messages(
    conn: Conn, chat: Chat, copied: CopiedVersions = NO_VERSIONS
) -> AsyncGenerator[tuple[ExportedMessage, ...]]:
    """Batches of bounded size, and results for the calls that were pending. Raises Conflict if
    retention removes a part meanwhile."""
    last, created_at, hidden = 0, chat.created_at, copied.hidden
    firsts = {version.message_id: version.first for version in copied.versions}
    while True:
        ahead = bisect_right(hidden, last)
        row = await conn.fetchrow(
            LOAD_MESSAGES,
            chat.id,
            last,
            chat.next_message_id,
            chat.snapshot_version,
            MAX_MESSAGES_PER_READ,
            MAX_BYTES_PER_READ,
            hidden[ahead : ahead + MAX_MESSAGES_PER_READ],
        )
        text = None if row is None else row["messages"]
        if text is None:
            break
        batch = _MESSAGES_DECODER.decode(text)
        last, created_at = batch[-1].id, batch[-1].created_at
        if any(message.is_cleared for message in batch):
            raise Conflict("Retention has removed a part of the chat meanwhile. Export it again.")
        yield tuple(
            replace(message, line=copied.lines.get(message.id), version_of=firsts.get(message.id))
            for message in batch
            if message.id not in copied.left_out
        )
    closing = _closing_results(chat.pending_calls, last, created_at)
    for version in copied.versions:
        if version.end is not None and version.hidden is not None:
            at = last + len(closing)
            results = _closing_results(version.end.pending_calls, at, created_at)
            closing += [replace(result, line=version.message_id) for result in results]
    if closing:
        yield tuple(closing)


def _closing_results(
    calls: Iterable[PendingCall], last: int, at: datetime
) -> list[ExportedMessage]:
    """Answer open calls: a history with one could not continue."""
    drafts = close_calls(calls)
    return [
        ExportedMessage(
            id=last + number,
            role=draft.role,
            visibility=draft.visibility,
            content=Raw(encode_parts(draft.content).encode()),
            content_version=draft.content_version,
            compressed=False,
            model_config_id=None,
            reasoning_effort=None,
            usage=Raw(b"null"),
            provider_response_id=None,
            finish_reason=None,
            created_at=at,
        )
        for number, draft in enumerate(drafts, 1)
    ]


def chat_line(
    chat: Chat, numbers: Mapping[ChatId, int], rules: tuple[ToolRule, ...] = ()
) -> ChatLine:
    return ChatLine(
        number=numbers[chat.id],
        # A parent with a later time than its subagent comes from a file: then the root stands in.
        parent=None if chat.parent_chat_id is None else numbers.get(chat.parent_chat_id, 1),
        title=chat.title,
        labels=chat.labels,
        created_at=chat.created_at,
        model_config_id=chat.model_config_id,
        reasoning_effort=chat.reasoning_effort,
        client_tools=one_line(chat.client_tools),
        mcp_server_ids=chat.mcp_server_ids,
        mode=chat.mode,
        tool_rules=rules if chat.is_root else (),
    )


def message_line(
    message: ExportedMessage, chat: int, number: int, numbers: Mapping[int, int]
) -> MessageLine:
    """`numbers` are those of the versions up to this message, by their stored ids."""
    model = message.model_config_id
    line = MessageLine(
        chat=chat,
        id=number,
        role=message.role,
        visibility=message.visibility,
        content_version=message.content_version,
        compressed=message.compressed,
        model_config_id=None if model is None else ModelConfigId(model),
        reasoning_effort=message.reasoning_effort,
        usage=UNSET if bytes(message.usage) == b"null" else one_line(message.usage),
        provider_response_id=message.provider_response_id,
        finish_reason=message.finish_reason if message.role == "assistant" else UNSET,
        created_at=message.created_at,
        rating=message.rating,
        version_of=None if message.version_of is None else numbers[message.version_of],
        line=None if message.line is None else numbers[message.line],
    )
    return replace(line, **content_fields(message.content))


class ImportRequest(Struct, frozen=True, kw_only=True):
    """`ids` are those of the new chats, in the order of the file."""

    change_id: ChangeId
    ids: Sequence[ChatId]
    chats: Sequence[ChatLine]
    messages: Sequence[MessageLine]
    file_ids: Sequence[UUID] = ()


async def write_import(
    pool: Pool, actor: UserActor, request: ImportRequest, *, max_files: int
) -> Chat:
    """The new root chat. All chats or none are written. A repeated attempt after a lost reply finds
    what the first one wrote."""
    async with pool.transaction() as session:
        made = await load_root(session, actor, request.ids[0], "chats.create")
        return made or await _insert(session, actor.user_id, request, max_files)


async def _insert(
    session: DatabaseSession, owner: UserId, request: ImportRequest, max_files: int
) -> Chat:
    root = request.ids[0]
    counts = dict.fromkeys(range(1, len(request.chats) + 1), 0)
    for message in request.messages:
        counts[message.chat] += 1
    made = [
        await _insert_chat(session, owner, request, line, counts[line.number])
        for line in request.chats
    ]
    for batch in _batches(request.messages):
        ids = [request.ids[line.chat - 1] for line in batch]
        await session.execute(
            INSERT_MESSAGES, root, owner, request.change_id, ids, *_columns(batch)
        )
        if rated := [(line, given) for line in batch if (given := line.rating) is not None]:
            await session.execute(
                INSERT_RATINGS,
                owner,
                [request.ids[line.chat - 1] for line, _ in rated],
                [line.id for line, _ in rated],
                [given.value for _, given in rated],
                [strip_unstorable(given.comment) for _, given in rated],
            )
    if found := _new_versions(request):
        await versions.insert(session, found)
    if request.file_ids:
        await session.execute(LINK_FILES, root, owner, request.file_ids, max_files)
    if rules := without_permissions(request.chats[0].tool_rules):
        policy = json_text(ToolPolicy(rules=rules))
        await session.execute(INSERT_RULES, root, policy, owner)
    await session.execute(MARK_READ, root)
    return made[0]


def _new_versions(request: ImportRequest) -> list[NewVersion]:
    hidden: dict[tuple[int, int], list[int]] = {}
    for line in request.messages:
        if line.line is not None:
            hidden.setdefault((line.chat, line.line), []).append(line.id)
    return [
        NewVersion(
            chat_id=request.ids[line.chat - 1],
            message_id=line.id,
            group_id=line.version_of,
            hidden=hidden[line.chat, line.id] if line.line == line.id else None,
        )
        for line in request.messages
        if line.version_of is not None
    ]


def _batches(messages: Sequence[MessageLine]) -> Generator[Sequence[MessageLine]]:
    """Split them into batches of bounded number and size: the connection encodes each at once."""
    batch: list[MessageLine] = []
    size = 0
    for message in messages:
        length = len(message.stored_content)
        if batch and (len(batch) == MAX_MESSAGES_PER_WRITE or size + length > MAX_BYTES_PER_WRITE):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    yield batch


async def _insert_chat(
    session: DatabaseSession, owner: UserId, request: ImportRequest, line: ChatLine, messages: int
) -> Chat:
    row = await session.fetchrow(
        INSERT_CHAT,
        request.ids[line.number - 1],
        owner,
        request.ids[0],
        None if line.parent is None else request.ids[line.parent - 1],
        line.title,
        json_text(line.labels),
        line.created_at,
        line.model_config_id,
        line.reasoning_effort,
        json_or_none(line.client_tools),
        messages + 1,
        request.change_id,
        line.mcp_server_ids,
        line.mode,
    )
    assert row is not None
    return chat_from_row(row)


def _columns(batch: Sequence[MessageLine]) -> tuple[list[object], ...]:
    return (
        [line.id for line in batch],
        [line.role for line in batch],
        [line.visibility for line in batch],
        [line.stored_content for line in batch],
        [line.content_version for line in batch],
        [line.compressed for line in batch],
        [line.model_config_id for line in batch],
        [line.reasoning_effort for line in batch],
        [None if line.usage is UNSET else bytes(line.usage).decode() for line in batch],
        [line.provider_response_id for line in batch],
        [line.stored_finish_reason for line in batch],
        [line.created_at for line in batch],
        [line.line is not None for line in batch],
    )


# Fork a chat: a new root chat with the messages of another one up to a message.
#
# The database copies the messages, so that their content is the same byte for byte. Ids count from
# 1 without the deleted messages, except for the lines of versions of a message up to that one: they
# come along whole, and calls that they left open get a result when they are shown. Usage stays
# with the source; the token counts of the answers are copied, because the size of the prompt is
# computed from them. The fork has the budget of the tree of its source, for calls of its own, its
# tool policy, the order of its tools, and its project.

# The lock keeps the messages as they are until the copy is complete.
LOCK_SOURCE: Final[LiteralString] = """
    SELECT * FROM chats WHERE id = $1 AND owner_id = $2 AND deleted_at IS NULL FOR SHARE"""
FIND_END: Final[LiteralString] = """
    SELECT max(id) FROM chat_messages
    WHERE chat_id = $1 AND NOT deleted
      AND ($2::bigint IS NULL OR (id = $2 AND visibility <> 'model'))"""
# The last answer and what follows it.
LOAD_TAIL: Final[LiteralString] = f"""
    SELECT json_agg(m ORDER BY id) AS messages FROM (
        SELECT {MESSAGE_COLUMNS} FROM chat_messages
        WHERE chat_id = $1 AND id <= $2 AND NOT deleted AND id >= (
            SELECT max(id) FROM chat_messages
            WHERE chat_id = $1 AND id <= $2 AND NOT deleted AND role = 'assistant')) m"""
COPY: Final[LiteralString] = f"""
    WITH kept AS MATERIALIZED (
        SELECT id, row_number() OVER (ORDER BY id) AS number FROM (
            SELECT id FROM chat_messages WHERE chat_id = $1 AND id <= $2 AND NOT deleted
            UNION ALL SELECT unnest($9::bigint[])) found (id)),
    versions AS MATERIALIZED (
        SELECT * FROM json_to_recordset($10::json)
            AS v (message_id bigint, first bigint, hidden bigint[], line_end jsonb)),
    hidden AS (
        SELECT v.message_id, array_agg(k.number ORDER BY k.number) AS hidden
        FROM versions v, unnest(v.hidden) AS one (id) JOIN kept k ON k.id = one.id GROUP BY 1),
    added AS (
        SELECT * FROM unnest($6::text[]) WITH ORDINALITY AS a (content, nth)),
    total AS (SELECT (SELECT count(*) FROM kept) AS kept, (SELECT count(*) FROM added) AS added),
    made AS (
        INSERT INTO chats (id, owner_id, root_chat_id, title, model_config_id, reasoning_effort,
            model_required, labels, workspace_id, mode, client_tools, max_cost_micros,
            mcp_server_ids, project_id, status, snapshot_version, history_version,
            next_message_id, recent_changes, forked_from_chat_id, forked_from_message_id)
        SELECT $3, owner_id, $3, $4, model_config_id, reasoning_effort, model_required, labels,
            workspace_id, mode, client_tools,
            (SELECT r.max_cost_micros FROM chats r WHERE r.id = chats.root_chat_id),
            {keep_usable("chats.mcp_server_ids")}, project_id, 'waiting', 1, 1, kept + added + 1,
            ARRAY[$5::bigint], id, $2
        FROM chats, total WHERE id = $1
        ON CONFLICT (id) DO NOTHING
        RETURNING *),
    copied AS (
        INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
            content_version, compressed, model_config_id, reasoning_effort, created_by, usage,
            provider_response_id, finish_reason, created_at, change_id, deleted, deleted_at)
        SELECT $3, $3, 1, k.number, m.role, m.visibility, m.content, m.content_version,
            m.compressed, m.model_config_id, m.reasoning_effort, m.created_by, m.usage,
            m.provider_response_id, m.finish_reason, m.created_at, $5, m.deleted,
            CASE WHEN m.deleted THEN now() END
        FROM kept k JOIN chat_messages m ON m.chat_id = $1 AND m.id = k.id
        WHERE EXISTS (SELECT FROM made)),
    closed AS (
        INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
            content_version, change_id)
        SELECT $3, $3, 1, total.kept + a.nth, 'tool', 'both', a.content::json, $7, $5
        FROM added a, total WHERE EXISTS (SELECT FROM made)),
    versioned AS (
        INSERT INTO chat_message_versions (chat_id, message_id, group_id, hidden, line_end)
        SELECT $3, k.number, f.number, h.hidden, v.line_end
        FROM versions v JOIN kept k ON k.id = v.message_id JOIN kept f ON f.id = v.first
            LEFT JOIN hidden h ON h.message_id = v.message_id
        WHERE EXISTS (SELECT FROM made)),
    linked AS (
        INSERT INTO chat_files (chat_id, file_id)
        SELECT $3, file_id FROM chat_files WHERE chat_id = $1 AND EXISTS (SELECT FROM made)),
    ruled AS (
        INSERT INTO tool_policies (chat_id, policy, updated_by)
        SELECT $3, p.policy, p.updated_by FROM chats c JOIN tool_policies p
            ON p.chat_id = c.root_chat_id
        WHERE c.id = $1 AND EXISTS (SELECT FROM made)),
    ordered AS (
        INSERT INTO chat_tool_orders (chat_id, servers)
        SELECT $3, servers FROM chat_tool_orders WHERE chat_id = $1 AND EXISTS (SELECT FROM made)),
    read AS (
        INSERT INTO chat_read_marks (user_id, chat_id, message_id)
        SELECT $8, $3, kept + added FROM total WHERE EXISTS (SELECT FROM made))
    SELECT * FROM made"""


class ForkedVersion(Struct, frozen=True, kw_only=True):
    message_id: int
    first: int
    hidden: tuple[int, ...] | None
    line_end: LineEnd | None


def _forked_version(version: CopiedVersion) -> ForkedVersion:
    """Its line ends as that of a chat that waits, as history does in a fork."""
    end = version.end or LineEnd()
    return ForkedVersion(
        message_id=version.message_id,
        first=version.first,
        hidden=version.hidden,
        line_end=None if version.hidden is None else LineEnd(pending_calls=end.pending_calls),
    )


class ForkRequest(Struct, frozen=True, kw_only=True):
    """`id` is that of the new chat. Without a `message_id` all messages are copied."""

    id: ChatId
    source_id: ChatId
    change_id: ChangeId
    message_id: MessageId | None = None
    workspace: NewWorkspace | None = None
    """A new workspace of the new chat; without one both use the same."""


async def fork(pool: Pool, actor: UserActor, request: ForkRequest) -> Chat:
    """Raises NotFound, and Forbidden for a chat that the actor may read and not change. A repeated
    attempt after a lost reply, and one at the same time, find the chat that the first made; after
    it was deleted they raise NotFound."""
    async with pool.transaction() as session:
        made = await chats.get_for_command(session, actor, request.id, "chats.write")
        if made is None and (made := await _copy(session, actor, request)) is not None:
            made = await _give_workspace(session, actor, made, request.workspace)
        made = made or await chats.get_for_command(session, actor, request.id, "chats.write")
    if made is None:
        raise NotFound("The chat that this request made is deleted. Use another key for a new one.")
    return made


async def _give_workspace(
    session: DatabaseSession, actor: UserActor, made: Chat, workspace: NewWorkspace | None
) -> Chat:
    if workspace is None:
        return made
    await workspaces.create(session, actor, workspace)
    row = await session.fetchrow(
        "UPDATE chats SET workspace_id = $2 WHERE id = $1 RETURNING *", made.id, workspace.id
    )
    return made if row is None else chat_from_row(row)


async def _copy(session: DatabaseSession, actor: UserActor, request: ForkRequest) -> Chat | None:
    """None if there is a chat with the id of the new one."""
    await chats.get_for_command(session, actor, request.source_id, "chats.write")
    source = await session.fetchrow(LOCK_SOURCE, request.source_id, actor.user_id)
    if source is None:
        raise NotFound("There is no such chat.")
    end = await session.fetchval(FIND_END, request.source_id, request.message_id)
    if end is None:
        raise NotFound("There is no such message in this chat.")
    tail = await session.fetchval(LOAD_TAIL, request.source_id, end)
    closing = closing_results(messages_from_json(tail))
    copied = await versions.lock_copied(session, request.source_id, end)
    row = await session.fetchrow(
        COPY,
        request.source_id,
        end,
        request.id,
        strip_unstorable(fork_title(source["title"])),
        request.change_id,
        [encode_parts(draft.content) for draft in closing],
        Draft(role="tool", content=()).content_version,
        actor.user_id,
        copied.hidden,
        json_text([_forked_version(version) for version in copied.versions]),
    )
    return None if row is None else chat_from_row(row)
