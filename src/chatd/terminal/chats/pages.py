"""Reads the list of chats from the server, page by page."""

from typing import Final

from chatd.client.resources import ListedChat, Page
from chatd.client.server import ServerApi
from chatd.terminal.chats.directory import ListFilter

MAX_PAGE_SIZE: Final = 200
"""The server's own limit of one page."""


class ChatPages:
    """Everything raises ApiError and ServerUnreachable."""

    def __init__(self, api: ServerApi) -> None:
        self._api = api

    async def read(self, filter_: ListFilter, limit: int, cursor: str | None) -> Page[ListedChat]:
        parameters = filter_.parameters()
        return await self._api.get(
            "/chats", Page[ListedChat], limit=limit, cursor=cursor, **parameters
        )

    async def read_first(
        self, filter_: ListFilter, wanted: int
    ) -> tuple[list[ListedChat], str | None]:
        """The first chats of the list, and the cursor of what follows."""
        chats: list[ListedChat] = []
        cursor: str | None = None
        while len(chats) < wanted:
            page = await self.read(filter_, min(wanted - len(chats), MAX_PAGE_SIZE), cursor)
            chats += page.items
            if (cursor := page.next_cursor) is None:
                break
        return chats, cursor
