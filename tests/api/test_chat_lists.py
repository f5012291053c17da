"""The list of chats over HTTP: filters, pins, and the search by words."""

import asyncio
from typing import Any, LiteralString, NoReturn
from urllib.parse import urlencode

import msgspec
import pytest

from chatd.api.schemas.chats import FoundMessages
from chatd.domain.access.permissions import WORKER as WORKER_ACTOR
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire, finish_turn
from chatd.domain.ids import ChatId
from chatd.store import search
from chatd.store.database.conn import Row
from chatd.store.database.pool import Pool
from chatd.store.deployment import retention
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
    assert (await server.ask("PATCH", f"/chats/{chat}", {"pin_order": order})).status == 200


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
    while await search.index_batch(server.replica.pool):
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
    rows = "SELECT count(*) FROM chat_search_texts WHERE chat_id = $1"
    assert await server.replica.pool.fetchval(rows, chat) == 2
    await server.ask("DELETE", f"/chats/{chat}")
    assert await matches(server, "hedge") == []
    await retention.remove_deleted_chat(server.replica.pool, chat, max_rows=1)
    assert await server.replica.pool.fetchval("SELECT count(*) FROM chat_search_texts") == 0


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
    monkeypatch.setattr(search, "MAX_MESSAGES_PER_READ", 2)
    chat = await server.create("word0")
    for number in range(1, 6):
        await answer(server, chat, f"word{number}")
        await server.ask("POST", f"/chats/{chat}/messages", message_body("go on"))
    assert await search.index_batch(server.replica.pool)
    await index(server)
    for number in range(6):
        assert await listed(server, q=f"word{number}") == [chat]
    assert not await search.index_batch(server.replica.pool)


async def test_all_messages_of_a_long_imported_chat_are_found(server: ApiServer) -> None:
    """An import is one change: all its messages have the same revision."""
    at = "2026-01-31T12:00:00Z"
    messages: list[Json] = [
        {
            "type": "message",
            "chat": 1,
            "id": number,
            "role": "user",
            "content": [{"type": "text", "text": f"Walrus{number} swims"}],
            "created_at": at,
        }
        for number in range(1, 2401)
    ]
    args = {"command": "pytest -q tests/store", "workdir": "/home/dev/zebra.d"}
    call = {"type": "tool-call", "tool_call_id": "c1", "tool_name": "execute", "args": args}
    done = {"type": "tool-result", "tool_call_id": "c1", "tool_name": "execute", "result": "ok"}
    messages[2300] |= {"role": "assistant", "content": [call]}
    messages[2301] |= {"role": "tool", "content": [done]}
    lines: list[Json] = [
        {"type": "chatd", "version": 1},
        {"type": "chat", "number": 1, "title": "Imported", "labels": {}, "created_at": at},
        *messages,
        {"type": "end", "chats": 1, "messages": len(messages)},
    ]
    body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    made = await server.ask("POST", "/chats/import", body)
    assert made.status == 201, made.content
    chat = ChatId(msgspec.convert(made.json["id"], ChatId))
    before = await found_in(server, chat, "walrus24")
    await index(server)
    places = {
        "walrus swims": 2400,
        '"walrus1 swims"': 1,
        "walrus1200": 1200,
        "alrus2400": 2400,
        "walrus24": 2400,
        '"pytest -q"': 2301,
        "tests/sto": 2301,
        "dev/zebra": 2301,
        "zebra.d": 2301,
        "execute": 2301,
        "ex": 2301,
    }
    found = {q: [place for _, place, _ in await matches(server, q)] for q in places}
    assert found == {q: [number] for q, number in places.items()}
    assert before == [24, *range(240, 250), 2400], "before the index has it"
    assert await found_in(server, chat, "walrus240") == [240, 2400]
    assert len(await found_in(server, chat, "wal")) == search.MAX_FOUND_IN_CHAT


async def found_in(server: ApiServer, chat: ChatId, q: str) -> list[int]:
    reply = await server.ask("GET", f"/chats/{chat}/matches?{urlencode({'q': q})}")
    assert reply.status == 200, reply.content
    found = msgspec.convert(reply.json, FoundMessages)
    assert found.count == len(found.message_ids)
    assert found.has_more == (found.count == search.MAX_FOUND_IN_CHAT)
    return list(found.message_ids)


async def test_words_are_found_in_a_chat_before_and_after_the_index_has_them(
    server: ApiServer,
) -> None:
    chat = await server.create("what is a fence?")
    await answer(server, chat, "A **fence** keeps a stale worker out.")
    for _ in range(2):
        assert await found_in(server, chat, "fen") == [1, 2]
        assert await found_in(server, chat, "FENCE stale") == [2]
        assert await found_in(server, chat, "gate") == []
        await index(server)
    await server.ask("PATCH", f"/chats/{chat}/messages/1", message_body("and a gate?"))
    assert await found_in(server, chat, "fence") == [], "edited since"
    assert await found_in(server, chat, "gate") == [3]


