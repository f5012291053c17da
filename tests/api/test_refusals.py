"""What the front door refuses, and how: always in the same shape, and nothing is changed."""

from uuid import UUID

import pytest

from chatd.api.call import LARGE_BODY, SMALL_BODY
from chatd.domain.chat.states import State
from tests.support.factories import CHAT
from tests.support.front import CLEVER, ME, STRANGER, Front, Json, saying
from tests.support.seeds import Seed
from tests.support.store import dump, plant_in

NOBODYS = UUID(int=404)

ROUTES: list[tuple[str, str, Json | None]] = [
    ("GET", "/chats/{chat}", None),
    ("PATCH", "/chats/{chat}", {"title": "Mine now"}),
    ("PATCH", "/chats/{chat}", {"archived": True}),
    ("GET", "/chats/{chat}/messages", None),
    ("POST", "/chats/{chat}/messages", saying("hi")),
    ("PATCH", "/chats/{chat}/messages/2", saying("hi")),
    ("POST", "/chats/{chat}/tool-results", {"results": []}),
    ("POST", "/chats/{chat}/interrupt", None),
    ("POST", "/chats/{chat}/compact", None),
    ("GET", "/chats/{chat}/queue", None),
    ("PATCH", "/chats/{chat}/queue/1", saying("hi")),
    ("POST", "/chats/{chat}/queue/1/move", {"before": None}),
    ("POST", "/chats/{chat}/queue/1/promote", None),
    ("DELETE", "/chats/{chat}/queue/1", None),
    ("GET", "/chats/{chat}/events", None),
]
"""Every route that is about one chat."""

OF_NONE: list[tuple[str, str, Json | None]] = [
    ("GET", "/chats", None),
    ("POST", "/chats", saying("hi")),
    ("GET", "/events", None),
]


# Who


@pytest.mark.promise("P12")
@pytest.mark.parametrize("state", [State.R1, State.A1, State.XE1])
async def test_a_chat_of_somebody_else_is_not_there_whatever_is_asked(
    front: Front, state: State
) -> None:
    """Byte for byte as one that does not exist."""
    pool = front.replica.pool
    await plant_in(pool, Seed(state=state))
    before = await dump(pool)
    for method, path, body in ROUTES:
        theirs = await front.ask(method, path.format(chat=CHAT), body, token=STRANGER)
        nobodys = await front.ask(method, path.format(chat=NOBODYS), body, token=STRANGER)
        assert theirs.code == (404, "not_found"), (method, path)
        assert theirs.content == nobodys.content, (method, path)
    assert await dump(pool) == before


@pytest.mark.promise("P12")
async def test_lists_have_only_my_own_chats(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.W))
    assert (await front.ask("GET", "/chats", token=STRANGER)).items == []
    asked = await front.ask("GET", f"/chats?after_id={CHAT}", token=STRANGER)
    assert (asked.status, asked.field) == (400, "after_id")


async def test_without_a_valid_token_nothing_is_said(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.R1))
    before = await dump(front.replica.pool)
    for method, path, body in ROUTES + OF_NONE:
        for headers in ({}, {"Authorization": f"Basic {ME}"}, {"Authorization": "Bearer "}):
            refused = await front.ask(
                method, path.format(chat=CHAT), body, token=None, headers=headers
            )
            assert refused.code == (401, "unauthorized"), (method, path)
            assert refused.headers["www-authenticate"].startswith("Bearer")
    refused = await front.ask("GET", "/chats", token="wrong")
    assert refused.code == (401, "unauthorized")
    assert await dump(front.replica.pool) == before


async def test_the_word_bearer_may_be_written_as_one_likes(front: Front) -> None:
    asked = await front.ask("GET", "/chats", token=None, headers={"Authorization": f"bEARER {ME}"})
    assert asked.status == 200


# Where


async def test_what_is_nowhere_is_refused_in_the_same_shape(front: Front) -> None:
    assert (await front.ask("GET", "/nowhere")).code == (404, "not_found")
    assert (await front.ask("GET", "/../../etc/passwd")).status == 404
    wrong = await front.ask("PUT", f"/chats/{CHAT}")
    assert wrong.code == (405, "method_not_allowed")
    assert "GET" in wrong.headers["allow"]
    stream = await front.ask("POST", f"/chats/{CHAT}/events")
    assert stream.code == (405, "method_not_allowed")
    assert stream.headers["allow"] == "GET"
    beside = await front.ask("POST", f"x/chats/{CHAT}/events")
    assert beside.code == (404, "not_found"), "/api/v1x is none of ours"


async def test_ids_that_are_none_are_refused(front: Front) -> None:
    for method, path, body in ROUTES:
        refused = await front.ask(method, path.format(chat="17"), body)
        assert (refused.status, refused.field) == (400, "chat_id"), path
    for number in ("0", "-1", "x", "1.0", str(2**63), "9" * 400):
        edit = await front.ask("PATCH", f"/chats/{CHAT}/messages/{number}", saying("x"))
        assert (edit.status, edit.field) == (400, "message_id")
        delete = await front.ask("DELETE", f"/chats/{CHAT}/queue/{number}")
        assert (delete.status, delete.field) == (400, "queue_id")


