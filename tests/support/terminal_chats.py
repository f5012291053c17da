"""What tests of the terminal ask the server about a chat."""

import asyncio

import msgspec

from chatd.domain.ids import ChatId
from tests.support.terminal import WAIT_S, Json, TerminalServer


async def messages_of(server: TerminalServer, chat_id: ChatId) -> list[Json]:
    """Oldest first."""
    page = await server.call("GET", f"/chats/{chat_id}/messages?after_id=0")
    return msgspec.convert(page["items"], list[Json])


async def prompts_of(server: TerminalServer, chat_id: ChatId) -> list[str]:
    """The texts of the user's messages, oldest first."""
    found: list[str] = []
    for message in await messages_of(server, chat_id):
        if message["role"] == "user":
            parts = msgspec.convert(message["content"], list[Json])
            found += [str(part["text"]) for part in parts if part["type"] == "text"]
    return found


async def until_status(
    server: TerminalServer, chat_id: ChatId, status: str, *, turns: int = 0
) -> None:
    """Wait until the chat has the status, after so many prompts in its history."""
    async with asyncio.timeout(WAIT_S):
        while True:
            chat = await server.call("GET", f"/chats/{chat_id}")
            if chat["status"] == status and (
                turns == 0 or len(await prompts_of(server, chat_id)) >= turns
            ):
                return
