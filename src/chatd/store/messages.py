"""Reading messages: the rows a prompt is built from, and pages for clients."""

from typing import Final, LiteralString

from chatd.domain.ids import ChatId, MessageId
from chatd.domain.messages import Message
from chatd.store.conn import Conn
from chatd.store.rows import MESSAGE_COLUMNS, message_of

# The boundary is the newest summary: before it only system messages count. The order is by id;
# rows of one commit share their time.
HISTORY: Final[LiteralString] = f"""
    WITH boundary AS MATERIALIZED (
        SELECT coalesce((SELECT id FROM chat_messages
            WHERE chat_id = $1 AND compressed AND visibility = 'model' AND NOT deleted
            ORDER BY id DESC LIMIT 1), 0) AS id)
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = $1 AND id >= (SELECT id FROM boundary) AND NOT deleted
    UNION ALL
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = $1 AND id < (SELECT id FROM boundary) AND NOT deleted
      AND NOT compressed AND role = 'system'
    ORDER BY id"""

PAGE: Final[LiteralString] = f"""
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = $1 AND id < $2 AND id > $3 AND NOT deleted AND visibility <> 'model'
    ORDER BY id DESC LIMIT $4"""

_PAST_THE_END: Final = 2**62


async def history(conn: Conn, chat_id: ChatId) -> list[Message]:
    """All that the next step is decided and prompted from. Rows only people see are among
    them: the decision needs those, the prompt leaves them out."""
    return [message_of(row) for row in await conn.fetch(HISTORY, chat_id)]


async def page(
    conn: Conn,
    chat_id: ChatId,
    *,
    before: MessageId | None = None,
    after: MessageId | None = None,
    limit: int = 50,
) -> list[Message]:
    """What clients may see, newest first."""
    top = _PAST_THE_END if before is None else before
    rows = await conn.fetch(PAGE, chat_id, top, after or 0, limit)
    return [message_of(row) for row in rows]
