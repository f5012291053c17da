"""Users, service accounts, groups and the audit log over HTTP."""

import logging

import pytest

from chatd.domain.access.permissions import ADMIN_USER_ID
from tests.support.api.accounts import PASSWORD, Browser, create_token, create_user
from tests.support.api.server import ADMINISTRATOR, ME, ApiReply, ApiServer, Json


async def administer(server: ApiServer, method: str, path: str, body: object = None) -> ApiReply:
    return await server.ask(method, path, body, token=ADMINISTRATOR)


async def test_a_user_is_created_changed_and_deleted(server: ApiServer) -> None:
    user = await create_user(server, email="ada@example.com", name="Ada")
    path = f"/users/{user['id']}"
    assert (user["role"], user["status"], user["has_password"]) == ("member", "active", True)
    assert PASSWORD not in str(user)
    changed = await administer(server, "PATCH", path, {"role": "viewer", "email": None})
    assert (changed.json["role"], changed.json["email"], changed.json["name"]) == (
        *("viewer", None, "Ada"),
    )
    assert (await administer(server, "GET", path)).json == changed.json
    assert (await administer(server, "DELETE", path)).status == 204
    for method in ("GET", "DELETE"):
        assert (await administer(server, method, path)).code == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"username": "a b"}, (400, "invalid_input")),
        ({"username": "ada", "password": "short"}, (400, "invalid_input")),
        ({"username": "ada", "email": "no-address"}, (400, "invalid_input")),
        ({"username": "ada", "role": "owner"}, (400, "invalid_input")),
        ({"username": "ada", "is_service": True, "password": PASSWORD}, (400, "invalid_input")),
        ({"username": "ada", "shoe_size": 40}, (400, "invalid_input")),
        ({"username": "ADMIN"}, (409, "username_taken")),
    ],
)
async def test_a_user_that_cannot_be_is_refused(
    server: ApiServer, body: Json, code: tuple[int, str]
) -> None:
    assert (await administer(server, "POST", "/users", body)).code == code


async def test_the_last_administrator_is_neither_demoted_nor_suspended_nor_deleted(
    server: ApiServer,
) -> None:
    path = f"/users/{ADMIN_USER_ID}"
    for method, body in (
        ("PATCH", {"role": "member"}),
        ("PATCH", {"status": "suspended"}),
        ("DELETE", None),
    ):
        assert (await administer(server, method, path, body)).code == (409, "last_administrator")


async def test_only_administrators_change_accounts_and_viewers_read_them(
    server: ApiServer,
) -> None:
    user = await create_user(server, role="viewer")
    viewer = await Browser(server).sign_in()
    writes = [
        ("POST", "/users", {"username": "x"}),
        ("PATCH", f"/users/{user['id']}", {"role": "admin"}),
        ("DELETE", f"/users/{user['id']}", None),
        ("POST", f"/users/{user['id']}/password", {"password": PASSWORD}),
        ("POST", f"/users/{user['id']}/tokens", {"name": "x"}),
        ("POST", "/groups", {"name": "x"}),
    ]
    for method, path, body in writes:
        assert (await server.ask(method, path, body, token=ME)).code == (403, "forbidden")
        assert (await viewer.ask(method, path, body)).code == (403, "forbidden")
    for path in ("/users", f"/users/{user['id']}", "/groups", "/audit"):
        assert (await server.ask("GET", path, token=ME)).code == (403, "forbidden")
        assert (await viewer.ask("GET", path)).status == 200


async def test_a_service_account_uses_tokens_that_administrators_make(server: ApiServer) -> None:
    robot = await create_user(server, "robot", is_service=True)
    ada = await create_user(server)
    path = f"/users/{robot['id']}/tokens"
    body = {"name": "ci", "scopes": ["chat:read", "chat:write", "account"]}
    made = await administer(server, "POST", path, body)
    token = str(made.json["token"])
    assert (await server.ask("GET", "/auth/me", token=token)).json["user"] == (
        await administer(server, "GET", f"/users/{robot['id']}")
    ).json
    own = await server.ask("POST", "/auth/tokens", {"name": "more"}, token=token)
    assert own.code == (409, "service_account")
    password = await administer(
        server, "POST", f"/users/{robot['id']}/password", {"password": PASSWORD}
    )
    assert password.code == (409, "service_account")
    other = await administer(server, "POST", f"/users/{ada['id']}/tokens", body)
    assert other.code == (403, "not_a_service_account")
    assert [one["name"] for one in (await administer(server, "GET", path)).items] == ["ci"]
    assert (await administer(server, "DELETE", f"{path}/{made.json['id']}")).status == 204
    assert (await administer(server, "GET", path)).items == []


