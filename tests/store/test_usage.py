"""Usage: the rolled-up days and the tail together are always the whole."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from typing import cast, get_args
from uuid import UUID

import pytest

from chatd.domain.chat.messages import TokenUsage, UsageEntry
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import commit_step
from chatd.domain.deployment.spend import Period
from chatd.domain.ids import ChatId, UserId
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool
from chatd.store.model import model_calls
from chatd.store.model.model_calls import Payer, TreeCost
from chatd.store.model.spend import DefaultLimit, read_spending
from tests.support.eventually import eventually
from tests.support.factories import CHAT, OWNER, WORKER, draft, text
from tests.support.seeds import Seed, step
from tests.support.store import (
    chat_id,
    has_lock_waiter,
    insert_seed,
    open_chat,
    open_child,
    session_to,
    write,
)

pytestmark = pytest.mark.stock_server

ALWAYS = cast("Period", "century")
"""No setting has it, but PostgreSQL's date_trunc does."""
PERIODS: tuple[Period, ...] = get_args(Period)
GUEST = UserId(UUID(int=77))
DAY_S = 86_400.0

# Like a commit: never before the end of the roll-up.
SPEND = """
    INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
        input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens, cache_read_tokens,
        cost_micros, ok)
    SELECT greatest(now() - $1 * interval '1 s', until), $2, $4, $4, 'turn', $5, 'large', 1, 2, 3,
        4, 5, $3, true FROM usage_rolled_up"""

BY_EVENTS = """
    SELECT owner_id, (at AT TIME ZONE 'UTC')::date AS day, provider, model, count(*) AS calls,
        count(*) FILTER (WHERE cost_micros IS NULL) AS unpriced_calls,
        sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
        sum(reasoning_tokens) AS reasoning_tokens,
        sum(cache_creation_tokens) AS cache_creation_tokens,
        sum(cache_read_tokens) AS cache_read_tokens, coalesce(sum(cost_micros), 0) AS cost_micros
    FROM usage_events WHERE at < (SELECT until FROM usage_rolled_up)
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""
BY_DAYS = "SELECT * FROM usage_daily ORDER BY owner_id, day, provider, model"


async def spend(
    conn: Conn,
    cost: int | None,
    *,
    ago_s: float = 600,
    owner: UserId = OWNER,
    root: ChatId = CHAT,
    provider: str = "p",
) -> None:
    await conn.execute(SPEND, float(ago_s), owner, cost, root, provider)


async def spent_micros(conn: Conn, owner: UserId, period: Period) -> int:
    return (await read_spending(conn, owner, DefaultLimit(period=period))).spent_micros


async def check_days(conn: Conn) -> None:
    """Every column of the roll-up is what the events before its end add up to."""
    days = [dict(row) for row in await conn.fetch(BY_DAYS)]
    assert days == [dict(row) for row in await conn.fetch(BY_EVENTS)]


def period_start(now: datetime, period: Period) -> datetime:
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"day": 0, "week": midnight.weekday(), "month": midnight.day - 1}
    return midnight - timedelta(days=days[period])


@pytest.mark.promise("P11")
@pytest.mark.parametrize("seed", range(3))
async def test_days_and_tail_always_add_up(pool: Pool, seed: int) -> None:
    draw = Random(seed)
    total = {OWNER: 0, GUEST: 0}
    for _ in range(25):
        for _ in range(draw.randrange(4)):
            owner = draw.choice((OWNER, GUEST))
            cost = draw.choice((None, 0, draw.randrange(1000)))
            await spend(
                pool,
                cost,
                ago_s=draw.uniform(0, 4 * DAY_S),
                owner=owner,
                provider=draw.choice("pq"),
            )
            total[owner] += cost or 0
        if draw.random() < 0.5:
            await model_calls.roll_up(pool, min_age_s=draw.uniform(0, 4 * DAY_S))
            await check_days(pool)
        for owner, spent in total.items():
            assert await spent_micros(pool, owner, ALWAYS) == spent
        await check_period(pool, draw.choice(PERIODS))


async def check_period(pool: Pool, period: Period) -> None:
    """Periods begin at midnight UTC by the database's clock."""
    since = period_start(await pool.fetchval("SELECT now()"), period)
    meant = await pool.fetchval(
        "SELECT coalesce(sum(cost_micros), 0) FROM usage_events WHERE owner_id = $1 AND at >= $2",
        OWNER,
        since,
    )
    assert await spent_micros(pool, OWNER, period) == meant


