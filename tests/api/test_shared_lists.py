"""A reader lists, searches and follows the chats that others share, and no others."""

import asyncio
import random
from urllib.parse import urlencode

import msgspec
import pytest

from chatd.domain.ids import ChatId
from tests.api.test_chat_lists import answer, index
from tests.api.test_shares import insert_subagent
from tests.api.test_websocket import page
from tests.support.api.server import (
    ADMINISTRATOR,
    ME,
    OTHER_OWNER,
    OTHER_USER,
    ApiServer,
    Json,
    message_body,
)
from tests.support.api.shares import READER, create_group, set_sharing, share, two_replicas
from tests.support.api.sse_viewer import SseConnection, event_source
from tests.support.factories import OWNER

OWNER_NAME = f"test-user-{OWNER.int}"


async def titles(server: ApiServer, token: str = OTHER_USER, **query: object) -> list[str]:
    reply = await server.ask("GET", f"/chats?{urlencode(query)}", token=token)
    assert reply.status == 200, reply.content
    return [str(item["title"]) for item in reply.items]


async def shared_chat(server: ApiServer, words: str, **fields: object) -> ChatId:
    chat_id = await server.create(words, **fields)
    assert (await share(server, chat_id)).status == 200
    return chat_id


async def create_own(server: ApiServer, words: str) -> None:
    made = await server.ask("POST", "/chats", message_body(words), token=OTHER_USER)
    assert made.status == 201
    assert (made.json["is_owner"], made.json["shared"]) == (True, False)
    assert made.json["owner_username"] == f"test-user-{OTHER_OWNER.int}"


async def test_a_chat_says_whose_it_is_and_whether_it_is_shared(server: ApiServer) -> None:
    chat_id = await server.create("mine")
    path = f"/chats/{chat_id}"
    await server.ask("PATCH", path, {"pin_order": 1})
    mine = (await server.ask("GET", path)).json
    names = ("is_owner", "owner_username", "shared", "pin_order")
    assert [mine[name] for name in names] == [True, OWNER_NAME, False, 1]
    await share(server, chat_id)
    mine = (await server.ask("GET", path)).json
    assert [mine[name] for name in names] == [True, OWNER_NAME, True, 1]
    (listed,) = (await server.ask("GET", "/chats?source=shared", token=OTHER_USER)).items
    read = (await server.ask("GET", path, token=OTHER_USER)).json
    for theirs in (listed, read):
        assert [theirs[name] for name in names] == [False, OWNER_NAME, True, 0]
    await set_sharing(server, enabled=False)
    assert (await server.ask("GET", path)).json["shared"] is False


@pytest.mark.promise("P12")
async def test_a_reader_lists_own_and_shared_chats(server: ApiServer) -> None:
    await shared_chat(server, "shared one")
    await server.create("not shared")
    await create_own(server, "own one")
    await shared_chat(server, "shared two", labels={"team": "blue"})
    await create_own(server, "own two")
    assert await titles(server) == ["own two", "own one"]
    assert await titles(server, source="mine") == ["own two", "own one"]
    assert await titles(server, source="shared") == ["shared two", "shared one"]
    every = ["own two", "shared two", "own one", "shared one"]
    assert await titles(server, source="all") == every
    assert await titles(server, q="source:all") == every
    assert await titles(server, source="shared", label="team:blue") == ["shared two"]
    assert await titles(server, source="all", pinned="true") == []
    assert await titles(server, source="all", pinned="false") == every
    assert await titles(server, source="shared", status="waiting") == []
    assert await titles(server, ME, source="shared") == []
    assert await titles(server, ADMINISTRATOR, source="all") == []
    for query in ("source=theirs", "q=source:theirs", "source=mine&q=source:all"):
        refused = await server.ask("GET", f"/chats?{query}")
        assert refused.code == (400, "invalid_input"), query


async def test_a_chat_that_is_shared_twice_is_listed_once_and_an_own_one_is_not_shared(
    server: ApiServer,
) -> None:
    chat_id = await shared_chat(server, "twice")
    group = await create_group(server, READER, str(OWNER))
    await server.ask("PATCH", f"/chats/{chat_id}/acl", {"group_roles": {group: "read"}})
    assert await titles(server, source="all") == ["twice"]
    assert await titles(server, ME, source="all") == ["twice"]
    assert await titles(server, ME, source="shared") == []


async def test_pages_of_all_chats_neither_repeat_nor_skip_one(server: ApiServer) -> None:
    for number in range(5):
        await shared_chat(server, f"shared {number}")
        await create_own(server, f"own {number}")
    for source, count in (("shared", 5), ("all", 10)):
        whole = await titles(server, source=source)
        assert len(whole) == count
        paged: list[str] = []
        cursor: dict[str, object] = {}
        while True:
            query = urlencode({"source": source, "limit": 3} | cursor)
            reply = await server.ask("GET", f"/chats?{query}", token=OTHER_USER)
            paged += [str(item["title"]) for item in reply.items]
            if not reply.json["has_more"]:
                break
            cursor = {"cursor": reply.cursor}
        assert paged == whole


