"""Debug records of model calls over the API, and who decides that they are made."""

import pytest
from msgspec.structs import replace

from chatd.domain.answer.answer import Answer
from chatd.domain.answer.debug_calls import build_document
from chatd.domain.chat.parts import TextPart
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import ModelRequest
from chatd.store.database.pool import Pool
from chatd.store.model import model_calls
from tests.support.api.server import ADMINISTRATOR, ME, OTHER_USER, ApiServer
from tests.support.debug_calls import debug_call


async def record(pool: Pool, chat: ChatId, count: int) -> None:
    for number in range(1, count + 1):
        answer = Answer(content=(TextPart(text=f"answer {number}"),))
        call = debug_call(ModelRequest(model="m", messages=()), answer, number=number)
        call = replace(call, chat_id=chat)
        await model_calls.insert_debug_call(pool, call, build_document(call))


async def test_records_are_listed_newest_first_and_read_one_by_one(
    server: ApiServer, pool: Pool
) -> None:
    chat = await server.create("hello")
    await record(pool, chat, 3)
    path = f"/chats/{chat}/debug/runs"
    first = await server.ask("GET", f"{path}?limit=2")
    rest = await server.ask("GET", f"{path}?limit=2&cursor={first.cursor}")
    ids = [item["id"] for item in (*first.items, *rest.items)]
    assert [str(one)[-1] for one in ids] == ["3", "2", "1"]
    assert "request" not in first.items[0]
    one = (await server.ask("GET", f"{path}/{ids[0]}")).json
    assert one["request"] == {"model": "m", "tool_choice": "auto"}
    assert "answer 3" in str(one["response"])


async def test_old_records_of_a_chat_make_place_for_new_ones(
    server: ApiServer, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_calls, "DEBUG_CALLS_KEPT_PER_CHAT", 2)
    chat = await server.create("hello")
    await record(pool, chat, 4)
    items = (await server.ask("GET", f"/chats/{chat}/debug/runs")).items
    assert [str(item["id"])[-1] for item in items] == ["4", "3"]


@pytest.mark.promise("P12")
async def test_no_user_sees_the_records_of_another(server: ApiServer, pool: Pool) -> None:
    chat = await server.create("mine")
    other = await server.create("another")
    await record(pool, chat, 1)
    [item] = (await server.ask("GET", f"/chats/{chat}/debug/runs")).items
    for path in ("", f"/{item['id']}"):
        reply = await server.ask("GET", f"/chats/{chat}/debug/runs{path}", token=OTHER_USER)
        assert reply.code == (404, "not_found")
    reply = await server.ask("GET", f"/chats/{other}/debug/runs/{item['id']}")
    assert reply.code == (404, "not_found")


async def test_users_choose_only_while_the_deployment_lets_them(server: ApiServer) -> None:
    async def choose(*, wanted: bool) -> tuple[int, object]:
        body = {"debug_recording": wanted}
        reply = await server.ask("PATCH", "/settings/me", body, token=ME)
        return (200, reply.json["debug_recording"]) if reply.status == 200 else reply.code

    async def allow(mode: str) -> None:
        body = {"debug_recording": mode}
        assert (await server.ask("PATCH", "/settings", body, token=ADMINISTRATOR)).status == 200

    assert await choose(wanted=True) == (403, "debug_off")
    await allow("allow_users")
    assert await choose(wanted=True) == (200, True)
    assert (await server.ask("GET", "/settings/me", token=ME)).json["debug_mode"] == "allow_users"
    await allow("forced")
    assert await choose(wanted=False) == (409, "debug_forced")
    await allow("off")
    assert await choose(wanted=False) == (200, False)
