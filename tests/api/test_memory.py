"""Notes of the memory over HTTP: who sees them, and that a proposal is kept once."""

import asyncio
from uuid import UUID

import pytest

from chatd.domain.access.permissions import UserActor
from chatd.domain.errors import NotFound
from chatd.domain.ids import ProjectId
from chatd.domain.memory import MAX_NOTES, MAX_PROPOSALS
from chatd.store import memory
from chatd.store.account import users
from tests.api.test_projects import create_project, join
from tests.support.api.server import ADMINISTRATOR, OTHER_USER, ApiServer, Json
from tests.support.api.shares import READER
from tests.support.factories import OWNER

NEW: Json = {"text": "I use British English."}
PATH = "/memory/notes"


async def keep(server: ApiServer, text: str, **fields: object) -> str:
    made = await server.ask("POST", PATH, {"text": text, **fields})
    assert made.status == 201, made.content
    return str(made.json["id"])


async def propose(server: ApiServer, number: int, text: str = "Ada works on billing.") -> str:
    """As the tool of a model does, for the owner."""
    note_id = UUID(int=1000 + number)
    await server.replica.pool.execute(
        "INSERT INTO memory_notes (id, owner_id, state, text) VALUES ($1, $2, 'proposed', $3)",
        note_id,
        OWNER,
        text,
    )
    return str(note_id)


async def texts(server: ApiServer, query: str = "") -> list[object]:
    return [one["text"] for one in (await server.ask("GET", f"{PATH}{query}")).items]


async def test_a_note_is_kept_listed_changed_and_deleted(server: ApiServer) -> None:
    made = await server.ask("POST", PATH, {"text": " I use\u200b British English.\n"})
    assert (made.status, made.json["text"], made.json["state"]) == (201, NEW["text"], "kept")
    path = f"{PATH}/{made.json['id']}"
    assert made.headers["location"] == f"/api/v1{path}"
    assert (await server.ask("GET", PATH)).items == [made.json]
    off = await server.ask("PATCH", path, {"enabled": False})
    assert (off.json.get("enabled"), off.json["text"]) == (False, NEW["text"])
    changed = await server.ask("PATCH", path, {"text": "Short answers."})
    assert (await server.ask("GET", path)).json == changed.json
    assert (changed.json["text"], changed.json.get("enabled")) == ("Short answers.", False)
    assert (await server.ask("DELETE", path)).status == 204
    for method, body in (("GET", None), ("PATCH", {"enabled": True}), ("DELETE", None)):
        assert (await server.ask(method, path, body)).code == (404, "not_found")


@pytest.mark.parametrize("text", ["", " \n", "\u200b\U000e0041", "x" * 501, "x" * 9000])
async def test_a_note_that_breaks_a_rule_is_refused(server: ApiServer, text: str) -> None:
    refused = await server.ask("POST", PATH, {"text": text})
    assert (refused.status, refused.field) == (400, "text")
    note = await keep(server, "a")
    refused = await server.ask("PATCH", f"{PATH}/{note}", {"text": text})
    assert (refused.status, refused.field) == (400, "text")
    assert await texts(server) == ["a"]


async def test_notes_are_moved(server: ApiServer) -> None:
    ids = [await keep(server, text) for text in ("a", "b", "c")]
    await server.ask("PATCH", f"{PATH}/{ids[2]}", {"place": 1})
    assert await texts(server) == ["c", "a", "b"]
    await server.ask("PATCH", f"{PATH}/{ids[2]}", {"place": 99, "text": "C"})
    assert await texts(server) == ["a", "b", "C"]
    await keep(server, "d")
    assert await texts(server) == ["a", "b", "C", "d"]


async def test_a_user_has_only_so_many_notes(server: ApiServer) -> None:
    for number in range(MAX_NOTES - 1):
        await keep(server, f"note {number}")
    proposed = [await propose(server, number, f"p {number}") for number in range(2)]
    last = await asyncio.gather(
        *(server.ask("POST", f"{PATH}/{one}/accept") for one in proposed),
        server.ask("POST", PATH, NEW),
    )
    assert sorted(one.status for one in last)[1:] == [409, 409]
    assert {one.code for one in last if one.status == 409} == {(409, "too_many_notes")}
    page = await server.ask("GET", f"{PATH}?limit=30")
    rest = await server.ask("GET", f"{PATH}?limit=30&cursor={page.cursor}")
    assert len(page.items) + len(rest.items) == MAX_NOTES


@pytest.mark.promise("P12")
async def test_nobody_sees_anothers_notes_whatever_the_role(server: ApiServer) -> None:
    kept, proposed = await keep(server, "a"), await propose(server, 1)
    for token in (OTHER_USER, ADMINISTRATOR):
        assert (await server.ask("GET", PATH, token=token)).items == []
        for state in ("kept", "proposed"):
            listed = await server.ask("GET", f"{PATH}?state={state}", token=token)
            assert listed.items == []
        for note in (kept, proposed):
            for method, path, body in (
                ("GET", "", None),
                ("PATCH", "", {"text": "x"}),
                ("DELETE", "", None),
                ("POST", "/accept", None),
                ("POST", "/dismiss", None),
            ):
                asked = await server.ask(method, f"{PATH}/{note}{path}", body, token=token)
                assert asked.code == (404, "not_found")
    assert await texts(server) == ["a"]


