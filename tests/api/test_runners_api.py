"""Runners and their tokens over HTTP: listed, drained, removed, revoked, and why builds wait."""

import asyncio
from datetime import timedelta
from typing import Final
from uuid import UUID

import pytest

from chatd.domain.access.secret_text import digest, is_runner_token
from chatd.domain.workspace.runners import BackendOffer, RunnerTokenId
from chatd.store.workspace import runners
from tests.api.workspace_api import HERE, WorkspaceApi
from tests.support.api.accounts import hears, listening_changes
from tests.support.api.server import ADMINISTRATOR, OTHER_USER, ApiReply, ApiServer
from tests.support.factories import OWNER
from tests.support.outcomes import present
from tests.support.runners import insert_runner, own_runner, runner

POOLED: Final = {"pool": "build", "name": "rack 3"}


async def administer(server: ApiServer, method: str, path: str, body: object = None) -> ApiReply:
    return await server.ask(method, path, body, token=ADMINISTRATOR)


async def new_token(server: ApiServer, **fields: object) -> tuple[RunnerTokenId, str]:
    made = await administer(server, "POST", "/runner-tokens", POOLED | fields)
    assert made.status == 201, made.content
    return RunnerTokenId(UUID(str(made.json["id"]))), str(made.json["token"])


async def summaries(server: ApiServer) -> list[object]:
    found = await administer(server, "GET", "/audit")
    return [entry["summary"] for entry in found.items]


async def test_a_token_is_shown_once_and_lets_its_runners_in_until_it_is_revoked(
    server: ApiServer,
) -> None:
    made = await administer(server, "POST", "/runner-tokens", POOLED)
    text = str(made.json["token"])
    assert is_runner_token(text)
    assert text.startswith(f"{made.json['prefix']}_")
    (listed,) = (await administer(server, "GET", "/runner-tokens")).items
    assert listed == {name: value for name, value in made.json.items() if name != "token"}
    assert (listed["pool"], listed["expired"], listed["runners"]) == ("build", False, 0)

    found = present(await runners.find_token(server.replica.pool, digest(text)))
    assert (str(found.id), found.pool) == (listed["id"], "build")
    (used,) = (await administer(server, "GET", "/runner-tokens")).items
    assert used["last_used_at"] is not None

    path = f"/runner-tokens/{listed['id']}"
    assert (await administer(server, "DELETE", path)).status == 204
    assert (await administer(server, "DELETE", path)).code == (404, "not_found")
    assert await runners.find_token(server.replica.pool, digest(text)) is None
    assert (await administer(server, "GET", "/runner-tokens")).items == []
    assert await summaries(server) == [
        "revoked the token of runners rack 3",
        "made the token of runners rack 3",
    ]
    stored = await server.replica.pool.fetchval("SELECT string_agg(t::text, '') FROM audit_log t")
    assert text not in stored


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "pool"),
        ({"pool": ""}, "pool"),
        ({"pool": "Build"}, "pool"),
        ({"pool": "x" * 33}, "pool"),
        ({"pool": "b", "name": " "}, "name"),
        ({"pool": "b", "name": "a\nb"}, "name"),
        ({"pool": "b", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"pool": "b", "expires_at": "2020-01-01T00:00:00"}, "expires_at"),
    ],
)
async def test_a_bad_token_is_refused_and_not_stored(
    server: ApiServer, body: dict[str, object], field: str
) -> None:
    refused = await administer(server, "POST", "/runner-tokens", body)
    assert (refused.status, refused.field) == (400, field)
    assert (await administer(server, "GET", "/runner-tokens")).items == []


