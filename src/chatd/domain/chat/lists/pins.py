"""The order of a user's pinned chats: 1 to n without gaps."""

from collections.abc import Sequence
from typing import Final

from chatd.domain.errors import Conflict
from chatd.domain.ids import ChatId

MAX_PINNED_CHATS: Final = 200


def place_pin(pinned: Sequence[ChatId], chat: ChatId, wanted: int) -> dict[ChatId, int]:
    """The place of every chat after the change, 0 for `chat` if it is unpinned. A chat that was not
    pinned comes last, whatever place is wanted; a pinned one moves, at most to the end."""
    others = [other for other in pinned if other != chat]
    if wanted == 0:
        return {chat: 0} | {other: place for place, other in enumerate(others, 1)}
    if len(others) >= MAX_PINNED_CHATS:
        raise Conflict(
            f"At most {MAX_PINNED_CHATS} chats can be pinned. Unpin one first.",
            code="too_many_pins",
        )
    index = min(wanted - 1, len(others)) if chat in pinned else len(others)
    others.insert(index, chat)
    return {other: place for place, other in enumerate(others, 1)}
