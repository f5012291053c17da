"""Idempotency keys over HTTP: a request that comes again does nothing and is answered."""

import asyncio

import pytest

from chatd.domain.chat.states import State
from chatd.store.chat import messages
from tests.support.factories import CHAT
from tests.support.front import STRANGER, Answer, Front, saying
from tests.support.seeds import Seed
from tests.support.store import plant_in

SEND = f"/chats/{CHAT}/messages"


async def keyed(front: Front, path: str, words: str, key: str, **fields: object) -> Answer:
    body = saying(words, **fields)
    return await front.ask("POST", path, body, headers={"Idempotency-Key": key})


async def count(front: Front) -> int:
    return len((await front.ask("GET", "/chats")).items)


@pytest.mark.covers("T26")
@pytest.mark.promise("P1")
async def test_a_chat_that_is_created_twice_under_one_key_is_there_once(front: Front) -> None:
    key = "any text, not only a uuid: ü " + "x" * 200
    first = await keyed(front, "/chats", "hello", key)
    again = await keyed(front, "/chats", "hello", key)
    assert (first.status, again.status) == (201, 201)
    assert again.json == first.json
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    other = await keyed(front, "/chats", "hello", "another key")
    assert other.json["id"] != first.json["id"]
    assert await count(front) == 2


async def test_the_same_key_with_another_body_is_refused(front: Front) -> None:
    await keyed(front, "/chats", "hello", "k")
    for fields in ({"labels": {"a": "b"}}, {"model": "clever"}):
        refused = await keyed(front, "/chats", "hello", "k", **fields)
        assert refused.code == (409, "idempotency_key_reused")
    assert await count(front) == 1


@pytest.mark.covers("F23")
async def test_requests_of_one_key_that_come_at_once_make_one_chat(front: Front) -> None:
    made = await asyncio.gather(*(keyed(front, "/chats", "hello", "k") for _ in range(5)))
    assert {answer.status for answer in made} == {201}
    assert len({answer.json["id"] for answer in made}) == 1
    assert await count(front) == 1


@pytest.mark.covers("F23", "T26")
@pytest.mark.promise("P1")
async def test_a_message_that_is_sent_twice_under_one_key_is_there_once(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.W))
    first = await keyed(front, SEND, "hello", "k")
    again = await keyed(front, SEND, "hello", "k")
    assert again.json == first.json
    assert again.headers["idempotency-replayed"] == "true"
    queued = await keyed(front, SEND, "more", "k2")
    assert (await keyed(front, SEND, "more", "k2")).json == queued.json
    assert queued.json["queued"] is True
    row = await front.chat(CHAT)
    assert (row.queue_len, row.next_message_id) == (1, 5)


async def test_a_repeated_message_that_has_gone_on_is_still_known(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.P0, begun=False))
    await keyed(front, SEND, "later", "k")
    await front.ask("POST", f"/chats/{CHAT}/queue/1/promote")
    again = await keyed(front, SEND, "later", "k")
    assert (again.status, again.json["queued"], again.json["queue_id"]) == (200, True, 1)
    assert "queued_message" not in again.json
    history = await messages.load_history(front.replica.pool, CHAT)
    assert sum("later" in str(row.content) for row in history) == 1


async def test_a_refused_request_can_be_made_again_under_its_key(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R0))
    refused = await keyed(front, SEND, "now", "k", busy_behavior="reject")
    assert refused.code == (409, "chat_busy")
    assert (await keyed(front, SEND, "now", "k")).status == 200


@pytest.mark.promise("P12")
async def test_a_guessed_key_tells_a_stranger_nothing(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.W))
    await keyed(front, SEND, "hello", "k")
    asked = await front.ask(
        "POST", SEND, saying("hello"), token=STRANGER, headers={"Idempotency-Key": "k"}
    )
    assert asked.code == (404, "not_found")
    mine = await keyed(front, "/chats", "hello", "k")
    theirs = await front.ask(
        "POST", "/chats", saying("hello"), token=STRANGER, headers={"Idempotency-Key": "k"}
    )
    assert theirs.status == 201
    assert theirs.json["id"] != mine.json["id"]


async def test_a_key_must_be_there_and_not_endless(front: Front) -> None:
    for key in ("", "x" * 256):
        refused = await keyed(front, "/chats", "hello", key)
        assert (refused.status, refused.field) == (400, "Idempotency-Key")
    assert await count(front) == 0
