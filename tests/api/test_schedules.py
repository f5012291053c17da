"""Schedules over HTTP."""

import pytest

from tests.support.api.server import OTHER_USER, ApiServer, Json
from tests.support.api.shares import READER

BODY: Json = {"name": "Nightly", "cron": "0 2 * * *", "prompt": "Check the build."}


async def create(server: ApiServer, **fields: object) -> Json:
    made = await server.ask("POST", "/schedules", {**BODY, **fields})
    assert made.status == 201, made.content
    return made.json


async def test_a_schedule_is_created_changed_run_and_deleted(server: ApiServer) -> None:
    made = await create(server, labels={"team": "infra"}, timezone="Europe/Berlin")
    path = f"/schedules/{made['id']}"
    assert made["next_run_at"] is not None
    assert (await server.ask("GET", "/schedules")).items == [made]
    stopped = await server.ask("PATCH", path, {"enabled": False, "name": "Weekly"})
    assert (stopped.json["next_run_at"], stopped.json["name"]) == (None, "Weekly")
    assert stopped.json["labels"] == {"team": "infra"}
    due = await server.ask("POST", f"{path}/run")
    assert (due.status, due.json["enabled"]) == (202, True)
    assert (await server.ask("DELETE", path)).status == 204
    for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/run")):
        assert (await server.ask(method, f"{path}{tail}")).code == (404, "not_found")


@pytest.mark.promise("P12")
async def test_another_users_schedule_looks_like_a_missing_one(server: ApiServer) -> None:
    path = f"/schedules/{(await create(server))['id']}"
    for method, tail, body in (
        ("GET", "", None),
        ("PATCH", "", {"enabled": False}),
        ("POST", "/run", None),
        ("DELETE", "", None),
    ):
        found = await server.ask(method, f"{path}{tail}", body, token=OTHER_USER)
        assert found.code == (404, "not_found"), method
    assert (await server.ask("GET", "/schedules", token=OTHER_USER)).items == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": "every day"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"prompt": ""}, "prompt"),
        ({"model": "no-such-model"}, "model"),
    ],
)
async def test_a_bad_schedule_is_refused_and_not_stored(
    server: ApiServer, fields: Json, field: str
) -> None:
    refused = await server.ask("POST", "/schedules", {**BODY, **fields})
    assert (refused.status, refused.field) == (400, field)
    assert (await server.ask("GET", "/schedules")).items == []


@pytest.mark.promise("P12")
async def test_a_schedule_names_a_project_to_which_its_owner_may_add_chats(
    server: ApiServer,
) -> None:
    project = (await server.ask("POST", "/projects", {"name": "Billing"})).json["id"]
    made = await create(server, project_id=project)
    assert made["project_id"] == project
    path = f"/schedules/{made['id']}"
    kept = await server.ask("PATCH", path, {"name": "Weekly"})
    assert kept.json["project_id"] == project
    left = await server.ask("PATCH", path, {"project_id": None})
    assert left.json["project_id"] is None
    back = await server.ask("PATCH", path, {"project_id": project})
    assert back.json["project_id"] == project
    of_other = await server.ask(
        "POST", "/schedules", {**BODY, "project_id": project}, token=OTHER_USER
    )
    assert of_other.code == (404, "not_found")
    member = f"/projects/{project}/members/{READER}"
    assert (await server.ask("PUT", member, {"role": "reader"})).status < 300
    of_reader = await server.ask(
        "POST", "/schedules", {**BODY, "project_id": project}, token=OTHER_USER
    )
    assert of_reader.code == (403, "forbidden")
    assert (await server.ask("GET", "/schedules", token=OTHER_USER)).items == []
    assert (await server.ask("DELETE", f"/projects/{project}")).status == 204
    assert (await server.ask("GET", path)).json["project_id"] is None
