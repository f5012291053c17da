"""The list of chats over HTTP: filters, pins, and the search by words."""

import asyncio
from urllib.parse import urlencode

import msgspec
import pytest

from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire, finish_turn
from chatd.domain.ids import ChatId
from chatd.store import retention
from chatd.store.chat import search_index
from tests.support.api.server import OTHER_USER, ApiServer, Json, message_body
from tests.support.api.sse_viewer import event_source
from tests.support.factories import WORKER, draft, text
from tests.support.seeds import Seed, step
from tests.support.store import age, chat_id, insert_seed, open_child

PINS = ("a", "b", "c")


async def listed(server: ApiServer, **query: object) -> list[ChatId]:
    items = (await server.ask("GET", f"/chats?{urlencode(query, doseq=True)}")).items
    return [ChatId(msgspec.convert(item["id"], ChatId)) for item in items]


async def refused(server: ApiServer, **query: object) -> tuple[object, str]:
    reply = await server.ask("GET", f"/chats?{urlencode(query)}")
    assert reply.status == 400
    return reply.field, str(reply.json["message"])


# Filters


async def test_a_list_is_filtered_by_status_archived_and_pinned(server: ApiServer) -> None:
    pool = server.replica.pool
    states = (State.W, State.E1, State.P0, State.R1, State.A0, State.XW0)
    ids = {
        state: (await insert_seed(pool, Seed(state=state, chat_id=chat_id(number)))).id
        for number, state in enumerate(states, 1)
    }
    await server.ask("PATCH", f"/chats/{ids[State.W]}", {"pin_order": 1})
    by_status = {
        "waiting": State.W,
        "error": State.E1,
        "pending": State.P0,
        "running": State.R1,
        "requires_action": State.A0,
        "archived": State.XW0,
    }
    for status, state in by_status.items():
        assert await listed(server, status=status) == [ids[state]]
        assert await listed(server, q=f"status:{status}") == [ids[state]]
    assert await listed(server, status="interrupting") == []
    assert await listed(server, archived="true") == [ids[State.XW0]]
    assert await listed(server, q="archived:true", archived="true") == [ids[State.XW0]]
    assert await listed(server, pinned="true") == [ids[State.W]]
    assert ids[State.W] not in await listed(server, pinned="false")
    assert len(await listed(server, pinned="false")) == 4


async def test_filters_that_contradict_each_other_are_refused(server: ApiServer) -> None:
    assert (await refused(server, q="archived:true", archived="false"))[0] == "archived"
    assert (await refused(server, q="status:error", status="waiting"))[0] == "status"
    assert (await refused(server, status="archived", archived="false"))[0] == "archived"
    assert (await refused(server, q="label:a:b", label="a:c"))[0] == "label"
    field, message = await refused(server, q="fence colour:red")
    assert field == "q"
    assert "position 7: there is no colour: term, only archived:, label:" in message
    assert (await refused(server, q="label:!:b"))[0] == "q"


# Pins


async def pin(server: ApiServer, chat: ChatId, order: int) -> None:
    assert (await server.ask("PATCH", f"/chats/{chat}", {"pin_order": order})).status == 204


async def pins(server: ApiServer) -> list[tuple[int, str]]:
    items = (await server.ask("GET", "/chats?pinned=true")).items
    return sorted((int(str(item["pin_order"])), str(item["title"])) for item in items)


async def test_pins_are_numbered_without_gaps(server: ApiServer) -> None:
    a, b, c = [await server.create(name) for name in PINS]
    for chat in (a, b, c):
        await pin(server, chat, 1)
    assert await pins(server) == [(1, "a"), (2, "b"), (3, "c")]
    await pin(server, a, 99)
    assert await pins(server) == [(1, "b"), (2, "c"), (3, "a")]
    await pin(server, b, 0)
    assert await pins(server) == [(1, "c"), (2, "a")]
    await server.ask("PATCH", f"/chats/{c}", {"archived": True})
    await pin(server, b, 5)
    assert await pins(server) == [(1, "a"), (2, "b")]


async def test_pages_learn_of_every_pin_that_moved(server: ApiServer) -> None:
    a, b, c = [await server.create(name) for name in PINS]
    for chat in (a, b, c):
        await pin(server, chat, 1)
    async with event_source(server, "/events") as chat_list:
        assert (await chat_list.json())["type"] == "ready"
        await pin(server, c, 1)
        seen: dict[object, object] = {}
        while len(seen) < 3:
            chat = msgspec.convert((await chat_list.json())["chat"], Json)
            seen[chat["title"]] = chat["pin_order"]
    assert seen == {"c": 1, "a": 2, "b": 3}


async def test_concurrent_pins_neither_tie_nor_deadlock(server: ApiServer) -> None:
    chats = [await server.create(str(number)) for number in range(6)]
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            for chat in chats:
                group.create_task(pin(server, chat, 1))
    assert [place for place, _ in await pins(server)] == [1, 2, 3, 4, 5, 6]


# Search


async def answer(server: ApiServer, chat: ChatId, words: str) -> None:
    await server.act(chat, lambda row: acquire(row, WORKER))
    await server.act(chat, lambda row: finish_turn(row, step(row, draft("assistant", text(words)))))


