"""Connections to repositories over HTTP: administered without showing secrets, and the deliveries
of git hosts."""

import io
import json
from typing import Any

import aiohttp
import pytest

from tests.support.api.server import ADMINISTRATOR, ME, OWNER, ApiServer
from tests.support.git_apis import TOKEN, FakeGitHub, running
from tests.support.github_app import APP_ID, FakeAppGitHub, new_key, pem_of

Json = dict[str, Any]
PATH = "/repository-connections"
TEMPLATE = {
    "name": "app",
    "spec": {"network": "allow", "allow": ["github.com", "private:127.0.0.1:*"]},
    "parameters": [{"name": "repository"}],
}


async def template(server: ApiServer, **fields: object) -> str:
    body = {**TEMPLATE, **fields}
    made = await server.ask("POST", "/template-configs", body, token=ADMINISTRATOR)
    assert made.status == 201, made.content
    return str(made.json["id"])


async def create(server: ApiServer, **fields: object) -> Json:
    body = {"template_id": await template(server), **BODY, **fields}
    made = await server.ask("POST", PATH, body, token=ADMINISTRATOR)
    assert made.status == 201, made.content
    return dict(made.json)


KEY = new_key()
PEM = pem_of(KEY)
BODY: Json = {"name": "Host", "vendor": "github", "repositories": ["acme/*"], "token": TOKEN}


async def deliver(
    server: ApiServer, made: Json, host: FakeGitHub, event: str, body: Json, secret: str = ""
) -> tuple[int, Json]:
    headers, content = host.delivery(event, body, secret or str(made["secret"]))
    url = f"{server.url}{made['events_path']}"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=content, headers=headers) as reply,
    ):
        return reply.status, json.loads(await reply.read())


async def test_a_connection_is_added_listed_changed_tried_and_deleted(server: ApiServer) -> None:
    host = FakeGitHub()
    async with running(host):
        made = await create(server, url=f"{host.url}/", user_id=str(OWNER), label="agent")
        secret = made.pop("secret")
        path = f"{PATH}/{made['id']}"
        assert len(secret) >= 32
        assert (made["url"], made["user_id"], made["check_rounds"]) == (host.url, str(OWNER), 3)
        listed = await server.ask("GET", PATH, token=ADMINISTRATOR)
        assert listed.items == [made]
        assert TOKEN.encode() not in listed.content
        assert secret.encode() not in listed.content
        changed = await server.ask(
            "PATCH", path, {"label": "", "allowed": ["ada"]}, token=ADMINISTRATOR
        )
        assert (changed.json["label"], changed.json["allowed"]) == ("", ["ada"])
        tried = await server.ask("POST", f"{path}/test", token=ADMINISTRATOR)
        assert tried.json == {"ok": True, "login": "chatd-bot", "reason": ""}
        wrong = {"token": "another-token"}
        assert (await server.ask("PATCH", path, wrong, token=ADMINISTRATOR)).status == 200
        tried = await server.ask("POST", f"{path}/test", token=ADMINISTRATOR)
        assert tried.json["ok"] is False
        assert "Bad credentials" in str(tried.json["reason"])
        found = (await server.ask("GET", path, token=ADMINISTRATOR)).json
        assert "refuses the token" in str(found["problem"])
        assert (await server.ask("DELETE", path, token=ADMINISTRATOR)).status == 204
        assert (await server.ask("GET", path, token=ADMINISTRATOR)).code == (404, "not_found")
    audit = await server.ask("GET", "/audit", token=ADMINISTRATOR)
    assert TOKEN.encode() not in audit.content
    assert secret.encode() not in audit.content


