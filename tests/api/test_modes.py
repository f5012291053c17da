"""The mode of a chat over HTTP: at its creation, by an update, and with a message."""

import msgspec

from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import commit_step, finish_turn
from tests.support.api.server import ApiReply, ApiServer, Json, message_body
from tests.support.factories import CHAT, draft, result
from tests.support.seeds import Seed, step
from tests.support.store import insert_seed, open_chat, open_child

PATH = f"/chats/{CHAT}"


async def mode(server: ApiServer, path: str = PATH) -> object:
    return (await server.ask("GET", path)).json.get("mode")


def queued(sent: ApiReply) -> Json:
    return msgspec.convert(sent.json["queued_message"], Json)


async def test_a_chat_can_begin_in_plan_mode(server: ApiServer) -> None:
    made = await server.ask("POST", "/chats", {**message_body("look"), "mode": "plan"})
    assert (made.status, made.json["mode"]) == (201, "plan")
    assert await mode(server, f"/chats/{made.json['id']}") == "plan"
    refused = await server.ask("POST", "/chats", {**message_body("look"), "mode": "explore"})
    assert (refused.status, refused.field) == (400, "mode")


async def test_an_update_switches_the_mode_and_changes_no_version(server: ApiServer) -> None:
    before = await insert_seed(server.replica.pool, Seed(state=State.W))
    for choice, found in (("plan", "plan"), ("plan", "plan"), ("off", None)):
        assert (await server.ask("PATCH", PATH, {"mode": choice})).status == 200
        assert await mode(server) == found
        assert (await server.chat(CHAT)).snapshot_version == before.snapshot_version
    assert (await server.ask("PATCH", PATH, {"mode": "plan"})).status == 200
    assert (await server.ask("PATCH", PATH, {"title": "Other"})).status == 200
    assert await mode(server) == "plan"


async def test_an_unknown_mode_is_refused(server: ApiServer) -> None:
    before = await insert_seed(server.replica.pool, Seed(state=State.W))
    for refused in (
        await server.ask("PATCH", PATH, {"mode": "explore"}),
        await server.ask("POST", f"{PATH}/messages", {**message_body("hi"), "mode": "none"}),
    ):
        assert (refused.status, refused.field) == (400, "mode")
    assert await server.chat(CHAT) == before


async def test_a_message_to_an_idle_chat_sets_the_mode_at_once(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    sent = await server.ask("POST", f"{PATH}/messages", {**message_body("hi"), "mode": "plan"})
    assert sent.status == 200
    assert await mode(server) == "plan"


async def test_a_queued_message_sets_the_mode_when_its_turn_begins(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    assert (await server.ask("PATCH", PATH, {"mode": "plan"})).status == 200
    sent = await server.ask("POST", f"{PATH}/messages", {**message_body("go on"), "mode": "off"})
    assert queued(sent)["mode"] == "off"
    assert await mode(server) == "plan"
    row = await server.act(CHAT, lambda chat: finish_turn(chat, step(chat)))
    assert row.mode is None


async def test_a_steering_message_sets_the_mode_when_it_joins(server: ApiServer) -> None:
    row = await insert_seed(server.replica.pool, Seed(state=State.R0, calls="local"))
    body = {**message_body("plan first"), "mode": "plan", "busy_behavior": "steer"}
    assert (await server.ask("POST", f"{PATH}/messages", body)).status == 200
    assert await mode(server) is None
    done = draft("tool", *(result(call.id, call.name) for call in row.pending_calls))
    row = await server.act(CHAT, lambda chat: commit_step(chat, step(chat, done)))
    assert row.mode == "plan"


async def test_a_commit_of_the_worker_keeps_a_mode_that_was_set_meanwhile(
    server: ApiServer,
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    stale = await server.chat(CHAT)
    assert (await server.ask("PATCH", PATH, {"mode": "plan"})).status == 200
    row = await server.act(CHAT, lambda _chat: finish_turn(stale, step(stale)))
    assert row.mode == "plan"


async def test_the_mode_of_a_queued_message_can_be_edited(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    sent = await server.ask("POST", f"{PATH}/messages", {**message_body("a"), "mode": "plan"})
    item = f"{PATH}/queue/{queued(sent)['id']}"
    edited = await server.ask("PATCH", item, message_body("b"))
    assert (edited.status, edited.json["mode"]) == (200, "plan")
    edited = await server.ask("PATCH", item, {**message_body("b"), "mode": "off"})
    assert (edited.status, edited.json["mode"]) == (200, "off")


async def test_only_a_root_chat_changes_its_mode(server: ApiServer) -> None:
    await open_chat(server.replica.pool, 1)
    path = f"/chats/{(await open_child(server.replica.pool, 2, 1)).id}"
    for refused in (
        await server.ask("PATCH", path, {"mode": "plan"}),
        await server.ask("POST", f"{path}/messages", {**message_body("hi"), "mode": "plan"}),
        await server.ask("PATCH", f"{path}/messages/1", {**message_body("hi"), "mode": "off"}),
    ):
        assert (refused.status, refused.field) == (400, "mode")
