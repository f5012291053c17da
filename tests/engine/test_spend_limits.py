"""Spend limits of the database hold before every model call and while an answer streams."""

import asyncio
from uuid import UUID

import msgspec
import pytest

from chatd.domain.access.permissions import ADMIN_USER_ID, UserActor
from chatd.domain.deployment.spend import SpendWarningEvent
from chatd.domain.ids import ChatId, GroupId
from chatd.engine.model.budget import SpendLimit
from chatd.store.account import groups
from chatd.store.model import spend
from chatd.store.model.spend import DefaultLimit
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.outcomes import present
from tests.support.providers.server import Gate, Step

pytestmark = [pytest.mark.promise("P11"), pytest.mark.stock_server]

ADMIN = UserActor(user_id=ADMIN_USER_ID, role="admin")
WORDS = "word " * 100
"""About 125 tokens, which cost 250 micros."""


async def add_owner(rig: EngineRig) -> None:
    await rig.pool.execute(
        """INSERT INTO users (id, username, role) VALUES ($1, 'owner', 'member')
           ON CONFLICT DO NOTHING""",
        rig.owner,
    )


async def limit_owner(rig: EngineRig, micros: int) -> None:
    await add_owner(rig)
    async with rig.pool.transaction() as session:
        await spend.set_user(session, ADMIN, rig.owner, micros)


async def spend_some(rig: EngineRig, micros: int) -> None:
    await rig.pool.execute(
        """INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
               input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens,
               cache_read_tokens, cost_micros, ok)
           VALUES (now(), $1, $1, $1, 'turn', 'p', 'm', 1, 1, 0, 0, 0, $2, true)""",
        rig.owner,
        micros,
    )


class Shown(Gate):
    """Passes when the worker has read that many words, so that each piece is a chunk of its own."""

    def __init__(self, rig: EngineRig, chat_ids: list[ChatId], words: int) -> None:
        super().__init__()
        self._rig = rig
        self._chat_ids = chat_ids
        self._words = words

    async def pass_through(self) -> None:
        async def is_shown() -> bool:
            found = [self._rig.replica.episodes.find(chat_id) for chat_id in self._chat_ids]
            return any(
                buffer is not None and b"".join(buffer.events).count(b"word") >= self._words
                for buffer in found
            )

        await eventually(is_shown)


def answer_in_chunks(rig: EngineRig, pieces: int) -> list[ChatId]:
    """Script an answer. The test adds the id of the chat to the list."""
    chat_ids: list[ChatId] = []
    steps: list[str | Step] = []
    for number in range(1, pieces + 1):
        steps += (WORDS, Shown(rig, chat_ids, number * 100))
    rig.answer(*steps)
    return chat_ids


async def refusal_of(rig: EngineRig, chat_id: ChatId) -> str:
    chat = await rig.wait_chat_task_left(chat_id)
    error = present(chat.last_error)
    assert error.kind == "usage_limit"
    return error.message


async def test_a_limit_that_is_set_while_replicas_run_holds_at_once(rig: EngineRig) -> None:
    assert (await rig.wait_chat_task_left(await rig.ask("hi", "hello"))).state == "W"
    await limit_owner(rig, 5_000)
    await spend_some(rig, 5_000)

    async def is_heard() -> bool:
        return await rig.replica.budget.check(await rig.chat(chat_id)) is not None

    chat_id = await rig.create_unowned("again")
    await eventually(is_heard)
    message = await refusal_of(rig, chat_id)
    assert "The spend limit of $0.005 for this month is reached" in message
    assert len(rig.api.requests) == 1


async def test_a_call_that_would_surely_pass_the_limit_is_not_made(rig: EngineRig) -> None:
    """The input alone costs more than is left."""
    await limit_owner(rig, 5_000)
    await spend_some(rig, 4_500)
    message = await refusal_of(rig, await rig.create("word " * 800))
    assert "$0.0045 were spent" in message
    assert "It is reset at" in message
    assert rig.api.requests == []
    assert await rig.pool.fetchval("SELECT count(*) FROM usage_events") == 1


async def test_an_answer_that_passes_the_limit_is_stopped_and_kept(rig: EngineRig) -> None:
    await limit_owner(rig, 5_000)
    chat_ids = answer_in_chunks(rig, 60)
    chat_id = await rig.create("hi")
    chat_ids.append(chat_id)
    message = await refusal_of(rig, chat_id)
    assert "The spend limit of $0.005 for this month is reached" in message
    question, answer = await rig.transcript(chat_id)
    assert question == "user: hi"
    assert 5 < len(answer) // len(WORDS) < 60
    spent = await rig.pool.fetchval("SELECT sum(cost_micros) FROM usage_events")
    assert 3_500 < spent <= 5_000 + 250
    assert await rig.pool.fetchval("SELECT count(*) FROM open_calls") == 0


