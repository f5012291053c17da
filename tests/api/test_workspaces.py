"""Workspaces over HTTP: made once, seen by their owner only, deleted by a build."""

import asyncio
from uuid import UUID

import pytest

from chatd.domain.workspace.entities import AgentHealth, AgentId, FieldProblem, Parameter, VersionId
from chatd.store.workspace import agents, templates
from tests.api.rooms import House, end_build, first_build, id_of
from tests.support.front import STRANGER, Front, Json
from tests.support.workspaces import TEMPLATE, plant_template, template, version

SIZE = Parameter(name="size", type="number", default="3", min=1, max=9)
FIXED = Parameter(name="region", default="eu", mutable=False)
NOBODYS = str(UUID(int=3))
PARAMETERS = VersionId(UUID(int=0x7E3))


async def ask_parameters(house: House) -> None:
    row = version(id=PARAMETERS, parameters=(SIZE, FIXED))
    put = templates.TemplateUpsert(template=template(active_version_id=PARAMETERS), version=row)
    assert await templates.upsert_template(house.pool, put) is not None


async def test_a_workspace_is_made_with_its_first_build_and_shown_as_it_becomes(
    house: House,
) -> None:
    made = await house.ask("POST", "/workspaces", {"template_id": str(TEMPLATE), "name": "My-Work"})
    assert made.status == 201, made.content
    assert made.headers["location"] == f"/api/v1/workspaces/{made.json['id']}"
    build = first_build(made.json)
    assert (build["transition"], build["status"], build["reason"]) == (
        "start",
        "pending",
        "initiator",
    )
    assert (made.json["name"], made.json["agents"]) == ("My-Work", [])
    assert house.told.woken == 1

    await end_build(house)
    path = f"/workspaces/{made.json['id']}"
    seen = await house.ask("GET", path)
    (agent,) = seen.at("agents")
    assert (agent["status"], agent["lifecycle"]) == ("connecting", "starting")
    assert (seen.json["isolation"], seen.json["directory"]) == ("bwrap", "~/x")
    assert not {"endpoints", "boot_id"} & agent.keys()

    heard = {AgentId(id_of(agent)): AgentHealth(boot_id="b", directory="/home/dev/x")}
    await agents.record_healthy(house.pool, heard)
    seen = await house.ask("GET", path)
    assert seen.at("agents")[0]["status"] == "connected"
    assert seen.json["directory"] == "/home/dev/x"
    assert first_build(seen.json)["status"] == "succeeded"


async def test_workspaces_are_listed_newest_first_page_by_page(house: House) -> None:
    made = [str((await house.make(name=f"w{number}"))["id"]) for number in range(3)]
    await house.front.replica.pool.execute(
        "UPDATE workspaces SET created_at = now() + number * interval '1 s'"
    )
    first = (await house.ask("GET", "/workspaces?limit=2")).items
    assert [one["id"] for one in first] == [made[2], made[1]]
    rest = (await house.ask("GET", f"/workspaces?limit=2&after_id={made[1]}")).items
    assert [one["id"] for one in rest] == [made[0]]
    assert (await house.ask("GET", "/workspaces", token=STRANGER)).items == []
    other = await house.ask("GET", f"/workspaces?after_id={made[1]}", token=STRANGER)
    assert (other.code, other.field) == ((400, "invalid_input"), "after_id")


@pytest.mark.promise("P12")
async def test_a_workspace_and_its_builds_are_not_there_for_others(house: House) -> None:
    made = await house.make()
    workspace, build = made["id"], first_build(made)["id"]
    for method, path, body in (
        ("GET", f"/workspaces/{workspace}", None),
        ("DELETE", f"/workspaces/{workspace}", None),
        ("GET", f"/workspaces/{workspace}/builds", None),
        ("POST", f"/workspaces/{workspace}/builds", {"transition": "stop"}),
        ("GET", f"/builds/{build}", None),
        ("POST", f"/builds/{build}/cancel", None),
        ("GET", f"/builds/{build}/logs", None),
        ("GET", f"/builds/{build}/logs?follow=true", None),
    ):
        theirs = await house.ask(method, path, body, token=STRANGER)
        assert theirs.code == (404, "not_found"), path
        assert (await house.ask(method, path, body, token=None)).status == 401
        nobodys = path.replace(str(workspace), str(UUID(int=3))).replace(
            str(build), str(UUID(int=3))
        )
        assert (await house.ask(method, nobodys, body)).content == theirs.content
    assert first_build((await house.ask("GET", f"/workspaces/{workspace}")).json)["status"] == (
        "pending"
    )


