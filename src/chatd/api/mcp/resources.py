"""Resources: what a client can show, mention and read by address. Here these are the chats."""

from collections.abc import Sequence
from typing import Final, Protocol
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from chatd.api.mcp.protocol import Json
from chatd.api.mcp.results import MAX_PAGE_CHARS, cut, message_text
from chatd.api.mcp.tool_schemas import MAX_MESSAGE_CHARS
from chatd.api.mcp.toolset import Requester, RouteCall, RouteCalls
from chatd.api.schemas.chats import ChatPage
from chatd.api.schemas.messages import MessagePage
from chatd.domain.chat_views.public_chat import PublicChat
from chatd.domain.errors import NotFound
from chatd.domain.list_page import MAX_PAGE_SIZE


class ListedResource(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A resource in the reply to `resources/list`."""

    uri: str
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET


class ResourceTemplate(Struct, frozen=True, kw_only=True, rename="camel"):
    uri_template: str
    name: str
    title: str
    description: str
    mime_type: str


class ResourcePage(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    resources: Sequence[ListedResource]
    next_cursor: str | UnsetType = UNSET


class ResourceSet(Protocol):
    """The resources that a server offers."""

    @property
    def templates(self) -> Sequence[ResourceTemplate]: ...

    async def list_page(self, by: Requester, cursor: str | None) -> ResourcePage:
        """Raises ChatdError."""
        ...

    async def read(self, by: Requester, uri: str) -> Sequence[Json]:
        """The contents. Raises NotFound, also for an address that names nothing here."""
        ...


URI_PREFIX: Final = "chatd://chats/"
MARKDOWN: Final = "text/markdown"
LIST_SIZE: Final = 50


class ChatResources:
    """Chats as resources, so that people can mention one in another program."""

    def __init__(self, routes: RouteCalls) -> None:
        self._routes = routes

    @property
    def templates(self) -> Sequence[ResourceTemplate]:
        return (
            ResourceTemplate(
                uri_template=f"{URI_PREFIX}{{chat_id}}",
                name="chat",
                title="A chat",
                description="The newest messages of a chat, as Markdown.",
                mime_type=MARKDOWN,
            ),
        )

    async def list_page(self, by: Requester, cursor: str | None) -> ResourcePage:
        wanted = RouteCall(endpoint="GET /chats", query={"limit": LIST_SIZE, "cursor": cursor})
        page = await self._routes.fetch(by, wanted, ChatPage)
        listed = [
            ListedResource(
                uri=f"{URI_PREFIX}{chat.id}",
                name=chat.title,
                description=f"A chat, {chat.status}",
                mime_type=MARKDOWN,
            )
            for chat in page.items
        ]
        if page.next_cursor is None:
            return ResourcePage(resources=listed)
        return ResourcePage(resources=listed, next_cursor=page.next_cursor)

    async def read(self, by: Requester, uri: str) -> Sequence[Json]:
        path = {"chat_id": _chat_id(uri)}
        wanted = RouteCall(
            endpoint="GET /chats/{chat_id}/messages", path=path, query={"limit": MAX_PAGE_SIZE}
        )
        page = await self._routes.fetch(by, wanted, MessagePage)
        one = RouteCall(endpoint="GET /chats/{chat_id}", path=path)
        chat = await self._routes.fetch(by, one, PublicChat)
        return [{"uri": uri, "mimeType": MARKDOWN, "text": _markdown(chat, page)}]


def _chat_id(uri: str) -> str:
    try:
        if uri.startswith(URI_PREFIX):
            return str(UUID(uri.removeprefix(URI_PREFIX)))
    except ValueError:
        pass
    raise NotFound(f"There is no such resource. Those of chats begin with {URI_PREFIX}")


def _markdown(chat: PublicChat, page: MessagePage) -> str:
    """The newest messages, as far as the budget goes, oldest first."""
    texts: list[str] = []
    left = MAX_PAGE_CHARS
    for message in page.items:
        piece = cut(message_text(message.content), min(MAX_MESSAGE_CHARS, max(left, 1)))
        left -= len(piece.text)
        is_cut = "" if piece.next_offset is None else "\n\n(cut: read_chat has the rest)"
        texts.append(f"## {message.role}, message {message.id}\n\n{piece.text}{is_cut}")
        if left <= 0:
            break
    has_older = page.has_more or len(texts) < len(page.items)
    older = ["(Older messages are left out: read_chat has them.)"] if has_older else []
    return "\n\n".join([f"# {chat.title}", f"Status: {chat.status}", *older, *reversed(texts)])
