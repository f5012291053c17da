"""Costs over the API: sums by model, day and chat, of all users, and as CSV."""

import csv
import io
from datetime import date

import pytest

from chatd.api.routes.administration.costs import csv_pieces
from chatd.domain.chat.states import State
from chatd.store.model.costs import ExportedCost
from tests.support.api.server import ADMINISTRATOR, OTHER_OWNER, OTHER_USER, ApiServer
from tests.support.eventually import ticking
from tests.support.factories import CHAT, OWNER
from tests.support.seeds import Seed
from tests.support.store import insert_seed

pytestmark = pytest.mark.promise("P11")

NOT_FOUND = (404, "not_found")
SPEND = """
    INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
        input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens, cache_read_tokens,
        cost_micros, ok)
    VALUES (now() - $1 * interval '1 day', $2, $3, $3, 'turn', 'acme', $4, 10, 20, 0, 4, 3, $5,
        true)"""


async def spend(
    server: ApiServer, cost: int | None, *, owner: object = OWNER, days: int = 0, model: str = "m1"
) -> None:
    await server.replica.pool.execute(SPEND, days, owner, CHAT, model, cost)


async def add_users(server: ApiServer) -> None:
    for user_id, name in ((OWNER, "me"), (OTHER_OWNER, "=other")):
        await server.replica.pool.execute(
            """INSERT INTO users (id, username, role) VALUES ($1, $2, 'member')
               ON CONFLICT (id) DO UPDATE SET username = excluded.username""",
            user_id,
            name,
        )


async def day(server: ApiServer, ago: int) -> str:
    """By the database's clock, as the events."""
    sql = "SELECT ((now() - $1 * interval '1 day') AT TIME ZONE 'UTC')::date"
    return str(await server.replica.pool.fetchval(sql, ago))


async def test_a_summary_sums_by_model_day_and_chat(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    await spend(server, 100)
    await spend(server, 50, days=2)
    await spend(server, None, model="m2")
    await spend(server, 7_000, days=40)
    await spend(server, 900, owner=OTHER_OWNER)
    summary = await server.ask("GET", "/cost/me/summary")
    found = summary.json
    assert (found["total_cost_micros"], found["call_count"]) == (150, 3)
    assert (found["unpriced_call_count"], found["total_input_tokens"]) == (1, 30)
    models = [(one["model"], one["total_cost_micros"]) for one in summary.at("by_model")]
    assert models == [("m1", 150), ("m2", 0)]
    days = [(one["day"], one["total_cost_micros"]) for one in summary.at("by_day")]
    assert days == [(await day(server, 2), 50), (await day(server, 0), 100)]
    newest_first = list(dict.fromkeys(one["day"] for one in summary.at("by_day_and_model")))
    assert newest_first == [await day(server, 0), await day(server, 2)]
    (chat,) = summary.at("by_chat")
    assert (chat["root_chat_id"], chat["total_cost_micros"]) == (str(CHAT), 150)
    assert chat["chat_title"]
    same = (await server.ask("GET", f"/cost/{OWNER}/summary")).json
    assert same == found


async def test_a_range_ends_before_its_last_day(server: ApiServer) -> None:
    for ago in (1, 2, 3):
        await spend(server, 10**ago, days=ago)
    start, end = await day(server, 3), await day(server, 1)
    path = f"/cost/me/summary?start_date={start}&end_date={end}"
    assert (await server.ask("GET", path)).json["total_cost_micros"] == 1_100


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("start_date=2026-02-30", "start_date"),
        ("start_date=2026-02-02&end_date=2026-02-02", "end_date"),
        ("start_date=0001-01-01", "start_date"),
        ("end_date=0001-01-02", "end_date"),
        ("start=2026-02-02", "start"),
    ],
)
async def test_a_bad_range_is_refused(server: ApiServer, query: str, field: str) -> None:
    for path in ("/cost/me/summary", "/cost/summary", "/cost/users", "/cost/export.csv"):
        refused = await server.ask("GET", f"{path}?{query}", token=ADMINISTRATOR)
        assert refused.code == (400, "invalid_input")
        assert refused.field == field