@pytest.mark.promise("P12")
async def test_a_reader_finds_the_words_of_shared_chats_only(server: ApiServer) -> None:
    shared = await shared_chat(server, "a shared walrus")
    child = await insert_subagent(server, shared)
    await answer(server, shared, "the walrus answers")
    await server.create("a secret walrus")
    await create_own(server, "my walrus")
    await index(server)
    assert await titles(server, q="walrus") == ["my walrus"]
    assert await titles(server, q="walrus source:shared") == ["a shared walrus"]
    assert await titles(server, q="title:walrus", source="shared") == ["a shared walrus"]
    assert set(await titles(server, q="walrus", source="all")) == {"my walrus", "a shared walrus"}
    assert await titles(server, q="secret", source="all") == []
    prompts = await server.ask("GET", "/prompts", token=OTHER_USER)
    assert [one["text"] for one in prompts.items] == ["my walrus"]
    assert (await server.ask("GET", f"/chats/{child}", token=OTHER_USER)).status == 200
    await share(server, shared, "")
    assert await titles(server, q="walrus", source="all") == ["my walrus"]
    assert await titles(server, q="walrus", source="shared") == []


async def next_chat(source: SseConnection) -> tuple[str, Json]:
    event = await source.json()
    assert event["type"] == "chat", event
    return str(event["kind"]), msgspec.convert(event["chat"], Json)


@pytest.mark.promise("P12")
async def test_a_readers_list_on_another_replica_gains_follows_and_loses_a_chat(dsn: str) -> None:
    async with two_replicas(dsn) as (server, other):
        await server.create("a secret")
        chat_id = await server.create("hello")
        path = f"/chats/{chat_id}"
        async with (
            event_source(other, "/events", token=OTHER_USER) as source,
            event_source(other, "/events") as own_source,
            page(other, OTHER_USER) as socket,
        ):
            for one in (source, own_source):
                assert (await one.json())["type"] == "ready"
            await socket.subscribe("chats")
            assert (await socket.next())["type"] == "ready"
            await share(server, chat_id)
            kind, chat = await next_chat(source)
            assert (kind, chat["title"], chat["is_owner"]) == ("created", "hello", False)
            assert (await socket.next())["kind"] == "created"
            kind, chat = await next_chat(own_source)
            assert (kind, chat["shared"], chat["is_owner"]) == ("changed", True, True)
            for body, expected in (
                ({"title": "Renamed"}, "title"),
                ({"archived": True}, "archived"),
                ({"archived": False}, "changed"),
            ):
                await server.ask("PATCH", path, body)
                kind, chat = await next_chat(source)
                while kind != expected:
                    kind, chat = await next_chat(source)
                assert chat["title"] == "Renamed"
            await share(server, chat_id, "")
            while (event := await source.json())["type"] != "removed":
                pass
            assert event == {"type": "removed", "chat_id": str(chat_id)}
            await socket.until("removed")
            await server.ask("PATCH", path, {"title": "A secret title"})
            await share(server, chat_id)
            kind, chat = await next_chat(source)
            assert (kind, chat["title"]) == ("created", "A secret title")
            await server.ask("DELETE", path)
            while (await next_chat(source))[0] != "deleted":
                pass


class ReaderPage:
    """The chat list of a client: it lists at every `ready`, and follows events."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.chats: dict[str, Json] = {}

    async def apply(self, event: Json) -> None:
        match event["type"]:
            case "ready":
                self.chats = await self.fresh()
            case "removed":
                self.chats.pop(str(event["chat_id"]), None)
            case _:
                chat = msgspec.convert(event["chat"], Json)
                self.chats[str(chat["id"])] = chat

    async def fresh(self) -> dict[str, Json]:
        reply = await self.server.ask("GET", "/chats?source=all", token=OTHER_USER)
        return {
            str(item["id"]): {name: item[name] for name in item if name != "children"}
            for item in reply.items
        }


@pytest.mark.promise("P8")
@pytest.mark.parametrize("seed", range(3))
async def test_after_random_shares_a_page_shows_what_a_fresh_list_shows(
    dsn: str, seed: int
) -> None:
    dice = random.Random(seed)
    async with two_replicas(dsn) as (server, other):
        chats = [await server.create(f"chat {number}") for number in range(4)]
        group = await create_group(server)
        member = f"/groups/{group}/members/{READER}"
        reader, heard = ReaderPage(other), asyncio.Event()

        async def act() -> None:
            chat = f"/chats/{dice.choice(chats)}"
            role = dice.choice(("read", ""))
            match dice.randrange(6):
                case 0 | 1:
                    await server.ask("PATCH", f"{chat}/acl", {"user_roles": {READER: role}})
                case 2:
                    await server.ask("PATCH", f"{chat}/acl", {"group_roles": {group: role}})
                case 3:
                    method = dice.choice(("PUT", "DELETE"))
                    await server.ask(method, member, token=ADMINISTRATOR)
                case 4:
                    await server.ask("PATCH", chat, {"title": f"Title {dice.random()}"})
                case _:
                    await set_sharing(server, enabled=dice.random() < 0.7)

        async with event_source(other, "/events", token=OTHER_USER) as source:
            for _ in range(dice.randrange(10)):
                await act()
            await reader.apply(await source.json())

            async def follow() -> None:
                while True:
                    await reader.apply(await source.json())
                    heard.set()

            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(follow())
                for _ in range(25):
                    await act()
                await set_sharing(server, enabled=True)
                while reader.chats != await reader.fresh():
                    await heard.wait()
                    heard.clear()
                following.cancel()
