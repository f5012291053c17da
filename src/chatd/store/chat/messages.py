"""Reading messages: the rows a prompt is built from. Pages for clients are in `front`."""

from typing import Final, LiteralString

from chatd.domain.chat.messages import Message
from chatd.domain.ids import ChatId
from chatd.store.conn import Conn
from chatd.store.rows import MESSAGE_COLUMNS, message_from_row

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


async def load_history(conn: Conn, chat_id: ChatId) -> list[Message]:
    """All that the next step is decided and prompted from. Rows only people see are among
    them: the decision needs those, the prompt leaves them out."""
    return [message_from_row(row) for row in await conn.fetch(HISTORY, chat_id)]
