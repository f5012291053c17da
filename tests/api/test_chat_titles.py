"""Titles over HTTP: renamed, regenerated, proposed."""

import asyncio

import pytest

from chatd.domain.errors import TitleFailed, UsageLimit
from chatd.domain.ids import ChatId
from chatd.store.chat import updates
from tests.support.api.server import OTHER_USER, ApiServer, FakeTitles
from tests.support.api.sse_viewer import event_source
from tests.support.factories import CHAT, HARNESS
from tests.support.providers.server import Gate


def titles_of(server: ApiServer) -> FakeTitles:
    assert isinstance(server.deps.titles, FakeTitles)
    return server.deps.titles


async def title_of(server: ApiServer, chat: ChatId) -> str:
    return (await server.chat(chat)).title


@pytest.mark.parametrize(
    ("given", "stored"),
    [("  two words ", "two words"), ("x" * 200, "x" * 200), ("ü" * 200, "ü" * 200)],
)
async def test_a_rename_is_trimmed(server: ApiServer, given: str, stored: str) -> None:
    chat = await server.create()
    assert (await server.ask("PATCH", f"/chats/{chat}", {"title": given})).status == 200
    assert await title_of(server, chat) == stored


@pytest.mark.parametrize("given", ["", " \n ", "x" * 201, "a\0b"])
async def test_a_title_that_is_blank_or_too_long_is_refused(server: ApiServer, given: str) -> None:
    chat = await server.create()
    refused = await server.ask("PATCH", f"/chats/{chat}", {"title": given})
    assert (refused.status, refused.field) == (400, "title")
    assert await title_of(server, chat) == "hello"


async def test_a_regenerated_title_is_stored_and_announced(server: ApiServer) -> None:
    chat = await server.create("what is a fence?")
    async with event_source(server, "/events") as chat_list:
        assert (await chat_list.json())["type"] == "ready"
        done = await server.ask("POST", f"/chats/{chat}/title/regenerate")
        event = await chat_list.json()
    assert (done.status, done.json["title"]) == (200, "A better title")
    assert event["kind"] == "title"
    assert await title_of(server, chat) == "A better title"
    assert titles_of(server).excerpts == ["User: what is a fence?"]


async def test_a_proposed_title_is_not_stored(server: ApiServer) -> None:
    chat = await server.create()
    done = await server.ask("POST", f"/chats/{chat}/title/propose")
    assert (done.status, done.json) == (200, {"title": "A better title"})
    assert await title_of(server, chat) == "hello"


@pytest.mark.parametrize("second", ["regenerate", "propose"])
async def test_a_second_click_is_refused_until_the_first_has_ended(
    server: ApiServer, second: str
) -> None:
    chat, titles = await server.create(), titles_of(server)
    titles.gate = Gate()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(server.ask("POST", f"/chats/{chat}/title/regenerate"))
        await titles.gate.reached.wait()
        refused = await server.ask("POST", f"/chats/{chat}/title/{second}")
        assert refused.code == (409, "title_in_progress")
        titles.gate.open()
    assert first.result().status == 200
    assert (await server.ask("POST", f"/chats/{chat}/title/{second}")).status == 200


async def test_a_rename_during_the_generation_wins(server: ApiServer) -> None:
    chat, titles = await server.create(), titles_of(server)
    titles.gate = Gate()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(server.ask("POST", f"/chats/{chat}/title/regenerate"))
        await titles.gate.reached.wait()
        await server.ask("PATCH", f"/chats/{chat}", {"title": "Mine"})
        titles.gate.open()
    assert first.result().json["title"] == "Mine"
    assert await title_of(server, chat) == "Mine"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageLimit("The limit is reached."), (409, "usage_limit_exceeded")),
        (TitleFailed("The model gave no usable title."), (502, "title_failed")),
    ],
)
async def test_a_failed_generation_leaves_the_title_and_can_be_repeated(
    server: ApiServer, error: UsageLimit | TitleFailed, code: tuple[int, str]
) -> None:
    chat, titles = await server.create(), titles_of(server)
    titles.error = error
    for _ in range(2):
        assert (await server.ask("POST", f"/chats/{chat}/title/regenerate")).code == code
    assert await title_of(server, chat) == "hello"


@pytest.mark.parametrize("path", ["regenerate", "propose"])
async def test_another_users_chat_is_not_named(server: ApiServer, path: str) -> None:
    chat = await server.create()
    for chat_id in (chat, CHAT):
        refused = await server.ask("POST", f"/chats/{chat_id}/title/{path}", token=OTHER_USER)
        assert refused.code == (404, "not_found")
    assert titles_of(server).excerpts == []


async def test_a_lease_ends_by_itself_and_a_repeated_attempt_keeps_it(server: ApiServer) -> None:
    """The process that held it may have died, and the reply to an attempt may be lost."""
    chat, pool = await server.create(), server.replica.pool

    async def acquire(lease: ChatId) -> bool:
        return await updates.acquire_title_lease(pool, HARNESS, chat, lease, seconds=60)

    first, second = ChatId(CHAT), chat
    assert await acquire(first)
    assert await acquire(first)
    assert not await acquire(second)
    await updates.release_title_lease(pool, chat, second)
    assert not await acquire(second)
    await pool.execute("UPDATE chat_title_leases SET until = now() - interval '1 s'")
    assert await acquire(second)
    await updates.release_title_lease(pool, chat, first)
    assert not await acquire(first)
