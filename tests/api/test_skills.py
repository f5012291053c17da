"""Personal skills over HTTP."""

import pytest

from chatd.store.account.skills import MAX_SKILLS_PER_USER
from tests.support.api.server import ApiServer, Json

NEW: Json = {"name": "release-notes", "description": "Writes them.", "body": "Read the log."}


async def test_a_skill_is_created_listed_changed_and_deleted(server: ApiServer) -> None:
    made = await server.ask("POST", "/skills", NEW)
    assert (made.status, made.json["body"]) == (201, "Read the log.")
    path = f"/skills/{made.json['id']}"
    assert made.headers["location"] == f"/api/v1{path}"
    (listed,) = (await server.ask("GET", "/skills")).items
    assert (listed["name"], "body" in listed) == ("release-notes", False)
    changed = await server.ask("PATCH", path, {"name": "notes", "body": "Read it."})
    assert changed.status == 200
    found = (await server.ask("GET", path)).json
    assert found == changed.json
    assert (found["name"], found["description"]) == ("notes", "Writes them.")
    assert (await server.ask("DELETE", path)).status == 204
    assert (await server.ask("GET", path)).code == (404, "not_found")
    assert (await server.ask("PATCH", path, {"name": "a"})).code == (404, "not_found")
    assert (await server.ask("DELETE", path)).code == (404, "not_found")


async def test_a_name_is_used_once(server: ApiServer) -> None:
    await server.ask("POST", "/skills", NEW)
    other = await server.ask("POST", "/skills", {**NEW, "name": "other"})
    assert (await server.ask("POST", "/skills", NEW)).code == (409, "skill_exists")
    path = f"/skills/{other.json['id']}"
    assert (await server.ask("PATCH", path, {"name": NEW["name"]})).code == (409, "skill_exists")
    assert len((await server.ask("GET", "/skills")).items) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Release"),
        ("name", "release_notes"),
        ("name", "-a"),
        ("name", "a--b"),
        ("name", "a" * 257),
        ("name", "personal/a"),
        ("description", ""),
        ("description", " \n"),
        ("description", "ä" * 2049),
        ("body", " "),
        ("body", "x" * (64 * 1024 + 1)),
    ],
)
async def test_a_skill_that_breaks_a_rule_is_refused(
    server: ApiServer, field: str, value: str
) -> None:
    refused = await server.ask("POST", "/skills", {**NEW, field: value})
    assert (refused.status, refused.field) == (400, field)
    assert (await server.ask("GET", "/skills")).items == []


async def test_a_skill_of_the_largest_size_is_kept(server: ApiServer) -> None:
    body = "\x01" * (64 * 1024 - 1) + "x"
    large = {"name": "a" * 256, "description": "x" * 4096, "body": body}
    assert (await server.ask("POST", "/skills", large)).json["body"] == body


async def test_a_user_has_at_most_a_hundred(server: ApiServer) -> None:
    for number in range(MAX_SKILLS_PER_USER):
        made = await server.ask("POST", "/skills", {**NEW, "name": f"skill-{number}"})
        assert made.status == 201
    assert (await server.ask("POST", "/skills", NEW)).code == (409, "too_many_skills")
    page = await server.ask("GET", "/skills?limit=60")
    rest = await server.ask("GET", f"/skills?limit=60&cursor={page.cursor}")
    names = [item["name"] for item in (*page.items, *rest.items)]
    assert (len(names), names) == (MAX_SKILLS_PER_USER, sorted(map(str, names)))
