"""Credentials of hosts over the API: given, listed without the secret, replaced, deleted; and what
a workspace may reach with them."""

from uuid import UUID

import pytest

from chatd.domain.workspace.entities import TemplateSpec, VersionId
from chatd.domain.workspace.network import Refusal
from chatd.store.workspace import templates
from tests.api.workspace_api import WorkspaceApi
from tests.support.api.server import ADMINISTRATOR, OTHER_USER, ApiServer
from tests.support.api.shares import create_group
from tests.support.factories import AT, OWNER
from tests.support.workspaces import template, version

BODY = {"host": "Registry.Example.org", "secret": "very-secret-1"}
ALLOWED = VersionId(UUID(int=0x7E4))


@pytest.mark.promise("P13")
async def test_a_credential_is_given_replaced_and_deleted_and_its_secret_is_never_returned(
    server: ApiServer,
) -> None:
    made = await server.ask("POST", "/host-credentials", BODY)
    assert made.status == 201, made.content
    fields = ("host", "port", "path", "scheme", "scope", "group")
    assert [made.json[name] for name in fields] == [
        *("registry.example.org", 443, "/", "bearer", "user", None)
    ]
    basic = {**BODY, "scheme": "basic", "username": "ada", "secret": "very-secret-2"}
    again = await server.ask("POST", "/host-credentials", basic)
    narrow = await server.ask("POST", "/host-credentials", {**BODY, "path": "/team/"})
    listed = await server.ask("GET", "/host-credentials")
    assert [one["id"] for one in listed.items] == [again.json["id"], narrow.json["id"]]
    assert narrow.json["path"] == "/team"
    strangers = await server.ask("GET", "/host-credentials", token=OTHER_USER)
    assert strangers.items == []
    path = f"/host-credentials/{again.json['id']}"
    assert (await server.ask("DELETE", path, token=OTHER_USER)).status == 404
    shared = f"/host-credential-configs/{again.json['id']}"
    assert (await server.ask("DELETE", shared, token=ADMINISTRATOR)).status == 404
    assert (await server.ask("DELETE", path)).status == 204
    assert (await server.ask("DELETE", path)).status == 404
    audit = await server.ask("GET", "/audit", token=ADMINISTRATOR)
    assert [one["action"] for one in audit.items] == [
        *("host_credential.delete", *["host_credential.save"] * 3)
    ]
    pages = (made, again, narrow, listed, audit)
    assert not any(b"very-secret" in each.content for each in pages)
    statement = "SELECT json_agg(c)::text FROM host_credentials c"
    assert "very-secret" not in await server.replica.pool.fetchval(statement)


async def test_administrators_give_credentials_to_all_users_and_to_groups(
    server: ApiServer,
) -> None:
    await create_group(server, str(OWNER), name="data")
    configs = "/host-credential-configs"
    assert (await server.ask("POST", configs, BODY)).status == 403
    for group, scope in (("", "deployment"), ("Data", "group")):
        made = await server.ask("POST", configs, {**BODY, "group": group}, token=ADMINISTRATOR)
        assert (made.status, made.json["scope"]) == (201, scope), made.content
    wrong = await server.ask("POST", configs, {**BODY, "group": "none"}, token=ADMINISTRATOR)
    assert (wrong.status, "there is no such group" in str(wrong.json)) == (400, True)
    listed = await server.ask("GET", configs, token=ADMINISTRATOR)
    assert sorted(str(one["group"]) for one in listed.items) == ["None", "data"]
    assert (await server.ask("GET", "/host-credentials")).items == []


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"host": "*.example.org"}, "host"),
        ({"host": "https://example.org"}, "host"),
        ({"host": "example.org:443"}, "host"),
        ({"host": "127.1"}, "host"),
        ({"port": 0}, "port"),
        ({"path": "team"}, "path"),
        ({"path": "/a/../b"}, "path"),
        ({"path": "/a%2e"}, "path"),
        ({"path": "/a\r\nX: y"}, "path"),
        ({"secret": "short"}, "secret"),
        ({"secret": "very-secret\r\nHost: evil"}, "secret"),
        ({"secret": "very-secret\n"}, "secret"),
        ({"secret": "very sécret"}, "secret"),
        ({"scheme": "digest"}, "scheme"),
        ({"scheme": "header"}, "header"),
        ({"scheme": "header", "header": "X: y\r\nZ"}, "header"),
        ({"scheme": "header", "header": "Content-Length"}, "header"),
        ({"scheme": "header", "header": "Proxy-Authorization"}, "header"),
        ({"scheme": "bearer", "header": "X-Token"}, "header"),
        ({"scheme": "basic"}, "username"),
        ({"scheme": "basic", "username": "a:b"}, "username"),
        ({"scheme": "bearer", "username": "ada"}, "username"),
    ],
)
async def test_a_wrong_credential_is_refused_by_field(
    server: ApiServer, wrong: dict[str, object], field: str
) -> None:
    refused = await server.ask("POST", "/host-credentials", {**BODY, **wrong})
    assert refused.status == 400
    assert field in str(refused.json)
    assert b"very-secret" not in refused.content
    assert (await server.ask("GET", "/host-credentials")).items == []


