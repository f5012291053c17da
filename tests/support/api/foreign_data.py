"""Data of another user with a word in it that no reply to anybody else may contain."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec

from chatd.api.application import ApiApplication
from chatd.api.request import Message, Receive, Scope, Send
from tests.support.api.server import OTHER_OWNER, OTHER_USER, ApiServer, Json, message_body

WORD: Final = "quokka-of-another-user"


class ReplyWatch:
    """An ASGI application that notes in `found` the requests whose reply contains the word, in a
    header or in a piece of its body."""

    def __init__(self, api: ApiApplication) -> None:
        self._api = api
        self.found: list[str] = []

    async def close(self) -> None:
        await self._api.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watch(message: Message) -> None:
            said = (message.get("headers"), message.get("body"), message.get("text"))
            if WORD in repr(said):
                self.found.append(f"{scope.get('method', 'socket')} {scope['path']}")
            await send(message)

        await self._api(scope, receive, watch)


async def plant(server: ApiServer) -> dict[str, str]:
    """One object of each kind, by the path parameter that names it."""

    async def make(path: str, body: object) -> str:
        made = await server.ask("POST", path, body, token=OTHER_USER)
        assert made.status < 300, (path, made.content)
        return _id_of(made.json)

    chat = await make("/chats", message_body(WORD, labels={"kept": WORD}))
    await server.ask("POST", f"/chats/{chat}/messages", message_body(WORD), token=OTHER_USER)
    await server.ask("PATCH", f"/chats/{chat}", {"title": WORD}, token=OTHER_USER)
    await server.ask("PATCH", "/settings/me", {"custom_prompt": WORD}, token=OTHER_USER)
    hook = {"url": f"https://example.com/{WORD}", "events": ["turn.finished"]}
    planted = {
        "chat_id": chat,
        "file_id": await make("/files", WORD.encode()),
        "webhook_id": await make("/webhooks", hook),
        "schedule_id": await make("/schedules", {"name": WORD, "cron": "@daily", "prompt": WORD}),
        "token_id": await make("/auth/tokens", {"name": WORD}),
        "user_id": str(OTHER_OWNER),
    }
    if server.deps.workspaces is not None:
        made = await server.ask(
            "POST", "/workspaces", {"template": "scratch", "name": WORD}, token=OTHER_USER
        )
        planted["workspace_id"] = _id_of(made.json)
        planted["build_id"] = _id_of(msgspec.convert(made.json["latest_build"], Json))
    return planted


async def require_planted(server: ApiServer, planted: Mapping[str, str]) -> None:
    """Asserts that the owner can still read all that was not deleted, with the word in it."""
    for path in (f"/chats/{planted['chat_id']}", "/webhooks", "/schedules", "/auth/tokens"):
        reply = await server.ask("GET", path, token=OTHER_USER)
        assert WORD.encode() in reply.content, (path, reply.content)


def _id_of(made: Json) -> str:
    inner = made.get("webhook", made)
    return str(UUID(str(msgspec.convert(inner, Json)["id"])))
