"""The prompt history: of one chat and of all chats, newest first, each text once."""

from urllib.parse import urlencode

import msgspec
import pytest

from chatd.api.routes import prompts as prompt_routes
from chatd.domain.ids import ChatId
from tests.support.api.server import OTHER_USER, ApiServer, Json, message_body
from tests.support.factories import CHAT


async def texts(server: ApiServer, path: str, **query: object) -> list[object]:
    """Of all pages."""
    found: list[object] = []
    cursor: dict[str, object] = {}
    while True:
        page = (await server.ask("GET", f"{path}?{urlencode(query | cursor)}")).json
        found += [item["text"] for item in msgspec.convert(page["items"], list[Json])]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


async def send(server: ApiServer, chat: ChatId, *words: str) -> None:
    """Each takes the place of the running turn's end, so that it is in history at once."""
    for text in words:
        body = message_body(text, busy_behavior="steer")
        assert (await server.ask("POST", f"/chats/{chat}/messages", body)).status == 200


async def test_prompts_come_newest_first_and_once(server: ApiServer) -> None:
    first = await server.create("fix it")
    await send(server, first, "run the tests", "fix it", "again")
    second = await server.create("run the linter")
    assert await texts(server, f"/chats/{first}/prompts") == ["again", "fix it", "run the tests"]
    every = ["run the linter", "again", "fix it", "run the tests"]
    assert await texts(server, "/prompts") == every
    assert await texts(server, "/prompts", prefix="run the") == ["run the linter", "run the tests"]
    assert await texts(server, "/prompts", prefix="Run") == []
    assert await texts(server, f"/chats/{second}/prompts", prefix="fix") == []
    assert await texts(server, "/prompts", limit=3) == [*every, "fix it"]


async def test_prompts_that_an_edit_removed_and_deleted_chats_are_left_out(
    server: ApiServer,
) -> None:
    chat = await server.create("first try")
    await server.ask("PATCH", f"/chats/{chat}/messages/1", message_body("second try"))
    gone = await server.create("secret")
    await server.ask("DELETE", f"/chats/{gone}")
    assert await texts(server, "/prompts") == ["second try"]
    assert (await server.ask("GET", f"/chats/{gone}/prompts")).code == (404, "not_found")


async def test_no_user_sees_the_prompts_of_another(server: ApiServer) -> None:
    chat = await server.create("mine")
    reply = await server.ask("GET", "/prompts", token=OTHER_USER)
    assert reply.json["items"] == []
    for chat_id in (chat, CHAT):
        reply = await server.ask("GET", f"/chats/{chat_id}/prompts", token=OTHER_USER)
        assert reply.code == (404, "not_found")


async def test_a_rare_prefix_is_searched_in_pages_of_bounded_work(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_routes, "_READ_SIZE", 2)
    monkeypatch.setattr(prompt_routes, "MAX_SCANNED_PROMPTS", 4)
    chat = await server.create("rare one")
    await send(server, chat, *(f"prompt {number}" for number in range(9)))
    page = (await server.ask("GET", "/prompts?prefix=rare")).json
    assert (page["items"], page["has_more"]) == ([], True)
    assert await texts(server, "/prompts", prefix="rare") == ["rare one"]
    assert await texts(server, f"/chats/{chat}/prompts", prefix="rare") == ["rare one"]


async def test_a_page_of_large_prompts_ends_early(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_routes, "MAX_PAGE_CHARS", 100)
    chat = await server.create("x" * 150)
    await send(server, chat, "y" * 150)
    page = (await server.ask("GET", "/prompts")).json
    assert len(msgspec.convert(page["items"], list[Json])) == 1
    assert await texts(server, "/prompts") == ["y" * 150, "x" * 150]
