"""Administrators make, change, version, duplicate and delete templates over HTTP."""

import asyncio
from uuid import UUID

import msgspec
import pytest

from chatd.domain.ids import ProjectId
from chatd.domain.workspace.entities import TemplateSpec
from chatd.domain.workspace.template_definition import TemplateDefinition
from chatd.store.workspace import templates
from chatd.workspaces.templates import TemplateCatalog, sync_templates
from tests.api.permissions.callers import Callers
from tests.api.workspace_api import WorkspaceApi, first_build, workspace_api
from tests.support.api.server import ADMINISTRATOR, ApiReply, Json
from tests.support.factories import OWNER
from tests.support.stream_replica import env_with

PATH = "/template-configs"
SHOP: Json = {
    "name": "shop",
    "description": "The web shop.",
    "spec": {"env": {"SHOP_ENV": "marker-value"}, "startup_script": "echo marker-script"},
}


async def ask(api: WorkspaceApi, method: str, path: str, body: object = None) -> ApiReply:
    return await api.ask(method, path, body, token=ADMINISTRATOR)


async def create(api: WorkspaceApi, **fields: object) -> Json:
    made = await ask(api, "POST", PATH, {**SHOP, **fields})
    assert made.status == 201, made.json
    return made.json


def one(made: Json) -> str:
    return f"{PATH}/{made['id']}"


async def numbers(api: WorkspaceApi, made: Json) -> list[tuple[object, object]]:
    found = await ask(api, "GET", f"{one(made)}/versions")
    return [(line["number"], line["is_active"]) for line in found.items]


async def test_a_template_is_created_read_and_offered_at_once(api: WorkspaceApi) -> None:
    reply = await ask(api, "POST", PATH, SHOP)
    made = reply.json
    assert (reply.status, made["origin"], made["version_number"]) == (201, "user", 1)
    assert reply.headers["location"] == f"/api/v1{one(made)}"
    assert (await ask(api, "GET", one(made))).json == made
    listed = {item["name"]: item for item in (await ask(api, "GET", PATH)).items}
    assert (listed["shop"]["version_count"], listed["shop"]["workspace_count"]) == (1, 0)
    offered = [item["name"] for item in (await api.ask("GET", "/templates")).items]
    assert "shop" in offered
    page = await TemplateCatalog(api.pool, api.server.deps.env.clock).list_page(
        OWNER, query="shop", page=1
    )
    assert page.recommended_template_id == made["id"], "models find it too"
    project = await api.ask("POST", "/projects", {"name": "Shop", "template_id": made["id"]})
    page = await TemplateCatalog(api.pool, api.server.deps.env.clock).list_page(
        OWNER, query="", page=1, project_id=ProjectId(UUID(str(project.json["id"])))
    )
    assert page.templates is not None
    assert (page.templates[0].name, page.recommended_template_id) == ("shop", made["id"])
    started = await api.ask("POST", "/workspaces", {"template": "Shop"})
    assert started.status == 201
    listed = {item["name"]: item for item in (await ask(api, "GET", PATH)).items}
    assert listed["shop"]["workspace_count"] == 1


async def test_another_replica_uses_a_new_template_and_its_new_version(
    api: WorkspaceApi, dsn: str
) -> None:
    """A replica keeps no templates: its next request reads the row."""
    async with workspace_api(dsn) as other:
        made = await create(api)
        changed = await ask(api, "PUT", one(made), {**SHOP, "readme": "two"})
        started = await other.ask("POST", "/workspaces", {"template": "shop"})
        build = first_build(started.json)
        assert build["template_version_id"] == changed.json["active_version_id"]


async def test_content_makes_versions_and_words_do_not(api: WorkspaceApi) -> None:
    made = await create(api)
    path = one(made)
    words = await ask(api, "PUT", path, {**SHOP, "description": "Ours.", "users": ["ada"]})
    assert (words.status, words.json["version_number"], words.json["users"]) == (200, 1, ["ada"])
    content = await ask(api, "PUT", path, {**SHOP, "readme": "# Shop"})
    assert (content.json["version_number"], content.json["description"]) == (2, "The web shop.")
    stored = await ask(api, "PUT", path, {**SHOP, "readme": "# Later", "activate": False})
    assert (stored.json["version_number"], stored.json["version_count"]) == (2, 3)
    assert stored.json["readme"] == "# Shop", "the active one is shown"
    assert await numbers(api, made) == [(3, False), (2, True), (1, False)]
    pages = await ask(api, "GET", f"{path}/versions?limit=2")
    rest = await ask(api, "GET", f"{path}/versions?limit=2&cursor={pages.cursor}")
    assert [line["number"] for line in rest.items] == [1]
    first = rest.items[0]
    seen = await ask(api, "GET", f"{path}/versions/{first['id']}")
    assert (seen.json["number"], seen.json["readme"], seen.json["is_active"]) == (1, "", False)
    active = await ask(api, "POST", f"{path}/versions/{first['id']}/activate")
    assert (active.status, active.json["version_number"], active.json["readme"]) == (200, 1, "")
    assert await numbers(api, made) == [(3, False), (2, False), (1, True)]