async def test_a_user_has_a_limited_number_of_credentials(server: ApiServer) -> None:
    for number in range(20):
        made = await server.ask("POST", "/host-credentials", {**BODY, "path": f"/{number}"})
        assert made.status == 201
    refused = await server.ask("POST", "/host-credentials", {**BODY, "path": "/more"})
    assert (refused.status, refused.json["code"]) == (409, "too_many_host_credentials")
    replaced = await server.ask("POST", "/host-credentials", {**BODY, "path": "/3"})
    assert replaced.status == 201


async def test_the_network_of_a_workspace_is_shown_with_its_credentials_and_refusals(
    api: WorkspaceApi,
) -> None:
    plain = await api.make()
    shown = await api.ask("GET", f"/workspaces/{plain['id']}/network")
    assert (shown.json["mode"], shown.json["allow"]) == ("none", [])
    await api.ask("DELETE", f"/workspaces/{plain['id']}")

    spec = TemplateSpec(network="allow", allow=("registry.example.org", "*.corp.example"))
    put = templates.TemplateUpsert(
        template=template(active_version_id=ALLOWED), version=version(id=ALLOWED, spec=spec)
    )
    assert await templates.upsert_template(api.pool, put) is not None
    configs = "/host-credential-configs"
    for body in (BODY, {**BODY, "path": "/mine"}, {**BODY, "host": "elsewhere.example"}):
        assert (await api.ask("POST", "/host-credentials", body)).status == 201
    shared = {**BODY, "host": "git.corp.example"}
    assert (await api.ask("POST", configs, shared, token=ADMINISTRATOR)).status == 201
    tokens = [{"host": "a.corp.example", "in_workspaces": True}, {"host": "b.corp.example"}]
    for token in tokens:
        body = {"kind": "gitea", "token": "very-secret-3", **token}
        assert (await api.ask("POST", "/git-credentials", body)).status == 201
    made = await api.make()
    path = f"/workspaces/{made['id']}/network"
    waiting = await api.ask("GET", path)
    assert waiting.json["refusals_unknown"] == "The workspace does not run: start it."
    api.control.refused = [
        Refusal(host="evil.example", port=443, reason="not_allowed", count=3, last_at=AT)
    ]
    shown = await api.ask("GET", path)
    assert shown.json["allow"] == list(spec.allow)
    assert [
        (one["host"], one["path"], one["scope"], one["git_only"]) for one in shown.at("credentials")
    ] == [
        ("registry.example.org", "/mine", "user", False),
        ("registry.example.org", "/", "user", False),
        ("a.corp.example", "/", "user", True),
        ("git.corp.example", "/", "deployment", False),
    ]
    (refused,) = shown.at("refusals")
    assert (refused["host"], refused["count"], refused["reason"]) == (
        *("evil.example", 3, "not_allowed"),
    )
    assert shown.json["refusals_unknown"] is None
    assert b"very-secret" not in shown.content
    assert (await api.ask("GET", path, token=OTHER_USER)).status == 404
