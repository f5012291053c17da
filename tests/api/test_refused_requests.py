"""Refused requests: every error has the usual body, and nothing is changed."""

from uuid import UUID

import pytest

from chatd.api.request import LARGE_BODY_BYTES, SMALL_BODY_BYTES
from chatd.domain.chat.states import State
from tests.support.api.server import CLEVER, ME, OTHER_USER, ApiServer, Json, message_body
from tests.support.factories import CHAT
from tests.support.seeds import Seed
from tests.support.store import dump, insert_seed

MISSING_CHAT = UUID(int=404)

ROUTES: list[tuple[str, str, Json | None]] = [
    ("GET", "/chats/{chat}", None),
    ("PATCH", "/chats/{chat}", {"title": "Mine now"}),
    ("PATCH", "/chats/{chat}", {"archived": True}),
    ("GET", "/chats/{chat}/messages", None),
    ("POST", "/chats/{chat}/messages", message_body("hi")),
    ("PATCH", "/chats/{chat}/messages/2", message_body("hi")),
    ("POST", "/chats/{chat}/tool-results", {"results": []}),
    ("POST", "/chats/{chat}/interrupt", None),
    ("POST", "/chats/{chat}/compact", None),
    ("GET", "/chats/{chat}/queue", None),
    ("PATCH", "/chats/{chat}/queue/1", message_body("hi")),
    ("POST", "/chats/{chat}/queue/1/move", {"before": None}),
    ("POST", "/chats/{chat}/queue/1/promote", None),
    ("DELETE", "/chats/{chat}/queue/1", None),
    ("GET", "/chats/{chat}/events", None),
]
"""Every route of one chat."""

OTHER_ROUTES: list[tuple[str, str, Json | None]] = [
    ("GET", "/chats", None),
    ("POST", "/chats", message_body("hi")),
    ("GET", "/events", None),
]


# Authentication and access


@pytest.mark.promise("P12")
@pytest.mark.parametrize("state", [State.R1, State.A1, State.XE1])
async def test_another_users_chat_looks_like_a_missing_one_on_every_route(
    server: ApiServer, state: State
) -> None:
    """The replies are byte for byte those for a missing chat."""
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=state))
    before = await dump(pool)
    for method, path, body in ROUTES:
        theirs = await server.ask(method, path.format(chat=CHAT), body, token=OTHER_USER)
        missing = await server.ask(method, path.format(chat=MISSING_CHAT), body, token=OTHER_USER)
        assert theirs.code == (404, "not_found"), (method, path)
        assert theirs.content == missing.content, (method, path)
    assert await dump(pool) == before


@pytest.mark.promise("P12")
async def test_lists_contain_only_the_callers_chats(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    assert (await server.ask("GET", "/chats", token=OTHER_USER)).items == []


async def test_every_route_refuses_an_invalid_token(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.R1))
    before = await dump(server.replica.pool)
    for method, path, body in ROUTES + OTHER_ROUTES:
        for headers in ({}, {"Authorization": f"Basic {ME}"}, {"Authorization": "Bearer "}):
            refused = await server.ask(
                method, path.format(chat=CHAT), body, token=None, headers=headers
            )
            assert refused.code == (401, "unauthorized"), (method, path)
            assert refused.headers["www-authenticate"].startswith("Bearer")
    refused = await server.ask("GET", "/chats", token="wrong")
    assert refused.code == (401, "unauthorized")
    assert await dump(server.replica.pool) == before


async def test_the_bearer_scheme_is_case_insensitive(server: ApiServer) -> None:
    asked = await server.ask("GET", "/chats", token=None, headers={"Authorization": f"bEARER {ME}"})
    assert asked.status == 200


# Paths


async def test_unknown_paths_and_methods_get_the_usual_error_body(server: ApiServer) -> None:
    assert (await server.ask("GET", "/nowhere")).code == (404, "not_found")
    assert (await server.ask("GET", "/../../etc/passwd")).status == 404
    wrong = await server.ask("PUT", f"/chats/{CHAT}")
    assert wrong.code == (405, "method_not_allowed")
    assert "GET" in wrong.headers["allow"]
    stream = await server.ask("POST", f"/chats/{CHAT}/events")
    assert stream.code == (405, "method_not_allowed")
    assert stream.headers["allow"] == "GET"
    beside = await server.ask("POST", f"x/chats/{CHAT}/events")
    assert beside.code == (404, "not_found"), "/api/v1x is none of ours"


async def test_malformed_ids_are_refused(server: ApiServer) -> None:
    for method, path, body in ROUTES:
        refused = await server.ask(method, path.format(chat="17"), body)
        assert (refused.status, refused.field) == (400, "chat_id"), path
    for number in ("0", "-1", "x", "1.0", str(2**63), "9" * 400):
        edit = await server.ask("PATCH", f"/chats/{CHAT}/messages/{number}", message_body("x"))
        assert (edit.status, edit.field) == (400, "message_id")
        delete = await server.ask("DELETE", f"/chats/{CHAT}/queue/{number}")
        assert (delete.status, delete.field) == (400, "queue_id")


