"""Projects over HTTP: what they have, who belongs to them, and what becomes of their chats."""

import asyncio
from uuid import UUID

import pytest

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.worker_transitions import acquire
from chatd.domain.ids import ProjectId, UserId
from chatd.domain.projects import MAX_PROJECT_FILES, MAX_PROJECTS_PER_USER
from chatd.store import projects
from tests.api.test_files import upload_id
from tests.api.test_shares import insert_subagent
from tests.support.api.accounts import hears, listening_changes
from tests.support.api.server import (
    CLEVER,
    ME,
    OTHER_USER,
    RETIRED,
    ApiOptions,
    ApiServer,
    Json,
    message_body,
    serve_api,
)
from tests.support.api.shares import READER, set_sharing, two_replicas
from tests.support.api.sse_viewer import SseViewer, event_source, reached
from tests.support.eventually import eventually
from tests.support.factories import OWNER, WORKER
from tests.support.store import has_lock_waiter

NEW: Json = {"name": "Billing", "instructions": "Amounts are in cents."}
UNKNOWN = "00000000-0000-0000-0000-00000000beef"


async def create_project(server: ApiServer, token: str = ME, **fields: object) -> str:
    made = await server.ask("POST", "/projects", {**NEW, **fields}, token=token)
    assert made.status == 201, made.content
    return str(made.json["id"])


async def join(server: ApiServer, project: str, role: str = "reader", user: str = READER) -> None:
    path = f"/projects/{project}/members/{user}"
    assert (await server.ask("PUT", path, {"role": role})).json["role"] == role


async def project_of(server: ApiServer, chat_id: object, token: str = ME) -> object:
    return (await server.ask("GET", f"/chats/{chat_id}", token=token)).json.get("project_id")


async def test_a_project_is_created_listed_changed_and_deleted(server: ApiServer) -> None:
    made = await server.ask("POST", "/projects", NEW)
    assert (made.status, made.json["role"], made.json["member_count"]) == (201, "owner", 1)
    path = f"/projects/{made.json['id']}"
    assert made.headers["location"] == f"/api/v1{path}"
    assert (await server.ask("GET", "/projects")).items == [made.json]
    changed = await server.ask("PATCH", path, {"name": " Billing \u200b 2 ", "version": 1})
    assert (changed.json["name"], changed.json["version"]) == ("Billing 2", 2)
    assert changed.json["instructions"] == NEW["instructions"]
    late = await server.ask("PATCH", path, {"instructions": "Other.", "version": 1})
    assert late.code == (409, "version_conflict")
    assert (await server.ask("GET", path)).json == changed.json
    assert (await server.ask("DELETE", path)).status == 204
    assert (await server.ask("GET", path)).code == (404, "not_found")
    assert (await server.ask("DELETE", path)).code == (404, "not_found")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "\u200b \n"),
        ("name", "x" * 101),
        ("instructions", "ä" * 16_385),
        ("model_config_id", UNKNOWN),
        ("model_config_id", str(RETIRED.id)),
        ("template_id", UNKNOWN),
    ],
)
async def test_a_project_that_breaks_a_rule_is_refused(
    server: ApiServer, field: str, value: str
) -> None:
    refused = await server.ask("POST", "/projects", {**NEW, field: value})
    assert (refused.status, refused.field) == (400, field)
    project = await create_project(server)
    refused = await server.ask("PATCH", f"/projects/{project}", {field: value})
    assert (refused.status, refused.field) == (400, field)
    (listed,) = (await server.ask("GET", "/projects")).items
    assert (listed["name"], listed["version"]) == ("Billing", 1)


async def test_a_chat_is_created_in_a_project_with_its_default_model(server: ApiServer) -> None:
    project = await create_project(server, model_config_id=str(CLEVER.id))
    made = await server.ask("POST", "/chats", {**message_body("hi"), "project_id": project})
    assert (made.status, made.json["project_id"]) == (201, project)
    assert made.json["last_model_config_id"] == str(CLEVER.id)
    named = {**message_body("hi"), "project_id": project, "model": "fast"}
    other = await server.ask("POST", "/chats", named)
    assert other.json["last_model_config_id"] != str(CLEVER.id)
    plain = await server.create("outside")
    found = (await server.ask("GET", f"/chats?project_id={project}")).items
    assert {chat["id"] for chat in found} == {made.json["id"], other.json["id"]}
    assert (await server.ask("GET", f"/projects/{project}")).json["chat_count"] == 2
    assert await project_of(server, plain) is None


