"""Chats as resources of `/mcp`: listed, read by address, and hidden from strangers."""

import msgspec
import pytest

from tests.support.api.server import OTHER_USER, ApiServer
from tests.support.mcp.raw_client import (
    Json,
    RawClient,
    request_body,
    stateless_body,
    stateless_headers,
)


@pytest.fixture
def client(server: ApiServer) -> RawClient:
    return RawClient(server.http)


def read_body(uri: object) -> Json:
    return request_body("resources/read", {"uri": uri})


async def test_chats_are_listed_page_by_page(server: ApiServer, client: RawClient) -> None:
    made = {f"chatd://chats/{await server.create(f'chat {number}')}" for number in range(52)}

    first = (await client.post(request_body("resources/list"))).result
    cursor = first["nextCursor"]
    second = (await client.post(request_body("resources/list", {"cursor": cursor}))).result

    pages = [msgspec.convert(page["resources"], list[Json]) for page in (first, second)]
    assert [len(page) for page in pages] == [50, 2]
    assert {one["uri"] for page in pages for one in page} == made
    assert "nextCursor" not in second


async def test_a_chat_is_read_as_markdown(server: ApiServer, client: RawClient) -> None:
    chat_id = await server.create("tell me")
    await server.play_turn(chat_id, "long " * 3000)
    uri = f"chatd://chats/{chat_id}"

    (content,) = msgspec.convert(
        (await client.post(read_body(uri))).result["contents"], list[dict[str, str]]
    )

    assert (content["uri"], content["mimeType"]) == (uri, "text/markdown")
    title, status, _, said, _, answered, *_ = content["text"].split("\n\n")
    assert (title, status, said) == ("# tell me", "Status: waiting", "tell me")
    assert answered.startswith("long long")
    assert content["text"].endswith("(cut: read_chat has the rest)")
    templates = (await client.post(request_body("resources/templates/list"))).result
    (template,) = msgspec.convert(templates["resourceTemplates"], list[Json])
    assert template["uriTemplate"] == "chatd://chats/{chat_id}"


@pytest.mark.promise("P12")
async def test_what_a_caller_may_not_read_is_not_found(
    server: ApiServer, client: RawClient
) -> None:
    uri = f"chatd://chats/{await server.create('secret')}"
    stranger = RawClient(server.http, OTHER_USER)

    assert (await stranger.post(read_body(uri))).error == (200, -32002)
    assert (await stranger.post(request_body("resources/list"))).result["resources"] == []
    modern = stateless_body("resources/read", {"uri": uri})
    headers = stateless_headers("resources/read", uri)
    assert (await stranger.post(modern, headers)).error == (400, -32602)
    assert (await client.post(modern, headers)).result["ttlMs"] == 0


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("chatd://chats/me", -32002),
        ("chatd://chats/", -32002),
        ("file:///etc/passwd", -32002),
        ("", -32002),
        (7, -32602),
        (None, -32602),
    ],
)
async def test_an_address_that_names_nothing_is_refused(
    client: RawClient, uri: object, code: int
) -> None:
    assert (await client.post(read_body(uri))).error == (200, code)


async def test_a_token_without_the_scope_reads_no_chat(server: ApiServer) -> None:
    uri = f"chatd://chats/{await server.create('secret')}"
    made = await server.ask("POST", "/auth/tokens", {"name": "files", "scopes": ["files"]})
    client = RawClient(server.http, str(made.json["token"]))

    for body in (read_body(uri), request_body("resources/list")):
        refused = await client.post(body)
        assert refused.error == (403, -32600)
        assert "lacks the scope chat:read" in str(refused.json["error"])