# Bodies and queries

TOOL: Json = {"name": "ask", "description": "Ask.", "input_schema": {"type": "object"}}
TEXT: Json = {"type": "text", "text": "hi"}
QUOTE: Json = {"type": "file-reference", "file_name": "a", "content": "b"}
NIL = "00000000-0000-0000-0000-000000000000"

WRONG_CREATES: dict[str, list[Json]] = {
    "content": [{}, {"content": []}, {"content": "hi"}, {"content": [TEXT] * 257}],
    "content[0]": [{"content": ["hi"]}, {"content": [None]}],
    "content[0].type": [{"content": [{"text": "hi"}]}, {"content": [{"type": "tool-call"}]}],
    "content[0].text": [
        {"content": [{"type": "text"}]},
        {"content": [{"type": "text", "text": " \n"}]},
        {"content": [{"type": "text", "text": 5}]},
    ],
    "content[1].file_id": [
        {"content": [TEXT, {"type": "file", "file_id": NIL}]},
        {"content": [TEXT, {"type": "file", "file_id": "x"}]},
    ],
    "content[0].end_line": [
        {"content": [QUOTE | {"start_line": 2, "end_line": 1}]},
        {"content": [QUOTE | {"start_line": 2, "end_line": 2**40}]},
    ],
    "model": [
        {"model": "unheard-of"},
        {"model": 1},
        {"model": "fast", "model_config_id": str(CLEVER.id)},
    ],
    "model_config_id": [{"model_config_id": NIL}, {"model_config_id": "x"}],
    "reasoning_effort": [{"reasoning_effort": "huge"}, {"reasoning_effort": "low\0"}],
    "workspace_id": [{"workspace_id": str(UUID(int=9))}],
    "mcp_server_ids": [{"mcp_server_ids": [NIL]}],
    "mode": [{"mode": "explore"}, {"mode": 1}],
    "labels": [
        {"labels": {"": "x"}},
        {"labels": {"-a": "x"}},
        {"labels": {"a\n": "x"}},
        {"labels": {"a" * 65: "x"}},
        {"labels": {"ä": "x"}},
        {"labels": {"a": ""}},
        {"labels": {"a": "ä" * 129}},
        {"labels": {"a": "x\0y"}},
        {"labels": {f"k{n}": "x" for n in range(51)}},
        {"labels": []},
    ],
    "labels[...]": [{"labels": {"a": 1}}],
    "modle": [{"modle": "fast"}],
    "content[0].texts": [{"content": [TEXT | {"texts": "hi"}]}],
    "client_tools[0].schema": [{"client_tools": [TOOL | {"schema": {}}]}],
    "client_tools": [{"client_tools": [TOOL, TOOL]}, {"client_tools": [TOOL] * 251}],
    "client_tools[0].name": [{"client_tools": [TOOL | {"name": "a b"}]}],
    "client_tools[0].input_schema": [
        {"client_tools": [TOOL | {"input_schema": []}]},
        {"client_tools": [TOOL | {"input_schema": {"type": "string"}}]},
    ],
}


@pytest.mark.promise("P15")
async def test_an_invalid_create_names_the_field_and_creates_nothing(server: ApiServer) -> None:
    for field, bodies in WRONG_CREATES.items():
        for wrong in bodies:
            body = wrong if field == "content" else {"content": [TEXT]} | wrong
            refused = await server.ask("POST", "/chats", body)
            assert (refused.status, refused.field) == (400, field), wrong
    assert (await server.ask("GET", "/chats")).items == []


async def test_values_at_the_limits_are_accepted(server: ApiServer) -> None:
    labels = {"a" * 64: "ä" * 128} | {f"k/{n}._-": "x" for n in range(49)}
    tools = [TOOL | {"name": f"tool_{n}-"} for n in range(250)]
    await server.create("x", labels=labels, client_tools=tools)
    chat = await server.create("a\0b 😀 ☃")
    page = await server.ask("GET", f"/chats/{chat}/messages")
    assert page.items[0]["content"] == [{"type": "text", "text": "a\0b 😀 ☃"}]
    long = {"title": "ü" * 200}
    assert (await server.ask("PATCH", f"/chats/{chat}", long)).status == 200


WRONG_PATCHES: dict[str, list[Json]] = {
    "title": [{"title": ""}, {"title": "x" * 201}, {"title": None}, {"title": "a\0b"}],
    "archived": [{"archived": "yes"}, {"archived": 1}],
    "pin_order": [{"pin_order": -1}, {"pin_order": 2**31}, {"pin_order": 1.5}],
    "labels": [{"labels": None}, {"labels": {"a": "\0"}}],
    "tilte": [{"tilte": "misspelt"}],
}