async def test_a_complete_answer_is_kept_although_its_usage_passes_the_limit(
    rig: EngineRig,
) -> None:
    """The provider tells a much larger figure than the estimate, after the answer."""
    await limit_owner(rig, 5_000)
    rig.answer("hello", input_tokens=50_000)
    chat = await rig.wait_chat_task_left(await rig.create("hi"))
    assert (chat.state, chat.last_error) == ("W", None)


async def test_the_budget_of_a_chat_stops_it_and_no_other_chat(rig: EngineRig) -> None:
    chat_ids = answer_in_chunks(rig, 60)
    chat_id = await rig.create("hi", max_cost_micros=3_000)
    chat_ids.append(chat_id)
    assert "The budget of $0.003 of this chat is reached" in await refusal_of(rig, chat_id)
    spent = await rig.pool.fetchval("SELECT sum(cost_micros) FROM usage_events")
    assert 1_500 < spent <= 3_000 + 250
    rig.answer(*([WORDS] * 20))
    assert (await rig.wait_chat_task_left(await rig.create("hi"))).state == "W"


async def test_chats_that_start_at_once_stay_within_their_common_limit(rig: EngineRig) -> None:
    """Each spends a fifteenth of it, in one chunk. The last ones may reserve less than their
    chunk."""
    await limit_owner(rig, 7_500)
    for _ in range(40):
        rig.answer(WORDS, WORDS)
    chat_ids = await asyncio.gather(*(rig.create("hi") for _ in range(40)))
    # On a slow machine some checks take too long: such a chat waits without a runner.
    ended = [await rig.wait_state(chat_id, "W", "E0") for chat_id in chat_ids]
    answered = sum(chat.state == "W" for chat in ended)
    assert 5 <= answered == len(rig.api.requests) <= 17
    spent = await rig.pool.fetchval("SELECT sum(cost_micros) FROM usage_events")
    assert spent <= 7_500 + 2 * 500


async def test_an_answer_far_from_the_limit_reserves_rarely(dsn: str) -> None:
    statements: list[str] = []
    limit = SpendLimit(micros=100_000_000)
    async with engine_rig(dsn, spend_limit=limit, on_statement=statements.append) as rig:
        chat_ids = answer_in_chunks(rig, 40)
        chat_ids.append(await rig.create("hi"))
        assert (await rig.wait_chat_task_left(chat_ids[0])).state == "W"
        assert statements.count(spend.SET_RESERVED) <= 2


async def test_the_strictest_group_limits_its_members(rig: EngineRig) -> None:
    await add_owner(rig)
    for number, micros in enumerate((9_000, 4_000, 7_000)):
        group_id = GroupId(UUID(int=number))
        async with rig.pool.transaction() as session:
            await groups.create(session, ADMIN, group_id, f"group {number}")
            await groups.add_member(session, ADMIN, group_id, rig.owner)
            await spend.set_group(session, ADMIN, group_id, micros)
            await spend.set_default(session, ADMIN, 1_000, "day")
    found = await spend.read_spending(rig.pool, rig.owner, DefaultLimit())
    account = present(found.user)
    assert (account.limit_micros, account.source, account.period) == (4_000, "group", "day")
    await limit_owner(rig, 50_000)
    found = await spend.read_spending(rig.pool, rig.owner, DefaultLimit())
    assert present(found.user).source == "user"


async def test_a_user_is_warned_once_in_a_period(rig: EngineRig) -> None:
    await limit_owner(rig, 5_000)
    await spend_some(rig, 4_100)
    rig.answer("hello")
    assert (await rig.wait_chat_task_left(await rig.create("hi"))).state == "W"
    assert (await rig.events.wait("spend_warning", percent=80))["source"] == "user"
    await spend_some(rig, 1_000)
    await refusal_of(rig, await rig.create("hi"))
    await rig.events.wait("spend_warning", percent=100)
    await refusal_of(rig, await rig.create("hi"))
    told = [fields["percent"] for name, fields in rig.events.seen if name == "spend_warning"]
    assert told == [80, 100]
    found = await spend.read_spending(rig.pool, rig.owner, DefaultLimit())
    warnings = await spend.list_warnings(rig.pool, rig.owner, found.period_start)
    assert [warning.percent for warning in warnings] == [80, 100]


async def test_a_warning_reaches_the_open_streams_of_the_user_once(rig: EngineRig) -> None:
    await limit_owner(rig, 5_000)
    await spend_some(rig, 4_100)
    with rig.replica.chat_lists.watch(rig.owner, "me") as stream:
        await stream.next()
        for _ in range(2):
            rig.answer("hello")
            await rig.wait_chat_task_left(await rig.create("hi"))
        events = list[bytes]()
        while not events or b'"spend_warning"' not in events[-1]:
            events += (await stream.next()).events
        event = msgspec.json.decode(events[-1], type=SpendWarningEvent)
        assert (event.percent, event.limit_micros) == (80, 5_000)
        assert event.spent_micros >= 4_100