async def test_a_connection_with_an_app_shows_its_id_and_never_its_key(server: ApiServer) -> None:
    host = FakeAppGitHub()
    async with running(host):
        app = {"id": APP_ID, "private_key": host.pem}
        made = await create(server, url=host.url, token=None, app=app)
        path = f"{PATH}/{made['id']}"
        assert made["app_id"] == APP_ID
        tried = await server.ask("POST", f"{path}/test", token=ADMINISTRATOR)
        assert tried.json == {"ok": True, "login": "chatd-app[bot]", "reason": ""}
        host.installations["acme"].suspended = True
        tried = await server.ask("POST", f"{path}/test", token=ADMINISTRATOR)
        assert "is suspended" in str(tried.json["reason"])
        shown = await server.ask("GET", path, token=ADMINISTRATOR)
        assert "is suspended" in str(shown.json["problem"])
        both = {"token": TOKEN, "app": app}
        refused = await server.ask("PATCH", path, both, token=ADMINISTRATOR)
        assert (refused.status, refused.field) == (400, "app")
        assert (await server.ask("PATCH", path, {"app": app}, token=ME)).status == 403
        # A token takes the place of the App, and an App that of the token.
        changed = await server.ask("PATCH", path, {"token": TOKEN}, token=ADMINISTRATOR)
        assert (changed.json["app_id"], changed.json["problem"]) == (None, None)
        changed = await server.ask("PATCH", path, {"app": app}, token=ADMINISTRATOR)
        assert changed.json["app_id"] == APP_ID
        changed = await server.ask("PATCH", path, {"label": "agent"}, token=ADMINISTRATOR)
        assert changed.json["app_id"] == APP_ID
    audit = await server.ask("GET", "/audit", token=ADMINISTRATOR)
    assert APP_ID.encode() in audit.content
    for reply in (shown, changed, audit):
        assert b"PRIVATE KEY" not in reply.content
        assert host.pem[100:140].encode() not in reply.content


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"vendor": "svn"}, "vendor"),
        ({"url": "ftp://x.example"}, "url"),
        ({"url": "https://user:pass@x.example"}, "url"),
        ({"url": "https://x.example?a=b"}, "url"),
        ({"repositories": []}, "repositories"),
        ({"repositories": ["acme/app", "*"]}, "repositories[1]"),
        ({"mention": "a b"}, "mention"),
        ({"check_rounds": 21}, "check_rounds"),
        ({"token": "short"}, "token"),
        ({"secret": "short"}, "secret"),
        ({"secret": "whsec_tooshort123"}, "secret"),
        ({"user_id": "018f4e9a-0000-7000-8000-000000000001"}, "user_id"),
        ({"model_id": "018f4e9a-0000-7000-8000-000000000001"}, "model_id"),
        ({"template_id": "018f4e9a-0000-7000-8000-000000000001"}, "template_id"),
        ({"token": None}, "token"),
        ({"app": {"id": "1", "private_key": PEM}}, "app"),
        ({"token": None, "vendor": "gitea", "app": {"id": "1", "private_key": PEM}}, "app"),
        ({"token": None, "app": {"id": "1", "private_key": "x"}}, "app.private_key"),
        ({"token": None, "app": {"id": "a b", "private_key": PEM}}, "app.id"),
        ({"token": None, "app": {"id": "1"}}, "app.private_key"),
    ],
)
async def test_a_bad_connection_is_refused_and_not_stored(
    server: ApiServer, changes: Json, field: str
) -> None:
    body = {**BODY, "template_id": await template(server), **changes}
    refused = await server.ask("POST", PATH, body, token=ADMINISTRATOR)
    assert (refused.status, refused.field) == (400, field)
    assert (await server.ask("GET", PATH, token=ADMINISTRATOR)).items == []


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": []},
        {"spec": {"network": "full"}},
        {"spec": {"network": "allow", "allow": ["gitlab.com"]}},
    ],
)
async def test_a_template_that_would_let_the_token_in_or_clones_nothing_is_refused(
    server: ApiServer, fields: Json
) -> None:
    body = {**BODY, "template_id": await template(server, **fields)}
    refused = await server.ask("POST", PATH, body, token=ADMINISTRATOR)
    assert (refused.status, refused.field) == (400, "template_id")


async def test_a_signed_event_is_stored_once_and_shown(server: ApiServer) -> None:
    made, host = await create(server), FakeGitHub()
    comment = host.comment("@chatd hello")
    assert await deliver(server, made, host, "issue_comment", comment) == (
        202,
        {"stored": True, "reason": ""},
    )
    again = await deliver(server, made, host, "issue_comment", comment)
    assert again == (202, {"stored": False, "reason": "this event is known"})
    plain = await deliver(server, made, host, "issue_comment", host.comment("hello"))
    assert plain == (202, {"stored": False, "reason": "no request"})
    assert (await deliver(server, made, host, "ping", {"zen": "x"}))[0] == 202
    events = await server.ask("GET", f"{PATH}/{made['id']}/events", token=ADMINISTRATOR)
    (event,) = events.items
    assert (event["kind"], event["repository"], event["number"], event["sender"]) == (
        "comment",
        "acme/app",
        12,
        "ada",
    )
    assert event["outcome"] == "waiting"
    member = await server.ask("GET", f"{PATH}/{made['id']}/events", token=ME)
    assert member.code == (403, "forbidden")


async def test_a_delivery_with_a_wrong_signature_or_for_no_connection_stores_nothing(
    server: ApiServer,
) -> None:
    made, host = await create(server), FakeGitHub()
    comment = host.comment("@chatd hello")
    status, body = await deliver(server, made, host, "issue_comment", comment, "x" * 32)
    assert (status, body["code"]) == (403, "signature_invalid")
    gone = {**made, "events_path": made["events_path"].replace(str(made["id"]), str(OWNER))}
    assert (await deliver(server, gone, host, "issue_comment", comment))[0] == 404
    path = f"{PATH}/{made['id']}"
    await server.ask("PATCH", path, {"enabled": False}, token=ADMINISTRATOR)
    assert (await deliver(server, made, host, "issue_comment", comment))[0] == 404
    events = await server.ask("GET", f"{path}/events", token=ADMINISTRATOR)
    assert events.items == []


async def test_what_is_no_event_or_too_long_is_refused(server: ApiServer) -> None:
    made, host = await create(server), FakeGitHub()
    url = f"{server.url}{made['events_path']}"
    signed = {"x-github-event": "issues", **host.sign(b"[]", str(made["secret"]))}
    async with aiohttp.ClientSession() as http:
        async with http.post(url, data=b"[]", headers=signed) as reply:
            assert (reply.status, (await reply.json())["code"]) == (400, "invalid_input")
        async with http.post(url, data=io.BytesIO(bytes(2 * 1024 * 1024 + 1))) as reply:
            assert reply.status == 413
