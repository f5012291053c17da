"""`/mcp` as a protocol: versions, malformed messages, and who is let in."""

import msgspec
import pytest

from chatd.api.accounts.authenticator import AccountsConfig
from chatd.api.accounts.request_limits import RequestLimits
from chatd.api.mcp.endpoint import MAX_MESSAGE_BYTES
from tests.support.api.server import ME, ApiOptions, ApiServer, serve_api
from tests.support.mcp.raw_client import (
    HANDSHAKE,
    STATELESS,
    Json,
    RawClient,
    call_body,
    error_text,
    request_body,
    stateless_body,
    stateless_headers,
)


@pytest.fixture
def client(server: ApiServer) -> RawClient:
    return RawClient(server.http)


@pytest.mark.parametrize(
    ("wanted", "agreed"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        (HANDSHAKE, HANDSHAKE),
        (STATELESS, HANDSHAKE),
        ("1999-01-01", HANDSHAKE),
        (None, HANDSHAKE),
    ],
)
async def test_initialize_agrees_on_a_version_that_both_speak(
    client: RawClient, wanted: str | None, agreed: str
) -> None:
    reply = await client.post(request_body("initialize", {"protocolVersion": wanted}))

    assert (reply.status, reply.result["protocolVersion"]) == (200, agreed)
    assert reply.result["serverInfo"]
    assert reply.headers["mcp-session-id"].startswith(agreed)


async def test_a_request_of_the_newest_version_needs_no_session(client: RawClient) -> None:
    found = await client.post(
        stateless_body("server/discover"), stateless_headers("server/discover")
    )
    assert STATELESS in msgspec.convert(found.result["supportedVersions"], list[str])
    assert found.result["resultType"] == "complete"
    assert "mcp-session-id" not in found.headers

    listed = await client.post(stateless_body("tools/list"), stateless_headers("tools/list"))
    assert (listed.result["ttlMs"], listed.result["cacheScope"]) == (0, "private")


async def test_every_tool_describes_all_that_it_takes_and_returns(client: RawClient) -> None:
    reply = await client.post(request_body("tools/list"))

    tools = msgspec.convert(reply.result["tools"], list[Json])
    assert len(tools) >= 8
    for tool in tools:
        assert tool["description"]
        for name in ("inputSchema", "outputSchema"):
            schema = msgspec.convert(tool[name], Json)
            assert schema["type"] == "object"
            properties = msgspec.convert(schema["properties"], dict[str, Json])
            assert all(field.get("description") for field in properties.values()), tool["name"]
        hints = msgspec.convert(tool["annotations"], Json)
        assert {"readOnlyHint", "destructiveHint", "idempotentHint"} <= hints.keys()


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", (400, -32700)),
        (b"\xff\xfe", (400, -32700)),
        (b"[" * 5000, (400, -32700)),
        (b"[]", (400, -32600)),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', (400, -32600)),
        (b'"ping"', (400, -32600)),
        (b"{}", (400, -32600)),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', (400, -32600)),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', (400, -32600)),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', (400, -32600)),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', (400, -32600)),
        (b'{"jsonrpc":"2.0","id":1,"method":"chats/destroy"}', (200, -32601)),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', (200, -32602)),
        (call_body("no_such_tool", {}), (200, -32602)),
        (b" " * (MAX_MESSAGE_BYTES + 1), (413, -32600)),
    ],
)
async def test_a_malformed_request_gets_an_error_that_says_why(
    client: RawClient, body: object, error: tuple[int, int]
) -> None:
    assert (await client.post(body)).error == error


@pytest.mark.parametrize(
    ("body", "headers", "error"),
    [
        (request_body("ping"), {"Mcp-Protocol-Version": "1999-01-01"}, (400, -32602)),
        (
            stateless_body("tools/list"),
            stateless_headers("tools/list") | {"Mcp-Protocol-Version": "2099-01-01"},
            (400, -32020),
        ),
        (stateless_body("tools/list"), stateless_headers("ping"), (400, -32020)),
        (
            stateless_body("tools/call", {"name": "list_chats"}),
            stateless_headers("tools/call", "start_chat"),
            (400, -32020),
        ),
        (request_body("tools/list"), stateless_headers("tools/list"), (400, -32602)),
        (stateless_body("ping"), stateless_headers("ping"), (404, -32601)),
        (
            stateless_body("tools/call", {"name": "no_such_tool"}),
            stateless_headers("tools/call", "no_such_tool"),
            (400, -32602),
        ),
    ],
)
async def test_headers_that_contradict_the_message_are_refused(
    client: RawClient, body: Json, headers: dict[str, str], error: tuple[int, int]
) -> None:
    assert (await client.post(body, headers)).error == error


