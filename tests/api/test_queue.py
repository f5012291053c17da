"""Queued messages over HTTP: listed, edited, moved, promoted, deleted."""

import pytest

from chatd.domain.chat.states import State
from tests.support.api.server import CLEVER, ApiReply, ApiServer, message_body
from tests.support.factories import CHAT
from tests.support.seeds import Seed
from tests.support.store import insert_seed

QUEUE = f"/chats/{CHAT}/queue"


async def order(server: ApiServer) -> list[object]:
    return _ids(await server.ask("GET", QUEUE))


def _ids(answer: ApiReply) -> list[object]:
    return [item["id"] for item in answer.at("queued_messages")]


async def test_the_queue_is_listed_in_sending_order(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1, plain=2, steer=1))
    assert await order(server) == [3, 1, 2]


async def test_the_queue_is_a_page_and_whole_for_earlier_clients(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1, plain=2, steer=1))
    first = await server.ask("GET", f"{QUEUE}?limit=2")
    assert [item["id"] for item in first.items] == [3, 1]
    assert (first.json["has_more"], _ids(first)) == (True, [3, 1, 2])
    last = await server.ask("GET", f"{QUEUE}?limit=2&cursor={first.cursor}")
    assert [item["id"] for item in last.items] == [2]
    assert (last.json["has_more"], last.json["next_cursor"]) == (False, None)
    moved = await server.ask("POST", f"{QUEUE}/2/move", {"before": 1})
    assert [item["id"] for item in moved.items] == [3, 2, 1]


async def test_editing_a_queued_message_keeps_its_other_fields(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1, plain=2))
    (before, other) = (await server.ask("GET", QUEUE)).at("queued_messages")
    edited = await server.ask("PATCH", f"{QUEUE}/1", message_body("better", model="clever"))
    better = [{"type": "text", "text": "better"}]
    assert edited.json == before | {"content": better, "model_config_id": str(CLEVER.id)}
    assert (await server.ask("GET", QUEUE)).at("queued_messages") == [edited.json, other]


async def test_a_queued_message_can_be_moved_before_another_or_last(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1, plain=3))
    moved = await server.ask("POST", f"{QUEUE}/3/move", {"before": 1})
    assert (moved.status, _ids(moved)) == (200, [3, 1, 2])
    assert _ids(await server.ask("POST", f"{QUEUE}/3/move", {"before": None})) == [1, 2, 3]
    assert _ids(await server.ask("POST", f"{QUEUE}/3/move", {"before": None})) == [1, 2, 3]


async def test_promoting_in_an_idle_chat_sends_the_message_now(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.P1, plain=2, begun=False))
    promoted = await server.ask("POST", f"{QUEUE}/2/promote")
    assert (promoted.status, promoted.json["queued"]) == (200, False)
    page = await server.ask("GET", f"/chats/{CHAT}/messages")
    assert page.items[0] == promoted.json["message"]
    assert await order(server) == [1]


async def test_promoting_in_a_running_chat_waits_for_the_partial_answer(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1, plain=2))
    promoted = await server.ask("POST", f"{QUEUE}/2/promote")
    assert (promoted.status, promoted.json["queued"]) == (202, True)
    assert (await server.ask("GET", QUEUE)).at("queued_messages")[0] == promoted.json[
        "queued_message"
    ]
    assert (await server.chat(CHAT)).public_status == "interrupting"


async def test_deleting_a_queued_message_twice_is_no_error(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1, plain=2))
    for _ in range(2):
        assert (await server.ask("DELETE", f"{QUEUE}/1")).status == 204
    assert await order(server) == [2]


@pytest.mark.covers("O27")
async def test_a_message_that_left_the_queue_cannot_be_edited_or_moved(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.P1, plain=3))
    await server.ask("DELETE", f"{QUEUE}/1")
    gone = (409, "queued_message_gone")
    assert (await server.ask("PATCH", f"{QUEUE}/1", message_body("too late"))).code == gone
    assert (await server.ask("POST", f"{QUEUE}/1/move", {"before": None})).code == gone
    assert (await server.ask("POST", f"{QUEUE}/2/move", {"before": 1})).code == gone
    assert (await server.ask("POST", f"{QUEUE}/1/promote")).code == (404, "not_found")
    assert (await server.ask("PATCH", f"{QUEUE}/99", message_body("x"))).code == (404, "not_found")
    assert await order(server) == [2, 3]


async def test_an_invalid_move_is_refused(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1, plain=1, steer=1))
    for body in ({"before": 1}, {"before": 2}, {"before": 0}, {"before": "1"}, {}):
        refused = await server.ask("POST", f"{QUEUE}/1/move", body)
        assert (refused.status, refused.field) == (400, "before"), body


async def test_the_queue_of_an_archived_chat_cannot_be_changed(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.XW1))
    archived = (409, "chat_archived")
    assert (await server.ask("PATCH", f"{QUEUE}/1", message_body("x"))).code == archived
    assert (await server.ask("POST", f"{QUEUE}/1/move", {"before": None})).code == archived
    assert (await server.ask("POST", f"{QUEUE}/1/promote")).code == archived
    assert (await server.ask("DELETE", f"{QUEUE}/1")).code == archived
    assert await order(server) == [1]