async def test_tokens_and_runners_come_in_pages(server: ApiServer) -> None:
    pool = server.replica.pool
    for number in range(3):
        token, _ = await new_token(server, name=f"t{number}", expires_at="2999-01-01T00:00:00Z")
        await insert_runner(pool, runner(f"r{number}", pool="build", token_id=token))
    for path in ("/runner-tokens", "/runners"):
        first = await administer(server, "GET", f"{path}?limit=2")
        rest = await administer(server, "GET", f"{path}?limit=2&cursor={first.cursor}")
        assert (len(first.items), len(rest.items)) == (2, 1)
        names = {str(one["name"])[1:] for one in (*first.items, *rest.items)}
        assert names == {"0", "1", "2"}


async def test_runners_are_listed_with_what_they_offer_and_whether_they_are_connected(
    server: ApiServer,
) -> None:
    pool = server.replica.pool
    token, _ = await new_token(server)
    await insert_runner(
        pool,
        runner(
            "r1",
            name="build-1",
            pool="build",
            token_id=token,
            version="99.0.0",
            labels=("gpu",),
            backends=(BackendOffer(kind="container", isolation="runsc", detail="Podman 5.4"),),
            capacity=8,
            running=3,
            orphans=("lost-1",),
        ),
    )
    await insert_runner(pool, runner("host", name="a-server"), connected=False)
    await insert_runner(pool, own_runner("laptop"), seen_ago=timedelta(minutes=1))
    server_row, laptop, pooled = (await administer(server, "GET", "/runners")).items
    assert pooled["backends"] == [
        {"kind": "container", "isolation": "runsc", "detail": "Podman 5.4"}
    ]
    shown = ("name", "pool", "labels", "capacity", "running", "connected", "token", "orphans")
    assert [pooled[name] for name in shown] == [
        *("build-1", "build", ["gpu"], 8, 3, True, "rack 3", ["lost-1"])
    ]
    assert "Upgrade the server" in str(pooled["version_gap"])
    assert (server_row["builtin"], server_row["connected"]) == (True, False)
    assert (laptop["owner_id"], laptop["connected"]) == (str(OWNER), False)
    assert laptop["version_gap"] is None

    mine = (await server.ask("GET", "/runners")).items
    assert [one["id"] for one in mine] == ["laptop"]
    assert (await server.ask("GET", "/runners/r1")).code == (404, "not_found")
    assert (await server.ask("GET", "/runners/laptop", token=OTHER_USER)).status == 404


async def test_replicas_hear_of_a_drained_runner_and_of_a_revoked_token(
    server: ApiServer, dsn: str
) -> None:
    await insert_runner(server.replica.pool, own_runner("laptop"))
    token, _ = await new_token(server)
    async with listening_changes(dsn) as changes, asyncio.timeout(10):
        drained, revoked = hears(changes, "runner"), hears(changes, "runner_token")
        await server.ask("PATCH", "/runners/laptop", {"draining": True})
        await drained.wait()
        await administer(server, "DELETE", f"/runner-tokens/{token}")
        await revoked.wait()


async def test_a_runner_is_drained_renamed_and_resumed(
    server: ApiServer,
) -> None:
    pool = server.replica.pool
    await insert_runner(pool, own_runner("laptop"))
    drained = await server.ask("PATCH", "/runners/laptop", {"draining": True})
    assert (drained.json["draining"], drained.json["name"]) == (True, "laptop")
    renamed = await administer(server, "PATCH", "/runners/laptop", {"name": " desk "})
    assert (renamed.json["draining"], renamed.json["name"]) == (True, "desk")
    resumed = await server.ask("PATCH", "/runners/laptop", {"draining": False})
    assert resumed.json["draining"] is False
    unchanged = await server.ask("PATCH", "/runners/laptop", {"draining": False})
    assert unchanged.status == 200
    assert (await summaries(server))[:3] == [
        "changed the draining of the runner desk",
        "changed the name of the runner desk",
        "changed the draining of the runner desk",
    ]
    for bad in ({"name": ""}, {"name": " "}, {"name": "a\tb"}, {"draining": 1}):
        assert (await server.ask("PATCH", "/runners/laptop", bad)).status == 400
    assert (await server.ask("PATCH", "/runners/other", {"draining": True})).status == 404