async def test_an_unknown_version_is_answered_with_those_that_are_spoken(
    client: RawClient,
) -> None:
    unknown = "2099-01-01"
    body = stateless_body("tools/list")
    body = msgspec.json.decode(msgspec.json.encode(body).replace(STATELESS.encode(), b"2099-01-01"))

    reply = await client.post(
        body, stateless_headers("tools/list") | {"Mcp-Protocol-Version": unknown}
    )

    assert reply.error == (400, -32022)
    error = msgspec.convert(reply.json["error"], Json)
    data = msgspec.convert(error["data"], Json)
    assert data["requested"] == unknown
    assert STATELESS in msgspec.convert(data["supported"], list[str])


async def test_notifications_and_replies_are_accepted_without_an_answer(client: RawClient) -> None:
    for body in (
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}',
        b'{"jsonrpc":"2.0","id":3,"result":{}}',
    ):
        reply = await client.post(body)
        assert (reply.status, reply.body) == (202, b"")


async def test_a_get_without_an_event_id_and_a_delete_are_not_allowed(client: RawClient) -> None:
    for method in ("GET", "DELETE", "PUT"):
        reply = await client.ask(method)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST")


@pytest.mark.parametrize(
    "last", ["", "12-3f9a0c", "!!!", "W10", "A" * 5000, "eyJ9.1", "WzEsbnVsbCwic3RhcnRfY2hhdCJd.1"]
)
async def test_an_event_id_that_names_no_call_is_refused(client: RawClient, last: str) -> None:
    reply = await client.ask("GET", headers={"Last-Event-ID": last})

    assert reply.error == ((405, -32600) if last == "" else (400, -32602))


@pytest.mark.promise("P12")
@pytest.mark.parametrize("token", [None, "a-wrong-token-of-enough-characters"])
async def test_without_a_valid_token_nothing_is_answered(
    server: ApiServer, token: str | None
) -> None:
    reply = await RawClient(server.http, token).post(request_body("tools/list"))

    assert reply.status == 401
    assert reply.headers["www-authenticate"] == 'Bearer realm="chatd"'


@pytest.mark.promise("P12")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example", "Host": "evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "chatd.internal"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_a_page_of_another_site_is_refused_even_with_a_token(
    client: RawClient, headers: dict[str, str], status: int
) -> None:
    reply = await client.post(request_body("ping"), headers)

    assert reply.status == status
    if status == 403:
        assert reply.error == (403, -32600)


@pytest.mark.promise("P12")
async def test_a_token_lists_and_calls_only_what_its_scopes_allow(server: ApiServer) -> None:
    chat_id = await server.create()
    made = await server.ask("POST", "/auth/tokens", {"name": "reader", "scopes": ["chat:read"]})
    reader = RawClient(server.http, str(made.json["token"]))

    listed = (await reader.post(request_body("tools/list"))).result["tools"]
    names = [tool["name"] for tool in msgspec.convert(listed, list[dict[str, object]])]
    assert names == ["wait_for_chat", "read_chat", "list_chats"]

    assert await reader.run("read_chat", {"chat_id": str(chat_id)})
    for tool, arguments in (
        ("start_chat", {"message": "hello"}),
        ("send_message", {"chat_id": str(chat_id), "message": "hello"}),
        ("interrupt_chat", {"chat_id": str(chat_id)}),
    ):
        refused = await reader.call(tool, dict[str, object](arguments))
        assert error_text(refused).startswith("missing_scope: This token lacks the scope")


async def test_a_user_who_asks_too_often_is_told_when_to_try_again(dsn: str) -> None:
    limits = AccountsConfig(limits=RequestLimits(requests=3))
    async with serve_api(dsn, ApiOptions(accounts=limits)) as server:
        client = RawClient(server.http, ME)
        for _ in range(3):
            assert (await client.post(request_body("ping"))).status == 200

        refused = await client.post(request_body("ping"))
        assert (refused.status, "retry-after" in refused.headers) == (429, True)
        reply = await client.post(call_body("list_chats", {}))
        assert error_text(reply.result).startswith("rate_limited: Too many requests. Try again in")