async def test_a_chat_moves_into_a_project_and_out_with_its_subagents(server: ApiServer) -> None:
    project, chat_id = await create_project(server), await server.create()
    child = await insert_subagent(server, chat_id)
    moved = await server.ask("PATCH", f"/chats/{chat_id}", {"project_id": project})
    assert (moved.status, moved.json["project_id"]) == (200, project)
    assert await project_of(server, child) == project
    refused = await server.ask("PATCH", f"/chats/{child}", {"project_id": None})
    assert refused.code == (409, "not_a_root_chat")
    left = await server.ask("PATCH", f"/chats/{chat_id}", {"project_id": None})
    assert "project_id" not in left.json
    assert await project_of(server, child) is None
    gone = await server.ask("PATCH", f"/chats/{chat_id}", {"project_id": UNKNOWN, "title": "New"})
    assert gone.code == (404, "not_found")
    assert (await server.ask("GET", f"/chats/{chat_id}")).json["title"] != "New"


@pytest.mark.promise("P12")
async def test_members_read_the_chats_of_a_project_and_nobody_else_does(server: ApiServer) -> None:
    project, chat_id = await create_project(server), await server.create()
    child = await insert_subagent(server, chat_id)
    await server.ask("PATCH", f"/chats/{chat_id}", {"project_id": project})
    for path in (f"/chats/{chat_id}", f"/chats/{child}", f"/projects/{project}"):
        assert (await server.ask("GET", path, token=OTHER_USER)).code == (404, "not_found")
    await join(server, project)
    seen = await server.ask("GET", f"/chats/{chat_id}", token=OTHER_USER)
    assert (seen.status, seen.json["is_owner"], seen.json["shared"]) == (200, False, True)
    assert (await server.ask("GET", f"/chats/{child}", token=OTHER_USER)).status == 200
    for query in (f"project_id={project}", "source=shared", f"q=project:{project}"):
        listed = await server.ask("GET", f"/chats?{query}", token=OTHER_USER)
        assert [chat["id"] for chat in listed.items] == [str(chat_id)], query
    own = await server.ask("GET", f"/chats?project_id={project}&source=mine", token=OTHER_USER)
    assert own.items == []
    sent = await server.ask(
        "POST", f"/chats/{chat_id}/messages", message_body("x"), token=OTHER_USER
    )
    assert sent.code == (403, "forbidden")
    gone = await server.ask("DELETE", f"/projects/{project}/members/{READER}")
    assert gone.status == 204
    assert (await server.ask("GET", f"/chats/{chat_id}", token=OTHER_USER)).status == 404
    assert (await server.ask("GET", f"/chats?project_id={project}", token=OTHER_USER)).items == []


@pytest.mark.promise("P12")
async def test_without_sharing_a_project_is_of_its_owner_alone(dsn: str) -> None:
    async with (
        listening_changes(dsn) as changes,
        serve_api(dsn, ApiOptions(changes=changes)) as server,
        asyncio.timeout(30),
    ):
        project, chat_id = await create_project(server), await server.create()
        await server.ask("PATCH", f"/chats/{chat_id}", {"project_id": project})
        await join(server, project, "writer")
        heard = hears(changes, "settings")
        await set_sharing(server, enabled=False)
        await heard.wait()
        for path in (f"/chats/{chat_id}", f"/projects/{project}"):
            assert (await server.ask("GET", path, token=OTHER_USER)).status == 404
        listed = await server.ask("GET", f"/chats?project_id={project}", token=OTHER_USER)
        assert listed.items == []
        body = {**message_body("hi"), "project_id": project}
        assert (await server.ask("POST", "/chats", body, token=OTHER_USER)).status == 404
        assert (await server.ask("POST", "/chats", body)).status == 201
        refused = await server.ask(
            "PUT", f"/projects/{project}/members/{READER}", {"role": "reader"}
        )
        assert refused.code == (403, "sharing_disabled")