async def test_a_runner_is_removed_only_if_it_is_gone_and_has_no_workspaces(
    api: WorkspaceApi,
) -> None:
    server, pool = api.server, api.pool
    await insert_runner(pool, runner(HERE))
    refused = await administer(server, "DELETE", f"/runners/{HERE}")
    assert refused.code == (409, "runner_connected")
    await pool.execute("UPDATE runners SET disconnected_at = now()")
    made = await api.make(name="app")
    refused = await administer(server, "DELETE", f"/runners/{HERE}")
    assert refused.code == (409, "runner_has_workspaces")
    assert "has 1 workspace (app of " in str(refused.json["message"])
    await pool.execute("UPDATE workspaces SET deleted = true WHERE id = $1", UUID(str(made["id"])))
    assert (await administer(server, "DELETE", f"/runners/{HERE}")).status == 204
    assert (await administer(server, "DELETE", f"/runners/{HERE}")).code == (404, "not_found")
    assert (await summaries(server))[0] == f"removed the runner {HERE}"


async def test_a_machine_that_is_gone_for_good_is_removed_with_its_workspaces(
    api: WorkspaceApi,
) -> None:
    server, pool = api.server, api.pool
    await insert_runner(pool, runner(HERE), connected=False)
    made = await api.make(name="app")
    path = f"/runners/{HERE}?with_workspaces=true"
    assert (await administer(server, "DELETE", path)).status == 204
    found = await pool.fetchrow(
        """SELECT w.deleted, b.status, b.error_code FROM workspaces w
           JOIN workspace_builds b ON b.workspace_id = w.id WHERE w.id = $1""",
        UUID(str(made["id"])),
    )
    assert found is not None
    assert tuple(found) == (True, "failed", "runner_removed")


async def test_a_pending_build_says_what_it_waits_for(api: WorkspaceApi) -> None:
    server, pool = api.server, api.pool
    await insert_runner(pool, runner(HERE, name="north"), connected=False)
    made = await api.make()
    detail = await administer(server, "GET", f"/runners/{HERE}")
    (waiting,) = detail.at("waiting_builds")
    assert str(waiting["reason"]).startswith("The runner north is not connected since ")
    (workspace,) = detail.at("workspaces")
    assert (workspace["id"], workspace["status"]) == (made["id"], "starting")

    for path in (f"/workspaces/{made['id']}", "/workspaces"):
        found = await api.ask("GET", path)
        one = found.json if "latest_build" in found.json else found.items[0]
        build = one["latest_build"]
        assert isinstance(build, dict)
        assert build["waiting_for"] == waiting["reason"]
    for path in (f"/workspaces/{made['id']}/builds", f"/builds/{waiting['id']}"):
        found = await api.ask("GET", path)
        one = found.json if "status" in found.json else found.items[0]
        assert one["waiting_for"] == waiting["reason"]

    assert (await api.ask("GET", "/builds/waiting")).items == [waiting]
    assert (await administer(server, "GET", "/builds/waiting")).items == [waiting]
    stranger = await server.ask("GET", "/builds/waiting", token=OTHER_USER)
    assert stranger.items == []

    await pool.execute("UPDATE runners SET disconnected_at = NULL")
    (waiting,) = (await api.ask("GET", "/builds/waiting")).items
    assert waiting["reason"] == "A connected runner that fits takes it next."
    assert "waiting_for" not in (await api.ask("GET", f"/builds/{waiting['id']}")).json


async def test_builds_that_wait_come_in_pages_the_oldest_first(api: WorkspaceApi) -> None:
    made = [await api.make() for _ in range(3)]
    first = await api.ask("GET", "/builds/waiting?limit=2")
    rest = await api.ask("GET", f"/builds/waiting?limit=2&cursor={first.cursor}")
    listed = [one["workspace_id"] for one in (*first.items, *rest.items)]
    assert listed == [one["id"] for one in made]
    assert "has been removed" in str(first.items[0]["reason"])
