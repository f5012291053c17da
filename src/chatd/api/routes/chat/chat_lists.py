"""The list of chats: filtered by columns, or searched by words."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging, TimePosition, page_reply
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.chats import (
    ChatListQuery,
    ChatPage,
    FindQuery,
    FoundMessages,
    ListedChat,
    SearchMatch,
    SubagentListQuery,
    SubagentPage,
)
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.public_chat import PublicChat, public_chat
from chatd.domain.chat_views.search import (
    SearchQuery,
    make_snippet,
    message_text,
    one_line,
    parse_query,
)
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import ChatId, ProjectId
from chatd.store import search
from chatd.store.chat import chats, subagents, updates
from chatd.store.chat.chats import ChatListFilter
from chatd.store.database.conn import Conn
from chatd.store.search import SearchHit

T = TypeVar("T")


class ChatListRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._is_indexed = False

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats",
                permission="chats.read",
                summary="List chats: pinned first, then newest; or search them",
                description=(
                    "Your own chats; `source` also lists those that others share with you. The"
                    " first page without filters begins with the pinned chats. Subagents are in"
                    " `children` of their root. A search lists the chats by the time of their"
                    " newest hit."
                ),
                handle=self.list_chats,
                query=ChatListQuery,
                replies={200: ChatPage},
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/matches",
                permission="chats.read",
                summary="Find words in the messages of a chat",
                description=(
                    "In texts, file names and tool calls, also of messages that the search of the"
                    f" list does not know yet. At most {search.MAX_FOUND_IN_CHAT:,} messages."
                ),
                handle=self.find_in_chat,
                query=FindQuery,
                replies={200: FoundMessages},
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/subagents",
                permission="chats.read",
                summary="List the subagents of a chat, oldest first",
                description=(
                    "Archived ones too. How they change is told by the events of your chats, which"
                    " have the `root_chat_id` of each."
                ),
                handle=self.list_subagents,
                query=SubagentListQuery,
                replies={200: SubagentPage},
            ),
        )

    async def list_chats(self, request: ApiRequest) -> ApiReply:
        query = request.query(ChatListQuery)
        wanted = read_filters(query)
        paging = Paging(request, query, TimePosition)
        last = paging.position
        which = ChatListFilter(
            source=wanted.source or ("mine" if wanted.project_id is None else "all"),
            archived=wanted.archived or False,
            labels=wanted.labels,
            status=wanted.status,
            pinned=query.pinned,
            project_id=wanted.project_id,
            limit=paging.read_limit,
            after=None if last is None else (last.at, ChatId(last.id)),
        )
        actor = request.caller.actor
        page = ChatListPage(conn=self._deps.pool, actor=actor, which=which, paging=paging)
        if wanted.texts or wanted.titles:
            found = await self._deps.retry(lambda: page.search(wanted))
            if not self._is_indexed:  # once it is, it stays so
                self._is_indexed = await self._deps.read(search.is_indexed)
            return reply(msgspec.structs.replace(found, indexing=not self._is_indexed))
        return reply(await self._deps.retry(page.load))

    async def find_in_chat(self, request: ApiRequest) -> ApiReply:
        wanted = parse_query(request.query(FindQuery).q)
        if wanted != SearchQuery(texts=wanted.texts) or not wanted.texts:
            raise InvalidInput("q", "must be words or quoted phrases")
        actor, chat_id = request.caller.actor, request.chat_id
        if await self._deps.read(chats.get, actor, chat_id) is None:
            raise NotFound("There is no such chat.")
        found = await self._deps.read(search.find_in_chat, actor, chat_id, wanted.texts)
        return reply(
            FoundMessages(
                count=len(found.message_ids),
                message_ids=tuple(found.message_ids),
                has_more=found.has_more,
            )
        )

    async def list_subagents(self, request: ApiRequest) -> ApiReply:
        query = request.query(SubagentListQuery)
        paging = Paging(request, query, TimePosition)
        actor, chat_id = request.caller.actor, request.chat_id
        if await self._deps.read(chats.get, actor, chat_id) is None:
            raise NotFound("There is no such chat.")
        last = paging.position
        after = None if last is None else (last.at, ChatId(last.id))
        found = await self._deps.read(
            subagents.list_oldest, actor, chat_id, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda chat: TimePosition(chat.created_at, chat.id))
        ids = [chat.id for chat in shown]
        views = await self._deps.read(updates.list_views_of, actor, ids)
        return page_reply(
            SubagentPage, (public_chat(chat, views.get(chat.id)) for chat in shown), cursor
        )


def read_filters(query: ChatListQuery) -> SearchQuery:
    """The terms of `q` and the parameters together. The status `archived` lists archived chats."""
    found = parse_query(query.q or "")
    labels = dict(validation.parse_label_filter(query.label))
    for key, value in _checked_labels(found.labels).items():
        if labels.setdefault(key, value) != value:
            raise InvalidInput("label", f"{key} cannot have two values")
    status = _one("status", found.status, query.status)
    archived = _one("archived", found.archived, query.archived)
    source = _one("source", found.source, query.source)
    asked = None if query.project_id is None else ProjectId(query.project_id)
    project_id = _one("project_id", found.project_id, asked)
    if status == "archived":
        status, archived = None, _one("archived", archived, given=True)
    return msgspec.structs.replace(
        found,
        labels=labels,
        status=status,
        archived=archived,
        source=source,
        project_id=project_id,
    )


def _checked_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return validation.check_labels(labels)
    except InvalidInput as error:
        raise InvalidInput("q", error.detail) from None


def _one(name: str, first: T | None, given: T | None) -> T | None:
    if first is not None and given is not None and first != given:
        raise InvalidInput(name, "cannot have two values")
    return given if first is None else first


class ChatListPage(Struct, frozen=True, kw_only=True):
    """One page of the list."""

    conn: Conn
    actor: UserActor
    which: ChatListFilter
    paging: Paging[TimePosition]

    async def load(self) -> ChatPage:
        """The first page without filters starts with the pinned chats; such a chat appears again
        on the page where its time puts it."""
        which = self.which
        found = await chats.list_roots(self.conn, self.actor, which)
        roots, cursor = self.paging.cut(found, lambda chat: TimePosition(chat.updated_at, chat.id))
        plain = ChatListFilter(source=which.source, limit=which.limit)
        if which == plain and which.source != "shared":
            pinned = await chats.list_pinned(self.conn, self.actor)
            known = {chat.id for chat in pinned}
            roots = [*pinned, *(chat for chat in roots if chat.id not in known)]
        items = tuple(await with_children(self.conn, self.actor, roots))
        return ChatPage(items=items, has_more=cursor is not None, next_cursor=cursor)

    async def search(self, wanted: SearchQuery) -> ChatPage:
        """By the time of the newest hit. A hit that was deleted meanwhile is left out."""
        found = await search.search(self.conn, self.actor, self.which, wanted.texts, wanted.titles)
        hits, cursor = self.paging.cut(found, lambda hit: TimePosition(hit.at, hit.root.id))
        matches = await self._matches(hits, wanted)
        roots = [hit.root for hit in hits if hit.root.id in matches]
        listed = await with_children(self.conn, self.actor, roots)
        items = tuple(msgspec.structs.replace(item, match=matches[item.id]) for item in listed)
        return ChatPage(items=items, has_more=cursor is not None, next_cursor=cursor)

    async def _matches(
        self, hits: Sequence[SearchHit], wanted: SearchQuery
    ) -> dict[ChatId, SearchMatch]:
        messages = await search.load_messages(self.conn, self.actor, hits)
        # Not on the event loop: a page of long messages takes a second.
        return await asyncio.to_thread(self._make_matches, hits, messages, wanted)

    @staticmethod
    def _make_matches(
        hits: Sequence[SearchHit], messages: Mapping[ChatId, Message], wanted: SearchQuery
    ) -> dict[ChatId, SearchMatch]:
        found: dict[ChatId, SearchMatch] = {}
        for hit in hits:
            message = messages.get(hit.chat_id)
            if not hit.is_title and message is None:
                continue
            text = one_line(hit.root.title) if message is None else message_text(message)
            snippet = make_snippet(text, wanted.texts or wanted.titles)
            found[hit.root.id] = SearchMatch(
                chat_id=hit.chat_id,
                message_id=None if hit.is_title else hit.message_id,
                text=snippet.text,
                highlights=snippet.highlights,
            )
        return found


async def with_children(conn: Conn, actor: UserActor, roots: Sequence[Chat]) -> list[ListedChat]:
    """With the children and the reader's view of all roots: two statements."""
    children: list[Chat] = []
    if roots:
        archived, ids = roots[0].archived, [root.id for root in roots]
        found = await chats.list_children(conn, actor, ids)
        children = [child for child in found if child.archived == archived]
    shown = [chat.id for chat in (*roots, *children)]
    views = await updates.list_views_of(conn, actor, shown)
    below: defaultdict[ChatId, list[PublicChat]] = defaultdict(list)
    for child in children:
        below[child.root_chat_id].append(public_chat(child, views.get(child.id)))
    return [
        ListedChat(
            children=tuple(below[root.id]),
            **msgspec.structs.asdict(public_chat(root, views.get(root.id))),
        )
        for root in roots
    ]
