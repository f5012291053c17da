"""Lists of chats, as a person sees them: roots with their subagents below them."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from chatd.api import checks
from chatd.api.auth import Caller
from chatd.api.wire import ListedChat, ListQuery
from chatd.domain.chat.public_chat import PublicChat, public_chat
from chatd.domain.chat.row import Chat
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId
from chatd.store.chat import chats
from chatd.store.chat.chats import ChatListFilter
from chatd.store.conn import Conn


async def listed(conn: Conn, caller: Caller, query: ListQuery) -> list[ListedChat]:
    """A page. The first one of the plain list begins with what is pinned; such a chat may come
    again on a later page, where it belongs by its time."""
    which = ChatListFilter(
        owner_id=caller.user_id,
        archived=checks.archived_filter(query.q),
        labels=checks.label_filter(query.label),
        limit=query.limit,
    )
    first = query.after_id is None and not which.archived and not which.labels
    if query.after_id is not None:
        which = await _after(conn, which, ChatId(query.after_id))
    roots = await chats.list_roots(conn, which)
    if first:
        pinned = await chats.list_pinned(conn, caller.user_id)
        known = {chat.id for chat in pinned}
        roots = [*pinned, *(chat for chat in roots if chat.id not in known)]
    return await _with_children(conn, roots)


async def _after(conn: Conn, which: ChatListFilter, last: ChatId) -> ChatListFilter:
    chat = await chats.get(conn, last)
    if chat is None or chat.owner_id != which.owner_id:
        raise InvalidInput("after_id", "there is no such chat")
    return msgspec.structs.replace(which, after=(chat.updated_at, chat.id))


async def _with_children(conn: Conn, roots: Sequence[Chat]) -> list[ListedChat]:
    below: defaultdict[ChatId, list[PublicChat]] = defaultdict(list)
    if roots:
        archived = roots[0].archived
        for child in await chats.list_children(conn, [root.id for root in roots]):
            if child.archived == archived:
                below[child.root_chat_id].append(public_chat(child))
    return [
        ListedChat(children=tuple(below[root.id]), **msgspec.structs.asdict(public_chat(root)))
        for root in roots
    ]