async def test_an_administrator_sets_a_password_and_old_sessions_end(server: ApiServer) -> None:
    user = await create_user(server)
    await Browser(server).sign_in()
    path = f"/users/{user['id']}/password"
    assert (await administer(server, "POST", path, {"password": "short"})).status == 400
    new = "a completely new one"
    changed = await administer(server, "POST", path, {"password": new})
    assert (changed.status, changed.json["id"]) == (200, user["id"])
    assert new not in changed.content.decode()
    browser = await Browser(server).sign_in("ada", new)
    assert len((await browser.ask("GET", "/auth/sessions")).items) == 1


async def test_users_and_groups_are_listed_in_pages(server: ApiServer) -> None:
    for name in ("cyd", "Bea"):
        await create_user(server, name)
    names: list[object] = []
    path, cursor = "/users?limit=50", ""
    while True:
        page = await administer(server, "GET", path + cursor)
        names += [user["username"] for user in page.items]
        if not page.json["has_more"]:
            break
        cursor = f"&cursor={page.cursor}"
    assert [name for name in names if not str(name).startswith("test-")] == ["admin", "Bea", "cyd"]


async def test_a_group_has_members(server: ApiServer) -> None:
    user = await create_user(server)
    made = await administer(server, "POST", "/groups", {"name": "Crew"})
    path = f"/groups/{made.json['id']}"
    assert (await administer(server, "POST", "/groups", {"name": "CREW"})).code == (
        *(409, "name_taken"),
    )
    member = f"{path}/members/{user['id']}"
    for _ in range(2):
        joined = await administer(server, "PUT", member)
        assert (joined.status, joined.json["member_count"]) == (200, 1)
    listed = (await administer(server, "GET", f"{path}/members")).items
    assert [one["username"] for one in listed] == ["ada"]
    assert (await administer(server, "GET", path)).json["member_count"] == 1
    renamed = await administer(server, "PATCH", path, {"name": "Team"})
    assert renamed.json["name"] == "Team"
    assert [one["name"] for one in (await administer(server, "GET", "/groups")).items] == ["Team"]
    assert (await administer(server, "DELETE", member)).status == 204
    assert (await administer(server, "DELETE", member)).status == 404
    assert (await administer(server, "DELETE", path)).status == 204
    for gone in (path, f"{path}/members"):
        assert (await administer(server, "GET", gone)).status == 404


async def test_the_log_tells_who_did_what_from_where(server: ApiServer) -> None:
    user = await create_user(server)
    await administer(server, "PATCH", f"/users/{user['id']}", {"status": "suspended"})
    of_user = f"/audit?object_type=user&object_id={user['id']}"
    entry, created = (await administer(server, "GET", of_user)).items
    assert (entry["actor"], entry["ip"], entry["action"]) == ("admin", "127.0.0.1", "user.suspend")
    assert entry["detail"] == {"before": {"status": "active"}, "after": {"status": "suspended"}}
    assert created["action"] == "user.create"
    first = await administer(server, "GET", f"/audit?actor_id={ADMIN_USER_ID}&limit=1")
    assert first.items == [entry]
    path = f"/audit?actor_id={ADMIN_USER_ID}&limit=1&cursor={first.cursor}"
    assert (await administer(server, "GET", path)).items == [created]


@pytest.mark.promise("P13")
async def test_no_secret_is_logged_or_recorded(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await create_user(server)
    browser = await Browser(server).sign_in()
    token = await create_token(browser)
    secrets = [PASSWORD, *browser.cookies.values(), str(token["token"])]
    wrong = {"username": "ada", "password": "a wrong password"}
    await browser.ask("POST", "/auth/login", wrong)
    ticket = str((await browser.ask("POST", "/auth/ticket")).json["ticket"])
    async with server.http.get(f"/api/v1/events?ticket={ticket}"):
        pass
    recorded = (await administer(server, "GET", "/audit?limit=200")).content.decode()
    rows = await server.replica.pool.fetch("SELECT c::text AS text FROM credentials c")
    stored = recorded + "".join(row["text"] for row in rows)
    for secret in (*secrets, "a wrong password", ticket):
        assert secret not in caplog.text
        assert secret not in stored