async def test_a_roll_up_takes_at_most_a_day_and_says_whether_there_is_more(pool: Pool) -> None:
    for days in (3.5, 2.2, 0.5):
        await spend(pool, 100, ago_s=days * DAY_S)
    more = [await model_calls.roll_up(pool) for _ in range(4)]
    assert more == [True, True, False, False]
    await check_days(pool)
    assert await pool.fetchval("SELECT sum(cost_micros) FROM usage_daily") == 300


async def test_events_on_the_edge_of_a_roll_up_are_counted_once(pool: Pool) -> None:
    """The first roll-up ends exactly where the second event is."""
    async with pool.transaction() as session:
        await spend(session, 1, ago_s=3 * DAY_S)
        await spend(session, 10, ago_s=2 * DAY_S)
    while await model_calls.roll_up(pool):
        await check_days(pool)
    assert await pool.fetchval("SELECT sum(cost_micros) FROM usage_daily") == 11


async def test_recent_events_are_left_to_the_tail(pool: Pool) -> None:
    await spend(pool, 1, ago_s=301)
    await spend(pool, 10, ago_s=250)
    assert not await model_calls.roll_up(pool)
    assert await pool.fetchval("SELECT sum(cost_micros) FROM usage_daily") == 1
    assert await spent_micros(pool, OWNER, ALWAYS) == 11


async def test_a_roll_up_never_goes_back(pool: Pool) -> None:
    await spend(pool, 1, ago_s=60)
    await model_calls.roll_up(pool, min_age_s=10)
    until = await pool.fetchval("SELECT until FROM usage_rolled_up")
    assert not await model_calls.roll_up(pool, min_age_s=3600)
    assert await pool.fetchval("SELECT until FROM usage_rolled_up") == until
    await check_days(pool)


async def test_two_roll_ups_at_once_count_once(pool: Pool) -> None:
    for ago_s in (5000, 4000, 3000):
        await spend(pool, 100, ago_s=ago_s)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group, pool.transaction() as first:
        await model_calls.roll_up(first)
        group.create_task(model_calls.roll_up(pool))
        await eventually(lambda: has_lock_waiter(pool))
    await check_days(pool)
    assert await pool.fetchval("SELECT sum(cost_micros) FROM usage_daily") == 300
    assert await spent_micros(pool, OWNER, ALWAYS) == 300


async def test_a_roll_up_that_is_rolled_back_has_counted_nothing(dsn: str, pool: Pool) -> None:
    await spend(pool, 100)
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await model_calls.roll_up(session)
        await session.execute("ROLLBACK")
    assert await pool.fetchval("SELECT count(*) FROM usage_daily") == 0
    assert await spent_micros(pool, OWNER, ALWAYS) == 100
    await model_calls.roll_up(pool)
    assert await spent_micros(pool, OWNER, ALWAYS) == 100


@pytest.mark.promise("P11")
async def test_a_commit_after_the_clock_went_back_is_counted(pool: Pool) -> None:
    """Its time is not before the end of the roll-up: otherwise it would not be counted."""
    await pool.execute("UPDATE usage_rolled_up SET until = now() + interval '1 hour'")
    chat = await insert_seed(pool, Seed(state=State.R0))
    paid = UsageEntry(kind="turn", provider="p", model="m", usage=TokenUsage(), cost_micros=7)
    taken = step(chat, draft("assistant", text("Yes.")), usage=(paid,))
    await write(pool, commit_step(chat, taken))
    assert await pool.fetchval("SELECT at = until FROM usage_events, usage_rolled_up")
    assert await spent_micros(pool, OWNER, ALWAYS) == 7


