"""Archiving by family: a root and the subagents under it.

Owns who goes along with whom. What becomes of each chat is `user_moves.archive`
and `unarchive`; writing all the changes or none is the store's business. They
come root first, then by id, which is the order in which rows are locked.
"""

from collections.abc import Sequence

from chatd.domain.change import Change
from chatd.domain.chat import Chat
from chatd.domain.errors import Conflict, InvariantBroken, NotFound
from chatd.domain.ids import ChatId
from chatd.domain.user_moves import archive, unarchive


def archive_family(members: Sequence[Chat], target: ChatId) -> tuple[Change, ...]:
    """A root takes along every member that is not archived yet; a child goes alone."""
    addressed = _find(members, target)
    first = archive(addressed)
    others = [member for member in _under(members, addressed) if not member.archived]
    return (first, *(archive(member) for member in others))


def unarchive_family(members: Sequence[Chat], target: ChatId) -> tuple[Change, ...]:
    """A root brings every archived member back; a child comes alone, to a family that is there."""
    addressed = _find(members, target)
    first = unarchive(addressed)
    if any(_find(members, above).archived for above in _above(addressed)):
        raise Conflict(
            "Cannot unarchive the chat: the chat it belongs to is archived.",
            code="parent_archived",
        )
    others = [member for member in _under(members, addressed) if member.archived]
    return (first, *(unarchive(member) for member in others))


def _find(members: Sequence[Chat], chat_id: ChatId) -> Chat:
    for member in members:
        if member.id == chat_id:
            return member
    raise NotFound("There is no such chat.")


def _under(members: Sequence[Chat], root: Chat) -> list[Chat]:
    if not root.is_root:
        return []
    strangers = [member.id for member in members if member.root_chat_id != root.id]
    if strangers:
        raise InvariantBroken(f"Chats {strangers} are not of the family of {root.id}.")
    return sorted(
        (member for member in members if member.id != root.id), key=lambda member: member.id
    )


def _above(chat: Chat) -> list[ChatId]:
    return [
        above for above in {chat.root_chat_id, chat.parent_chat_id} if above not in (None, chat.id)
    ]
