"""Chats over HTTP: made, listed, looked at, changed, stopped."""

import msgspec
import pytest

from chatd.domain.chat.states import State
from chatd.store.chat import messages
from tests.support.factories import CHAT, OWNER, WORKER
from tests.support.front import CLEVER, FAST, Door, Front, Json, Slots, front_door, saying
from tests.support.seeds import Seed
from tests.support.store import age, chat_id, open_chat, open_child, plant_in

# Create


async def test_a_new_chat_is_answered_with_what_it_is(front: Front) -> None:
    made = await front.ask("POST", "/chats", saying(" hello there ", labels={"team": "blue"}))
    chat = made.json
    assert made.status == 201
    assert made.headers["location"] == f"/api/v1/chats/{chat['id']}"
    assert (await front.ask("GET", f"/chats/{chat['id']}")).json == chat
    told = {name: chat[name] for name in ("title", "status", "labels", "owner_id", "version")}
    assert told == {
        "title": "hello there",
        "status": "pending",
        "labels": {"team": "blue"},
        "owner_id": str(OWNER),
        "version": 1,
    }
    assert chat["last_model_config_id"] == str(FAST.id)


async def test_a_replica_with_a_free_slot_takes_the_chat_with_the_same_write(front: Front) -> None:
    slots = front.doors.offer
    assert isinstance(slots, Slots)
    slots.worker = WORKER
    chat = await front.chat(await front.create())
    assert (chat.worker_id, chat.public_status) == (WORKER, "running")
    assert slots.held == 0


async def test_a_chat_keeps_all_that_it_was_made_with(front: Front) -> None:
    tool = {"name": "ask", "description": "Ask.", "input_schema": {"type": "object"}}
    chat = await front.chat(
        await front.create(
            model="clever",
            reasoning_effort="high",
            system_prompt="Be kind.",
            client_tools=[tool],
            mode="plan",
            mcp_server_ids=[],
        )
    )
    kept = (chat.model_config_id, chat.reasoning_effort, chat.mode)
    assert kept == (CLEVER.id, "high", "plan")
    assert b'"ask"' in bytes(chat.client_tools or b"")
    rows = await messages.load_history(front.replica.pool, chat.id)
    assert [(row.role, row.visibility) for row in rows] == [("system", "model"), ("user", "both")]
    assert rows[1].model_config_id == CLEVER.id


async def test_a_model_can_be_named_by_its_id(front: Front) -> None:
    chat = await front.chat(await front.create(model_config_id=str(CLEVER.id)))
    assert chat.model_config_id == CLEVER.id


async def test_without_any_model_a_chat_cannot_begin(dsn: str) -> None:
    async with front_door(dsn, Door(models=())) as front:
        refused = await front.ask("POST", "/chats", saying("hi"))
        assert refused.code == (400, "no_model")


async def test_a_quoted_piece_of_a_file_can_be_sent(front: Front) -> None:
    quote = {
        "type": "file-reference",
        "file_name": "app.py",
        "start_line": 3,
        "end_line": 4,
        "content": "def f():\n    pass",
    }
    made = await front.ask("POST", "/chats", {"content": [quote]})
    assert made.json["title"] == "app.py"
    page = await front.ask("GET", f"/chats/{made.json['id']}/messages")
    (message,) = page.at("messages")
    assert message["content"] == [quote]


# List


async def test_chats_are_listed_newest_first_and_page_by_page(front: Front) -> None:
    ids = [await front.create(f"chat {number}") for number in range(5)]
    newest_first = [str(chat_id) for chat_id in reversed(ids)]
    first = (await front.ask("GET", "/chats?limit=2")).items
    second = (await front.ask("GET", f"/chats?limit=3&after_id={first[-1]['id']}")).items
    assert [chat["id"] for chat in first + second] == newest_first
    assert first[0] == (await front.ask("GET", f"/chats/{ids[-1]}")).json | {"children": []}


async def test_a_list_has_what_was_asked_for(front: Front) -> None:
    blue = await front.create("blue", labels={"team": "blue", "env": "prod"})
    await front.create("red", labels={"team": "red", "env": "prod"})
    gone = await front.create("gone")
    await front.ask("PATCH", f"/chats/{gone}", {"archived": True})

    async def listed(query: str) -> list[object]:
        return [chat["id"] for chat in (await front.ask("GET", f"/chats?{query}")).items]

    assert await listed("label=team:blue&label=env:prod") == [str(blue)]
    assert await listed("label=team:green") == []
    assert await listed("q=archived:true") == [str(gone)]
    assert str(gone) not in await listed("q=archived:false")


async def test_pinned_chats_come_first_and_each_chat_only_once(front: Front) -> None:
    old, new = await front.create("old"), await front.create("new")
    await age(front.replica.pool, [old], seconds=60)
    await front.ask("PATCH", f"/chats/{old}", {"pin_order": 1})
    listed = (await front.ask("GET", "/chats")).items
    assert [chat["id"] for chat in listed] == [str(old), str(new)]


async def test_subagents_are_listed_below_their_root(front: Front) -> None:
    pool = front.replica.pool
    await open_chat(pool, 1)
    await open_child(pool, 2, root=1)
    (root,) = (await front.ask("GET", "/chats")).items
    assert root["id"] == str(chat_id(1))
    assert [child["id"] for child in msgspec.convert(root["children"], list[Json])] == [
        str(chat_id(2))
    ]


# Change


