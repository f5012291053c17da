"""Chats as the server lists them."""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chatd.client.resources import Chat, ListedChat
from chatd.domain.ids import ChatId

NOW: Final = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)


def chat_id(number: int) -> ChatId:
    return ChatId(UUID(int=number))


def listed(number: int, *, minutes_ago: float = 1, **more: object) -> ListedChat:
    """A chat of one's own that waits."""
    plain = ListedChat(
        id=chat_id(number),
        root_chat_id=chat_id(number),
        title=f"Chat {number}",
        is_owner=True,
        has_unread=False,
        version=1,
        created_at=NOW - timedelta(days=1),
        updated_at=NOW - timedelta(minutes=minutes_ago),
    )
    return replace(plain, **more)


def child(number: int, parent: int, root: int | None = None, **more: object) -> Chat:
    plain = Chat(
        id=chat_id(number),
        root_chat_id=chat_id(root or parent),
        parent_chat_id=chat_id(parent),
        title=f"Subagent {number}",
        version=1,
        created_at=NOW + timedelta(seconds=number),
    )
    return replace(plain, **more)
