"""A viewer over the database: reads what changed since its version, and applies it."""

from chatd.domain.chat.diff import ChatSnapshot, ViewerPosition, diff, needs_full_read
from chatd.domain.ids import ChatId
from chatd.store.chat import chats
from chatd.store.conn import Conn
from tests.support.client_state import ClientState


async def read_snapshot(
    conn: Conn, chat_id: ChatId, version: int, *, most: int = 1000
) -> ChatSnapshot:
    seen = await chats.load_changes_since(conn, chat_id, version, limit=most)
    assert seen is not None
    return ChatSnapshot(
        chat=seen.chat,
        since=version,
        messages=seen.messages,
        queue=seen.queue,
        has_older=seen.truncated,
    )


async def read_state(conn: Conn, chat_id: ChatId) -> ClientState:
    return ClientState.of(await read_snapshot(conn, chat_id, 0))


async def resume_state(
    conn: Conn, chat_id: ChatId, state: ClientState, *, most: int = 1000
) -> ClientState:
    """The state of a client that resumes. With more than `most` changed messages it reads
    everything again."""
    if state.version == 0:
        return state.apply(diff(None, await read_snapshot(conn, chat_id, 0))).settled()
    changes = await read_snapshot(conn, chat_id, state.version, most=most)
    if needs_full_read(state.version, changes):
        changes = await read_snapshot(conn, chat_id, 0)
    return state.apply(diff(ViewerPosition(version=state.version), changes)).settled()
