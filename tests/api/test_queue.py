"""The queue over HTTP: looked at, changed, put in another order, promoted, emptied."""

import pytest

from chatd.domain.chat.states import State
from tests.support.factories import CHAT
from tests.support.front import CLEVER, Answer, Front, saying
from tests.support.seeds import Seed
from tests.support.store import plant_in

QUEUE = f"/chats/{CHAT}/queue"


async def order(front: Front) -> list[object]:
    return _ids(await front.ask("GET", QUEUE))


def _ids(answer: Answer) -> list[object]:
    return [item["id"] for item in answer.at("queued_messages")]


async def test_the_queue_is_listed_in_the_order_in_which_it_will_be_sent(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R1, plain=2, steer=1))
    assert await order(front) == [3, 1, 2]


async def test_a_message_that_waits_can_be_changed_and_the_rest_of_it_stays(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R1, plain=2))
    (before, other) = (await front.ask("GET", QUEUE)).at("queued_messages")
    edited = await front.ask("PATCH", f"{QUEUE}/1", saying("better", model="clever"))
    better = [{"type": "text", "text": "better"}]
    assert edited.json == before | {"content": better, "model_config_id": str(CLEVER.id)}
    assert (await front.ask("GET", QUEUE)).at("queued_messages") == [edited.json, other]


async def test_a_message_can_be_put_ahead_of_another_or_last(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R1, plain=3))
    moved = await front.ask("POST", f"{QUEUE}/3/move", {"before": 1})
    assert (moved.status, _ids(moved)) == (200, [3, 1, 2])
    assert _ids(await front.ask("POST", f"{QUEUE}/3/move", {"before": None})) == [1, 2, 3]
    assert _ids(await front.ask("POST", f"{QUEUE}/3/move", {"before": None})) == [1, 2, 3]


async def test_a_promoted_message_of_a_chat_that_nobody_works_on_is_sent_now(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.P1, plain=2, begun=False))
    promoted = await front.ask("POST", f"{QUEUE}/2/promote")
    assert (promoted.status, promoted.json["queued"]) == (200, False)
    page = await front.ask("GET", f"/chats/{CHAT}/messages")
    assert page.at("messages")[0] == promoted.json["message"]
    assert await order(front) == [1]


async def test_a_promoted_message_of_a_running_chat_waits_for_what_was_said_so_far(
    front: Front,
) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R1, plain=2))
    promoted = await front.ask("POST", f"{QUEUE}/2/promote")
    assert (promoted.status, promoted.json["queued"]) == (202, True)
    assert (await front.ask("GET", QUEUE)).at("queued_messages")[0] == promoted.json[
        "queued_message"
    ]
    assert (await front.chat(CHAT)).public_status == "interrupting"


async def test_a_message_can_be_taken_out_and_again_is_no_error(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R1, plain=2))
    for _ in range(2):
        assert (await front.ask("DELETE", f"{QUEUE}/1")).status == 204
    assert await order(front) == [2]


@pytest.mark.covers("O27")
async def test_what_has_left_the_queue_cannot_be_changed_or_moved(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.P1, plain=3))
    await front.ask("DELETE", f"{QUEUE}/1")
    gone = (409, "queued_message_gone")
    assert (await front.ask("PATCH", f"{QUEUE}/1", saying("too late"))).code == gone
    assert (await front.ask("POST", f"{QUEUE}/1/move", {"before": None})).code == gone
    assert (await front.ask("POST", f"{QUEUE}/2/move", {"before": 1})).code == gone
    assert (await front.ask("POST", f"{QUEUE}/1/promote")).code == (404, "not_found")
    assert (await front.ask("PATCH", f"{QUEUE}/99", saying("x"))).code == (404, "not_found")
    assert await order(front) == [2, 3]


async def test_a_move_that_makes_no_sense_is_refused(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R1, plain=1, steer=1))
    for body in ({"before": 1}, {"before": 2}, {"before": 0}, {"before": "1"}, {}):
        refused = await front.ask("POST", f"{QUEUE}/1/move", body)
        assert (refused.status, refused.field) == (400, "before"), body


async def test_the_queue_of_an_archived_chat_is_left_alone(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.XW1))
    archived = (409, "chat_archived")
    assert (await front.ask("PATCH", f"{QUEUE}/1", saying("x"))).code == archived
    assert (await front.ask("POST", f"{QUEUE}/1/move", {"before": None})).code == archived
    assert (await front.ask("POST", f"{QUEUE}/1/promote")).code == archived
    assert (await front.ask("DELETE", f"{QUEUE}/1")).code == archived
    assert await order(front) == [1]