@pytest.mark.promise("P12")
async def test_only_writers_put_chats_into_a_project_and_change_it(server: ApiServer) -> None:
    project = await create_project(server)
    body = {**message_body("hi"), "project_id": project}
    assert (await server.ask("POST", "/chats", body, token=OTHER_USER)).status == 404
    await join(server, project, "reader")
    assert (await server.ask("POST", "/chats", body, token=OTHER_USER)).status == 403
    own = await server.ask("POST", "/chats", message_body("mine"), token=OTHER_USER)
    move = ("PATCH", f"/chats/{own.json['id']}", {"project_id": project})
    assert (await server.ask(*move, token=OTHER_USER)).status == 403
    await join(server, project, "writer")
    assert (await server.ask("POST", "/chats", body, token=OTHER_USER)).status == 201
    assert (await server.ask(*move, token=OTHER_USER)).status == 200
    change = ("PATCH", f"/projects/{project}", {"instructions": "Use euros."})
    assert (await server.ask(*change, token=OTHER_USER)).status == 200
    for method, path in (
        ("PUT", f"/projects/{project}/members/{OWNER}"),
        ("DELETE", f"/projects/{project}"),
    ):
        given = {"role": "reader"} if method == "PUT" else None
        assert (await server.ask(method, path, given, token=OTHER_USER)).status == 403
    assert (await server.ask("GET", f"/chats/{own.json['id']}")).status == 200, "the owner reads it"


@pytest.mark.promise("P12")
async def test_the_chats_and_files_of_a_member_who_leaves_leave_too(server: ApiServer) -> None:
    project = await create_project(server)
    await join(server, project, "writer")
    body = {**message_body("hi"), "project_id": project}
    theirs = (await server.ask("POST", "/chats", body, token=OTHER_USER)).json["id"]
    mine = (await server.ask("POST", "/chats", body)).json["id"]
    file = await server.ask("POST", "/files", b"theirs", token=OTHER_USER)
    added = {"file_id": file.json["id"], "name": "theirs.txt"}
    assert (
        await server.ask("POST", f"/projects/{project}/files", added, token=OTHER_USER)
    ).status == 201
    left = await server.ask("DELETE", f"/projects/{project}/members/{READER}", token=OTHER_USER)
    assert left.status == 204
    assert await project_of(server, theirs, OTHER_USER) is None
    assert (await server.ask("GET", f"/chats/{theirs}")).status == 404
    assert await project_of(server, mine) == project
    assert (await server.ask("GET", f"/projects/{project}/files")).items == []
    owner = await server.ask("DELETE", f"/projects/{project}/members/{OWNER}")
    assert owner.code == (409, "project_owner")


@pytest.mark.parametrize("way", ["create", "move"])
async def test_a_chat_that_comes_while_its_owner_is_removed_is_refused_without_a_deadlock(
    server: ApiServer, way: str
) -> None:
    project = await create_project(server)
    await join(server, project, "writer")
    own = await server.ask("POST", "/chats", message_body("mine"), token=OTHER_USER)
    request = ("PATCH", f"/chats/{own.json['id']}", {"project_id": project})
    if way == "create":
        request = ("POST", "/chats", {**message_body("hi"), "project_id": project})
    owner = UserActor(user_id=OWNER, role="admin")
    place = ProjectId(UUID(project))
    async with asyncio.TaskGroup() as group, server.deps.pool.transaction() as session:
        await session.execute("SET LOCAL deadlock_timeout = '10ms'")  # this one would be the victim
        await session.fetchval(projects.LOCK, place)
        coming = group.create_task(server.ask(*request, token=OTHER_USER))
        await eventually(lambda: has_lock_waiter(server.deps.pool))
        await projects.remove_member(session, owner, place, UserId(UUID(READER)))
    assert coming.result().status == 404
    assert (await server.ask("GET", f"/chats?project_id={project}")).items == []


async def test_the_chats_of_a_deleted_project_stay(server: ApiServer) -> None:
    project = await create_project(server)
    await join(server, project)
    body = {**message_body("hi"), "project_id": project}
    chat_id = (await server.ask("POST", "/chats", body)).json["id"]
    assert (await server.ask("DELETE", f"/projects/{project}")).status == 204
    assert await project_of(server, chat_id) is None
    assert (await server.ask("GET", f"/chats/{chat_id}", token=OTHER_USER)).status == 404


