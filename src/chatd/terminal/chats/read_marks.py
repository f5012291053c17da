"""Tells the server how far the person has read the open chat, once it rests."""

import logging
from functools import partial
from typing import Final

from textual.widget import Widget

from chatd.client.connection import FollowedChat
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId
from chatd.terminal.chats.actions import ChatActions

MAX_MARKED: Final = 500
log = logging.getLogger(__name__)


class ReadMarks:
    """`host` runs the requests. One that fails is not repeated: the next answer brings another."""

    def __init__(self, host: Widget, api: ServerApi) -> None:
        self._host = host
        self._actions = ChatActions(api)
        self._marked: dict[ChatId, int] = {}

    def show(self, chat: FollowedChat) -> None:
        """The person sees the chat in this state."""
        shown = chat.shown
        last = shown.messages[-1].id if shown.messages else 0
        is_working = shown.status in ("pending", "running", "interrupting")
        if is_working or chat.gone or last <= self._marked.get(shown.chat_id, 0):
            return
        self._marked[shown.chat_id] = last
        while len(self._marked) > MAX_MARKED:
            del self._marked[next(iter(self._marked))]
        self._host.run_worker(partial(self._mark, shown.chat_id, last), group="read")

    async def _mark(self, chat_id: ChatId, message_id: int) -> None:
        try:
            await self._actions.mark_read(chat_id, message_id)
        except (ApiError, ServerUnreachable) as error:
            log.info("the chat %s was not marked as read: %s", chat_id, error.code)
