"""A reached spend limit: which requests are refused."""

from collections.abc import AsyncGenerator

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from chatd.aio import BackgroundTasks
from chatd.api.application import build_application
from chatd.domain.chat.messages import TokenUsage, UsageEntry
from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId
from chatd.engine.model.budget import SpendBudget, SpendLimit
from chatd.engine.model.spend_guard import OpenCallWriter, SpendGuard
from chatd.store.database.notifications import ConfigChanges
from chatd.store.model import model_calls
from chatd.store.model.model_calls import Payer
from tests.support.api.server import (
    ME,
    OTHER_USER,
    ApiReply,
    ApiServer,
    authorized,
    listening,
    message_body,
)
from tests.support.factories import CHAT, WORKER
from tests.support.seeds import Seed
from tests.support.store import insert_seed

PAID = UsageEntry(kind="turn", provider="acme", model="fast-1", usage=TokenUsage(), cost_micros=5)
TOO_MUCH = (409, "usage_limit_exceeded")
KEY = {"Idempotency-Key": "k"}


@pytest.fixture
async def limited(server: ApiServer) -> AsyncGenerator[ApiServer]:
    """A limit of five micros a month."""
    pool, env = server.replica.pool, server.deps.env
    tasks = BackgroundTasks(env, ())
    books = SpendBudget(pool, env, SpendLimit(micros=5), ConfigChanges(), tasks)
    guard = SpendGuard(books, OpenCallWriter(pool, env, WORKER), env)
    deps = replace(server.deps, registry=CollectorRegistry(), budget=guard)
    api = build_application(deps)
    async with listening(api) as bound:
        limited = ApiServer(server.replica, deps, api, bound)
        yield limited
        await limited.http.close()


async def send(server: ApiServer, chat_id: ChatId, *, token: str | None = None) -> ApiReply:
    path, body = f"/chats/{chat_id}/messages", message_body("go on")
    if token is None:
        return await server.ask("POST", path, body, headers=KEY)
    return await server.ask("POST", path, body, token=token)


@pytest.mark.promise("P11")
async def test_a_reached_spend_limit_refuses_requests_and_nothing_is_written(
    limited: ApiServer,
) -> None:
    await insert_seed(limited.replica.pool, Seed(state=State.W))
    made = await limited.ask("POST", "/chats", message_body("hello"), headers=KEY)
    first = await send(limited, CHAT)
    assert (made.status, first.status) == (201, 200)
    await model_calls.insert_usage(limited.replica.pool, Payer.of(await limited.chat(CHAT)), PAID)
    before = await limited.chat(CHAT)
    refused = await limited.ask("POST", "/chats", message_body("hello"))
    assert refused.code == TOO_MUCH
    assert "spend limit" in str(refused.json["message"])
    assert (refused.json["spent_micros"], refused.json["limit_micros"]) == (5, 5)
    assert str(refused.json["resets_at"]).endswith("T00:00:00Z")
    path = f"/chats/{CHAT}/messages"
    assert (await limited.ask("POST", path, message_body("more"))).code == TOO_MUCH
    assert (await limited.ask("PATCH", f"{path}/1", message_body("else"))).code == TOO_MUCH
    body = {"model": "fast", "input": "hello"}
    sent = limited.http.post("/v1/responses", json=body, headers=authorized(ME))
    async with sent as reply:
        assert (reply.status, reply.headers["x-should-retry"]) == (429, "false")
        assert "insufficient_quota" in await reply.text()
    assert await limited.chat(CHAT) == before
    assert len((await limited.ask("GET", "/chats")).items) == 2


@pytest.mark.promise("P11")
async def test_a_granted_request_is_replayed_and_other_users_learn_nothing(
    limited: ApiServer,
) -> None:
    await insert_seed(limited.replica.pool, Seed(state=State.W))
    made = await limited.ask("POST", "/chats", message_body("hello"), headers=KEY)
    first = await send(limited, CHAT)
    await model_calls.insert_usage(limited.replica.pool, Payer.of(await limited.chat(CHAT)), PAID)
    again = await limited.ask("POST", "/chats", message_body("hello"), headers=KEY)
    assert (again.status, again.json["id"]) == (201, made.json["id"])
    repeated = await send(limited, CHAT)
    assert (repeated.status, repeated.json["message_id"]) == (200, first.json["message_id"])
    assert (await send(limited, CHAT, token=OTHER_USER)).code == (404, "not_found")
    mine = await limited.ask("POST", "/chats", message_body("my own"), token=OTHER_USER)
    assert mine.status == 201, "every user has a limit"
