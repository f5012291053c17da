"""Forks over HTTP: the same messages byte for byte, in a chat of their own."""

from uuid import UUID

import pytest

from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId
from chatd.store.chat import messages
from tests.support.api.server import OTHER_USER, ApiServer, message_body
from tests.support.api.sse_viewer import event_source
from tests.support.factories import CHAT, HARNESS
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import insert_seed, open_child

STORED = """
    SELECT role, visibility, content::text, content_version, compressed, model_config_id,
        reasoning_effort, created_by, usage::text, provider_response_id, finish_reason, created_at
    FROM chat_messages WHERE chat_id = $1 AND NOT deleted AND id <= $2 ORDER BY id"""


async def stored(server: ApiServer, chat: ChatId, up_to: int = 10_000) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in await server.replica.pool.fetch(STORED, chat, up_to)]


async def fork(server: ApiServer, chat: ChatId, message: int | None = None) -> ChatId:
    body = {} if message is None else {"message_id": message}
    made = await server.ask("POST", f"/chats/{chat}/fork", body)
    assert made.status == 201, made.content
    found = await server.ask("GET", str(made.headers["location"]).removeprefix("/api/v1"))
    assert found.json == made.json
    return ChatId(UUID(str(made.json["id"])))


async def test_a_fork_has_the_same_messages_and_waits(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    await server.ask("PATCH", f"/chats/{CHAT}", {"labels": {"a": "b"}, "pin_order": 1})
    source = await server.chat(CHAT)
    copy = await server.chat(await fork(server, CHAT))
    assert await stored(server, copy.id) == await stored(server, CHAT)
    assert (copy.state, copy.snapshot_version, copy.is_root) == (State.W, 1, True)
    assert (copy.title, copy.labels) == (f"{source.title} (fork)", {"a": "b"})
    assert (copy.model_config_id, copy.pin_order) == (source.model_config_id, 0)
    assert (copy.forked_from_chat_id, copy.forked_from_message_id) == (CHAT, 3)
    assert await server.chat(CHAT) == source
    rows = await messages.load_history(server.replica.pool, HARNESS, copy.id)
    assert [row.id for row in rows] == list(range(1, copy.next_message_id))


async def test_a_fork_ends_at_the_message_and_has_its_versions(server: ApiServer) -> None:
    chat = await server.create("first")
    await server.ask("PATCH", f"/chats/{chat}/messages/1", message_body("second"))
    steer = message_body("third", busy_behavior="steer")
    await server.ask("POST", f"/chats/{chat}/messages", steer)
    copy = await fork(server, chat, 2)
    page = await server.ask("GET", f"/chats/{copy}/messages")
    assert [message["id"] for message in page.items] == [2]
    assert (await server.chat(copy)).next_message_id == 3
    assert await stored(server, copy) == await stored(server, chat, 2)
    assert (await server.ask("POST", f"/chats/{copy}/messages", message_body("go"))).status == 200


@pytest.mark.parametrize("state", [State.R1, State.A1, State.I1, State.E1, State.XW1])
async def test_a_fork_of_a_busy_chat_answers_its_calls_and_has_no_queue(
    server: ApiServer, state: State
) -> None:
    calls = "client" if state is State.A1 else "local"
    source = await insert_seed(server.replica.pool, Seed(state=state, calls=calls))
    copy = await server.chat(await fork(server, CHAT))
    assert (copy.state, copy.queue_len, copy.pending_calls) == (State.W, 0, ())
    kept = await stored(server, CHAT)
    found = await stored(server, copy.id)
    assert found[: len(kept)] == kept
    assert len(found) == len(kept) + len(source.pending_calls)
    assert await server.chat(CHAT) == source


async def test_a_fork_has_the_rules_of_the_chat_tree(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    child = await open_child(server.replica.pool, 7, root=CHAT.int)
    rules = [{"tool": "execute", "action": "deny"}]
    await server.ask("PUT", f"/chats/{CHAT}/tool-policy", {"rules": rules})
    for source in (CHAT, child.id):
        copy = await fork(server, source)
        found = await server.ask("GET", f"/chats/{copy}/tool-policy")
        assert found.json["rules"] == rules, source
    await server.ask("PUT", f"/chats/{CHAT}/tool-policy", {"rules": []})
    assert (await server.ask("GET", f"/chats/{copy}/tool-policy")).json["rules"] == rules


async def test_usage_stays_with_the_source(server: ApiServer) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.W))
    spent = await pool.fetchval("SELECT count(*) FROM usage_events")
    copy = await fork(server, CHAT)
    assert await pool.fetchval("SELECT count(*) FROM usage_events") == spent
    costs = "SELECT count(cost_micros) FROM chat_messages WHERE chat_id = $1"
    assert await pool.fetchval(costs, copy) == 0


async def test_a_fork_is_announced_as_a_new_chat_that_is_read(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    async with event_source(server, "/events") as chat_list:
        assert (await chat_list.json())["type"] == "ready"
        copy = await fork(server, CHAT)
        event = await chat_list.json()
    chat = event["chat"]
    assert isinstance(chat, dict)
    assert (event["kind"], chat["id"], chat["has_unread"]) == ("created", str(copy), False)
    assert chat["forked_from"] == {"chat_id": str(CHAT), "message_id": 3}


async def test_only_own_chats_and_visible_messages_can_be_forked(server: ApiServer) -> None:
    chat = await server.create("hi", system_prompt="Be kind.")
    for given in (1, 99):
        refused = await server.ask("POST", f"/chats/{chat}/fork", {"message_id": given})
        assert refused.code == (404, "not_found"), given
    for path in (chat, CHAT):
        refused = await server.ask("POST", f"/chats/{path}/fork", {}, token=OTHER_USER)
        assert refused.code == (404, "not_found")
    assert present(await server.replica.pool.fetchval("SELECT count(*) FROM chats")) == 1
    copy = await fork(server, chat, 2)
    assert len(await stored(server, copy)) == 2, "with the system prompt"


async def test_a_fork_has_the_budget_of_its_source_for_calls_of_its_own(server: ApiServer) -> None:
    chat = await server.create("hello", max_cost_micros=700)
    child = await open_child(server.replica.pool, 7, root=chat.int)
    for source in (chat, child.id):
        made = await server.ask("POST", f"/chats/{source}/fork", {})
        assert made.status == 201, made.content
        cost = (await server.ask("GET", f"/chats/{made.json['id']}/cost")).json
        assert (cost["max_cost_micros"], cost["total_cost_micros"]) == (700, 0)
