"""Chats and their workspaces over HTTP: given, taken away, and the instructions they go by."""

import asyncio
from uuid import UUID

import msgspec
import pytest

from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import ContextResource, WorkspaceContext
from chatd.domain.workspace.entities import AgentId, BuildId
from chatd.store.workspace import bindings
from tests.api.rooms import House, end_build, first_build, id_of
from tests.support.front import STRANGER, Json, saying
from tests.support.listening import event_source

NIL = str(UUID(int=0))


async def running(house: House) -> tuple[Json, AgentId]:
    made = await house.make()
    await end_build(house)
    seen = await house.ask("GET", f"/workspaces/{made['id']}")
    return made, AgentId(id_of(seen.at("agents")[0]))


def context(number: int, *resources: ContextResource) -> WorkspaceContext:
    return WorkspaceContext(
        version=number, hash=f"h{number}", directory="/x", os="linux", resources=resources
    )


RULES = ContextResource(
    kind="instruction_file", source="/x/AGENTS.md", status="ok", content="s", size=1
)
HUGE = ContextResource(
    kind="instruction_file", source="/x/B.md", status="oversize", size=9, error="big"
)


async def test_a_chat_begins_in_a_workspace_and_is_moved_out_of_it(house: House) -> None:
    made = await house.make()
    chat_id = await house.front.create(workspace_id=made["id"])
    path = f"/chats/{chat_id}"
    assert (await house.ask("GET", path)).json["workspace_id"] == made["id"]
    for none in (None, NIL):
        assert (await house.ask("PATCH", path, {"workspace_id": made["id"]})).status == 204
        assert (await house.front.chat(chat_id)).workspace_id == id_of(made)
        assert (await house.ask("PATCH", path, {"workspace_id": none})).status == 204
        assert "workspace_id" not in (await house.ask("GET", path)).json
    workspace = WorkspaceId(id_of(made))
    assert house.told.bound_to == [(chat_id, workspace), (chat_id, None)] * 2


async def test_what_is_not_named_leaves_the_workspace_alone(house: House) -> None:
    made = await house.make()
    chat_id = await house.front.create(workspace_id=made["id"])
    assert (await house.ask("PATCH", f"/chats/{chat_id}", {"title": "New"})).status == 204
    assert (await house.front.chat(chat_id)).workspace_id == id_of(made)
    assert house.told.bound_to == []


