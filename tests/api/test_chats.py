"""Chats over HTTP: created, listed, updated, interrupted, compacted."""

import msgspec
import pytest

from chatd.domain.chat.states import State
from chatd.store.chat import messages
from tests.support.api.server import (
    CLEVER,
    FAST,
    ApiOptions,
    ApiServer,
    Json,
    Slots,
    message_body,
    serve_api,
)
from tests.support.factories import CHAT, HARNESS, OWNER, WORKER
from tests.support.seeds import Seed
from tests.support.store import age, chat_id, insert_seed, open_chat, open_child

# Create


async def test_creating_a_chat_returns_the_chat(server: ApiServer) -> None:
    made = await server.ask(
        "POST", "/chats", message_body(" hello there ", labels={"team": "blue"})
    )
    chat = made.json
    assert made.status == 201
    assert made.headers["location"] == f"/api/v1/chats/{chat['id']}"
    assert (await server.ask("GET", f"/chats/{chat['id']}")).json == chat
    control = {name: chat[name] for name in ("title", "status", "labels", "owner_id", "version")}
    assert control == {
        "title": "hello there",
        "status": "pending",
        "labels": {"team": "blue"},
        "owner_id": str(OWNER),
        "version": 1,
    }
    assert chat["last_model_config_id"] == str(FAST.id)


async def test_a_replica_with_a_free_slot_acquires_the_chat_in_the_same_write(
    server: ApiServer,
) -> None:
    slots = server.deps.reserve_slot
    assert isinstance(slots, Slots)
    slots.worker = WORKER
    chat = await server.chat(await server.create())
    assert (chat.worker_id, chat.public_status) == (WORKER, "running")
    assert slots.held == 0


async def test_a_chat_stores_all_fields_of_its_creation(server: ApiServer) -> None:
    tool = {"name": "ask", "description": "Ask.", "input_schema": {"type": "object"}}
    chat = await server.chat(
        await server.create(
            model="clever",
            reasoning_effort="high",
            system_prompt="Be kind.",
            client_tools=[tool],
            mcp_server_ids=[],
        )
    )
    assert (chat.model_config_id, chat.reasoning_effort) == (CLEVER.id, "high")
    assert b'"ask"' in bytes(chat.client_tools or b"")
    rows = await messages.load_history(server.replica.pool, HARNESS, chat.id)
    assert [(row.role, row.visibility) for row in rows] == [("system", "model"), ("user", "both")]
    assert rows[1].model_config_id == CLEVER.id


async def test_a_chat_may_require_its_model(server: ApiServer) -> None:
    chat_id = await server.create(model_required=True)
    assert (await server.chat(chat_id)).model_required
    changed = await server.ask("PATCH", f"/chats/{chat_id}", {"model_required": False})
    assert (changed.status, changed.json["id"]) == (200, str(chat_id))
    shown = await server.ask("GET", f"/chats/{chat_id}")
    assert "model_required" not in {**changed.json, **shown.json}


async def test_a_model_can_be_selected_by_id(server: ApiServer) -> None:
    chat = await server.chat(await server.create(model_config_id=str(CLEVER.id)))
    assert chat.model_config_id == CLEVER.id


async def test_a_chat_cannot_be_created_without_a_model(dsn: str) -> None:
    async with serve_api(dsn, ApiOptions(models=())) as server:
        refused = await server.ask("POST", "/chats", message_body("hi"))
        assert refused.code == (400, "no_model")


async def test_a_file_reference_can_be_sent(server: ApiServer) -> None:
    quote = {
        "type": "file-reference",
        "file_name": "app.py",
        "start_line": 3,
        "end_line": 4,
        "content": "def f():\n    pass",
    }
    made = await server.ask("POST", "/chats", {"content": [quote]})
    assert made.json["title"] == "app.py"
    page = await server.ask("GET", f"/chats/{made.json['id']}/messages")
    (message,) = page.items
    assert message["content"] == [quote]


# List


async def test_chats_are_listed_newest_first_by_page(server: ApiServer) -> None:
    ids = [await server.create(f"chat {number}") for number in range(5)]
    newest_first = [str(chat_id) for chat_id in reversed(ids)]
    first = await server.ask("GET", "/chats?limit=2")
    second = await server.ask("GET", f"/chats?limit=3&cursor={first.cursor}")
    assert [chat["id"] for chat in first.items + second.items] == newest_first
    assert (first.json["has_more"], second.json["has_more"]) == (True, False)
    assert first.items[0] == (await server.ask("GET", f"/chats/{ids[-1]}")).json | {"children": []}


async def test_a_list_is_filtered_by_label_and_archived(server: ApiServer) -> None:
    blue = await server.create("blue", labels={"team": "blue", "env": "prod"})
    await server.create("red", labels={"team": "red", "env": "prod"})
    gone = await server.create("gone")
    await server.ask("PATCH", f"/chats/{gone}", {"archived": True})

    async def listed(query: str) -> list[object]:
        return [chat["id"] for chat in (await server.ask("GET", f"/chats?{query}")).items]

    assert await listed("label=team:blue&label=env:prod") == [str(blue)]
    assert await listed("label=team:green") == []
    assert await listed("q=archived:true") == [str(gone)]
    assert str(gone) not in await listed("q=archived:false")


async def test_pinned_chats_come_first_and_each_chat_once(server: ApiServer) -> None:
    old, new = await server.create("old"), await server.create("new")
    await age(server.replica.pool, [old], seconds=60)
    await server.ask("PATCH", f"/chats/{old}", {"pin_order": 1})
    listed = (await server.ask("GET", "/chats")).items
    assert [chat["id"] for chat in listed] == [str(old), str(new)]


