"""Workspaces over HTTP: created once, visible to their owner only, deleted by a build.
Templates are shown with their parameters and without secrets.
"""

import asyncio
from uuid import UUID

import msgspec
import pytest

from chatd.domain.workspace.entities import (
    AgentHealth,
    AgentId,
    FieldProblem,
    GitSeed,
    Parameter,
    ParameterOption,
    ResourceLimits,
    TemplateSpec,
    VersionId,
)
from chatd.domain.workspace.runners import HERE_TEMPLATES, BackendOffer
from chatd.store.workspace import templates, workspaces
from chatd.workspaces.templates import BUILT_IN_TEMPLATES, template_rows
from tests.api.workspace_api import WorkspaceApi, end_build, first_build, id_of
from tests.support.api.server import ADMINISTRATOR, ME, OTHER_OWNER, OTHER_USER, ApiServer, Json
from tests.support.api.shares import create_group
from tests.support.factories import OWNER
from tests.support.runners import insert_runner, own_runner, runner
from tests.support.workspaces import TEMPLATE, insert_template, template, version

SIZE = Parameter(name="size", type="number", default="3", min=1, max=9)
FIXED = Parameter(name="region", default="eu", mutable=False)
NOBODYS = str(UUID(int=3))
PARAMETERS = VersionId(UUID(int=0x7E3))


async def ask_parameters(api: WorkspaceApi) -> None:
    row = version(id=PARAMETERS, parameters=(SIZE, FIXED))
    put = templates.TemplateUpsert(template=template(active_version_id=PARAMETERS), version=row)
    assert await templates.upsert_template(api.pool, put) is not None


async def test_a_workspace_is_created_with_its_first_build(api: WorkspaceApi) -> None:
    made = await api.ask("POST", "/workspaces", {"template_id": str(TEMPLATE), "name": "My-Work"})
    assert made.status == 201, made.content
    assert made.headers["location"] == f"/api/v1/workspaces/{made.json['id']}"
    build = first_build(made.json)
    expected = ("start", "pending", "initiator")
    assert (build["transition"], build["status"], build["reason"]) == expected
    assert (made.json["name"], made.json["agents"]) == ("My-Work", [])
    assert api.control.woken == 1

    await end_build(api)
    path = f"/workspaces/{made.json['id']}"
    seen = await api.ask("GET", path)
    (agent,) = seen.at("agents")
    assert (agent["status"], agent["lifecycle"]) == ("connecting", "starting")
    assert (seen.json["isolation"], seen.json["directory"]) == ("bwrap", "~/x")
    assert seen.json["network"] == "none"
    assert seen.json["limits"] == {
        "memory_bytes": 2 * 1024**3,
        "processes": 512,
        "file_bytes": 1024**3,
        "disk_bytes": 10 * 1024**3,
        "open_files": 4096,
        "cpu_weight": 0,
        "per_process": ["open_files"],
    }
    assert not {"endpoints", "boot_id"} & agent.keys()

    heard = {AgentId(id_of(agent)): AgentHealth(boot_id="b", directory="/home/dev/x")}
    await workspaces.record_agent_healthy(api.pool, heard)
    seen = await api.ask("GET", path)
    assert seen.at("agents")[0]["status"] == "connected"
    assert seen.json["directory"] == "/home/dev/x"
    assert first_build(seen.json)["status"] == "succeeded"


async def test_workspaces_are_listed_newest_first_by_page(api: WorkspaceApi) -> None:
    made = [str((await api.make(name=f"w{number}"))["id"]) for number in range(3)]
    await api.server.replica.pool.execute(
        "UPDATE workspaces SET created_at = now() + number * interval '1 s'"
    )
    first = await api.ask("GET", "/workspaces?limit=2")
    assert [one["id"] for one in first.items] == [made[2], made[1]]
    rest = await api.ask("GET", f"/workspaces?limit=2&cursor={first.cursor}")
    assert [one["id"] for one in rest.items] == [made[0]]
    assert (await api.ask("GET", "/workspaces", token=OTHER_USER)).items == []
    other = await api.ask("GET", f"/workspaces?cursor={first.cursor}", token=OTHER_USER)
    assert (other.code, other.field) == ((400, "invalid_cursor"), "cursor")