async def test_another_workspace_forgets_whom_the_chat_talked_to(house: House) -> None:
    made, agent_id = await running(house)
    other = await house.make()
    chat_id = await house.front.create(workspace_id=made["id"])
    row = (await house.ask("GET", f"/workspaces/{made['id']}")).json
    build = BuildId(id_of(first_build(row)))
    workspace = WorkspaceId(id_of(made))
    await bindings.save_bound_agent(
        house.pool, chat_id, workspace, build_id=build, agent_id=agent_id
    )
    seen = (await house.ask("GET", f"/chats/{chat_id}")).json
    assert (seen["build_id"], seen["agent_id"]) == (str(build), str(agent_id))
    assert (await house.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": other["id"]})).status
    seen = (await house.ask("GET", f"/chats/{chat_id}")).json
    assert seen["workspace_id"] == other["id"]
    assert not {"build_id", "agent_id"} & seen.keys()


async def test_only_a_workspace_of_ones_own_that_is_there_will_do(house: House) -> None:
    theirs = await house.ask("POST", "/workspaces", {"template": "scratch"}, token=STRANGER)
    gone = await house.make()
    # Of two builds that wait, which is first to be taken does not matter.
    await end_all(house)
    await house.ask("DELETE", f"/workspaces/{gone['id']}")
    await end_all(house)
    chat_id = await house.front.create()
    for wrong in (theirs.json["id"], gone["id"], str(UUID(int=8)), "x", 5):
        begun = await house.ask("POST", "/chats", saying("hi", workspace_id=wrong))
        moved = await house.ask(
            "PATCH", f"/chats/{chat_id}", {"workspace_id": wrong, "title": "Not this"}
        )
        for refused in (begun, moved):
            assert (refused.code, refused.field) == ((400, "invalid_input"), "workspace_id")
    assert (await house.front.chat(chat_id)).title != "Not this"
    assert (await house.front.chat(chat_id)).workspace_id is None
    mine = await house.make()
    other = await house.ask(
        "PATCH", f"/chats/{chat_id}", {"workspace_id": mine["id"]}, token=STRANGER
    )
    assert other.code == (404, "not_found")


async def end_all(house: House) -> None:
    for row in await house.pool.fetch(
        "SELECT id FROM workspace_builds WHERE completed_at IS NULL ORDER BY id"
    ):
        await house.pool.execute(
            """WITH ended AS (
                   UPDATE workspace_builds SET status = 'succeeded', completed_at = now()
                   WHERE id = $1 RETURNING workspace_id, transition)
               UPDATE workspaces w SET deleted = ended.transition = 'delete'
               FROM ended WHERE w.id = ended.workspace_id""",
            row["id"],
        )


async def test_watchers_hear_that_a_chat_has_another_workspace(house: House) -> None:
    made = await house.make()
    chat_id = await house.front.create()
    async with event_source(house.front, "/events") as source:
        assert (await source.json())["type"] == "ready"
        await house.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": made["id"]})
        told = await source.json()
        assert msgspec.convert(told["chat"], Json)["workspace_id"] == made["id"]


async def test_of_two_that_choose_a_workspace_at_once_one_stays(house: House) -> None:
    made = [await house.make() for _ in range(2)]
    chat_id = await house.front.create()
    moved = await asyncio.gather(
        *(house.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": one["id"]}) for one in made * 3)
    )
    assert {one.status for one in moved} == {204}
    kept = await bindings.get(house.pool, chat_id)
    assert kept is not None
    assert kept.workspace_id in {id_of(one) for one in made}


async def test_a_chat_goes_by_what_it_has_pinned_until_it_pins_anew(house: House) -> None:
    made, agent_id = await running(house)
    chat_id = await house.front.create(workspace_id=made["id"])
    path = f"/chats/{chat_id}"
    assert (await house.ask("PUT", f"{path}/context")).code == (409, "no_context")
    await bindings.save_context(house.pool, agent_id, context(1, RULES, HUGE), initial=True)
    pinned = await house.ask("PUT", f"{path}/context")
    assert pinned.status == 200, pinned.content
    found = msgspec.convert(pinned.json["context"], Json)
    assert (found["dirty"], found["error"]) == (False, "/x/B.md: big")
    resources = msgspec.convert(found["resources"], list[Json])
    assert resources[0] == {
        "kind": "instruction_file",
        "source": "/x/AGENTS.md",
        "status": "ok",
        "size": 1,
    }
    await bindings.save_context(house.pool, agent_id, context(2, RULES), initial=False)
    behind = msgspec.convert((await house.ask("GET", path)).json["context"], Json)
    assert (behind["dirty"], len(msgspec.convert(behind["resources"], list[Json]))) == (True, 2)
    anew = msgspec.convert((await house.ask("PUT", f"{path}/context")).json["context"], Json)
    assert (anew["dirty"], anew["error"]) == (False, None)
    assert house.told.bound_to[-1] == (chat_id, id_of(made))


@pytest.mark.promise("P12")
async def test_a_context_is_pinned_by_the_owner_where_there_is_an_agent(house: House) -> None:
    chat_id = await house.front.create()
    path = f"/chats/{chat_id}"
    assert (await house.ask("PUT", f"{path}/context", token=STRANGER)).status == 404
    assert (await house.ask("PUT", f"{path}/context")).code == (409, "no_workspace")
    made = await house.make()
    await house.ask("PATCH", path, {"workspace_id": made["id"]})
    assert (await house.ask("PUT", f"{path}/context")).code == (409, "no_agent")


async def test_chats_are_found_by_their_workspaces(house: House) -> None:
    first, second = await house.make(), await house.make()
    old = await house.front.create(workspace_id=first["id"])
    new = await house.front.create(workspace_id=first["id"])
    put_away = await house.front.create(workspace_id=second["id"])
    await house.pool.execute(
        "UPDATE chats SET updated_at = now() - interval '1 h' WHERE id = $1", old
    )
    await house.pool.execute(
        "UPDATE chats SET archived = true, status = 'waiting', worker_id = NULL,"
        " runnable_at = NULL WHERE id = $1",
        put_away,
    )
    ids = f"{first['id']},{second['id']}, {UUID(int=1)}"
    found = await house.ask("GET", f"/chats/by-workspace?workspace_ids={ids}")
    assert (found.status, found.json) == (200, {str(first["id"]): str(new)})
    theirs = await house.ask("GET", f"/chats/by-workspace?workspace_ids={ids}", token=STRANGER)
    assert theirs.json == {}
    assert (await house.ask("GET", "/chats/by-workspace")).json == {}
    for wrong in ("x", ",".join([NIL] * 26)):
        refused = await house.ask("GET", f"/chats/by-workspace?workspace_ids={wrong}")
        assert (refused.code, refused.field) == ((400, "invalid_input"), "workspace_ids")