async def test_subagents_are_listed_below_their_root(server: ApiServer) -> None:
    pool = server.replica.pool
    await open_chat(pool, 1)
    await open_child(pool, 2, root=1)
    (root,) = (await server.ask("GET", "/chats")).items
    assert root["id"] == str(chat_id(1))
    assert [child["id"] for child in msgspec.convert(root["children"], list[Json])] == [
        str(chat_id(2))
    ]


# Update


async def test_title_labels_and_pin_are_updated_together(server: ApiServer) -> None:
    chat = await server.create()
    body = {"title": "  A better one ", "labels": {"a": "b"}, "pin_order": 7}
    assert (await server.ask("PATCH", f"/chats/{chat}", body)).status == 200
    row = await server.chat(chat)
    assert (row.title, row.labels, row.pin_order) == ("A better one", {"a": "b"}, 1)


async def test_an_update_keeps_fields_that_are_not_given(server: ApiServer) -> None:
    chat = await server.create(labels={"a": "b"})
    assert (await server.ask("PATCH", f"/chats/{chat}", {"title": "New"})).status == 200
    assert (await server.ask("PATCH", f"/chats/{chat}", {})).status == 200
    row = await server.chat(chat)
    assert (row.title, row.labels) == ("New", {"a": "b"})


async def test_archiving_and_unarchiving_include_the_chat_tree(server: ApiServer) -> None:
    pool = server.replica.pool
    await open_chat(pool, 1)
    await open_child(pool, 2, root=1)
    both = [chat_id(1), chat_id(2)]
    body = {"archived": True, "title": "Done"}
    assert (await server.ask("PATCH", f"/chats/{chat_id(1)}", body)).status == 200
    assert [(await server.chat(one)).public_status for one in both] == ["archived", "archived"]
    assert (await server.chat(chat_id(1))).title == "Done"
    back = {"archived": False, "pin_order": 1}
    assert (await server.ask("PATCH", f"/chats/{chat_id(1)}", back)).status == 200
    assert [(await server.chat(one)).archived for one in both] == [False, False]
    assert (await server.chat(chat_id(1))).pin_order == 1


@pytest.mark.promise("P15")
async def test_an_update_with_one_invalid_field_changes_nothing(server: ApiServer) -> None:
    pool = server.replica.pool
    await open_chat(pool, 1)
    await open_child(pool, 2, root=1)
    await open_child(pool, 3, root=1)
    await server.ask("PATCH", f"/chats/{chat_id(3)}", {"archived": True})
    refusals = {
        (1, "title"): {"title": " ", "labels": {"a": "b"}},
        (1, "labels"): {"title": "New", "labels": {"": "b"}},
        (1, "pin_order"): {"archived": True, "pin_order": 1},
        (2, "pin_order"): {"title": "New", "pin_order": 1},
    }
    for (number, field), body in refusals.items():
        before = await server.chat(chat_id(number))
        refused = await server.ask("PATCH", f"/chats/{chat_id(number)}", body)
        assert (refused.status, refused.field) == (400, field), body
        assert await server.chat(chat_id(number)) == before


@pytest.mark.parametrize("archived", [False, True])
async def test_an_update_without_effect_succeeds_and_changes_nothing(
    server: ApiServer, *, archived: bool
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.XW0 if archived else State.W))
    before = await server.chat(CHAT)
    asked = await server.ask("PATCH", f"/chats/{CHAT}", {"archived": archived})
    assert asked.status == 200
    assert await server.chat(CHAT) == before


async def test_a_subagent_cannot_be_unarchived_in_an_archived_tree(server: ApiServer) -> None:
    pool = server.replica.pool
    await open_chat(pool, 1)
    await open_child(pool, 2, root=1)
    await server.ask("PATCH", f"/chats/{chat_id(1)}", {"archived": True})
    refused = await server.ask("PATCH", f"/chats/{chat_id(2)}", {"archived": False, "title": "x"})
    assert refused.code == (409, "parent_archived")
    assert (await server.chat(chat_id(2))).title == "A chat"


# Interrupt, compact


async def test_an_interrupt_returns_the_chat(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R0))
    stopped = await server.ask("POST", f"/chats/{CHAT}/interrupt")
    assert (stopped.status, stopped.json["status"]) == (200, "interrupting")
    again = await server.ask("POST", f"/chats/{CHAT}/interrupt")
    assert again.json == stopped.json


async def test_an_idle_chat_accepts_an_interrupt_and_an_archived_one_refuses_it(
    server: ApiServer,
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    assert (await server.ask("POST", f"/chats/{CHAT}/interrupt")).json["status"] == "waiting"
    await server.ask("PATCH", f"/chats/{CHAT}", {"archived": True})
    refused = await server.ask("POST", f"/chats/{CHAT}/interrupt")
    assert refused.code == (409, "chat_archived")


async def test_an_idle_chat_can_be_compacted_but_not_a_busy_or_new_one(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    asked = await server.ask("POST", f"/chats/{CHAT}/compact")
    assert (asked.status, asked.json["status"]) == (202, "pending")
    assert (await server.chat(CHAT)).compaction_requested
    assert (await server.ask("POST", f"/chats/{CHAT}/compact")).code == (409, "invalid_state")
    new = await server.create()
    await server.ask("POST", f"/chats/{new}/interrupt")
    refused = await server.ask("POST", f"/chats/{new}/compact")
    assert refused.code == (409, "nothing_to_compact")
