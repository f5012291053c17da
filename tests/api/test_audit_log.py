"""The audit log over HTTP: filters, pages, names, and the export as CSV."""

import csv
import io
from collections.abc import Sequence
from urllib.parse import quote

import pytest

from chatd.domain.access.permissions import ADMIN_USER_ID
from tests.support.api.server import ADMINISTRATOR, ApiServer

USER = {"username": "bob", "role": "member", "password": "correct horse battery"}


async def prepare(server: ApiServer) -> str:
    """The id of bob, who was created, renamed and suspended; then a group."""
    made = await server.ask("POST", "/users", USER, token=ADMINISTRATOR)
    user = f"/users/{made.json['id']}"
    await server.ask("PATCH", user, {"name": "=1+1"}, token=ADMINISTRATOR)
    await server.ask("PATCH", user, {"status": "suspended"}, token=ADMINISTRATOR)
    await server.ask("POST", "/groups", {"name": "Readers"}, token=ADMINISTRATOR)
    # One each day: the group on the fourth of May.
    await server.replica.pool.execute(
        """UPDATE audit_log a SET at = '2026-04-30Z'::timestamptz + n.place * interval '1 day'
           FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM audit_log) n
           WHERE n.id = a.id"""
    )
    return str(made.json["id"])


async def summaries(server: ApiServer, query: str = "") -> Sequence[str]:
    found = await server.ask("GET", f"/audit{query}", token=ADMINISTRATOR)
    assert found.status == 200, found.content
    return [str(entry["summary"]) for entry in found.items]


GROUP, SUSPENDED, CHANGED, CREATED = EVERYTHING = (
    "created the group Readers",
    "suspended the user bob",
    "changed the name of the user bob",
    "created the user bob",
)


async def test_the_log_tells_in_words_what_fits_its_filters(server: ApiServer) -> None:
    bob = await prepare(server)
    for query, expected in {
        "": EVERYTHING,
        "?object_type=user": (SUSPENDED, CHANGED, CREATED),
        f"?object_type=user&object_id={bob}": (SUSPENDED, CHANGED, CREATED),
        f"?object_type=group&object_id={bob}": (),
        f"?actor_id={ADMIN_USER_ID}&object_type=group": (GROUP,),
        f"?actor_id={bob}": (),
        "?since=2026-05-02T00:00:00Z&until=2026-05-04T00:00:00Z": (SUSPENDED, CHANGED),
        "?until=2026-05-02T02:00:00%2B02:00": (CREATED,),
        "?q=suspended": (SUSPENDED,),
        "?q=READERS": (GROUP,),
        f"?q={quote('%')}": (),
        "?object_type=user&object_id=%00": (),
    }.items():
        assert tuple(await summaries(server, query)) == expected, query
    (entry, *_) = (await server.ask("GET", "/audit?q=suspended", token=ADMINISTRATOR)).items
    assert (entry["actor_name"], entry["object_name"]) == ("admin", "bob")
    assert (entry["object_text"], entry["object_is_deleted"]) == ("the user bob", False)


async def test_pages_follow_one_another_and_a_cursor_is_of_its_filters(server: ApiServer) -> None:
    await prepare(server)
    path = "/audit?limit=1&object_type=user"
    first = await server.ask("GET", path, token=ADMINISTRATOR)
    second = await server.ask("GET", f"{path}&cursor={first.cursor}", token=ADMINISTRATOR)
    third = await server.ask("GET", f"{path}&cursor={second.cursor}", token=ADMINISTRATOR)
    seen = [entry["summary"] for page in (first, second, third) for entry in page.items]
    assert seen == [SUSPENDED, CHANGED, CREATED]
    assert third.json["next_cursor"] is None
    other = await server.ask("GET", f"/audit?limit=1&cursor={first.cursor}", token=ADMINISTRATOR)
    assert other.code == (400, "invalid_cursor")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("object_id=1", "object_id"),
        ("object_type=thing", "object_type"),
        ("since=2026-05-02T00:00:00Z&until=2026-05-02T00:00:00Z", "until"),
        ("since=yesterday", "since"),
        ("since=2026-05-02T00:00:00", "since"),
        ("since=0001-01-01T00:00:00%2B14:00", "since"),
        ("until=9999-12-31T23:59:59-14:00", "until"),
        ("actor_id=ada", "actor_id"),
        ("q=", "q"),
    ],
)
@pytest.mark.parametrize("path", ["/audit", "/audit/export.csv"])
async def test_a_bad_filter_is_refused(
    server: ApiServer, path: str, query: str, field: str
) -> None:
    refused = await server.ask("GET", f"{path}?{query}", token=ADMINISTRATOR)
    assert (refused.code, refused.field) == ((400, "invalid_input"), field)


async def test_an_export_has_what_is_filtered_is_safe_and_is_recorded(server: ApiServer) -> None:
    await prepare(server)
    path = "/audit/export.csv?object_type=user&since=2026-05-02T00:00:00Z"
    found = await server.ask("GET", path, token=ADMINISTRATOR)
    assert found.headers["content-type"] == "text/csv; charset=utf-8"
    assert found.headers["content-disposition"].startswith('attachment; filename="audit-')
    rows = list(csv.DictReader(io.StringIO(found.content.decode("utf-8-sig"), newline="")))
    assert [(row["who"], row["what"]) for row in rows] == [
        ("admin", SUSPENDED),
        ("admin", CHANGED),
    ]
    assert (await summaries(server))[0] == "exported 2 entries of the audit log"
    (entry, *_) = (await server.ask("GET", "/audit?limit=1", token=ADMINISTRATOR)).items
    assert entry["detail"] == {
        "entries": 2,
        "object_type": "user",
        "since": "2026-05-02T00:00:00Z",
    }


async def test_a_change_of_a_model_names_the_fields_that_were_given(server: ApiServer) -> None:
    provider = {"name": "p", "kind": "openai-compat", "base_url": "http://127.0.0.1:1/v1"}
    await server.ask("POST", "/providers", provider, token=ADMINISTRATOR)
    model = {"name": "claude-x", "provider": "p", "model": "x"}
    made = await server.ask("POST", "/models", model, token=ADMINISTRATOR)
    prices = {"prices": {"input": "1", "output": "2"}}
    changed = await server.ask("PATCH", f"/models/{made.json['id']}", prices, token=ADMINISTRATOR)
    assert changed.status == 200, changed.content
    assert (await summaries(server))[0] == "changed the prices of the model claude-x"


async def test_a_webhook_is_found_by_its_type_and_named_by_its_host(server: ApiServer) -> None:
    body = {"url": "https://ci.example.com/s3cr3t", "events": ["turn.finished"]}
    made = await server.ask("POST", "/webhooks", body)
    webhook_id = made.headers["location"].rpartition("/")[2]
    webhook = f"/webhooks/{webhook_id}"
    await server.ask("PATCH", webhook, {"enabled": False})
    query = f"?object_type=webhook&object_id={webhook_id}"
    assert tuple(await summaries(server, query)) == (
        "changed the webhook ci.example.com",
        "added the webhook ci.example.com",
    )
    await server.ask("DELETE", webhook)
    (deleted, changed, _) = await summaries(server, query)
    assert deleted == "deleted the webhook ci.example.com"
    assert changed == "changed the webhook ci.example.com (deleted)"
