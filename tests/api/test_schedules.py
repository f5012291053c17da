"""Schedules over HTTP."""

import pytest

from tests.support.api.server import OTHER_USER, ApiServer, Json

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
