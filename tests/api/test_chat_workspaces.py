"""A chat's workspace over HTTP: its binding and its pinned context."""

import asyncio
from uuid import UUID

import msgspec
import pytest

from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import ContextResource, WorkspaceContext
from chatd.domain.workspace.entities import AgentId, BuildId
from chatd.store.workspace import bindings
from tests.api.workspace_api import WorkspaceApi, end_build, first_build, id_of
from tests.support.api.server import OTHER_USER, Json, message_body
from tests.support.api.sse_viewer import event_source
from tests.support.factories import HARNESS
from tests.support.outcomes import present

NIL = str(UUID(int=0))


async def running(api: WorkspaceApi) -> tuple[Json, AgentId]:
    made = await api.make()
    await end_build(api)
    seen = await api.ask("GET", f"/workspaces/{made['id']}")
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


async def test_a_chat_is_created_in_a_workspace_and_removed_from_it(api: WorkspaceApi) -> None:
    made = await api.make()
    chat_id = await api.server.create(workspace_id=made["id"])
    path = f"/chats/{chat_id}"
    assert (await api.ask("GET", path)).json["workspace_id"] == made["id"]
    for none in (None, NIL):
        assert (await api.ask("PATCH", path, {"workspace_id": made["id"]})).status == 200
        assert (await api.server.chat(chat_id)).workspace_id == id_of(made)
        assert (await api.ask("PATCH", path, {"workspace_id": none})).status == 200
        assert "workspace_id" not in (await api.ask("GET", path)).json
    workspace = WorkspaceId(id_of(made))
    assert api.control.bound_to == [(chat_id, workspace), (chat_id, None)] * 2


async def test_an_update_without_workspace_id_keeps_the_workspace(api: WorkspaceApi) -> None:
    made = await api.make()
    chat_id = await api.server.create(workspace_id=made["id"])
    assert (await api.ask("PATCH", f"/chats/{chat_id}", {"title": "New"})).status == 200
    assert (await api.server.chat(chat_id)).workspace_id == id_of(made)
    assert api.control.bound_to == []


