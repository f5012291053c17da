"""`wait_for_chat`: progress, its end, cuts and continuations, and what its end leaves alone."""

from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire
from chatd.domain.ids import ChatId
from tests.support.api.server import OTHER_USER, ApiOptions, ApiServer, serve_api
from tests.support.api.shares import share, two_replicas
from tests.support.clock import FakeClock
from tests.support.factories import WORKER
from tests.support.mcp.raw_client import Json, RawClient, call_body, error_text
from tests.support.seeds import OpenCalls, Seed
from tests.support.store import insert_seed

LONGEST_S = 600
CHILD = ChatId(UUID(int=21))


@pytest.fixture
def client(server: ApiServer) -> RawClient:
    return RawClient(server.http)


def wait_body(chat_id: ChatId, timeout_s: float = LONGEST_S, **meta: object) -> Json:
    return call_body("wait_for_chat", {"chat_id": str(chat_id), "timeout_s": timeout_s}, 7, **meta)


def content_of(result: Json) -> Json:
    assert not result["isError"], result
    return msgspec.convert(result["structuredContent"], Json)


async def test_a_wait_ends_with_the_answer(server: ApiServer, client: RawClient) -> None:
    chat_id = await server.create("tell me")

    async with client.stream(wait_body(chat_id)) as events:
        first = await events.next()
        assert first is not None
        assert first.id
        assert (first.data, first.retry) == ("", 3000)
        await server.play_turn(chat_id, "It is done.")
        result = content_of(await events.answer())

    assert (result["status"], result["done"], result["answer"]) == ("waiting", True, "It is done.")
    assert result.keys().isdisjoint({"error", "pending_calls", "asking_subagents"})


