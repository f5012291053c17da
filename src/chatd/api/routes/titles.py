"""Routes that let a model name a chat. `chats` has the route that renames it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import CHAT_STATE_CODES
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.chats import TitleReply
from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.public_chat import PublicChat, public_chat
from chatd.domain.errors import Conflict, NotFound, Unavailable
from chatd.domain.ids import MessageId
from chatd.domain.prompt.titles import chat_excerpt, title_input
from chatd.store.chat import chats, message_pages, updates
from chatd.store.chat.message_pages import MessageRange

TITLE_LEASE_S: Final = 60.0
"""A second request within this time is refused while the first one runs. Longer than a model call
for a title may take."""
_FIRST: Final = MessageRange(after=MessageId(0), limit=5)
_RECENT: Final = MessageRange(limit=60)


class TitleRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /chats/{chat_id}/title/regenerate",
                permission="chats.write",
                summary="Let a model name the chat; a rename meanwhile wins",
                handle=self.regenerate_title,
                replies={200: PublicChat},
                errors=(
                    *CHAT_STATE_CODES,
                    "title_in_progress",
                    "nothing_to_name",
                    "title_failed",
                    "usage_limit_exceeded",
                ),
                starts_work=True,
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/title/propose",
                permission="chats.write",
                summary="Let a model propose a title, without saving it",
                handle=self.propose_title,
                replies={200: TitleReply},
                errors=(
                    *CHAT_STATE_CODES,
                    "title_in_progress",
                    "nothing_to_name",
                    "title_failed",
                    "usage_limit_exceeded",
                ),
                starts_work=True,
            ),
        )

    async def regenerate_title(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        async with self._leased(request) as chat:
            title = await self._suggest(chat)
            named = await deps.retry(
                lambda: chats.set_title(
                    deps.pool, request.caller.actor, chat.id, expected=chat.title, title=title
                )
            )
        if named is not None:
            deps.announce(named, "title")
        return reply(public_chat(named or await self._get(request)))

    async def propose_title(self, request: ApiRequest) -> ApiReply:
        async with self._leased(request) as chat:
            return reply(TitleReply(title=await self._suggest(chat)))

    @asynccontextmanager
    async def _leased(self, request: ApiRequest) -> AsyncGenerator[Chat]:
        """The chat, while no other request generates a title for it. If this process dies or the
        release fails, the lease ends by itself."""
        deps, chat_id, actor = self._deps, request.chat_id, request.caller.actor
        chat, lease_id = await self._get(request), deps.env.new_id()
        is_held = await deps.retry(
            lambda: updates.acquire_title_lease(
                deps.pool, actor, chat_id, lease_id, seconds=TITLE_LEASE_S
            )
        )
        if not is_held:
            raise Conflict(
                "A title is being generated for this chat. Wait for it.", code="title_in_progress"
            )
        try:
            yield chat
        finally:
            with suppress(Unavailable):
                await updates.release_title_lease(deps.pool, chat_id, lease_id)

    async def _get(self, request: ApiRequest) -> Chat:
        deps = self._deps
        found = await deps.retry(
            lambda: chats.get_for_command(
                deps.pool, request.caller.actor, request.chat_id, "chats.write"
            )
        )
        if found is None:
            raise NotFound("There is no such chat.")
        return found

    async def _suggest(self, chat: Chat) -> str:
        """The model reads the messages, as in a turn: a token that may only write can ask."""
        deps = self._deps
        first = await deps.retry(
            lambda: message_pages.load_page(deps.pool, WORKER, chat.id, _FIRST)
        )
        recent = await deps.retry(
            lambda: message_pages.load_page(deps.pool, WORKER, chat.id, _RECENT)
        )
        if first is None or recent is None:
            raise NotFound("There is no such chat.")
        rows = {row.id: row for row in (*first.messages, *recent.messages[::-1])}
        history = tuple(rows.values())
        excerpt = chat_excerpt(history) or _first_prompt(history)
        if not excerpt:
            raise Conflict("The chat has no text to name it by.", code="nothing_to_name")
        return await deps.titles.suggest(chat, excerpt)


def _first_prompt(history: Sequence[Message]) -> str:
    """For a chat that has only quotes of files."""
    first = next((row for row in history if row.starts_turn), None)
    return "" if first is None else title_input(first.content, {})
