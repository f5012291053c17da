"""A spend limit that is reached: what is refused, and what is not."""

from collections.abc import AsyncGenerator

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from chatd.api.application import build
from chatd.domain.chat.messages import TokenUsage, UsageEntry
from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId
from chatd.engine.spend_guard import OwnerBudget, SpendGuard, SpendLimit
from chatd.store.chat import usage
from tests.support.factories import CHAT
from tests.support.front import STRANGER, Answer, Front, listening, saying
from tests.support.seeds import Seed
from tests.support.store import plant_in

PAID = UsageEntry(kind="turn", provider="acme", model="fast-1", usage=TokenUsage(), cost_micros=5)
TOO_MUCH = (409, "usage_limit_exceeded")
KEY = {"Idempotency-Key": "k"}


@pytest.fixture
async def limited(front: Front) -> AsyncGenerator[Front]:
    """Five micros a month."""
    pool, env = front.replica.pool, front.doors.env
    books = OwnerBudget(pool, env.clock, SpendLimit(micros=5))
    doors = replace(front.doors, registry=CollectorRegistry(), budget=SpendGuard(books, env))
    api = build(doors)
    async with listening(api) as bound:
        limited = Front(front.replica, doors, api, bound)
        yield limited
        await limited.http.close()


async def send(front: Front, chat_id: ChatId, *, token: str | None = None) -> Answer:
    path, body = f"/chats/{chat_id}/messages", saying("go on")
    if token is None:
        return await front.ask("POST", path, body, headers=KEY)
    return await front.ask("POST", path, body, token=token)


@pytest.mark.promise("P11")
async def test_whoever_has_spent_the_limit_is_told_so_and_nothing_is_written(
    limited: Front,
) -> None:
    await plant_in(limited.replica.pool, Seed(state=State.W))
    made = await limited.ask("POST", "/chats", saying("hello"), headers=KEY)
    first = await send(limited, CHAT)
    assert (made.status, first.status) == (201, 200)
    await usage.insert_usage(limited.replica.pool, await limited.chat(CHAT), PAID)
    before = await limited.chat(CHAT)
    refused = await limited.ask("POST", "/chats", saying("hello"))
    assert refused.code == TOO_MUCH
    assert "spend limit" in str(refused.json["message"])
    path = f"/chats/{CHAT}/messages"
    assert (await limited.ask("POST", path, saying("more"))).code == TOO_MUCH
    assert (await limited.ask("PATCH", f"{path}/1", saying("else"))).code == TOO_MUCH
    assert await limited.chat(CHAT) == before
    assert len((await limited.ask("GET", "/chats")).items) == 2


@pytest.mark.promise("P11")
async def test_what_was_granted_is_answered_again_and_strangers_learn_nothing(
    limited: Front,
) -> None:
    await plant_in(limited.replica.pool, Seed(state=State.W))
    made = await limited.ask("POST", "/chats", saying("hello"), headers=KEY)
    first = await send(limited, CHAT)
    await usage.insert_usage(limited.replica.pool, await limited.chat(CHAT), PAID)
    again = await limited.ask("POST", "/chats", saying("hello"), headers=KEY)
    assert (again.status, again.json["id"]) == (201, made.json["id"])
    repeated = await send(limited, CHAT)
    assert (repeated.status, repeated.json["message_id"]) == (200, first.json["message_id"])
    assert (await send(limited, CHAT, token=STRANGER)).code == (404, "not_found")
    mine = await limited.ask("POST", "/chats", saying("my own"), token=STRANGER)
    assert mine.status == 201, "everybody has a limit of their own"