async def test_a_chat_that_waits_is_answered_at_once_also_as_json(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await server.create("tell me")
    await server.play_turn(chat_id, "Yes.")

    reply = await client.post(wait_body(chat_id), {"Accept": "application/json"})

    assert reply.headers["content-type"] == "application/json"
    assert content_of(reply.result)["answer"] == "Yes."


async def test_the_end_of_the_time_is_a_result_that_says_to_call_again(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await server.create("tell me")

    async with client.stream(wait_body(chat_id, 0)) as events:
        result = content_of(await events.answer())

    assert (result["status"], result["done"]) == ("pending", False)
    assert "call wait_for_chat again" in str(result["next"])


async def test_progress_tells_the_status_and_grows(dsn: str) -> None:
    clock = FakeClock()
    async with serve_api(dsn, ApiOptions(clock=clock)) as server:
        chat_id = await server.create("tell me")
        client = RawClient(server.http)
        async with client.stream(wait_body(chat_id, progressToken="p")) as events:
            await events.next()
            reports: list[Json] = []
            for _ in range(2):
                event = await events.next()
                assert event is not None
                assert event.id
                assert event.json["method"] == "notifications/progress"
                reports.append(msgspec.convert(event.json["params"], Json))
                if len(reports) == 1:
                    await server.act(chat_id, lambda chat: acquire(chat, WORKER))
                    await clock.advance_past("mcp_wait")

    assert [one["progressToken"] for one in reports] == ["p", "p"]
    assert [one["message"] for one in reports] == ["pending", "running"]
    assert msgspec.convert(reports[0]["progress"], float) < msgspec.convert(
        reports[1]["progress"], float
    )


@pytest.mark.promise("P8")
async def test_a_wait_that_was_cut_is_continued_by_another_replica(dsn: str) -> None:
    async with two_replicas(dsn) as (first, second):
        chat_id = await first.create("tell me")
        async with RawClient(first.http).stream(wait_body(chat_id, progressToken=3)) as events:
            cut = await events.next()
            assert cut is not None
        await first.play_turn(chat_id, "While you were away.")

        async with RawClient(second.http).resume(cut.id) as events:
            while (event := await events.next()) is not None and not event.data.count("result"):
                pass

    assert event is not None
    assert event.json["id"] == 7
    result = content_of(msgspec.convert(event.json["result"], Json))
    assert result["answer"] == "While you were away."


async def test_a_continued_wait_ends_at_its_first_deadline(dsn: str) -> None:
    clock = FakeClock()
    async with serve_api(dsn, ApiOptions(clock=clock)) as server:
        client = RawClient(server.http)
        chat_id = await server.create("tell me")
        async with client.stream(wait_body(chat_id, 60)) as events:
            cut = await events.next()
            assert cut is not None
        clock.advance(61)

        async with client.resume(cut.id) as events:
            result = content_of(await events.answer())

    assert result["done"] is False


@pytest.mark.promise("P12")
async def test_the_id_of_an_event_gives_no_access_to_the_chat(server: ApiServer) -> None:
    chat_id = await server.create("secret")
    async with RawClient(server.http).stream(wait_body(chat_id)) as events:
        cut = await events.next()
        assert cut is not None

    async with RawClient(server.http, OTHER_USER).resume(cut.id) as events:
        assert error_text(await events.answer()).startswith("not_found: ")


@pytest.mark.parametrize("by", ["cancel", "disconnect"])
async def test_the_end_of_a_wait_leaves_the_chat_alone(
    server: ApiServer, client: RawClient, by: str
) -> None:
    chat_id = await server.create("tell me")
    await server.act(chat_id, lambda chat: acquire(chat, WORKER))
    await client.initialize()

    async with client.stream(wait_body(chat_id)) as events:
        await events.next()
        if by == "cancel":
            params = {"requestId": 7, "reason": "no time"}
            body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            assert (await client.post(body)).status == 202
            assert await events.next() is None

    assert (await server.chat(chat_id)).status == "running"


async def test_a_cancelled_request_of_another_session_goes_on(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await server.create("tell me")
    await client.initialize()
    other = RawClient(server.http)
    await other.initialize()

    async with client.stream(wait_body(chat_id)) as events:
        await events.next()
        params = {"requestId": 7}
        body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        await other.post(body)
        await server.play_turn(chat_id, "Here.")
        assert content_of(await events.answer())["answer"] == "Here."


@pytest.mark.promise("P5")
async def test_a_stopping_server_tells_the_client_when_to_continue(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await server.create("tell me")

    async with client.stream(wait_body(chat_id)) as events:
        await events.next()
        await server.api.close()
        last = await events.next()
        assert last is not None
        assert (bool(last.id), last.data, last.retry) == (True, "", 5000)
        assert await events.next() is None
    assert (await server.chat(chat_id)).status == "running"


@pytest.mark.promise("P12")
async def test_a_wait_for_a_shared_chat_ends_with_the_share(dsn: str) -> None:
    async with two_replicas(dsn) as (first, second):
        chat_id = await first.create("secret")
        assert (await share(first, chat_id)).status == 200
        async with RawClient(second.http, OTHER_USER).stream(wait_body(chat_id)) as events:
            await events.next()
            assert (await share(first, chat_id, None)).status == 200
            assert error_text(await events.answer()).startswith("not_found: ")


async def test_a_failed_chat_says_why_and_how_to_go_on(
    server: ApiServer, client: RawClient
) -> None:
    chat = await insert_seed(server.replica.pool, Seed(state=State.E0))

    async with client.stream(wait_body(chat.id)) as events:
        result = content_of(await events.answer())

    assert (result["status"], result["done"]) == ("error", True)
    assert msgspec.convert(result["error"], Json)["message"]
    assert "send_message" in str(result["next"])


async def test_a_chat_that_needs_results_names_the_calls_and_takes_them(
    server: ApiServer, client: RawClient
) -> None:
    chat = await insert_seed(server.replica.pool, Seed(state=State.A0))
    async with client.stream(wait_body(chat.id)) as events:
        result = content_of(await events.answer())
    assert (result["status"], result["done"]) == ("requires_action", True)
    assert "submit_results" in str(result["next"])

    calls = msgspec.convert(result["pending_calls"], list[Json])
    results = [{"tool_call_id": call["tool_call_id"], "output": {"ok": 1}} for call in calls]
    assert await client.run("submit_results", {"chat_id": str(chat.id), "results": results})
    assert (await server.chat(chat.id)).status == "running"


@pytest.mark.parametrize("kind", ["approval", "question"])
async def test_a_chat_that_asks_a_person_is_answered(
    server: ApiServer, client: RawClient, kind: OpenCalls
) -> None:
    chat = await insert_seed(server.replica.pool, Seed(state=State.A0, calls=kind))
    async with client.stream(wait_body(chat.id)) as events:
        result = content_of(await events.answer())
    assert "ask your user" in str(result["next"])
    calls = msgspec.convert(result["pending_calls"], list[Json])
    assert {call["kind"] for call in calls} == {kind}

    first, *others = [str(call["tool_call_id"]) for call in calls]
    denial: Json = {"tool_call_id": first, "decision": "deny", "reason": "Not now."}
    arguments: Json = {"chat_id": str(chat.id), "answers": [denial], "key": "a"}
    for _ in range(2):
        left = await client.run("answer_calls", arguments)
        assert "wait_for_chat" in str(left["next"])
    rest = [{"tool_call_id": one, "decision": "deny"} for one in others]
    assert await client.run("answer_calls", {"chat_id": str(chat.id), "answers": rest})
    assert (await server.chat(chat.id)).status == "running"


@pytest.mark.promise("P12")
async def test_a_wait_ends_when_its_token_is_revoked(dsn: str) -> None:
    async with two_replicas(dsn) as (first, second):
        chat_id = await first.create("tell me")
        body = {"name": "a job", "scopes": ["chat:read"]}
        made = (await first.ask("POST", "/auth/tokens", body)).json
        async with RawClient(second.http, str(made["token"])).stream(wait_body(chat_id)) as events:
            await events.next()
            assert (await first.ask("DELETE", f"/auth/tokens/{made['id']}")).status == 204
            last = await events.next()
            assert last is not None
            error = msgspec.convert(last.json["error"], Json)
            assert "credential" in str(error["message"])
            assert await events.next() is None


async def test_a_subagent_that_asks_somebody_is_named_at_the_end_of_the_time(
    server: ApiServer, client: RawClient
) -> None:
    pool = server.replica.pool
    root = await insert_seed(pool, Seed(state=State.R0))
    asking = await insert_seed(pool, Seed(state=State.A0, calls="approval", chat_id=CHILD))
    statement = "UPDATE chats SET root_chat_id = $2, parent_chat_id = $2 WHERE id = $1"
    await pool.execute(statement, asking.id, root.id)

    async with client.stream(wait_body(root.id, 0)) as events:
        result = content_of(await events.answer())

    (named,) = msgspec.convert(result["asking_subagents"], list[Json])
    assert (named["chat_id"], named["status"]) == (str(asking.id), "requires_action")
    assert "asking_subagents" in str(result["next"])