async def test_a_repeated_key_makes_one_workspace(house: House) -> None:
    key = {"Idempotency-Key": "k1"}
    body = {"template": "Scratch"}
    first, second = await asyncio.gather(
        house.ask("POST", "/workspaces", body, headers=key),
        house.ask("POST", "/workspaces", body, headers=key),
    )
    assert (first.status, second.status) == (201, 201)
    assert first.json["id"] == second.json["id"]
    again = await house.ask("POST", "/workspaces", body, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert len((await house.ask("GET", "/workspaces")).items) == 1
    other = await house.ask("POST", "/workspaces", body | {"name": "else"}, headers=key)
    assert other.code == (409, "idempotency_key_reused")
    theirs = await house.ask("POST", "/workspaces", body, headers=key, token=STRANGER)
    assert theirs.json["id"] != first.json["id"]


async def test_without_a_key_each_request_makes_one_and_names_do_not_clash(house: House) -> None:
    made = await asyncio.gather(*(house.make() for _ in range(4)))
    assert len({one["id"] for one in made}) == 4
    assert len({one["name"] for one in made}) == 4


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid_input", "template"),
        ({"template": "nope"}, "invalid_input", "template"),
        ({"template": "scratch", "template_id": str(TEMPLATE)}, "invalid_input", "template_id"),
        ({"template_id": str(UUID(int=4))}, "invalid_input", "template_id"),
        ({"template_id": "x"}, "invalid_input", "template_id"),
        ({"template": "scratch", "name": "two words"}, "invalid_input", "name"),
        ({"template": "scratch", "name": "a" * 33}, "invalid_input", "name"),
        ({"template": "scratch", "name": ""}, "invalid_input", "name"),
        ({"template": "scratch", "nmae": "x"}, "invalid_input", "nmae"),
        ({"template": "scratch", "parameters": {"a": 1}}, "invalid_input", "parameters["),
        ({"template": "scratch", "parameters": {"a\0": "1"}}, "invalid_input", "parameters"),
        ({"template": "scratch", "parameters": {"no": "1"}}, "invalid_input", "parameters.no"),
        ({"template": "scratch", "parameters": {"size": "12"}}, "invalid_input", "parameters.size"),
    ],
)
async def test_a_workspace_is_not_made_with_anything_wrong(
    house: House, body: Json, code: str, field: str
) -> None:
    await ask_parameters(house)
    refused = await house.ask("POST", "/workspaces", body)
    assert refused.code == (400, code)
    assert str(refused.field).startswith(field)
    assert (await house.ask("GET", "/workspaces")).items == []


async def test_what_the_backend_finds_wrong_is_told_field_by_field(house: House) -> None:
    house.told.wrong = [
        FieldProblem(field="a", detail="no"),
        FieldProblem(field="b", detail="neither"),
    ]
    refused = await house.ask("POST", "/workspaces", {"template": "scratch"})
    assert refused.code == (400, "invalid_input")
    assert [one["field"] for one in refused.at("validations")] == ["parameters.a", "parameters.b"]


async def test_a_name_of_ones_own_is_taken_once(house: House) -> None:
    await house.make(name="mine")
    taken = await house.ask("POST", "/workspaces", {"template": "scratch", "name": "MINE"})
    assert taken.code == (409, "name_taken")
    theirs = await house.ask(
        "POST", "/workspaces", {"template": "scratch", "name": "mine"}, token=STRANGER
    )
    assert theirs.status == 201


async def test_a_template_that_is_not_offered_any_more_makes_nothing(house: House) -> None:
    await templates.deprecate_missing(house.pool, "user", [])
    refused = await house.ask("POST", "/workspaces", {"template": "scratch"})
    assert refused.field == "template"


async def test_deleting_is_a_build_and_asking_twice_is_one(house: House) -> None:
    made = await house.make()
    path = f"/workspaces/{made['id']}"
    busy = await house.ask("DELETE", path)
    assert busy.code == (409, "build_active")
    await end_build(house)
    first = await house.ask("DELETE", path)
    second = await house.ask("DELETE", path)
    assert (first.status, second.status) == (202, 202)
    assert (first.json["transition"], first.json["id"]) == ("delete", second.json["id"])
    await end_build(house)
    assert (await house.ask("DELETE", path)).code == (409, "workspace_deleted")
    assert (await house.ask("GET", path)).json["deleted"] is True
    assert (await house.ask("GET", "/workspaces")).items == []


async def test_without_workspaces_rows_are_shown_and_nothing_is_made(front: Front) -> None:
    await plant_template(front.replica.pool)
    assert len((await front.ask("GET", "/templates")).items) == 1
    assert (await front.ask("GET", "/workspaces")).items == []
    refused = await front.ask("POST", "/workspaces", {"template": "scratch"})
    assert refused.code == (409, "workspaces_off")
