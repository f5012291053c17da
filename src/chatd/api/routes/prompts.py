"""Routes of the prompt history: what the user typed before, for the arrow keys of a client."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Final, TypeVar
from uuid import UUID

from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.pages import NumberPosition, Paging
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.chats import ListedPrompt, PromptPage, PromptQuery
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat import chats, message_pages
from chatd.store.chat.message_pages import Prompt, PromptPosition

MAX_SCANNED_PROMPTS: Final = 2000
"""For one page: a prefix that few prompts have ends the page early, with a cursor."""
MAX_PAGE_CHARS: Final = 1_000_000
_READ_SIZE: Final = 200

P = TypeVar("P")
ReadPrompts = Callable[[P | None], Awaitable[tuple[list[Prompt], bool]]]


class PromptPlace(Struct, frozen=True, array_like=True):
    """The place of a prompt among all prompts of a user."""

    at: Annotated[datetime, Meta(tz=True)]
    chat_id: UUID
    message_id: int


class PromptRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/prompts",
                permission="chats.read",
                summary="List the prompts of a chat, newest first, each text once",
                handle=self.list_chat_prompts,
                query=PromptQuery,
                replies={200: PromptPage},
            ),
            ApiRoute(
                endpoint="GET /prompts",
                permission="chats.read",
                summary="List your prompts in all your chats, newest first, each text once",
                handle=self.list_prompts,
                query=PromptQuery,
                replies={200: PromptPage},
            ),
        )

    async def list_chat_prompts(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(PromptQuery)
        actor, chat_id = request.caller.actor, request.chat_id
        paging = Paging(request, query, NumberPosition)
        if await deps.read(chats.get, actor, chat_id) is None:
            raise NotFound("There is no such chat.")

        async def read(last: NumberPosition | None) -> tuple[list[Prompt], bool]:
            before = None if last is None else MessageId(last.number)
            return await deps.read(
                message_pages.list_prompts_of_chat, actor, chat_id, before, limit=_READ_SIZE
            )

        return reply(await _collect(paging, query, read, lambda p: NumberPosition(p.message_id)))

    async def list_prompts(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(PromptQuery)
        actor = request.caller.actor

        async def read(last: PromptPlace | None) -> tuple[list[Prompt], bool]:
            return await deps.read(
                message_pages.list_prompts_of_user, actor, _position(last), limit=_READ_SIZE
            )

        paging = Paging(request, query, PromptPlace)
        return reply(await _collect(paging, query, read, _place))


def _place(prompt: Prompt) -> PromptPlace:
    return PromptPlace(prompt.at, prompt.chat_id, prompt.message_id)


def _position(last: PromptPlace | None) -> PromptPosition | None:
    return None if last is None else (last.at, ChatId(last.chat_id), MessageId(last.message_id))


async def _collect(
    paging: Paging[P], query: PromptQuery, read: ReadPrompts[P], place_of: Callable[[Prompt], P]
) -> PromptPage:
    """Read on until the page is full, or large, or enough prompts were passed."""
    shown: dict[str, Prompt] = {}
    last, scanned, chars = paging.position, 0, 0
    while True:
        found, has_more = await read(last)
        for index, prompt in enumerate(found):
            last = place_of(prompt)
            text = prompt.text
            if text.strip() and text.startswith(query.prefix) and text not in shown:
                shown[text] = prompt
                chars += len(text)
            is_full = len(shown) == paging.limit or chars > MAX_PAGE_CHARS
            if is_full and (has_more or index + 1 < len(found)):
                return _page(shown, paging.make_cursor(last))
        scanned += len(found)
        if not has_more or last is None:
            return _page(shown, None)
        if scanned >= MAX_SCANNED_PROMPTS:
            return _page(shown, paging.make_cursor(last))


def _page(shown: dict[str, Prompt], cursor: str | None) -> PromptPage:
    items = tuple(
        ListedPrompt(
            chat_id=prompt.chat_id,
            message_id=prompt.message_id,
            text=text,
            created_at=prompt.at,
        )
        for text, prompt in shown.items()
    )
    return PromptPage(items=items, has_more=cursor is not None, next_cursor=cursor)
