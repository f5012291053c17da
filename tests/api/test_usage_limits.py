"""Spend limits over the API: who may set them, which one holds, and one's own status."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from chatd.domain.access.permissions import ADMIN_USER_ID, UserActor
from chatd.domain.ids import GroupId, UserId
from chatd.store.account import groups
from tests.support.api.server import ADMINISTRATOR, OTHER_OWNER, OTHER_USER, ApiReply, ApiServer
from tests.support.factories import OWNER

pytestmark = pytest.mark.promise("P11")

ADMIN = UserActor(user_id=ADMIN_USER_ID, role="admin")
UNKNOWN = "0193c5a0-0000-7000-8000-000000000000"
GROUP = GroupId(UUID(int=900))
FORBIDDEN = (403, "forbidden")


async def set_limit(
    server: ApiServer, path: str, body: Mapping[str, object], token: str = ADMINISTRATOR
) -> ApiReply:
    return await server.ask("PUT", f"/usage-limits{path}", dict(body), token=token)


async def status_of(server: ApiServer, token: str | None = None) -> Mapping[str, object]:
    if token is None:
        return (await server.ask("GET", "/usage-limits/status")).json
    return (await server.ask("GET", "/usage-limits/status", token=token)).json


async def add_users(server: ApiServer) -> None:
    """The users of the tokens, in a group."""
    for user_id, name in ((OWNER, "me"), (OTHER_OWNER, "other")):
        await server.replica.pool.execute(
            """INSERT INTO users (id, username, role) VALUES ($1, $2, 'member')
               ON CONFLICT (id) DO UPDATE SET username = excluded.username""",
            user_id,
            name,
        )
    async with server.replica.pool.transaction() as session:
        await groups.create(session, ADMIN, GROUP, "research")
        await groups.add_member(session, ADMIN, GROUP, UserId(OWNER))


async def test_without_a_limit_the_default_is_that_of_the_settings(server: ApiServer) -> None:
    found = await server.ask("GET", "/usage-limits", token=ADMINISTRATOR)
    assert found.json == {
        "spend_limit_micros": None,
        "period": "month",
        "source": "settings",
        "updated_at": None,
        "settings_spend_limit_micros": None,
        "settings_period": "month",
        "unpriced_model_count": found.json["unpriced_model_count"],
        "overrides": [],
        "group_overrides": [],
    }
    status = await status_of(server)
    assert (status["is_limited"], status["source"]) == (False, None)
    assert status["current_spend_micros"] == 0


async def test_the_users_own_limit_wins_over_the_groups_and_these_over_the_default(
    server: ApiServer,
) -> None:
    await add_users(server)
    made = await set_limit(server, "", {"spend_limit_micros": 9_000, "period": "day"})
    assert (made.json["spend_limit_micros"], made.json["source"]) == (9_000, "database")
    group = await set_limit(server, f"/group-overrides/{GROUP}", {"spend_limit_micros": 7_000})
    assert (group.json["group_name"], group.json["member_count"]) == ("research", 1)
    mine, theirs = await status_of(server), await status_of(server, OTHER_USER)
    assert (mine["spend_limit_micros"], mine["source"], mine["period"]) == (7_000, "group", "day")
    assert (theirs["spend_limit_micros"], theirs["source"]) == (9_000, "default")
    own = await set_limit(server, f"/overrides/{OWNER}", {"spend_limit_micros": 8_000})
    assert own.json == {
        "user_id": str(OWNER),
        "username": "me",
        "name": own.json["name"],
        "spend_limit_micros": 8_000,
    }
    assert (await status_of(server))["source"] == "user"
    everything = (await server.ask("GET", "/usage-limits", token=ADMINISTRATOR)).json
    assert everything["overrides"] == [own.json]
    assert everything["group_overrides"] == [group.json]
    for path in (f"overrides/{OWNER}", f"group-overrides/{GROUP}"):
        gone = await server.ask("DELETE", f"/usage-limits/{path}", token=ADMINISTRATOR)
        assert gone.status == 204
        again = await server.ask("DELETE", f"/usage-limits/{path}", token=ADMINISTRATOR)
        assert again.code == (404, "not_found")
    assert (await status_of(server))["source"] == "default"
    await server.ask("DELETE", "/usage-limits", token=ADMINISTRATOR)
    assert (await status_of(server))["is_limited"] is False


async def test_limits_are_listed_in_pages_by_name(server: ApiServer) -> None:
    await add_users(server)
    for user in (OTHER_OWNER, OWNER):
        await set_limit(server, f"/overrides/{user}", {"spend_limit_micros": 5})
    path = "/usage-limits/overrides?limit=1"
    first = await server.ask("GET", path, token=ADMINISTRATOR)
    assert ([one["username"] for one in first.items], first.json["has_more"]) == (["me"], True)
    second = await server.ask("GET", f"{path}&cursor={first.cursor}", token=ADMINISTRATOR)
    assert [one["username"] for one in second.items] == ["other"]
    assert second.json["next_cursor"] is None


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("", {"spend_limit_micros": 0}, "spend_limit_micros"),
        ("", {"spend_limit_micros": 5, "period": "year"}, "period"),
        ("", {"spend_limit_micros": 5, "priod": "day"}, "priod"),
        (f"/overrides/{OWNER}", {"spend_limit_micros": None}, "spend_limit_micros"),
        ("/overrides/me", {"spend_limit_micros": 5}, "user_id"),
    ],
)
async def test_a_bad_limit_is_refused(
    server: ApiServer, path: str, body: Mapping[str, object], field: str
) -> None:
    refused = await set_limit(server, path, body)
    assert refused.code == (400, "invalid_input")
    assert refused.field == field


async def test_a_limit_of_an_unknown_user_or_group_is_not_found(server: ApiServer) -> None:
    for path in (f"/overrides/{UNKNOWN}", f"/group-overrides/{UNKNOWN}"):
        refused = await set_limit(server, path, {"spend_limit_micros": 5})
        assert refused.code == (404, "not_found")


async def test_members_neither_read_nor_set_limits(server: ApiServer) -> None:
    assert (await server.ask("GET", "/usage-limits")).code == FORBIDDEN
    assert (await server.ask("GET", "/usage-limits/overrides")).code == FORBIDDEN
    body = {"spend_limit_micros": 5}
    for path in ("", f"/overrides/{OWNER}", f"/group-overrides/{GROUP}"):
        refused = await server.ask("PUT", f"/usage-limits{path}", dict(body))
        assert refused.code == FORBIDDEN


async def test_every_change_is_in_the_audit_log(server: ApiServer) -> None:
    await add_users(server)
    await set_limit(server, "", {"spend_limit_micros": None})
    await set_limit(server, f"/overrides/{OWNER}", {"spend_limit_micros": 5})
    rows = await server.replica.pool.fetch(
        "SELECT action FROM audit_log WHERE object_type = 'spend_limit' ORDER BY id"
    )
    assert [row["action"] for row in rows] == ["spend_limit.set_default", "spend_limit.set_user"]