async def test_a_new_workspace_clears_the_binding_of_the_old_one(api: WorkspaceApi) -> None:
    made, agent_id = await running(api)
    other = await api.make()
    chat_id = await api.server.create(workspace_id=made["id"])
    row = (await api.ask("GET", f"/workspaces/{made['id']}")).json
    build = BuildId(id_of(first_build(row)))
    workspace = WorkspaceId(id_of(made))
    await bindings.save_bound_agent(
        api.pool, HARNESS, chat_id, workspace, build_id=build, agent_id=agent_id
    )
    seen = (await api.ask("GET", f"/chats/{chat_id}")).json
    assert (seen["build_id"], seen["agent_id"]) == (str(build), str(agent_id))
    assert (await api.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": other["id"]})).status
    seen = (await api.ask("GET", f"/chats/{chat_id}")).json
    assert seen["workspace_id"] == other["id"]
    assert not {"build_id", "agent_id"} & seen.keys()


async def test_only_an_existing_workspace_of_the_caller_is_accepted(api: WorkspaceApi) -> None:
    theirs = await api.ask("POST", "/workspaces", {"template": "scratch"}, token=OTHER_USER)
    gone = await api.make()
    # The order in which two pending builds are acquired does not matter.
    await end_all(api)
    await api.ask("DELETE", f"/workspaces/{gone['id']}")
    await end_all(api)
    chat_id = await api.server.create()
    for wrong in (theirs.json["id"], gone["id"], str(UUID(int=8)), "x", 5):
        begun = await api.ask("POST", "/chats", message_body("hi", workspace_id=wrong))
        moved = await api.ask(
            "PATCH", f"/chats/{chat_id}", {"workspace_id": wrong, "title": "Not this"}
        )
        for refused in (begun, moved):
            assert (refused.code, refused.field) == ((400, "invalid_input"), "workspace_id")
    assert (await api.server.chat(chat_id)).title != "Not this"
    assert (await api.server.chat(chat_id)).workspace_id is None
    mine = await api.make()
    other = await api.ask(
        "PATCH", f"/chats/{chat_id}", {"workspace_id": mine["id"]}, token=OTHER_USER
    )
    assert other.code == (404, "not_found")


async def end_all(api: WorkspaceApi) -> None:
    for row in await api.pool.fetch(
        "SELECT id FROM workspace_builds WHERE completed_at IS NULL ORDER BY id"
    ):
        await api.pool.execute(
            """WITH ended AS (
                   UPDATE workspace_builds SET status = 'succeeded', completed_at = now()
                   WHERE id = $1 RETURNING workspace_id, transition)
               UPDATE workspaces w SET deleted = ended.transition = 'delete'
               FROM ended WHERE w.id = ended.workspace_id""",
            row["id"],
        )


async def test_the_chat_list_streams_a_changed_workspace(api: WorkspaceApi) -> None:
    made = await api.make()
    chat_id = await api.server.create()
    async with event_source(api.server, "/events") as source:
        assert (await source.json())["type"] == "ready"
        await api.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": made["id"]})
        event = await source.json()
        assert msgspec.convert(event["chat"], Json)["workspace_id"] == made["id"]


async def test_of_two_concurrent_workspace_changes_one_stays(api: WorkspaceApi) -> None:
    made = [await api.make() for _ in range(2)]
    chat_id = await api.server.create()
    moved = await asyncio.gather(
        *(api.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": one["id"]}) for one in made * 3)
    )
    assert {one.status for one in moved} == {200}
    kept = present(await bindings.get(api.pool, HARNESS, chat_id))
    assert kept.workspace_id in {id_of(one) for one in made}


async def test_a_chat_keeps_its_pinned_context_until_it_pins_again(api: WorkspaceApi) -> None:
    made, agent_id = await running(api)
    chat_id = await api.server.create(workspace_id=made["id"])
    path = f"/chats/{chat_id}"
    assert (await api.ask("PUT", f"{path}/context")).code == (409, "no_context")
    await bindings.save_context(api.pool, agent_id, context(1, RULES, HUGE), initial=True)
    pinned = await api.ask("PUT", f"{path}/context")
    assert pinned.status == 200, pinned.content
    found = msgspec.convert(pinned.json["context"], Json)
    assert (found["dirty"], found["error"]) == (False, "/x/B.md: big")
    resources = msgspec.convert(found["resources"], list[Json])
    expected = {"kind": "instruction_file", "source": "/x/AGENTS.md", "status": "ok", "size": 1}
    assert resources[0] == expected
    await bindings.save_context(api.pool, agent_id, context(2, RULES), initial=False)
    behind = msgspec.convert((await api.ask("GET", path)).json["context"], Json)
    assert (behind["dirty"], len(msgspec.convert(behind["resources"], list[Json]))) == (True, 2)
    anew = msgspec.convert((await api.ask("PUT", f"{path}/context")).json["context"], Json)
    assert (anew["dirty"], anew["error"]) == (False, None)
    assert api.control.bound_to[-1] == (chat_id, id_of(made))
    assert api.control.refreshed == [chat_id] * 3


async def test_a_changed_skill_is_used_when_the_context_is_pinned_again(api: WorkspaceApi) -> None:
    def skill(text: str) -> ContextResource:
        source = "/x/.chatd/skills/notes/SKILL.md"
        return ContextResource(
            kind="skill", source=source, status="ok", name="notes", content=text, size=len(text)
        )

    made, agent_id = await running(api)
    chat_id = await api.server.create(workspace_id=made["id"])
    path = f"/chats/{chat_id}/context"
    await bindings.save_context(api.pool, agent_id, context(1, skill("old")), initial=True)
    await api.ask("PUT", path)
    await bindings.save_context(api.pool, agent_id, context(2, skill("new")), initial=False)
    assert await bindings.get_pinned_skill(api.pool, HARNESS, chat_id, "notes") == "old"
    assert (await api.ask("PUT", path)).status == 200
    assert await bindings.get_pinned_skill(api.pool, HARNESS, chat_id, "notes") == "new"


async def test_a_chat_shows_which_mcp_servers_of_its_workspace_cannot_be_used(
    api: WorkspaceApi,
) -> None:
    def server(name: str, tools: str, error: str = "") -> ContextResource:
        return ContextResource(
            kind="mcp_server",
            source=".mcp.json",
            status="ok",
            name=name,
            content=tools,
            error=error,
        )

    made, agent_id = await running(api)
    path = f"/chats/{await api.server.create(workspace_id=made['id'])}"
    assert "workspace_mcp_servers" not in (await api.ask("GET", path)).json
    found = context(
        1,
        server("good", '[{"name":"a"},{"name":"b"}]'),
        server("bad", "", "npx was not found"),
        server("odd", "nonsense"),
    )
    await bindings.save_context(api.pool, agent_id, found, initial=True)
    assert (await api.ask("GET", path)).json["workspace_mcp_servers"] == [
        {"name": "good", "tools": 2},
        {"name": "bad", "tools": 0, "error": "npx was not found"},
        {"name": "odd", "tools": 0},
    ]
    assert (await api.ask("GET", path, token=OTHER_USER)).status == 404


@pytest.mark.promise("P12")
async def test_pinning_needs_the_owner_and_a_running_agent(api: WorkspaceApi) -> None:
    chat_id = await api.server.create()
    path = f"/chats/{chat_id}"
    assert (await api.ask("PUT", f"{path}/context", token=OTHER_USER)).status == 404
    assert (await api.ask("PUT", f"{path}/context")).code == (409, "no_workspace")
    made = await api.make()
    await api.ask("PATCH", path, {"workspace_id": made["id"]})
    assert (await api.ask("PUT", f"{path}/context")).code == (409, "no_agent")


async def test_the_latest_chat_of_each_workspace_is_found(api: WorkspaceApi) -> None:
    first, second = await api.make(), await api.make()
    old = await api.server.create(workspace_id=first["id"])
    new = await api.server.create(workspace_id=first["id"])
    put_away = await api.server.create(workspace_id=second["id"])
    await api.pool.execute(
        "UPDATE chats SET updated_at = now() - interval '1 h' WHERE id = $1", old
    )
    await api.pool.execute(
        "UPDATE chats SET archived = true, status = 'waiting', worker_id = NULL,"
        " runnable_at = NULL WHERE id = $1",
        put_away,
    )
    ids = f"{first['id']},{second['id']}, {UUID(int=1)}"
    found = await api.ask("GET", f"/chats/by-workspace?workspace_ids={ids}")
    assert (found.status, found.json) == (200, {str(first["id"]): str(new)})
    theirs = await api.ask("GET", f"/chats/by-workspace?workspace_ids={ids}", token=OTHER_USER)
    assert theirs.json == {}
    assert (await api.ask("GET", "/chats/by-workspace")).json == {}
    for wrong in ("x", ",".join([NIL] * 26)):
        refused = await api.ask("GET", f"/chats/by-workspace?workspace_ids={wrong}")
        assert (refused.code, refused.field) == ((400, "invalid_input"), "workspace_ids")
