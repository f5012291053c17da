"""Subagents over HTTP: listed in pages, told to the chat list live, stopped with their root."""

import msgspec
import pytest

from chatd.domain.chat.commands import CreateChat
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire, finish_turn
from chatd.domain.ids import ChangeId
from tests.support.api.server import ApiOptions, ApiServer, Json, serve_api
from tests.support.api.sse_viewer import event_source
from tests.support.factories import CHAT, OWNER, WORKER, draft, prompt, text
from tests.support.operations import create_chat
from tests.support.seeds import Seed, step
from tests.support.store import chat_id, insert_seed, open_child

PATH = f"/chats/{CHAT}"
ROOT = CHAT.int


async def test_subagents_are_listed_in_pages_oldest_first(server: ApiServer) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.W))
    ids = [str((await open_child(pool, number, ROOT)).id) for number in (21, 22, 23)]
    first = await server.ask("GET", f"{PATH}/subagents?limit=2")
    assert [item["id"] for item in first.items] == ids[:2]
    assert {item["root_chat_id"] for item in first.items} == {str(CHAT)}
    second = await server.ask("GET", f"{PATH}/subagents?limit=2&cursor={first.cursor}")
    assert ([item["id"] for item in second.items], second.json["has_more"]) == (ids[2:], False)
    assert (await server.ask("GET", f"/chats/{ids[0]}/subagents")).items == []
    assert (await server.ask("GET", f"/chats/{chat_id(99)}/subagents")).status == 404


async def test_a_watcher_of_the_list_sees_a_subagent_appear_work_and_end(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    child = chat_id(21)
    async with event_source(server, "/events") as source:
        assert (await source.json())["type"] == "ready"
        command = CreateChat(
            id=child,
            owner_id=OWNER,
            title="Look around",
            prompt=prompt("look"),
            root_chat_id=CHAT,
            parent_chat_id=CHAT,
            mode="explore",
        )
        await create_chat(server.replica.transactor, command, ChangeId(5), free=WORKER)
        await server.act(
            child, lambda chat: finish_turn(chat, step(chat, draft("assistant", text("seen"))))
        )
        seen: list[Json] = []
        while not seen or seen[-1]["status"] != "waiting":
            seen.append(msgspec.convert((await source.json())["chat"], Json))
    assert {(chat["id"], chat["root_chat_id"]) for chat in seen} == {(str(child), str(CHAT))}
    assert seen[0]["parent_chat_id"] == str(CHAT)
    assert seen[0]["mode"] == "explore"


@pytest.mark.parametrize(
    ("default", "body", "stops"),
    [
        (False, None, False),
        (False, {"subagents": "stop"}, True),
        (True, None, True),
        (True, {"subagents": "continue"}, False),
    ],
)
async def test_an_interrupt_stops_subagents_as_the_request_or_the_settings_say(
    dsn: str, *, default: bool, body: object, stops: bool
) -> None:
    async with serve_api(dsn, ApiOptions(stops_subagents=default)) as server:
        pool = server.replica.pool
        await insert_seed(pool, Seed(state=State.R0))
        child = await open_child(pool, 21, ROOT)
        await server.act(child.id, lambda chat: acquire(chat, WORKER))
        stopped = await server.ask("POST", f"{PATH}/interrupt", body)
        assert (stopped.status, stopped.json["status"]) == (200, "interrupting")
        assert (await server.chat(child.id)).status == ("interrupting" if stops else "running")


async def test_a_stopped_subagent_keeps_its_queue(server: ApiServer) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.W))
    child = await open_child(pool, 21, ROOT)
    sent = await server.ask(
        "POST", f"/chats/{child.id}/messages", {"content": [{"type": "text", "text": "then this"}]}
    )
    assert sent.json["queued"] is True
    assert (await server.ask("POST", f"{PATH}/interrupt", {"subagents": "stop"})).status == 200
    found = await server.chat(child.id)
    assert (found.state, found.queue_len) == (State.E1, 1)


async def test_a_wrong_choice_is_refused_and_nothing_stops(server: ApiServer) -> None:
    before = await insert_seed(server.replica.pool, Seed(state=State.R0))
    refused = await server.ask("POST", f"{PATH}/interrupt", {"subagents": "drop"})
    assert (refused.status, refused.field) == (400, "subagents")
    assert await server.chat(CHAT) == before