async def test_no_owner_pays_for_another(pool: Pool) -> None:
    await spend(pool, 5)
    await spend(pool, 7, owner=GUEST)
    await model_calls.roll_up(pool)
    await spend(pool, 70, owner=GUEST)
    assert await spent_micros(pool, OWNER, ALWAYS) == 5
    assert await spent_micros(pool, GUEST, ALWAYS) == 77
    assert await spent_micros(pool, UserId(UUID(int=1)), ALWAYS) == 0


async def test_the_cost_of_a_tree_is_that_of_all_its_chats(pool: Pool) -> None:
    root = await open_chat(pool, 1, free=WORKER)
    child = await open_child(pool, 2, root=1)
    await spend(pool, 5, root=root.id)
    await spend(pool, None, root=root.id)
    await spend(pool, 100, root=chat_id(9))
    await pool.execute("UPDATE usage_events SET chat_id = $1 WHERE cost_micros IS NULL", child.id)
    assert await model_calls.tree_cost(pool, root.id) == TreeCost(
        calls=2, unpriced_calls=1, estimated_calls=0, cost_micros=5
    )
    assert await model_calls.tree_cost(pool, chat_id(77)) == TreeCost(
        calls=0, unpriced_calls=0, estimated_calls=0, cost_micros=0
    )


@pytest.mark.promise("P11")
async def test_spend_outlives_the_chat(pool: Pool) -> None:
    chat = await open_chat(pool, 1)
    await spend(pool, 5, root=chat.id)
    await pool.execute("DELETE FROM chats")
    assert await spent_micros(pool, OWNER, ALWAYS) == 5


# One entry for each call

CALL_ID = UUID(int=42)


def call_entry(cost: int, *, estimated: bool) -> UsageEntry:
    return UsageEntry(
        kind="turn",
        provider="p",
        model="m",
        usage=TokenUsage(input_tokens=cost, estimated=estimated),
        cost_micros=cost,
        call_id=CALL_ID,
    )


@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    ("first", "second", "corrects", "cost"),
    [
        # Two other workers estimate the call of a dead one.
        ((5, True), (6, True), False, 5),
        # The call's own worker was not dead and records it later.
        ((5, True), (9, False), True, 9),
        ((5, True), (9, True), True, 9),
        # Its own worker was faster.
        ((9, False), (5, True), False, 9),
        ((9, False), (5, True), True, 9),
        ((9, False), (9, False), True, 9),
    ],
)
async def test_a_call_is_counted_once(
    pool: Pool, first: tuple[int, bool], second: tuple[int, bool], *, corrects: bool, cost: int
) -> None:
    chat = await open_chat(pool, 1)
    await model_calls.insert_usage(pool, Payer.of(chat), call_entry(first[0], estimated=first[1]))
    later = call_entry(second[0], estimated=second[1])
    await model_calls.insert_usage(pool, Payer.of(chat), later, corrects=corrects)
    (row,) = await pool.fetch("SELECT input_tokens, cost_micros FROM usage_events")
    assert tuple(row.values()) == (cost, cost)


@pytest.mark.promise("P11")
async def test_an_estimate_that_is_rolled_up_is_not_corrected(pool: Pool) -> None:
    """Otherwise the days and the events would differ."""
    chat = await open_chat(pool, 1)
    await model_calls.insert_usage(pool, Payer.of(chat), call_entry(5, estimated=True))
    await pool.execute("UPDATE usage_events SET at = at - interval '10 min'")
    await model_calls.roll_up(pool)
    await model_calls.insert_usage(pool, Payer.of(chat), call_entry(9, estimated=False))
    assert await spent_micros(pool, chat.owner_id, ALWAYS) == 5
    await check_days(pool)


@pytest.mark.promise("P11")
async def test_a_commit_does_not_count_a_call_that_is_recorded(pool: Pool) -> None:
    chat = await open_chat(pool, 1, free=WORKER)
    entry = call_entry(5, estimated=True)
    await model_calls.insert_usage(pool, Payer.of(chat), entry)
    taken = step(chat, draft("assistant", text("Hi.")), usage=(entry,))
    await write(pool, commit_step(chat, taken))
    assert await spent_micros(pool, chat.owner_id, ALWAYS) == 5