async def test_costs_of_others_are_hidden_from_members_and_shown_to_administrators(
    server: ApiServer,
) -> None:
    await add_users(server)
    await spend(server, 5, owner=OTHER_OWNER)
    path = f"/cost/{OTHER_OWNER}/summary"
    assert (await server.ask("GET", path)).code == NOT_FOUND
    assert (await server.ask("GET", path, token=OTHER_USER)).json["total_cost_micros"] == 5
    assert (await server.ask("GET", path, token=ADMINISTRATOR)).json["total_cost_micros"] == 5
    for closed in ("/cost/summary", "/cost/users", "/cost/export.csv"):
        assert (await server.ask("GET", closed)).code == (403, "forbidden")


async def test_costs_of_all_users_are_summed_by_model_and_day(server: ApiServer) -> None:
    await add_users(server)
    await spend(server, 5)
    await spend(server, 9, owner=OTHER_OWNER, days=1)
    summary = await server.ask("GET", "/cost/summary", token=ADMINISTRATOR)
    assert (summary.json["total_cost_micros"], summary.json["call_count"]) == (14, 2)
    days = [(one["day"], one["total_cost_micros"]) for one in summary.at("by_day_and_model")]
    assert days == [(await day(server, 0), 5), (await day(server, 1), 9)]
    (model,) = summary.at("by_model")
    assert model["total_cost_micros"] == 14


async def test_all_users_are_listed_by_cost_and_name(server: ApiServer) -> None:
    await add_users(server)
    await spend(server, 5)
    await spend(server, 9, owner=OTHER_OWNER)
    first = await server.ask("GET", "/cost/users?limit=1", token=ADMINISTRATOR)
    assert [one["total_cost_micros"] for one in first.items] == [9]
    path = f"/cost/users?limit=1&cursor={first.cursor}"
    second = await server.ask("GET", path, token=ADMINISTRATOR)
    assert [(one["username"], one["total_cost_micros"]) for one in second.items] == [("me", 5)]
    named = await server.ask("GET", "/cost/users?name=OTH", token=ADMINISTRATOR)
    assert [one["username"] for one in named.items] == ["=other"]


async def test_the_export_has_a_row_for_each_day_user_and_model(server: ApiServer) -> None:
    await add_users(server)
    await spend(server, 5)
    await spend(server, 6)
    await spend(server, 9, owner=OTHER_OWNER, days=1)
    found = await server.ask("GET", "/cost/export.csv", token=ADMINISTRATOR)
    assert found.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(found.content.decode())))
    shown = [(row["day"], row["username"], row["calls"], row["cost_micros"]) for row in rows]
    yesterday, today = await day(server, 1), await day(server, 0)
    assert shown == [(yesterday, "'=other", "1", "9"), (today, "me", "2", "11")]


async def test_the_cost_of_a_chat_is_that_of_its_tree(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    await spend(server, 100)
    await spend(server, None)
    found = (await server.ask("GET", f"/chats/{CHAT}/cost")).json
    assert (found["total_cost_micros"], found["call_count"]) == (100, 2)
    assert (found["unpriced_call_count"], found["max_cost_micros"]) == (1, None)
    assert (await server.ask("GET", f"/chats/{CHAT}/cost", token=OTHER_USER)).code == NOT_FOUND


async def test_a_chat_is_created_with_a_budget(server: ApiServer) -> None:
    body = {"content": [{"type": "text", "text": "hi"}], "max_cost_micros": 500}
    made = await server.ask("POST", "/chats", body)
    assert (made.status, made.json["max_cost_micros"]) == (201, 500)
    found = await server.ask("GET", f"/chats/{made.json['id']}/cost")
    assert found.json["max_cost_micros"] == 500
    refused = await server.ask("POST", "/chats", {**body, "max_cost_micros": 0})
    assert (refused.code, refused.field) == ((400, "invalid_input"), "max_cost_micros")


async def test_other_tasks_run_while_a_long_export_is_written() -> None:
    row = ExportedCost(
        day=date(2026, 1, 1), user_id=OWNER, username="ada", groups="", provider="p", model="m"
    )
    async with ticking() as ticker:
        pieces = [piece async for piece in csv_pieces([row] * 5_000)]
        assert ticker.ticks >= 9
    assert len(b"".join(pieces).splitlines()) == 5_001
