"""What a person does to a chat of the list: requests, and the sentence about the result."""

from types import NoneType

from chatd.client.resources import Chat
from chatd.client.server import ServerApi, new_key
from chatd.domain.ids import ChatId


class ChatActions:
    """Everything raises ApiError and ServerUnreachable."""

    def __init__(self, api: ServerApi) -> None:
        self._api = api

    async def rename(self, chat_id: ChatId, title: str) -> Chat:
        return await self._patch(chat_id, {"title": title})

    async def archive(self, chat_id: ChatId, *, archived: bool) -> Chat:
        return await self._patch(chat_id, {"archived": archived})

    async def pin(self, chat_id: ChatId, place: int) -> Chat:
        """0 unpins."""
        return await self._patch(chat_id, {"pin_order": place})

    async def delete(self, chat_id: ChatId) -> None:
        await self._api.delete(f"/chats/{chat_id}")

    async def fork(self, chat_id: ChatId) -> Chat:
        return await self._api.post(f"/chats/{chat_id}/fork", {}, Chat, key=new_key())

    async def interrupt(self, chat_id: ChatId, *, family: bool) -> None:
        """With `family` its subagents are stopped too."""
        body = {"subagents": "stop"} if family else None
        await self._api.post(f"/chats/{chat_id}/interrupt", body, NoneType)

    async def mark_read(self, chat_id: ChatId, message_id: int) -> None:
        await self._api.post(f"/chats/{chat_id}/read", {"message_id": message_id}, NoneType)

    async def _patch(self, chat_id: ChatId, body: dict[str, object]) -> Chat:
        return await self._api.patch(f"/chats/{chat_id}", body, Chat)