async def test_a_proposal_that_is_accepted_twice_is_one_note(server: ApiServer) -> None:
    note = await propose(server, 1)
    assert await texts(server) == [], "nothing is kept before the person accepts"
    assert await texts(server, "?state=proposed") == ["Ada works on billing."]
    one, two = await asyncio.gather(
        server.ask("POST", f"{PATH}/{note}/accept", {"text": "Ada works on invoices."}),
        server.ask("POST", f"{PATH}/{note}/accept"),
    )
    assert (one.status, two.status, one.json["id"]) == (200, 200, note)
    assert one.json == two.json, "the first of them counts"
    again = await server.ask("POST", f"{PATH}/{note}/accept", {"text": "Something else."})
    assert again.json == one.json
    assert await texts(server) == [one.json["text"]]
    assert await texts(server, "?state=proposed") == []
    assert (await server.ask("POST", f"{PATH}/{note}/dismiss")).code == (409, "note_kept")


async def test_a_proposal_is_dismissed_and_may_be_accepted_later(server: ApiServer) -> None:
    note = await propose(server, 1)
    path = f"{PATH}/{note}"
    assert (await server.ask("PATCH", path, {"enabled": False})).code == (404, "not_found")
    for _ in range(2):
        assert (await server.ask("POST", f"{path}/dismiss")).json["state"] == "dismissed"
    assert await texts(server, "?state=proposed") == []
    refused = await server.ask("POST", f"{path}/accept", {"text": "\u200b"})
    assert (refused.status, refused.field) == (400, "text")
    assert (await server.ask("POST", f"{path}/accept")).json["state"] == "kept"


async def test_only_the_newest_dismissed_proposals_are_remembered(server: ApiServer) -> None:
    for number in range(MAX_PROPOSALS + 3):
        note = await propose(server, number)
        await server.ask("POST", f"{PATH}/{note}/dismiss")
    rows = await server.replica.pool.fetch("SELECT id FROM memory_notes")
    assert {row["id"].int for row in rows} == set(range(1003, 1003 + MAX_PROPOSALS))


async def test_notes_of_a_project_are_for_the_members_who_may_write(server: ApiServer) -> None:
    project = await create_project(server)
    await join(server, project, "writer")
    note = await keep(server, "Amounts are in cents.", project_id=project)
    query, path = f"?project_id={project}", f"{PATH}/{note}"
    assert await texts(server) == []
    listed = await server.ask("GET", f"{PATH}{query}", token=OTHER_USER)
    assert [one["text"] for one in listed.items] == ["Amounts are in cents."]
    changed = await server.ask("PATCH", path, {"text": "In euros."}, token=OTHER_USER)
    assert changed.json["text"] == "In euros."
    assert (await server.ask("GET", f"{PATH}{query}", token=ADMINISTRATOR)).status == 404
    await join(server, project, "reader")
    assert (await server.ask("GET", f"{PATH}{query}", token=OTHER_USER)).status == 403
    assert (await server.ask("GET", path, token=OTHER_USER)).code == (404, "not_found")
    body = {**NEW, "project_id": project}
    assert (await server.ask("POST", PATH, body, token=OTHER_USER)).status == 403
    proposed = await propose(server, 1)
    kept = await server.ask("POST", f"{PATH}/{proposed}/accept", {"project_id": project})
    assert kept.json["project_id"] == project
    assert len(await texts(server, query)) == 2
    audit = await server.replica.pool.fetch(
        "SELECT action, detail::text FROM audit_log WHERE action LIKE 'project.%note' ORDER BY id"
    )
    assert [row["action"] for row in audit] == [
        *("project.add_note", "project.change_note", "project.add_note")
    ]
    assert not any("euros" in row["detail"] for row in audit), "texts are not in the log"
    assert (await server.ask("DELETE", f"/projects/{project}")).status == 204
    assert (await server.ask("GET", path)).code == (404, "not_found")


async def test_a_deployment_may_take_no_notes(server: ApiServer) -> None:
    kept, proposed = await keep(server, "a"), await propose(server, 1)
    assert (await server.ask("GET", "/settings/me")).json["memory_allowed"] is True
    off = await server.ask("PATCH", "/settings", {"memory": False}, token=ADMINISTRATOR)
    assert off.json["memory"] is False
    assert (await server.ask("POST", PATH, NEW)).code == (403, "memory_off")
    refused = await server.ask("POST", f"{PATH}/{proposed}/accept")
    assert refused.code == (403, "memory_off")
    assert (await server.ask("GET", "/settings/me")).json["memory_allowed"] is False
    assert await texts(server) == ["a"], "they can be read and deleted"
    assert (await server.ask("DELETE", f"{PATH}/{kept}")).status == 204


async def test_a_user_chooses(server: ApiServer) -> None:
    assert (await server.ask("GET", "/settings/me")).json["memory"] == "notes"
    chosen = await server.ask("PATCH", "/settings/me", {"memory": "proposals"})
    assert chosen.json["memory"] == "proposals"
    assert (await server.ask("PATCH", "/settings/me", {"memory": "all"})).status == 400


async def test_notes_are_deleted_with_the_account(server: ApiServer) -> None:
    project = await create_project(server)
    await keep(server, "a")
    await keep(server, "b", project_id=project)
    await propose(server, 1)
    admin = UserActor(user_id=UUID(READER), role="admin")  # pyright: ignore[reportArgumentType]
    async with server.replica.pool.transaction() as session:
        await users.delete(session, admin, OWNER)
    owner = UserActor(user_id=OWNER, role="member")
    for whose in (None, ProjectId(UUID(project))):  # a request that had begun before
        with pytest.raises(NotFound):
            async with server.replica.pool.transaction() as session:
                await memory.insert(session, owner, UUID(int=5), text="late", project_id=whose)
    assert await server.replica.pool.fetchval("SELECT count(*) FROM memory_notes") == 0
