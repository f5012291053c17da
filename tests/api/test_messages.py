"""Messages over HTTP: listed, sent to idle and busy chats, edited; client tool results."""

import msgspec
import pytest

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES, Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire, finish_turn
from chatd.domain.ids import MessageId
from chatd.store.chat import messages
from tests.support.api.server import (
    CLEVER,
    OTHER_USER,
    ApiOptions,
    ApiServer,
    Json,
    Slots,
    message_body,
    serve_api,
)
from tests.support.factories import CHAT, HARNESS, WORKER, draft, text
from tests.support.seeds import Seed, step
from tests.support.store import insert_seed, open_chat, open_child

SEND = f"/chats/{CHAT}/messages"


def parts(message: object) -> list[Json]:
    return msgspec.convert(msgspec.convert(message, Json)["content"], list[Json])


def words(message: object) -> object:
    (part,) = parts(message)
    return part["text"]


# Send


async def test_a_message_to_an_idle_chat_joins_history_at_once(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    sent = await server.ask("POST", SEND, message_body("what next?", model="clever"))
    assert (sent.status, sent.json["queued"]) == (200, False)
    message = sent.json["message"]
    assert sent.at("messages") == [message]
    page = await server.ask("GET", SEND)
    assert page.items[0] == message
    assert words(message) == "what next?"
    row = await server.chat(CHAT)
    assert (row.model_config_id, row.snapshot_version) == (CLEVER.id, sent.json["version"])


async def test_a_message_to_a_busy_chat_is_queued(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    sent = await server.ask("POST", SEND, message_body("and then?"))
    assert (sent.status, sent.json["queued"]) == (200, True)
    assert "message" not in sent.json
    queue = await server.ask("GET", f"/chats/{CHAT}/queue")
    assert queue.at("queued_messages") == [sent.json["queued_message"]]
    first_page = await server.ask("GET", SEND)
    assert first_page.at("queued_messages") == [sent.json["queued_message"]]


@pytest.mark.parametrize(
    ("busy", "queued", "steer", "state"),
    [
        ("queue", True, False, State.R1),
        ("steer", True, True, State.R1),
        ("interrupt", True, True, State.I1),
        ("rollback", False, False, State.P0),
    ],
)
async def test_busy_behavior_decides_what_happens_in_a_busy_chat(
    server: ApiServer, *, busy: WhenBusy, queued: bool, steer: bool, state: State
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    sent = await server.ask("POST", SEND, message_body("now", busy_behavior=busy))
    assert (sent.status, sent.json["queued"]) == (200, queued)
    if queued:
        item = msgspec.convert(sent.json["queued_message"], Json)
        assert item.get("steer", False) is steer
    else:
        assert sent.json["deleted_message_ids"] == [4]
    assert (await server.chat(CHAT)).state is state


@pytest.mark.covers("O27")
async def test_busy_behavior_reject_is_refused(server: ApiServer) -> None:
    before = await insert_seed(server.replica.pool, Seed(state=State.R0))
    refused = await server.ask("POST", SEND, message_body("now", busy_behavior="reject"))
    assert refused.code == (409, "chat_busy")
    assert await server.chat(CHAT) == before


@pytest.mark.covers("O27")
async def test_a_full_queue_refuses_messages(server: ApiServer) -> None:
    before = await insert_seed(server.replica.pool, Seed(state=State.R1, plain=MAX_QUEUED_MESSAGES))
    refused = await server.ask("POST", SEND, message_body("one more"))
    assert refused.code == (429, "queue_full")
    assert await server.chat(CHAT) == before


async def test_after_a_failure_the_oldest_queued_message_goes_first(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.E1))
    sent = await server.ask("POST", SEND, message_body("go on"))
    assert sent.json["queued"] is True
    assert [words(message) for message in sent.at("messages")] == ["plain 0"]
    assert words(sent.json["queued_message"]) == "go on"


async def test_an_archived_chat_refuses_messages(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.XW0))
    refused = await server.ask("POST", SEND, message_body("hello?"))
    assert refused.code == (409, "chat_archived")


async def test_a_known_row_saves_a_read_and_a_stale_one_does_no_harm(dsn: str) -> None:
    at_hand: list[Chat] = []
    door = ApiOptions(known=lambda _chat_id: at_hand[0] if at_hand else None)
    async with serve_api(dsn, door) as server:
        old = await insert_seed(server.replica.pool, Seed(state=State.W))
        at_hand.append(old)
        server.sent.clear()
        first = await server.ask("POST", SEND, message_body("one"))
        assert (first.json["queued"], len(server.sent)) == (False, 1)
        second = await server.ask("POST", SEND, message_body("two"))
        assert (second.json["queued"], second.json["queue_id"]) == (True, 1)
        theirs = await server.ask("POST", SEND, message_body("three"), token=OTHER_USER)
        assert theirs.code == (404, "not_found")
        assert (await server.chat(CHAT)).queue_len == 1


async def test_a_send_to_a_chat_without_viewers_reserves_one_slot_and_reads_once(
    server: ApiServer,
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    slots = server.deps.reserve_slot
    assert isinstance(slots, Slots)
    slots.worker = WORKER
    server.sent.clear()
    await server.ask("POST", SEND, message_body("one"))
    assert (slots.reserved, slots.held, len(server.sent)) == (["root"], 0, 2)
    assert (await server.chat(CHAT)).worker_id == WORKER
    await open_chat(server.replica.pool, 11)
    child = await open_child(server.replica.pool, 12, root=11)
    slots.reserved.clear()
    await server.ask("POST", f"/chats/{child.id}/messages", message_body("two"))
    assert slots.reserved == ["child"]


# Pages


def _answered(chat: Chat) -> Change:
    return finish_turn(chat, step(chat, draft("assistant", text("Well."))))


async def _talk(server: ApiServer, turns: int) -> list[int]:
    """The ids of all messages that users see, oldest first."""
    await insert_seed(server.replica.pool, Seed(state=State.W))
    for number in range(turns):
        await server.ask("POST", SEND, message_body(f"question {number}"))
        await server.act(CHAT, lambda chat: acquire(chat, WORKER))
        await server.act(CHAT, _answered)
    rows = await messages.load_history(server.replica.pool, HARNESS, CHAT)
    return [row.id for row in rows if row.visibility != "model"]


async def test_pages_lead_back_to_the_first_message(server: ApiServer) -> None:
    ids = await _talk(server, 3)
    page = await server.ask("GET", f"{SEND}?limit=3")
    seen = [message["id"] for message in page.items]
    while page.json["has_more"]:
        page = await server.ask("GET", f"{SEND}?limit=3&cursor={page.cursor}")
        seen += [message["id"] for message in page.items]
    assert seen == ids[::-1]


async def test_a_polling_client_continues_after_its_last_message(server: ApiServer) -> None:
    ids = await _talk(server, 3)
    page = await server.ask("GET", f"{SEND}?after_id={ids[1]}&limit=2")
    assert [message["id"] for message in page.items] == ids[2:4]
    assert page.json["has_more"] is True
    again = await server.ask("GET", f"{SEND}?after_id={ids[1]}&limit=2&cursor={page.cursor}")
    assert [message["id"] for message in again.items] == ids[4:6]
    rest = await server.ask("GET", f"{SEND}?after_id={ids[3]}")
    assert ([m["id"] for m in rest.items], rest.json["has_more"]) == (ids[4:], False)
    within = await server.ask("GET", f"{SEND}?after_id={ids[0]}&before_id={ids[2]}")
    assert [message["id"] for message in within.items] == [ids[1]]


async def test_messages_for_the_model_only_are_not_listed(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    page = await server.ask("GET", SEND)
    assert b"Be kind." not in page.content
    assert {message["role"] for message in page.items} == {"user", "assistant"}


# Edit


@pytest.mark.parametrize("state", [State.W, State.R1, State.I0, State.E1, State.A0])
async def test_an_edit_replaces_a_message_and_deletes_all_after_it(
    server: ApiServer, state: State
) -> None:
    await insert_seed(server.replica.pool, Seed(state=state))
    edited = await server.ask("PATCH", f"{SEND}/2", message_body("first, but better"))
    assert edited.status == 200
    assert words(edited.json["message"]) == "first, but better"
    rows = await messages.load_history(server.replica.pool, HARNESS, CHAT)
    expected = [(1, "system"), (edited.json["message_id"], "user")]
    assert [(row.id, row.role) for row in rows] == expected
    gone = edited.json["deleted_message_ids"]
    assert gone == list(range(2, int(str(edited.json["message_id"]))))
    assert (await server.chat(CHAT)).queue_len == 0


async def test_only_user_messages_of_the_caller_can_be_edited(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    answer = await server.ask("PATCH", f"{SEND}/3", message_body("I said that"))
    assert (answer.status, answer.field) == (400, "message_id")
    assert (await server.ask("PATCH", f"{SEND}/1", message_body("x"))).code == (404, "not_found")
    assert (await server.ask("PATCH", f"{SEND}/99", message_body("x"))).code == (404, "not_found")
    unknown = await server.ask("PATCH", f"{SEND}/2", message_body("x", contents=[]))
    assert (unknown.status, unknown.field) == (400, "contents")
    assert MessageId(3) in [
        row.id for row in await messages.load_history(server.replica.pool, HARNESS, CHAT)
    ]


# Tool results

RESULTS = f"/chats/{CHAT}/tool-results"


def result(call: str, output: object, **fields: object) -> Json:
    return {"tool_call_id": call, "output": output, **fields}


async def test_results_for_all_pending_calls_continue_the_chat(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.A0))
    body = {"results": [result("c2", None, is_error=True), result("c1", {"ok": [1, "x"]})]}
    sent = await server.ask("POST", RESULTS, body)
    assert (sent.status, sent.json["status"]) == (200, "pending")
    page = await server.ask("GET", f"{SEND}?limit=2")
    (second,), (first,) = (parts(message) for message in page.items)
    assert (first["tool_call_id"], first["result"]) == ("c1", {"ok": [1, "x"]})
    assert (second["tool_call_id"], second["is_error"]) == ("c2", True)
    assert (await server.chat(CHAT)).public_status == "pending"


@pytest.mark.promise("P15")
async def test_results_that_do_not_match_the_pending_calls_change_nothing(
    server: ApiServer,
) -> None:
    before = await insert_seed(server.replica.pool, Seed(state=State.A0))
    wrong = [
        [result("c1", 1)],
        [result("c1", 1), result("c1", 2)],
        [result("c1", 1), result("c2", 2), result("c3", 3)],
        [],
    ]
    for results in wrong:
        refused = await server.ask("POST", RESULTS, {"results": results})
        assert (refused.status, refused.field) == (400, "results")
    assert await server.chat(CHAT) == before


@pytest.mark.covers("O27")
async def test_a_chat_without_pending_calls_refuses_results(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    refused = await server.ask("POST", RESULTS, {"results": [result("c1", 1)]})
    assert refused.code == (409, "invalid_state")