@pytest.mark.promise("P12")
async def test_another_users_workspace_and_builds_look_missing(api: WorkspaceApi) -> None:
    made = await api.make()
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
        theirs = await api.ask(method, path, body, token=OTHER_USER)
        assert theirs.code == (404, "not_found"), path
        assert (await api.ask(method, path, body, token=None)).status == 401
        nobodys = path.replace(str(workspace), str(UUID(int=3))).replace(
            str(build), str(UUID(int=3))
        )
        assert (await api.ask(method, nobodys, body)).content == theirs.content
    assert first_build((await api.ask("GET", f"/workspaces/{workspace}")).json)["status"] == (
        "pending"
    )


async def test_a_repeated_key_creates_one_workspace(api: WorkspaceApi) -> None:
    key = {"Idempotency-Key": "k1"}
    body = {"template": "Scratch"}
    first, second = await asyncio.gather(
        api.ask("POST", "/workspaces", body, headers=key),
        api.ask("POST", "/workspaces", body, headers=key),
    )
    assert (first.status, second.status) == (201, 201)
    assert first.json["id"] == second.json["id"]
    again = await api.ask("POST", "/workspaces", body, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert len((await api.ask("GET", "/workspaces")).items) == 1
    other = await api.ask("POST", "/workspaces", body | {"name": "else"}, headers=key)
    assert other.code == (409, "idempotency_key_reused")
    theirs = await api.ask("POST", "/workspaces", body, headers=key, token=OTHER_USER)
    assert theirs.json["id"] != first.json["id"]


async def test_requests_without_a_key_create_workspaces_with_distinct_names(
    api: WorkspaceApi,
) -> None:
    made = await asyncio.gather(*(api.make() for _ in range(4)))
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
async def test_an_invalid_workspace_is_refused(
    api: WorkspaceApi, body: Json, code: str, field: str
) -> None:
    await ask_parameters(api)
    refused = await api.ask("POST", "/workspaces", body)
    assert refused.code == (400, code)
    assert str(refused.field).startswith(field)
    assert (await api.ask("GET", "/workspaces")).items == []


async def test_problems_found_by_the_backend_are_reported_by_field(api: WorkspaceApi) -> None:
    api.control.wrong = [
        FieldProblem(field="a", detail="no"),
        FieldProblem(field="b", detail="neither"),
    ]
    refused = await api.ask("POST", "/workspaces", {"template": "scratch"})
    assert refused.code == (400, "invalid_input")
    assert [one["field"] for one in refused.at("validations")] == ["parameters.a", "parameters.b"]


async def test_a_workspace_name_is_unique_per_user(api: WorkspaceApi) -> None:
    await api.make(name="mine")
    taken = await api.ask("POST", "/workspaces", {"template": "scratch", "name": "MINE"})
    assert taken.code == (409, "name_taken")
    theirs = await api.ask(
        "POST", "/workspaces", {"template": "scratch", "name": "mine"}, token=OTHER_USER
    )
    assert theirs.status == 201


async def test_a_deprecated_template_is_refused(api: WorkspaceApi) -> None:
    await templates.deprecate_missing(api.pool, "user", [])
    refused = await api.ask("POST", "/workspaces", {"template": "scratch"})
    assert refused.field == "template"


async def test_deleting_twice_creates_one_build(api: WorkspaceApi) -> None:
    made = await api.make()
    path = f"/workspaces/{made['id']}"
    busy = await api.ask("DELETE", path)
    assert busy.code == (409, "build_active")
    await end_build(api)
    first = await api.ask("DELETE", path)
    second = await api.ask("DELETE", path)
    assert (first.status, second.status) == (202, 202)
    assert (first.json["transition"], first.json["id"]) == ("delete", second.json["id"])
    await end_build(api)
    assert (await api.ask("DELETE", path)).code == (409, "workspace_deleted")
    assert (await api.ask("GET", path)).json["deleted"] is True
    assert (await api.ask("GET", "/workspaces")).items == []


async def test_disabled_workspaces_can_be_read_but_not_created(server: ApiServer) -> None:
    await insert_template(server.replica.pool)
    assert len((await server.ask("GET", "/templates")).items) == 1
    assert (await server.ask("GET", "/workspaces")).items == []
    refused = await server.ask("POST", "/workspaces", {"template": "scratch"})
    assert refused.code == (409, "workspaces_off")


SPEC = TemplateSpec(
    seed=GitSeed(url="https://me:hidden-password@example.org/x.git"),
    env={"TOKEN": "hidden-value", "A": "b"},
    startup_script="curl -H hidden-header",
    limits=ResourceLimits(memory_bytes=1024),
    network="full",
    directory="src",
)
REQUIRED_SIZE = Parameter(name="size", type="number", required=True, min=1, max=9, options=())
FLAVOUR = Parameter(
    name="flavour", default="plain", options=(ParameterOption(name="P", value="plain"),)
)


async def test_a_template_shows_its_parameters_and_hides_secrets(api: WorkspaceApi) -> None:
    with_spec = templates.TemplateUpsert(
        template=template(description="Made to be looked at."),
        version=version(
            id=UUID(int=0x7E2), spec=SPEC, readme="# Hi", parameters=(REQUIRED_SIZE, FLAVOUR)
        ),
    )
    put = msgspec.structs.replace(
        with_spec, template=template(active_version_id=with_spec.version.id)
    )
    assert await templates.upsert_template(api.pool, put) is not None
    (listed,) = (await api.ask("GET", "/templates")).items
    assert (listed["name"], listed["id"]) == ("scratch", str(TEMPLATE))
    shown = await api.ask("GET", f"/templates/{TEMPLATE}")
    assert shown.status == 200
    assert b"hidden" not in shown.content
    found = shown.json
    assert listed.items() <= found.items()
    assert found["env"] == ["A", "TOKEN"]
    assert (found["network"], found["seed"], found["directory"]) == ("full", "git", "src")
    assert found["has_startup_script"] is True
    assert msgspec.convert(found["limits"], dict[str, int])["memory_bytes"] == 1024
    names = [one["name"] for one in shown.at("parameters")]
    assert names == ["size", "flavour"]


@pytest.mark.parametrize(("path", "status"), [(UUID(int=5), 404), ("x", 400)])
async def test_a_missing_template_is_not_found(
    api: WorkspaceApi, path: object, status: int
) -> None:
    assert (await api.ask("GET", f"/templates/{path}")).status == status


@pytest.mark.promise("P12")
async def test_a_template_of_a_group_is_there_for_its_members_only(api: WorkspaceApi) -> None:
    async def names(token: str) -> list[object]:
        listed = await api.ask("GET", "/templates", token=token)
        return [one["name"] for one in listed.items]

    await insert_template(api.pool, groups=("Data",))
    await create_group(api.server, str(OWNER), name="data")
    body = {"template": "scratch"}
    assert await names(ME) == await names(ADMINISTRATOR) == ["scratch"]
    assert await names(OTHER_USER) == []
    assert (await api.ask("POST", "/workspaces", body)).status == 201
    for wanted in (body, {"template_id": str(TEMPLATE)}):
        refused = await api.ask("POST", "/workspaces", wanted, token=OTHER_USER)
        unknown = await api.ask("POST", "/workspaces", {"template": "none"}, token=OTHER_USER)
        assert refused.code == unknown.code == (400, "invalid_input")
        assert "there is no such template" in str(refused.json["validations"])

    assert (await api.ask("GET", f"/templates/{TEMPLATE}", token=OTHER_USER)).status == 404

    await insert_template(api.pool, users=(await username(api, OTHER_OWNER),))
    assert await names(OTHER_USER) == ["scratch"]
    assert await names(ME) == []


async def test_a_workspace_goes_on_after_its_template_was_restricted(api: WorkspaceApi) -> None:
    made = await api.make()
    await insert_template(api.pool, groups=("Data",))
    for transition in ("stop", "start"):
        await end_build(api)
        assert (await api.build(made, transition)).status == 201
    path = f"/templates/{TEMPLATE}"
    assert (await api.ask("GET", path)).status == 200
    await api.pool.execute("UPDATE workspaces SET deleted = true WHERE id = $1", id_of(made))
    assert (await api.ask("GET", path)).code == (404, "not_found")


async def username(api: WorkspaceApi, user: object) -> str:
    return await api.pool.fetchval("SELECT username FROM users WHERE id = $1", user)


# On a runner that a user has started


async def put_here_templates(api: WorkspaceApi) -> None:
    for definition in BUILT_IN_TEMPLATES:
        if definition.name in HERE_TEMPLATES.values():
            put = template_rows(definition, "builtin")
            assert await templates.upsert_template(api.pool, put) is not None


async def test_a_user_gets_the_directory_of_their_own_runner(api: WorkspaceApi) -> None:
    await put_here_templates(api)
    await insert_runner(api.pool, own_runner("laptop"))
    machine = (BackendOffer(kind="machine", isolation="none"),)
    await insert_runner(api.pool, own_runner("unsafe", backends=machine))
    given = {"parameters": {"directory": "/home/ada/shop"}}
    for runner_id, name in (("laptop", "here"), ("unsafe", "here-machine")):
        made = await api.ask("POST", "/workspaces", {"runner_id": runner_id, **given})
        assert made.status == 201, made.content
        row = await api.pool.fetchrow(
            "SELECT w.host_id, w.ttl_s, t.name FROM workspaces w JOIN templates t"
            " ON t.id = w.template_id WHERE w.id = $1",
            id_of(made.json),
        )
        assert row is not None
        assert tuple(row.values()) == (runner_id, 0, name)
        assert first_build(made.json)["parameters"] == given["parameters"]
    listed = (await api.ask("GET", "/templates")).items
    assert [one["name"] for one in listed] == ["scratch"]


@pytest.mark.parametrize(
    ("body", "token", "refusal"),
    [
        ({"runner_id": "laptop"}, OTHER_USER, (400, "runner_id")),
        ({"runner_id": "laptop"}, ADMINISTRATOR, (400, "runner_id")),
        ({"runner_id": "nobody's"}, ME, (400, "runner_id")),
        ({"runner_id": "pooled"}, ME, (400, "runner_id")),
        ({"runner_id": "asleep"}, ME, (409, "runner_not_connected")),
        ({"runner_id": "laptop", "template": "here-machine"}, ME, (400, "runner_id")),
        ({"template": "here"}, ME, (400, "template")),
    ],
)
async def test_nobody_else_gets_it_and_nobody_gets_one_that_is_not_connected(
    api: WorkspaceApi, body: Json, token: str, refusal: tuple[int, str]
) -> None:
    await put_here_templates(api)
    await insert_runner(api.pool, own_runner("laptop"))
    await insert_runner(api.pool, own_runner("asleep"), connected=False)
    await insert_runner(api.pool, runner("pooled"))
    sent = {**body, "parameters": {"directory": "/home/ada/shop"}}
    refused = await api.ask("POST", "/workspaces", sent, token=token)
    told = refused.field if refused.status == 400 else refused.code[1]
    assert (refused.status, told) == refusal, refused.content
    assert (await api.ask("GET", "/workspaces")).items == []