async def test_workspaces_are_counted_by_the_version_they_were_built_with(
    api: WorkspaceApi,
) -> None:
    made = await create(api)
    await api.ask("POST", "/workspaces", {"template": "shop"})
    await ask(api, "PUT", one(made), {**SHOP, "readme": "two"})
    found = await ask(api, "GET", f"{one(made)}/versions")
    assert [line["workspace_count"] for line in found.items] == [0, 1]


async def test_of_two_edits_that_read_the_same_state_one_is_refused(api: WorkspaceApi) -> None:
    made = await create(api)
    edits = [{**SHOP, "readme": text, "updated_at": made["updated_at"]} for text in ("a", "b")]
    replies = await asyncio.gather(*(ask(api, "PUT", one(made), edit) for edit in edits))
    assert sorted(reply.status for reply in replies) == [200, 409]
    (refused,) = (reply for reply in replies if reply.status == 409)
    assert refused.code == (409, "version_conflict")
    assert len(await numbers(api, made)) == 2


@pytest.mark.parametrize("verb", ["PUT", "DELETE", "activate"])
async def test_a_preset_is_refused_and_can_be_duplicated(api: WorkspaceApi, verb: str) -> None:
    preset = TemplateDefinition(name="preset", spec=TemplateSpec(env={"A": "b"}))
    [stored] = await sync_templates(
        api.pool, env_with(api.server.deps.env.clock), [preset], built_in=False
    )
    path = f"{PATH}/{stored.id}"
    if verb == "activate":
        refused = await ask(api, "POST", f"{path}/versions/{stored.active_version_id}/activate")
    else:
        refused = await ask(api, verb, path, {**SHOP, "name": "preset"} if verb == "PUT" else None)
    assert refused.code == (409, "template_is_preset")
    assert "Duplicate it" in str(refused.json["message"])
    copy = await ask(api, "POST", f"{path}/duplicate", {"name": "mine", "display_name": "Mine"})
    assert (copy.status, copy.json["origin"]) == (201, "user")
    assert copy.json["display_name"] == "Mine"
    assert msgspec.convert(copy.json["spec"], Json)["env"] == {"A": "b"}
    assert (await ask(api, "DELETE", one(copy.json))).status == 204


async def test_a_template_that_left_its_file_frees_its_name(api: WorkspaceApi) -> None:
    env = env_with(api.server.deps.env.clock)
    preset = TemplateDefinition(name="shop", description="Of the file.")
    [stored] = await sync_templates(api.pool, env, [preset], built_in=False)
    assert (await ask(api, "POST", PATH, SHOP)).code == (409, "name_taken")
    await sync_templates(api.pool, env, built_in=False)
    made = await create(api)
    assert (await ask(api, "GET", f"{PATH}/{stored.id}")).status == 404
    assert await sync_templates(api.pool, env, [preset], built_in=False) == [], "the name is taken"
    assert (await ask(api, "DELETE", one(made))).status == 204
    [again] = await sync_templates(api.pool, env, [preset], built_in=False)
    assert (again.id, again.deleted, again.deprecated) == (stored.id, False, False)


async def test_a_deleted_template_is_gone_and_its_workspaces_go_on(api: WorkspaceApi) -> None:
    made = await create(api)
    workspace = (await api.ask("POST", "/workspaces", {"template": "shop"})).json
    assert (await ask(api, "DELETE", one(made))).status == 204
    assert (await ask(api, "DELETE", one(made))).code == (404, "not_found")
    assert (await ask(api, "GET", one(made))).code == (404, "not_found")
    offered = [item["name"] for item in (await api.ask("GET", "/templates")).items]
    assert "shop" not in offered
    await api.pool.execute("UPDATE workspace_builds SET status = 'succeeded', completed_at = now()")
    stopped = await api.ask("POST", f"/workspaces/{workspace['id']}/builds", {"transition": "stop"})
    assert stopped.status == 201
    assert (await ask(api, "POST", PATH, SHOP)).status == 201, "the name is free"


async def test_names_are_unique_without_case(api: WorkspaceApi) -> None:
    await create(api)
    other = await create(api, name="other")
    for method, path in (("POST", PATH), ("PUT", one(other)), ("POST", f"{one(other)}/duplicate")):
        body = {"name": "SHOP"} if path.endswith("duplicate") else {**SHOP, "name": "SHOP"}
        assert (await ask(api, method, path, body)).code == (409, "name_taken")


async def test_every_invalid_field_is_named(api: WorkspaceApi) -> None:
    body = {"name": "a b", "backend": "container", "spec": {"pool": "X"}}
    refused = await ask(api, "POST", PATH, body)
    assert refused.code == (400, "invalid_input")
    problems = refused.at("validations")
    assert [problem["field"] for problem in problems] == ["name", "spec.image", "spec.pool"]


