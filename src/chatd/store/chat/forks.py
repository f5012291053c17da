"""Fork a chat: a new root chat with the messages of another one up to a message.

The database copies the messages, so that their content is the same byte for byte. Ids count from 1
without the deleted messages. Usage stays with the source; the token counts of the answers are
copied, because the size of the prompt is computed from them. The fork has the budget of the tree of
its source, for calls of its own, its tool policy, and the order of its tools.
"""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.messages import Draft, encode_parts
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.transfer import closing_results, fork_title
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChangeId, ChatId, MessageId
from chatd.store.chat import chats
from chatd.store.chat.chats import chat_from_row
from chatd.store.chat.messages import MESSAGE_COLUMNS, messages_from_json
from chatd.store.conn import DatabaseSession, strip_unstorable
from chatd.store.mcp.selection import keep_usable
from chatd.store.pool import Pool

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
        SELECT id, row_number() OVER (ORDER BY id) AS number FROM chat_messages
        WHERE chat_id = $1 AND id <= $2 AND NOT deleted),
    added AS (
        SELECT * FROM unnest($6::text[]) WITH ORDINALITY AS a (content, nth)),
    total AS (SELECT (SELECT count(*) FROM kept) AS kept, (SELECT count(*) FROM added) AS added),
    made AS (
        INSERT INTO chats (id, owner_id, root_chat_id, title, model_config_id, reasoning_effort,
            model_required, labels, workspace_id, mode, client_tools, max_cost_micros,
            mcp_server_ids, status, snapshot_version, history_version, next_message_id,
            recent_changes, forked_from_chat_id, forked_from_message_id)
        SELECT $3, owner_id, $3, $4, model_config_id, reasoning_effort, model_required, labels,
            workspace_id, mode, client_tools,
            (SELECT r.max_cost_micros FROM chats r WHERE r.id = chats.root_chat_id),
            {keep_usable("chats.mcp_server_ids")}, 'waiting', 1, 1, kept + added + 1,
            ARRAY[$5::bigint], id, $2
        FROM chats, total WHERE id = $1
        ON CONFLICT (id) DO NOTHING
        RETURNING *),
    copied AS (
        INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
            content_version, compressed, model_config_id, reasoning_effort, created_by, usage,
            provider_response_id, finish_reason, created_at, change_id)
        SELECT $3, $3, 1, k.number, m.role, m.visibility, m.content, m.content_version,
            m.compressed, m.model_config_id, m.reasoning_effort, m.created_by, m.usage,
            m.provider_response_id, m.finish_reason, m.created_at, $5
        FROM kept k JOIN chat_messages m ON m.chat_id = $1 AND m.id = k.id
        WHERE EXISTS (SELECT FROM made)),
    closed AS (
        INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility, content,
            content_version, change_id)
        SELECT $3, $3, 1, total.kept + a.nth, 'tool', 'both', a.content::json, $7, $5
        FROM added a, total WHERE EXISTS (SELECT FROM made)),
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


class ForkRequest(Struct, frozen=True, kw_only=True):
    """`id` is that of the new chat. Without a `message_id` all messages are copied."""

    id: ChatId
    source_id: ChatId
    change_id: ChangeId
    message_id: MessageId | None = None


async def fork(pool: Pool, actor: UserActor, request: ForkRequest) -> Chat:
    """Raises NotFound, and Forbidden for a chat that the actor may read and not change. A repeated
    attempt after a lost reply, and one at the same time, find the chat that the first made; after
    it was deleted they raise NotFound."""
    async with pool.transaction() as session:
        made = await chats.get_for_command(session, actor, request.id, "chats.write")
        made = made or await _copy(session, actor, request)
        made = made or await chats.get_for_command(session, actor, request.id, "chats.write")
    if made is None:
        raise NotFound("The chat that this request made is deleted. Use another key for a new one.")
    return made


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
    )
    return None if row is None else chat_from_row(row)