async def test_title_labels_and_pin_change_in_one_go(front: Front) -> None:
    chat = await front.create()
    body = {"title": "  A better one ", "labels": {"a": "b"}, "pin_order": 7}
    assert (await front.ask("PATCH", f"/chats/{chat}", body)).status == 204
    row = await front.chat(chat)
    assert (row.title, row.labels, row.pin_order) == ("A better one", {"a": "b"}, 7)


async def test_what_is_not_named_stays(front: Front) -> None:
    chat = await front.create(labels={"a": "b"})
    assert (await front.ask("PATCH", f"/chats/{chat}", {"title": "New"})).status == 204
    assert (await front.ask("PATCH", f"/chats/{chat}", {})).status == 204
    row = await front.chat(chat)
    assert (row.title, row.labels) == ("New", {"a": "b"})


async def test_archiving_takes_the_family_along_and_bringing_back_too(front: Front) -> None:
    pool = front.replica.pool
    await open_chat(pool, 1)
    await open_child(pool, 2, root=1)
    both = [chat_id(1), chat_id(2)]
    body = {"archived": True, "title": "Done"}
    assert (await front.ask("PATCH", f"/chats/{chat_id(1)}", body)).status == 204
    assert [(await front.chat(one)).public_status for one in both] == ["archived", "archived"]
    assert (await front.chat(chat_id(1))).title == "Done"
    back = {"archived": False, "pin_order": 1}
    assert (await front.ask("PATCH", f"/chats/{chat_id(1)}", back)).status == 204
    assert [(await front.chat(one)).archived for one in both] == [False, False]
    assert (await front.chat(chat_id(1))).pin_order == 1


@pytest.mark.promise("P15")
async def test_an_amendment_that_is_wrong_in_one_point_changes_nothing(front: Front) -> None:
    pool = front.replica.pool
    await open_chat(pool, 1)
    await open_child(pool, 2, root=1)
    await open_child(pool, 3, root=1)
    await front.ask("PATCH", f"/chats/{chat_id(3)}", {"archived": True})
    refusals = {
        (1, "title"): {"title": " ", "labels": {"a": "b"}},
        (1, "labels"): {"title": "New", "labels": {"": "b"}},
        (1, "pin_order"): {"archived": True, "pin_order": 1},
        (2, "pin_order"): {"title": "New", "pin_order": 1},
    }
    for (number, field), body in refusals.items():
        before = await front.chat(chat_id(number))
        refused = await front.ask("PATCH", f"/chats/{chat_id(number)}", body)
        assert (refused.status, refused.field) == (400, field), body
        assert await front.chat(chat_id(number)) == before


@pytest.mark.parametrize("archived", [False, True])
async def test_what_is_so_already_is_done_at_once_and_changes_nothing(
    front: Front, *, archived: bool
) -> None:
    await plant_in(front.replica.pool, Seed(state=State.XW0 if archived else State.W))
    before = await front.chat(CHAT)
    asked = await front.ask("PATCH", f"/chats/{CHAT}", {"archived": archived})
    assert asked.status == 204
    assert await front.chat(CHAT) == before


async def test_a_child_does_not_come_back_to_a_family_that_is_archived(front: Front) -> None:
    pool = front.replica.pool
    await open_chat(pool, 1)
    await open_child(pool, 2, root=1)
    await front.ask("PATCH", f"/chats/{chat_id(1)}", {"archived": True})
    refused = await front.ask("PATCH", f"/chats/{chat_id(2)}", {"archived": False, "title": "x"})
    assert refused.code == (409, "parent_archived")
    assert (await front.chat(chat_id(2))).title == "A chat"


# Stop, summarize


async def test_a_stop_is_answered_with_the_chat_as_it_is_then(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R0))
    stopped = await front.ask("POST", f"/chats/{CHAT}/interrupt")
    assert (stopped.status, stopped.json["status"]) == (200, "interrupting")
    again = await front.ask("POST", f"/chats/{CHAT}/interrupt")
    assert again.json == stopped.json


async def test_a_chat_that_rests_need_not_be_stopped_and_an_archived_one_cannot(
    front: Front,
) -> None:
    await plant_in(front.replica.pool, Seed(state=State.W))
    assert (await front.ask("POST", f"/chats/{CHAT}/interrupt")).json["status"] == "waiting"
    await front.ask("PATCH", f"/chats/{CHAT}", {"archived": True})
    refused = await front.ask("POST", f"/chats/{CHAT}/interrupt")
    assert refused.code == (409, "chat_archived")


async def test_an_idle_chat_can_be_summarized_but_not_a_busy_or_a_new_one(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.W))
    asked = await front.ask("POST", f"/chats/{CHAT}/compact")
    assert (asked.status, asked.json["status"]) == (202, "pending")
    assert (await front.chat(CHAT)).compaction_requested
    assert (await front.ask("POST", f"/chats/{CHAT}/compact")).code == (409, "invalid_state")
    new = await front.create()
    await front.ask("POST", f"/chats/{new}/interrupt")
    refused = await front.ask("POST", f"/chats/{new}/compact")
    assert refused.code == (409, "nothing_to_compact")


# Models


async def test_the_models_are_listed_with_their_ids_and_without_their_secrets(
    front: Front,
) -> None:
    configs = (await front.ask("GET", "/chats/model-configs")).items
    assert [(config["name"], config["is_default"]) for config in configs] == [
        ("fast", True),
        ("clever", False),
    ]
    assert configs[0]["id"] == str(FAST.id)
    assert "options" not in configs[0]
    listed = await front.ask("GET", "/chats/models")
    assert [provider["provider"] for provider in listed.at("providers")] == ["acme", "other"]