class IndexedMeanwhile:
    """The index gets the chat after the first statement of a search."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._is_first = True

    async def _between(self) -> Pool:
        if not self._is_first:
            await index(self._server)
        self._is_first = False
        return self._server.replica.pool

    async def fetch(self, query: LiteralString, *args: object) -> list[Row]:
        return await (await self._between()).fetch(query, *args)

    async def fetchrow(self, query: LiteralString, *args: object) -> Row | None:
        return await (await self._between()).fetchrow(query, *args)

    async def fetchval(self, query: LiteralString, *args: object) -> Any:
        return await (await self._between()).fetchval(query, *args)

    async def execute(self, query: LiteralString, *args: object) -> str:
        return await (await self._between()).execute(query, *args)


async def test_a_message_that_is_indexed_during_a_search_is_found(server: ApiServer) -> None:
    chat = await server.create("what is a fence?")
    found = await search.find_in_chat(IndexedMeanwhile(server), WORKER_ACTOR, chat, ("fence",))
    assert list(found.message_ids) == [1]


async def test_a_search_of_much_text_that_is_not_indexed_ends_early_and_says_so(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_UNINDEXED_BYTES", 1)
    monkeypatch.setattr(search, "MAX_UNINDEXED_BYTES_IN_ALL", 1)
    chat = await server.create("a fence")
    await answer(server, chat, "another fence")
    pool = server.replica.pool
    found = await search.find_in_chat(pool, WORKER_ACTOR, chat, ("fence",))
    assert (list(found.message_ids), found.has_more) == ([1], True)
    await index(server)
    found = await search.find_in_chat(pool, WORKER_ACTOR, chat, ("fence",))
    assert (list(found.message_ids), found.has_more) == ([1, 2], False)


@pytest.mark.parametrize("q", ["", "title:fence", "fence archived:true", "..."])
async def test_a_chat_is_searched_by_words_only(server: ApiServer, q: str) -> None:
    chat = await server.create("fence")
    reply = await server.ask("GET", f"/chats/{chat}/matches?{urlencode({'q': q})}")
    assert (reply.status, reply.field) == (400, "q")


async def test_a_snippet_is_plain_text(server: ApiServer) -> None:
    chat = await server.create("hello")
    await answer(server, chat, "## The *fence*\n\n- see [docs](http://x/y)\n- **stale** worker")
    await index(server)
    (item,) = (await server.ask("GET", "/chats?q=stale")).items
    match = msgspec.convert(item["match"], Json)
    assert match["text"] == "The fence see docs (http://x/y) stale worker"
    assert match["highlights"] == [[32, 37]]


async def test_a_killed_run_of_the_index_is_continued(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch commits; what a batch did that was killed is done again."""
    monkeypatch.setattr(search, "MAX_CHATS_PER_BATCH", 1)
    ids = [await server.create(f"walrus {number}") for number in range(3)]
    await search.index_batch(server.replica.pool)
    write = search.make_entries

    def die(*_: object) -> NoReturn:
        raise KilledError

    monkeypatch.setattr(search, "make_entries", die)
    with pytest.raises(KilledError):
        await search.index_batch(server.replica.pool)
    monkeypatch.setattr(search, "make_entries", write)
    await index(server)
    assert await listed(server, q="walrus") == list(reversed(ids))


class KilledError(Exception):
    pass


async def test_a_chat_of_today_need_not_wait_until_all_older_ones_are_indexed(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_CHATS_PER_BATCH", 1)
    for number in range(3):
        await server.create(f"old walrus {number}")
    pool = server.replica.pool
    await pool.execute("UPDATE chats SET updated_at = now() - interval '1 day'")
    new = await server.create("new walrus")
    assert await search.index_batch(pool)
    assert (await listed(server, q="walrus"))[0] == new
    await index(server)
    assert len(await listed(server, q="walrus")) == 4


async def test_after_an_upgrade_the_newest_chats_are_found_first_and_a_search_says_what_is_missing(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_CHATS_PER_BATCH", 1)
    ids = [await server.create(f"walrus {number}") for number in range(3)]
    pool = server.replica.pool
    await pool.execute("UPDATE chats SET updated_at = updated_at - interval '1 day'")
    await pool.execute("UPDATE chat_search_progress SET until = 'epoch', left_until = NULL")
    for found in (1, 2, 3):
        assert (await server.ask("GET", "/chats?q=walrus")).json["indexing"] is True
        assert await search.index_batch(pool)
        assert await listed(server, q="walrus") == list(reversed(ids))[:found]
    await index(server)
    assert (await server.ask("GET", "/chats?q=walrus")).json["indexing"] is False
    late = await server.create("late walrus")
    await index(server)
    assert await listed(server, q="walrus") == [late, *reversed(ids)]


async def test_a_chat_that_is_not_listed_is_found_by_its_label_or_status(
    server: ApiServer,
) -> None:
    async with event_source(server, "/events") as chat_list:
        assert (await chat_list.json())["type"] == "ready"
        hidden = await server.create("by a program", labels={"chatd/listed": "no"})
        shown = await server.create("by a person")
        while (event := await chat_list.json())["type"] != "chat":
            pass
        assert msgspec.convert(event["chat"], Json)["id"] == str(shown)
    for query in ("", "?pinned=false", "?status=waiting"):
        ids = [chat["id"] for chat in (await server.ask("GET", f"/chats{query}")).items]
        assert str(hidden) not in ids, query
    for query in ("?label=chatd/listed:no", "?status=pending"):
        ids = [chat["id"] for chat in (await server.ask("GET", f"/chats{query}")).items]
        assert str(hidden) in ids, query