async def test_a_fork_is_in_the_project_of_its_source_and_an_import_is_in_none(
    server: ApiServer,
) -> None:
    project, chat_id = await create_project(server), await server.create()
    await server.ask("PATCH", f"/chats/{chat_id}", {"project_id": project})
    fork = await server.ask("POST", f"/chats/{chat_id}/fork", {})
    assert (fork.status, fork.json["project_id"]) == (201, project)
    file = (await server.ask("GET", f"/chats/{chat_id}/export")).content
    assert project.encode() not in file
    made = await server.ask("POST", "/chats/import", file)
    assert (made.status, "project_id" in made.json) == (201, False), made.content


async def test_files_are_added_named_once_and_removed(server: ApiServer) -> None:
    project = await create_project(server)
    path = f"/projects/{project}/files"
    first = await upload_id(server, b"one", "text/plain")
    second = await upload_id(server, b"two", "text/plain")
    added = await server.ask("POST", path, {"file_id": first, "name": "a/style.md"})
    assert (added.status, added.json["name"]) == (201, "style.md")
    taken = await server.ask("POST", path, {"file_id": second, "name": "style.md"})
    assert taken.code == (409, "file_name_taken")
    renamed = await server.ask("POST", path, {"file_id": first, "name": "rules.md"})
    assert (renamed.status, renamed.json["name"]) == (201, "rules.md")
    assert (await server.ask("DELETE", f"/files/{first}")).code == (409, "file_in_use")
    assert (await server.ask("GET", f"/files/{first}", token=OTHER_USER)).status == 404
    await join(server, project)
    assert (await server.ask("GET", f"/files/{first}", token=OTHER_USER)).status == 200
    assert (await server.ask("GET", f"/files/{second}", token=OTHER_USER)).status == 404
    foreign = await server.ask("POST", path, {"file_id": UNKNOWN, "name": "x"})
    assert (foreign.code, foreign.field) == ((400, "invalid_input"), "file_id")
    assert (await server.ask("DELETE", f"{path}/{first}")).status == 204
    assert (await server.ask("DELETE", f"{path}/{first}")).code == (404, "not_found")
    assert (await server.ask("DELETE", f"/files/{first}")).status == 204


async def test_projects_and_their_files_are_limited(server: ApiServer) -> None:
    project = await create_project(server)
    pool = server.replica.pool
    await pool.execute(
        "WITH made AS (INSERT INTO files (id, owner_id, media_type, size_bytes, sha256, store,"
        " chunk_bytes) SELECT gen_random_uuid(), $2, 'text/plain', 1, repeat('0', 64), 'database',"
        " 1 FROM generate_series(1, $3) RETURNING id)"
        " INSERT INTO project_files (project_id, file_id, name) SELECT $1, id, id::text FROM made",
        *(UUID(project), OWNER, MAX_PROJECT_FILES),
    )
    one = await upload_id(server, b"more", "text/plain")
    body = {"file_id": one, "name": "more.txt"}
    full = await server.ask("POST", f"/projects/{project}/files", body)
    assert full.code == (409, "too_many_project_files")
    await pool.execute(
        "WITH made AS (INSERT INTO projects (id, name) SELECT gen_random_uuid(), 'p'"
        " FROM generate_series(2, $2) RETURNING id)"
        " INSERT INTO project_members (project_id, user_id, role) SELECT id, $1, 'owner' FROM made",
        *(OWNER, MAX_PROJECTS_PER_USER),
    )
    refused = await server.ask("POST", "/projects", NEW)
    assert refused.code == (409, "too_many_projects")


@pytest.mark.promise("P12")
async def test_streams_of_a_removed_member_end_on_every_replica(dsn: str) -> None:
    async with two_replicas(dsn) as (server, other):
        project, chat_id = await create_project(server), await server.create()
        await server.ask("PATCH", f"/chats/{chat_id}", {"project_id": project})
        await join(server, project)
        reader, owner = SseViewer(chat_id), SseViewer(chat_id)
        async with (
            event_source(other, reader.path, token=OTHER_USER) as source,
            event_source(other, owner.path) as own_source,
        ):
            await reader.watch(source, reached(1))
            await owner.watch(own_source, reached(1))
            await server.ask("DELETE", f"/projects/{project}/members/{READER}")
            async with asyncio.timeout(20):
                await reader.read_all(source)
            assert reader.end == "not_found"
            changed = await other.act(chat_id, lambda chat: acquire(chat, WORKER))
            await owner.watch(own_source, reached(changed.snapshot_version))
