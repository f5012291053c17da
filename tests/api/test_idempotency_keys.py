"""Idempotency keys over HTTP: a repeated request changes nothing and gets its first reply."""

import asyncio

import pytest

from chatd.domain.chat.states import State
from chatd.store.chat import messages
from tests.support.api.server import OTHER_USER, ApiReply, ApiServer, message_body
from tests.support.factories import CHAT, HARNESS
from tests.support.seeds import Seed
from tests.support.store import insert_seed

SEND = f"/chats/{CHAT}/messages"


async def keyed(
    server: ApiServer, path: str, words: str, key: str, method: str = "POST", **fields: object
) -> ApiReply:
    body = message_body(words, **fields)
    return await server.ask(method, path, body, headers={"Idempotency-Key": key})


async def count(server: ApiServer) -> int:
    return len((await server.ask("GET", "/chats")).items)


@pytest.mark.covers("T26")
@pytest.mark.promise("P1")
async def test_creating_a_chat_twice_with_one_key_creates_one_chat(server: ApiServer) -> None:
    key = "any text, not only a uuid: ü " + "x" * 200
    first = await keyed(server, "/chats", "hello", key)
    again = await keyed(server, "/chats", "hello", key)
    assert (first.status, again.status) == (201, 201)
    assert again.json == first.json
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    other = await keyed(server, "/chats", "hello", "another key")
    assert other.json["id"] != first.json["id"]
    assert await count(server) == 2


async def test_a_key_with_a_different_body_is_refused(server: ApiServer) -> None:
    await keyed(server, "/chats", "hello", "k")
    for field, value in (("labels", {"a": "b"}), ("model", "clever")):
        body = message_body("hello", **{field: value})
        refused = await server.ask("POST", "/chats", body, headers={"Idempotency-Key": "k"})
        assert refused.code == (409, "idempotency_key_reused")
    assert await count(server) == 1


@pytest.mark.covers("F23")
async def test_concurrent_requests_with_one_key_create_one_chat(server: ApiServer) -> None:
    made = await asyncio.gather(*(keyed(server, "/chats", "hello", "k") for _ in range(5)))
    assert {answer.status for answer in made} == {201}
    assert len({answer.json["id"] for answer in made}) == 1
    assert await count(server) == 1


@pytest.mark.covers("F23", "T26")
@pytest.mark.promise("P1")
async def test_sending_twice_with_one_key_stores_one_message(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    first = await keyed(server, SEND, "hello", "k")
    again = await keyed(server, SEND, "hello", "k")
    assert again.json == first.json
    assert again.headers["idempotency-replayed"] == "true"
    queued = await keyed(server, SEND, "more", "k2")
    assert (await keyed(server, SEND, "more", "k2")).json == queued.json
    assert queued.json["queued"] is True
    row = await server.chat(CHAT)
    assert (row.queue_len, row.next_message_id) == (1, 5)


async def test_a_repeated_send_is_recognized_after_its_message_moved_on(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.P0, begun=False))
    await keyed(server, SEND, "later", "k")
    await server.ask("POST", f"/chats/{CHAT}/queue/1/promote")
    again = await keyed(server, SEND, "later", "k")
    assert (again.status, again.json["queued"], again.json["queue_id"]) == (200, True, 1)
    assert "queued_message" not in again.json
    history = await messages.load_history(server.replica.pool, HARNESS, CHAT)
    assert sum("later" in str(row.content) for row in history) == 1


@pytest.mark.covers("F23")
@pytest.mark.promise("P1")
async def test_editing_twice_with_one_key_edits_once(server: ApiServer) -> None:
    """The second one would find its message deleted."""
    await insert_seed(server.replica.pool, Seed(state=State.W))
    first = await keyed(server, f"{SEND}/2", "better", "k", method="PATCH")
    again = await keyed(server, f"{SEND}/2", "better", "k", method="PATCH")
    assert (first.status, again.status) == (200, 200)
    assert again.json["message"] == first.json["message"]
    assert again.json["version"] == first.json["version"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    number = first.json["message_id"]
    for path in (f"{SEND}/{number}", f"{SEND}/99"):
        other = await keyed(server, path, "better", "k", method="PATCH")
        assert other.code == (409, "idempotency_key_reused")
    history = await messages.load_history(server.replica.pool, HARNESS, CHAT)
    assert [row.id for row in history if row.role == "user"] == [number]


@pytest.mark.covers("F23")
@pytest.mark.promise("P1")
async def test_submitting_tool_results_twice_with_one_key_submits_once(server: ApiServer) -> None:
    """Without a key the second one is refused, because the chat waits for none."""
    await insert_seed(server.replica.pool, Seed(state=State.A0))
    path = f"/chats/{CHAT}/tool-results"
    body = {"results": [{"tool_call_id": call, "output": "done"} for call in ("c1", "c2")]}
    key = {"Idempotency-Key": "k"}
    first = await server.ask("POST", path, body, headers=key)
    again = await server.ask("POST", path, body, headers=key)
    assert (first.status, again.status) == (200, 200)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    body["results"][0]["output"] = "else"
    other = await server.ask("POST", path, body, headers=key)
    assert other.code == (409, "idempotency_key_reused")
    assert (await server.ask("POST", path, body)).status == 409
    history = await messages.load_history(server.replica.pool, HARNESS, CHAT)
    assert sum(row.role == "tool" for row in history) == 2


async def test_a_refused_request_can_be_repeated_with_its_key(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    refused = await keyed(server, SEND, "now", "k", busy_behavior="reject")
    assert refused.code == (409, "chat_busy")
    assert (await keyed(server, SEND, "now", "k")).status == 200


@pytest.mark.promise("P12")
async def test_a_guessed_key_reveals_nothing_to_another_user(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    await keyed(server, SEND, "hello", "k")
    asked = await server.ask(
        "POST", SEND, message_body("hello"), token=OTHER_USER, headers={"Idempotency-Key": "k"}
    )
    assert asked.code == (404, "not_found")
    mine = await keyed(server, "/chats", "hello", "k")
    theirs = await server.ask(
        "POST", "/chats", message_body("hello"), token=OTHER_USER, headers={"Idempotency-Key": "k"}
    )
    assert theirs.status == 201
    assert theirs.json["id"] != mine.json["id"]


async def test_a_key_must_have_1_to_255_characters(server: ApiServer) -> None:
    for key in ("", "x" * 256):
        refused = await keyed(server, "/chats", "hello", key)
        assert (refused.status, refused.field) == (400, "Idempotency-Key")
    assert await count(server) == 0