@pytest.mark.parametrize(
    ("body", "field", "detail"),
    [
        ({"name": "a", "backend": "vm"}, "backend", "must be one of sandbox, container"),
        ({"name": "a", "spce": {}}, "spce", "is not a known field"),
        ({"name": "a", "spec": {"imgae": "x"}}, "spec.imgae", "did you mean image?"),
        (
            {"name": "a", "spec": {"seed": {"kind": "git", "url": "https://a", "branch": "x"}}},
            "spec.seed.branch",
            "is not a known field",
        ),
        (
            {"name": "a", "parameters": [{"name": "p", "defualt": "x"}]},
            "parameters[0].defualt",
            "did you mean default?",
        ),
        ({"name": "a", "spec": {"limits": {"cpu_weight": 10_001}}}, "spec.limits.cpu_weight", ""),
    ],
)
async def test_a_field_that_does_not_exist_is_refused(
    api: WorkspaceApi, body: Json, field: str, detail: str
) -> None:
    refused = await ask(api, "POST", PATH, body)
    assert (refused.status, refused.field) == (400, field)
    assert detail in str(refused.json["validations"])


async def test_the_backend_of_a_template_with_workspaces_stays(api: WorkspaceApi) -> None:
    """The workspaces of one backend are not found by another."""
    made = await create(api)
    image: Json = {**SHOP, "backend": "container", "spec": {"image": "debian"}}
    assert (await ask(api, "PUT", one(made), image)).json["backend"] == "container"
    assert (await ask(api, "PUT", one(made), SHOP)).status == 200
    await api.ask("POST", "/workspaces", {"template": "shop"})
    refused = await ask(api, "PUT", one(made), image)
    assert (refused.status, refused.field) == (400, "backend")
    assert "1 workspace" in str(refused.json["message"])


async def test_a_version_that_does_not_fit_the_backend_is_not_activated(api: WorkspaceApi) -> None:
    made = await create(api)
    image: Json = {**SHOP, "backend": "container", "spec": {"image": "debian"}}
    await ask(api, "PUT", one(made), image)
    refused = await ask(api, "POST", f"{one(made)}/versions/{made['active_version_id']}/activate")
    assert (refused.status, refused.field) == (400, "spec.image")


async def test_a_version_of_another_template_is_not_found(api: WorkspaceApi) -> None:
    made, other = await create(api), await create(api, name="other")
    path = f"{one(made)}/versions/{other['active_version_id']}"
    assert (await ask(api, "GET", path)).code == (404, "not_found")
    assert (await ask(api, "POST", f"{path}/activate")).code == (404, "not_found")


@pytest.mark.promise("P13")
async def test_values_of_the_environment_are_shown_to_administrators_only(
    api: WorkspaceApi,
) -> None:
    made = await create(api)
    callers = Callers(api.server)
    await callers.enter()
    paths = (one(made), f"{one(made)}/versions/{made['active_version_id']}")
    for path in paths:
        shown = await ask(api, "GET", path)
        assert "marker-value" in str(shown.json)
        hidden = await api.ask("GET", path, token=callers.tokens["viewer"])
        assert (hidden.status, hidden.json["is_redacted"]) == (200, True)
        assert "marker" not in str(hidden.json)
        assert "SHOP_ENV" in str(hidden.json)
    user = await api.ask("GET", f"/templates/{made['id']}")
    assert "marker" not in str(user.json)


async def test_the_audit_log_names_fields_and_no_values(api: WorkspaceApi) -> None:
    made = await create(api)
    change: Json = {**SHOP, "spec": {"env": {"SHOP_ENV": "marker-other"}}}
    await ask(api, "PUT", one(made), change)
    await ask(api, "POST", f"{one(made)}/versions/{made['active_version_id']}/activate")
    await ask(api, "DELETE", one(made))
    log = (await ask(api, "GET", f"/audit?object_type=template&object_id={made['id']}")).items
    assert [entry["summary"] for entry in log] == [
        "deleted the template shop",
        "changed the active version of the template shop (deleted)",
        "changed the env and the startup script of the template shop (deleted)",
        "created the template shop (deleted)",
    ]
    assert "marker" not in str(log)


async def test_templates_and_versions_have_a_highest_number(
    api: WorkspaceApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "MAX_TEMPLATES", 2)
    monkeypatch.setattr(templates, "MAX_TEMPLATE_VERSIONS", 1)
    made = await create(api)
    refused = await ask(api, "POST", PATH, {**SHOP, "name": "other"})
    assert refused.code == (409, "too_many_templates"), "the fixture has one too"
    refused = await ask(api, "PUT", one(made), {**SHOP, "readme": "x"})
    assert refused.code == (409, "too_many_template_versions")
    assert (await ask(api, "PUT", one(made), {**SHOP, "description": "x"})).status == 200