@pytest.mark.promise("P15")
async def test_an_update_with_an_invalid_or_unknown_field_changes_nothing(
    server: ApiServer,
) -> None:
    before = await insert_seed(server.replica.pool, Seed(state=State.W))
    for field, bodies in WRONG_PATCHES.items():
        for body in bodies:
            refused = await server.ask("PATCH", f"/chats/{CHAT}", {"title": "ok"} | body)
            assert (refused.status, refused.field) == (400, field), body
    assert await server.chat(CHAT) == before


DEEP = b"[" * 100_000

HOSTILE = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"{",
    b"\xff\xfe",
    b'{"content": "\xff"}',
    b'{"content": [{"type": "text", "text": "\\ud800"}]}',
    b'{"content": NaN}',
    b"\xef\xbb\xbf{}",
    DEEP,
    b'{"unknown": ' + DEEP,
    b'{"content": [{"type": "text", "text": "x"}], "unknown": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"content": 1, "content": 2}',
    b"content=hi&model=fast",
]


@pytest.mark.promise("P15")
async def test_a_body_that_is_not_the_expected_json_is_refused(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.A0))
    before = await dump(server.replica.pool)
    for method, path, body in ROUTES + OTHER_ROUTES:
        if body is None:
            continue
        for hostile in HOSTILE:
            refused = await server.ask(method, path.format(chat=CHAT), hostile)
            assert refused.status == 400, (path, hostile[:40])
            assert refused.json["validations"]
    assert await dump(server.replica.pool) == before


async def test_json_nested_too_deeply_to_be_read_back_is_refused(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.A0))
    deep = b"[" * 900 + b"]" * 900
    results = b'{"results": [{"tool_call_id": "c1", "output": ' + deep + b"}]}"
    refused = await server.ask("POST", f"/chats/{CHAT}/tool-results", results)
    assert (refused.status, refused.field) == (400, "results[0].output")
    broken = b'{"results": [{"tool_call_id": "c1", "output": "\xff"}]}'
    refused = await server.ask("POST", f"/chats/{CHAT}/tool-results", broken)
    assert (refused.status, refused.field) == (400, "results[0].output")


async def test_a_body_over_the_size_limit_is_refused(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    most = {
        "/chats": SMALL_BODY_BYTES,
        f"/chats/{CHAT}/tool-results": SMALL_BODY_BYTES,
        f"/chats/{CHAT}/messages": LARGE_BODY_BYTES,
    }
    for path, size in most.items():
        refused = await server.ask("POST", path, b" " * (size + 1))
        assert refused.code == (413, "too_large")
        assert (await server.ask("POST", path, b" " * size)).code == (400, "invalid_json")
    words = "x" * (LARGE_BODY_BYTES - 100)
    sent = await server.ask("POST", f"/chats/{CHAT}/messages", message_body(words))
    assert sent.status == 200


WRONG_QUERIES = {
    "/chats?limit=0": "limit",
    "/chats?limit=201": "limit",
    "/chats?limit=ten": "limit",
    "/chats?limit=1&limit=2": "limit",
    "/chats?offset=50": "offset",
    "/chats?after_id=x": "after_id",
    "/chats?cursor=": "cursor",
    "/chats?q=archived:maybe": "q",
    "/chats?label=x": "label",
    "/chats?label=a:": "label",
    "/chats?label=%00:x": "label",
    "/chats?label=a:x&label=a:y": "label",
    "/chats?" + "x=1&" * 200: "query",
    f"/chats/{CHAT}/messages?limit=0": "limit",
    f"/chats/{CHAT}/messages?before_id=0": "before_id",
    f"/chats/{CHAT}/messages?before_id={2**63}": "before_id",
    f"/chats/{CHAT}/messages?after_id=-1": "after_id",
    f"/chats/{CHAT}/messages?after_id=5&before_id=5": "before_id",
    f"/chats/{CHAT}/events?after=-1": "after",
    f"/chats/{CHAT}/events?after=x": "after",
}


async def test_an_invalid_query_and_an_unknown_parameter_are_refused(
    server: ApiServer,
) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    for path, field in WRONG_QUERIES.items():
        refused = await server.ask("GET", path)
        assert (refused.status, refused.field) == (400, field), path
    refused = await server.ask("GET", "/models?unheard_of=1")
    assert refused.json["message"] == (
        "unheard_of: is not a parameter of this path; there are limit, cursor, include_disabled"
    )
    refused = await server.ask("GET", f"/chats/{CHAT}?unheard_of=1")
    assert refused.json["message"] == (
        "unheard_of: is not a parameter of this path; this path takes none"
    )
    for last in ("x", "-1", "1.0", "²", "9" * 30, str(2**63)):
        refused = await server.ask("GET", f"/chats/{CHAT}/events", headers={"Last-Event-ID": last})
        assert (refused.status, refused.field) == (400, "Last-Event-ID"), last
