"""A deleted chat is gone at once, for its owner, its viewers and its lists; its usage stays."""

from datetime import timedelta

import pytest

from chatd.domain.chat.states import State
from chatd.engine.maintenance import SearchIndexing, maintenance_tasks
from chatd.engine.model.call_records import UsageWriter
from chatd.store.deployment import retention
from tests.support.api.server import OTHER_USER, ApiServer, message_body
from tests.support.api.sse_viewer import event_source
from tests.support.clock import FakeClock
from tests.support.factories import CHAT
from tests.support.seeds import Seed
from tests.support.store import chat_id, insert_seed, open_child
from tests.support.stream_replica import env_with

GETS = ("", "/messages", "/queue", "/events")
CHANGES = (
    ("PATCH", "", {"title": "new"}),
    ("PATCH", "", {"archived": False}),
    ("POST", "/messages", message_body("hi")),
    ("POST", "/interrupt", None),
    ("POST", "/compact", None),
)


async def tree_rows(server: ApiServer) -> int:
    return await server.replica.pool.fetchval("SELECT count(*) FROM chats")


@pytest.mark.parametrize("state", [State.W, State.E1, State.R1, State.A1, State.XW1, State.XE0])
async def test_a_chat_is_deleted_in_any_state(server: ApiServer, state: State) -> None:
    await insert_seed(server.replica.pool, Seed(state=state))
    assert (await server.ask("DELETE", f"/chats/{CHAT}")).status == 204
    for path in GETS:
        assert (await server.ask("GET", f"/chats/{CHAT}{path}")).code == (404, "not_found"), path
    for method, path, body in CHANGES:
        found = await server.ask(method, f"/chats/{CHAT}{path}", body)
        assert found.code == (404, "not_found"), path
    for query in ("", "?q=archived:true"):
        assert (await server.ask("GET", f"/chats{query}")).items == []


async def test_deleting_twice_is_deleting_once(server: ApiServer) -> None:
    chat = await server.create()
    assert (await server.ask("DELETE", f"/chats/{chat}")).status == 204
    version = await server.replica.pool.fetchval("SELECT snapshot_version FROM chats")
    assert (await server.ask("DELETE", f"/chats/{chat}")).status == 204
    assert await server.replica.pool.fetchval("SELECT snapshot_version FROM chats") == version


async def test_a_root_is_deleted_with_its_subagents_and_a_subagent_not_alone(
    server: ApiServer,
) -> None:
    root = await server.create()
    pool = server.replica.pool
    child = await open_child(pool, 2, root=root.int)
    refused = await server.ask("DELETE", f"/chats/{child.id}")
    assert refused.code == (409, "not_a_root_chat")
    assert (await server.ask("DELETE", f"/chats/{root}")).status == 204
    assert (await server.ask("GET", f"/chats/{child.id}")).status == 404
    marks = await pool.fetch("SELECT deleted_at IS NOT NULL AND worker_id IS NULL AS ok FROM chats")
    assert [row["ok"] for row in marks] == [True, True]


async def test_another_users_chat_cannot_be_deleted(server: ApiServer) -> None:
    chat = await server.create()
    for path in (chat, chat_id(98)):
        refused = await server.ask("DELETE", f"/chats/{path}", token=OTHER_USER)
        assert refused.code == (404, "not_found")
    assert (await server.ask("GET", f"/chats/{chat}")).status == 200


@pytest.mark.parametrize("state", [State.R0, State.XW0])
async def test_viewers_and_lists_learn_of_a_deletion(server: ApiServer, state: State) -> None:
    await insert_seed(server.replica.pool, Seed(state=state))
    async with (
        event_source(server, f"/chats/{CHAT}/events") as viewer,
        event_source(server, "/events") as chat_list,
    ):
        assert (await chat_list.json())["type"] == "ready"
        while (await viewer.json())["type"] != "version":
            pass
        await server.ask("DELETE", f"/chats/{CHAT}")
        event = await chat_list.json()
        assert (event["type"], event["kind"]) == ("chat", "deleted")
        assert (await viewer.json())["code"] == "not_found"


async def test_a_create_that_is_repeated_after_the_deletion_does_not_make_a_second_chat(
    server: ApiServer,
) -> None:
    headers = {"Idempotency-Key": "once"}
    made = await server.ask("POST", "/chats", message_body("hi"), headers=headers)
    await server.ask("DELETE", f"/chats/{made.json['id']}")
    again = await server.ask("POST", "/chats", message_body("hi"), headers=headers)
    assert again.code == (404, "not_found")
    assert await tree_rows(server) == 1


async def test_the_rows_of_a_deleted_chat_are_removed_later_and_its_usage_stays(
    server: ApiServer,
) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.R1))
    await open_child(pool, 2, root=CHAT.int)
    kept = await insert_seed(pool, Seed(state=State.W, chat_id=chat_id(3)))
    await server.ask("DELETE", f"/chats/{CHAT}")
    spent = await pool.fetchval("SELECT count(*) FROM usage_events")
    env = env_with(FakeClock())
    tasks = maintenance_tasks(pool, env, UsageWriter(pool, env), SearchIndexing(pool, env.clock))
    (remove,) = (task for task in tasks if task.name == "remove_deleted")
    await remove.work()
    assert await tree_rows(server) == 3, "replicas that missed the hint still find the mark"
    await pool.execute("UPDATE chats SET deleted_at = deleted_at - interval '2 min'")
    await remove.work()
    assert [row["id"] for row in await pool.fetch("SELECT id FROM chats")] == [kept.id]
    left = await pool.fetch("SELECT DISTINCT chat_id FROM chat_messages")
    assert [row["chat_id"] for row in left] == [kept.id]
    assert await pool.fetchval("SELECT count(*) FROM usage_events") == spent
    assert await retention.list_deleted_chats(pool, timedelta(0), limit=9) == []
    assert (await server.ask("DELETE", f"/chats/{CHAT}")).code == (404, "not_found")


async def test_a_removal_that_was_cut_off_is_continued(server: ApiServer) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.R1))
    assert not await retention.remove_deleted_chat(pool, chat_id(99))
    await server.ask("DELETE", f"/chats/{CHAT}")
    await pool.execute(retention.DELETE_MESSAGES, CHAT, 1, 1)
    assert await retention.remove_deleted_chat(pool, CHAT, max_rows=1)
    assert await tree_rows(server) == 0
