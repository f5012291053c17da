"""The tools of `/mcp`: what they do to chats, what they refuse, and what repeated calls do."""

import asyncio

import msgspec
import pytest

from tests.support.api.server import ME, OTHER_USER, ApiOptions, ApiServer, serve_api
from tests.support.mcp.raw_client import Json, RawClient, call_body, error_text


@pytest.fixture
def client(server: ApiServer) -> RawClient:
    return RawClient(server.http)


def nested(depth: int) -> object:
    """An object in an object, and so on."""
    value: object = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


async def started(client: RawClient, **arguments: object) -> str:
    result = await client.run("start_chat", {"message": "hello", **arguments})
    return str(result["chat_id"])


async def count_chats(server: ApiServer) -> int:
    return len((await server.ask("GET", "/chats")).items)


async def test_a_started_chat_has_all_that_the_call_gave(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await started(
        client,
        model="clever",
        reasoning_effort="high",
        system_prompt="Be brief.",
        labels={"team": "blue"},
        max_cost_usd=0.5,
    )

    chat = (await server.ask("GET", f"/chats/{chat_id}")).json
    assert (chat["labels"], chat["max_cost_micros"]) == ({"team": "blue"}, 500_000)
    assert chat["reasoning_effort"] == "high"
    assert chat["status"] == "pending"


async def test_a_whole_conversation_is_read_in_pages_and_pieces(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await server.create("tell me")
    await server.play_turn(chat_id, "so " * 5000)
    sent = await client.run("send_message", {"chat_id": str(chat_id), "message": "and then?"})
    assert sent["queued"] is False
    await server.play_turn(chat_id, "the end")

    page = await client.run("read_chat", {"chat_id": str(chat_id), "limit": 3})
    messages = msgspec.convert(page["messages"], list[Json])
    assert [one["role"] for one in messages] == ["assistant", "user", "assistant"]
    assert messages[-1]["text"] == "the end"
    first = messages[0]
    assert (len(str(first["text"])), first["next_offset"]) == (8000, 8000)

    rest = await client.run(
        "read_chat", {"chat_id": str(chat_id), "message_id": first["id"], "offset": 8000}
    )
    (piece,) = msgspec.convert(rest["messages"], list[Json])
    assert str(first["text"]) + str(piece["text"]) == "so " * 5000
    assert "next_offset" not in piece

    older = await client.run("read_chat", {"chat_id": str(chat_id), "before": page["before"]})
    (oldest,) = msgspec.convert(older["messages"], list[Json])
    assert (oldest["role"], oldest["text"], older.get("before")) == ("user", "tell me", None)

    forward = await client.run("read_chat", {"chat_id": str(chat_id), "after": 0, "limit": 1})
    assert forward["after"] == oldest["id"]


@pytest.mark.promise("P1")
@pytest.mark.parametrize("by", ["key", "header", "session"])
async def test_a_call_that_is_repeated_after_a_lost_reply_is_carried_out_once(
    server: ApiServer, client: RawClient, by: str
) -> None:
    if by == "session":
        await client.initialize()
    headers = {"Idempotency-Key": "a"} if by == "header" else {}
    key: Json = {"key": "a"} if by == "key" else {}

    async def call(tool: str, arguments: Json, request_id: int) -> Json:
        number = request_id if by == "session" else 1
        body = call_body(tool, arguments | key, number)
        result = (await client.post(body, headers)).result
        assert not result["isError"], result
        return msgspec.convert(result["structuredContent"], Json)

    first, again = [await call("start_chat", {"message": "hello"}, 1) for _ in range(2)]
    assert first["chat_id"] == again["chat_id"]
    chat_id = first["chat_id"]
    sent = [
        await call("send_message", {"chat_id": chat_id, "message": "more"}, 2) for _ in range(2)
    ]
    assert sent[0]["queued"] is sent[1]["queued"] is True
    forks = [await call("fork_chat", {"chat_id": chat_id}, 3) for _ in range(2)]
    assert forks[0]["chat_id"] == forks[1]["chat_id"] != chat_id

    assert await count_chats(server) == 2
    chat = (await server.ask("GET", f"/chats/{chat_id}")).json
    assert chat["queue_len"] == 1


async def test_calls_of_two_sessions_with_the_same_id_are_two(server: ApiServer) -> None:
    for _ in range(2):
        client = RawClient(server.http)
        await client.initialize()
        await started(client)

    assert await count_chats(server) == 2


async def test_a_key_that_was_used_for_another_message_is_refused(client: RawClient) -> None:
    await started(client, key="a")

    refused = await client.call("start_chat", {"message": "something else", "key": "a"})

    assert error_text(refused).startswith("idempotency_key_reused: ")


async def test_keys_beyond_ascii_are_told_apart(server: ApiServer, client: RawClient) -> None:
    made = [await started(client, key=key) for key in ("ключ", "ключ", "κλείς")]

    assert made[0] == made[1] != made[2]
    assert await count_chats(server) == 2


async def test_a_fork_that_was_deleted_is_not_made_again(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await started(client)
    fork = await client.run("fork_chat", {"chat_id": chat_id, "key": "a"})
    assert (await server.ask("DELETE", f"/chats/{fork['chat_id']}")).status == 204

    refused = await client.call("fork_chat", {"chat_id": chat_id, "key": "a"})

    assert error_text(refused).startswith("not_found: The chat that this request made is deleted.")
    assert await count_chats(server) == 1


async def test_forks_with_one_key_at_the_same_time_are_one(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await started(client)

    forks = await asyncio.gather(
        *(client.run("fork_chat", {"chat_id": chat_id, "key": "a"}) for _ in range(5))
    )

    assert len({str(fork["chat_id"]) for fork in forks}) == 1
    assert await count_chats(server) == 2


async def test_a_busy_chat_does_with_a_message_what_the_call_says(client: RawClient) -> None:
    chat_id = await started(client)

    refused = await client.call(
        "send_message", {"chat_id": chat_id, "message": "now", "when_busy": "reject"}
    )
    assert error_text(refused).startswith("chat_busy: ")
    assert "wait_for_chat" in error_text(refused)
    queued = await client.run("send_message", {"chat_id": chat_id, "message": "later"})
    assert queued["queued"] is True

    stopped = await client.run("interrupt_chat", {"chat_id": chat_id, "queue": "hold"})
    assert stopped["status"] in ("interrupting", "waiting", "error")


@pytest.mark.promise("P12")
async def test_another_users_chat_is_not_found_by_any_tool(
    server: ApiServer, client: RawClient
) -> None:
    chat_id = await started(client)
    stranger = RawClient(server.http, OTHER_USER)

    for tool, arguments in (
        ("send_message", {"message": "hello"}),
        ("read_chat", {}),
        ("interrupt_chat", {}),
        ("fork_chat", {}),
        ("submit_results", {"results": [{"tool_call_id": "x", "output": 1}]}),
    ):
        refused = await stranger.call(tool, {"chat_id": chat_id, **arguments})
        assert error_text(refused).startswith("not_found: There is no such chat."), tool
    async with stranger.stream(call_body("wait_for_chat", {"chat_id": chat_id})) as events:
        assert error_text(await events.answer()).startswith("not_found: ")
    assert (await stranger.run("list_chats", {}))["chats"] == []
    assert len(msgspec.convert((await client.run("list_chats", {}))["chats"], list[Json])) == 1


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("start_chat", {}, "message"),
        ("start_chat", {"message": ""}, "message"),
        ("start_chat", {"message": "x", "modell": "fast"}, "modell"),
        ("start_chat", {"message": "x", "model": "no-such"}, "there are fast, clever"),
        ("start_chat", {"message": "x", "max_cost_usd": -1}, "max_cost_usd"),
        ("read_chat", {"chat_id": "me"}, "chat_id: must be a UUID"),
        ("read_chat", {"chat_id": "0193c5a0-7d1e-7b2f-9a64-2f4e9b7c6d12"}, "list_chats"),
        ("list_chats", {"limit": 1000}, "limit"),
        ("list_chats", {"cursor": "zzz"}, "cursor"),
        ("start_chat", {"message": "x", "labels": nested(900)}, "labels"),
    ],
)
async def test_arguments_that_are_wrong_are_named_and_change_nothing(
    server: ApiServer, client: RawClient, tool: str, arguments: Json, text: str
) -> None:
    assert text in error_text(await client.call(tool, arguments))
    assert await count_chats(server) == 0


async def test_a_draining_server_says_that_the_call_can_be_repeated(dsn: str) -> None:
    async with serve_api(dsn, ApiOptions(draining=lambda: True)) as server:
        reply = await RawClient(server.http, ME).post(call_body("start_chat", {"message": "hi"}))

        assert error_text(reply.result).startswith("going_away: ")
        assert reply.headers["retry-after"] == "1"


async def test_chats_are_listed_page_by_page_and_found_by_status(client: RawClient) -> None:
    made = {await started(client) for _ in range(3)}

    first = await client.run("list_chats", {"limit": 2, "status": "pending"})
    second = await client.run(
        "list_chats", {"limit": 2, "status": "pending", "cursor": first["next_cursor"]}
    )

    pages = [msgspec.convert(page["chats"], list[Json]) for page in (first, second)]
    assert {str(chat["chat_id"]) for page in pages for chat in page} == made
    assert "next_cursor" not in second
    assert (await client.run("list_chats", {"status": "error"}))["chats"] == []