# What

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
    "mode": [{"mode": "Plan"}, {"mode": "plan\0"}, {"mode": "plan\n"}, {"mode": ""}],
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
async def test_a_chat_is_not_begun_with_anything_wrong_and_the_field_is_named(
    front: Front,
) -> None:
    for field, bodies in WRONG_CREATES.items():
        for wrong in bodies:
            body = wrong if field == "content" else {"content": [TEXT]} | wrong
            refused = await front.ask("POST", "/chats", body)
            assert (refused.status, refused.field) == (400, field), wrong
    assert (await front.ask("GET", "/chats")).items == []


async def test_what_is_just_allowed_is_taken(front: Front) -> None:
    labels = {"a" * 64: "ä" * 128} | {f"k/{n}._-": "x" for n in range(49)}
    tools = [TOOL | {"name": f"tool_{n}-"} for n in range(250)]
    await front.create("x", labels=labels, client_tools=tools)
    chat = await front.create("a\0b 😀 ☃")
    page = await front.ask("GET", f"/chats/{chat}/messages")
    assert page.at("messages")[0]["content"] == [{"type": "text", "text": "a\0b 😀 ☃"}]
    long = {"title": "ü" * 200}
    assert (await front.ask("PATCH", f"/chats/{chat}", long)).status == 204


WRONG_PATCHES: dict[str, list[Json]] = {
    "title": [{"title": ""}, {"title": "x" * 201}, {"title": None}, {"title": "a\0b"}],
    "archived": [{"archived": "yes"}, {"archived": 1}],
    "pin_order": [{"pin_order": -1}, {"pin_order": 2**31}, {"pin_order": 1.5}],
    "labels": [{"labels": None}, {"labels": {"a": "\0"}}],
    "tilte": [{"tilte": "misspelt"}],
}


@pytest.mark.promise("P15")
async def test_an_amendment_with_a_wrong_or_unknown_field_changes_nothing(front: Front) -> None:
    before = await plant_in(front.replica.pool, Seed(state=State.W))
    for field, bodies in WRONG_PATCHES.items():
        for body in bodies:
            refused = await front.ask("PATCH", f"/chats/{CHAT}", {"title": "ok"} | body)
            assert (refused.status, refused.field) == (400, field), body
    assert await front.chat(CHAT) == before


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
async def test_a_body_that_is_no_json_or_another_is_refused(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.A0))
    before = await dump(front.replica.pool)
    for method, path, body in ROUTES + OF_NONE:
        if body is None:
            continue
        for hostile in HOSTILE:
            refused = await front.ask(method, path.format(chat=CHAT), hostile)
            assert refused.status == 400, (path, hostile[:40])
            assert refused.json["validations"]
    assert await dump(front.replica.pool) == before


async def test_nesting_that_nobody_could_read_again_is_refused(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.A0))
    deep = b"[" * 900 + b"]" * 900
    results = b'{"results": [{"tool_call_id": "c1", "output": ' + deep + b"}]}"
    refused = await front.ask("POST", f"/chats/{CHAT}/tool-results", results)
    assert (refused.status, refused.field) == (400, "results[0].output")
    broken = b'{"results": [{"tool_call_id": "c1", "output": "\xff"}]}'
    refused = await front.ask("POST", f"/chats/{CHAT}/tool-results", broken)
    assert (refused.status, refused.field) == (400, "results[0].output")


async def test_a_body_that_is_too_large_is_refused(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.W))
    most = {
        "/chats": SMALL_BODY,
        f"/chats/{CHAT}/tool-results": SMALL_BODY,
        f"/chats/{CHAT}/messages": LARGE_BODY,
    }
    for path, size in most.items():
        refused = await front.ask("POST", path, b" " * (size + 1))
        assert refused.code == (413, "too_large")
        assert (await front.ask("POST", path, b" " * size)).code == (400, "invalid_json")
    words = "x" * (LARGE_BODY - 100)
    sent = await front.ask("POST", f"/chats/{CHAT}/messages", saying(words))
    assert sent.status == 200


WRONG_QUERIES = {
    "/chats?limit=0": "limit",
    "/chats?limit=201": "limit",
    "/chats?limit=ten": "limit",
    "/chats?limit=1&limit=2": "limit",
    "/chats?offset=50": "offset",
    "/chats?after_id=x": "after_id",
    f"/chats?after_id={NIL}": "after_id",
    "/chats?q=archived:maybe": "q",
    "/chats?q=title:x": "q",
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


async def test_a_wrong_query_is_refused_and_an_unknown_word_passed_over(front: Front) -> None:
    await plant_in(front.replica.pool, Seed(state=State.W))
    for path, field in WRONG_QUERIES.items():
        refused = await front.ask("GET", path)
        assert (refused.status, refused.field) == (400, field), path
    assert (await front.ask("GET", "/chats?unheard_of=1")).status == 200
    for last in ("x", "-1", "1.0", "²", "9" * 30, str(2**63)):
        refused = await front.ask("GET", f"/chats/{CHAT}/events", headers={"Last-Event-ID": last})
        assert (refused.status, refused.field) == (400, "Last-Event-ID"), last