async def index(server: ApiServer) -> None:
    while await search_index.index_batch(server.replica.pool):
        pass


async def matches(server: ApiServer, q: str) -> list[tuple[object, object, object]]:
    items = (await server.ask("GET", f"/chats?{urlencode({'q': q})}")).items
    found = [(item["title"], msgspec.convert(item["match"], Json)) for item in items]
    return [(title, match.get("message_id"), match["text"]) for title, match in found]


async def test_words_are_found_in_titles_prompts_and_answers(server: ApiServer) -> None:
    first = await server.create("what is a fence?")
    await answer(server, first, "A fence keeps a stale Worker out.")
    second = await server.create("and a lease?")
    await index(server)
    assert await matches(server, "FENCE") == [
        ("what is a fence?", 2, "A fence keeps a stale Worker out.")
    ]
    assert await matches(server, "stale worker") == await matches(server, "fence")
    assert await matches(server, '"stale worker"') == await matches(server, "fence")
    assert await matches(server, '"worker stale"') == []
    assert await matches(server, "lease") == [("and a lease?", 1, "and a lease?")]
    assert await matches(server, "fence lease") == []
    assert await matches(server, "title:fen") == [("what is a fence?", None, "what is a fence?")]
    assert await matches(server, "title:fen worker") == await matches(server, "fence")
    assert await matches(server, "title:lease worker") == []
    assert await listed(server, q="a") == [second, first]


async def test_only_the_owner_finds_a_chat(server: ApiServer) -> None:
    await server.create("secret fence")
    await index(server)
    reply = await server.ask("GET", "/chats?q=fence", token=OTHER_USER)
    assert reply.items == []


async def test_a_search_is_paged_newest_hit_first(server: ApiServer) -> None:
    ids = [await server.create(f"fence {number}") for number in range(5)]
    await index(server)
    found: list[object] = []
    path = "/chats?q=fence&limit=2"
    while path:
        page = (await server.ask("GET", path)).json
        found += [item["id"] for item in msgspec.convert(page["items"], list[Json])]
        cursor = page["next_cursor"]
        path = f"/chats?q=fence&limit=2&cursor={cursor}" if cursor else ""
    assert found == [str(chat) for chat in reversed(ids)]


async def test_a_rename_an_edit_and_a_deletion_reach_the_index(server: ApiServer) -> None:
    chat = await server.create("fence")
    await index(server)
    await server.ask("PATCH", f"/chats/{chat}", {"title": "Gate"})
    await age(server.replica.pool, [chat], seconds=3600)
    await index(server)
    assert [title for title, _, _ in await matches(server, "title:gate")] == ["Gate"]
    assert await matches(server, "title:fence") == []
    await server.ask("PATCH", f"/chats/{chat}/messages/1", message_body("hedge"))
    assert await matches(server, "fence") == [], "not even before the index follows"
    await index(server)
    assert [title for title, _, _ in await matches(server, "hedge")] == ["Gate"]
    rows = "SELECT count(*) FROM chat_search WHERE chat_id = $1"
    assert await server.replica.pool.fetchval(rows, chat) == 2
    await server.ask("DELETE", f"/chats/{chat}")
    assert await matches(server, "hedge") == []
    await retention.remove_deleted_chat(server.replica.pool, chat, max_rows=1)
    assert await server.replica.pool.fetchval("SELECT count(*) FROM chat_search") == 0


async def test_filters_hold_for_a_search_too(server: ApiServer) -> None:
    blue = await server.create("fence", labels={"team": "blue"})
    red = await server.create("fence", labels={"team": "red"})
    await server.ask("PATCH", f"/chats/{red}", {"archived": True})
    await index(server)
    assert await listed(server, q="fence") == [blue]
    assert await listed(server, q="fence archived:true") == [red]
    assert await listed(server, q="fence label:team:red") == []
    assert await listed(server, q="fence", label="team:blue", status="pending") == [blue]
    assert await listed(server, q="fence", pinned="true") == []


async def test_a_hit_in_a_subagent_shows_its_root(server: ApiServer) -> None:
    root = await server.create("root")
    child = await open_child(server.replica.pool, 7, root=root.int)
    await answer(server, child.id, "Found the fence.")
    await index(server)
    (item,) = (await server.ask("GET", "/chats?q=fence")).items
    match = msgspec.convert(item["match"], Json)
    assert (item["id"], match["chat_id"]) == (str(root), str(child.id))
    assert match["highlights"] == [[10, 15]]


@pytest.mark.parametrize("words", ["a\0b nul", "x" * 3000 + " nul", "nul " * 40_000])
async def test_any_text_can_be_indexed(server: ApiServer, words: str) -> None:
    chat = await server.create("hello")
    await answer(server, chat, words)
    await index(server)
    assert await listed(server, q="nul") == [chat]


async def test_a_long_history_is_indexed_in_several_reads(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "MAX_MESSAGES_PER_READ", 2)
    chat = await server.create("word0")
    for number in range(1, 6):
        await answer(server, chat, f"word{number}")
        await server.ask("POST", f"/chats/{chat}/messages", message_body("go on"))
    assert await search_index.index_batch(server.replica.pool)
    await index(server)
    for number in range(6):
        assert await listed(server, q=f"word{number}") == [chat]
    assert not await search_index.index_batch(server.replica.pool)
