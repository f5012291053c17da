"""The versions of messages in an export, an import and a fork, over HTTP."""

import asyncio
from datetime import timedelta
from random import Random
from uuid import UUID

import msgspec
import pytest
from aiohttp import ClientPayloadError

from chatd.domain.chat.parts import SUMMARY_PREFIX, SUMMARY_TOOL_NAME
from chatd.domain.chat.row import Chat
from chatd.domain.chat.worker_transitions import acquire, commit_step
from chatd.domain.chat_views.copied_versions import CopiedVersions
from chatd.domain.errors import Conflict
from chatd.domain.ids import ChatId
from chatd.store.chat import messages, transfer, versions
from chatd.store.database.conn import Conn
from chatd.store.deployment import retention
from tests.support.api.server import OTHER_USER, ApiReply, ApiServer, Json, message_body
from tests.support.api.shares import share
from tests.support.domain.history_lines import history_lines
from tests.support.eventually import eventually
from tests.support.factories import HARNESS, WORKER, call, draft, text
from tests.support.outcomes import raised
from tests.support.seeds import step
from tests.support.store import has_lock_waiter

Steps = tuple[tuple[int, int], ...]
"""The message of history that has versions, and the version to show, both counted from 0."""
WALK: Steps = ((0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0))


async def exported(server: ApiServer, chat: ChatId) -> bytes:
    reply = await server.ask("GET", f"/chats/{chat}/export")
    assert reply.status == 200, reply.content
    return reply.content


async def imported(server: ApiServer, body: bytes) -> ChatId:
    made = await server.ask("POST", "/chats/import", body)
    assert made.status == 201, made.content
    assert made.json["changes"] == {}
    return ChatId(UUID(str(made.json["id"])))


async def forked(server: ApiServer, chat: ChatId, message: int | None = None) -> ChatId:
    body = {} if message is None else {"message_id": message}
    made = await server.ask("POST", f"/chats/{chat}/fork", body)
    assert made.status == 201, made.content
    return ChatId(UUID(str(made.json["id"])))


async def lines(server: ApiServer, chat: ChatId) -> list[str]:
    return history_lines(await messages.load_history(server.replica.pool, HARNESS, chat))


async def groups(server: ApiServer, chat: ChatId) -> list[list[int]]:
    found = (await server.ask("GET", f"/chats/{chat}/versions")).items
    return [
        [int(str(one["message_id"])) for one in msgspec.convert(group["versions"], list[Json])]
        for group in found
    ]


async def choose(server: ApiServer, chat: ChatId, message: int) -> None:
    chosen = await server.ask("PUT", f"/chats/{chat}/messages/{message}/version")
    assert chosen.status == 200, chosen.content


async def walked(server: ApiServer, chat: ChatId, steps: Steps = WALK) -> list[list[str]]:
    """What history was at first, and after each step."""
    seen = [await lines(server, chat)]
    for group, version in steps:
        await choose(server, chat, (await groups(server, chat))[group][version])
        seen.append(await lines(server, chat))
    return seen


async def edit(server: ApiServer, chat: ChatId, message: int, words: str) -> int:
    path = f"/chats/{chat}/messages/{message}"
    edited = await server.ask("PATCH", path, message_body(words))
    assert edited.status == 200, edited.content
    await server.play_turn(chat, f"to {words}")
    return int(str(edited.json["message_id"]))


async def send(server: ApiServer, chat: ChatId, words: str) -> int:
    sent = await server.ask("POST", f"/chats/{chat}/messages", message_body(words))
    assert sent.status == 200, sent.content
    await server.play_turn(chat, f"to {words}")
    return int(str(sent.json["message_id"]))


async def chat_with_versions(server: ApiServer) -> ChatId:
    """Three versions of its first message; in the first one another message has two."""
    chat = await server.create("first")
    await server.play_turn(chat, "to first")
    second = await send(server, chat, "second")
    await edit(server, chat, second, "better")
    other = await edit(server, chat, 1, "other")
    await edit(server, chat, other, "third")
    return chat


async def test_an_import_can_show_all_versions_that_its_source_could(server: ApiServer) -> None:
    chat = await chat_with_versions(server)
    file = await exported(server, chat)
    copy = await imported(server, file)
    assert await exported(server, copy) == file
    seen = await walked(server, chat)
    assert await walked(server, copy) == seen
    assert ["user: first", "assistant: to first", "user: second", "assistant: to second"] in seen
    assert seen[0] == ["user: third", "assistant: to third"]
    await edit(server, copy, (await groups(server, copy))[0][0], "fourth")
    assert [len(group) for group in await groups(server, copy)] == [4]


async def test_the_model_and_a_search_get_the_shown_version_of_an_import(
    server: ApiServer,
) -> None:
    copy = await imported(server, await exported(server, await chat_with_versions(server)))
    assert await lines(server, copy) == ["user: third", "assistant: to third"]
    for word, count in (("third", 2), ("better", 0)):
        found = await server.ask("GET", f"/chats/{copy}/matches?q={word}")
        assert found.json["count"] == count


async def test_the_ratings_of_hidden_answers_come_along(server: ApiServer) -> None:
    chat = await server.create("first")
    await server.play_turn(chat, "to first")
    rating = {"value": "down", "comment": "wrong"}
    rated = await server.ask("PUT", f"/chats/{chat}/messages/2/rating", rating)
    assert rated.status in (200, 204), rated.content
    await edit(server, chat, 1, "other")
    copy = await imported(server, await exported(server, chat))
    await choose(server, copy, 1)
    (found,) = (await server.ask("GET", f"/chats/{copy}/ratings")).items
    assert (found["message_id"], found["value"], found["comment"]) == (2, "down", "wrong")


@pytest.mark.parametrize("seed", range(6))
async def test_the_export_of_an_import_is_the_same_file(server: ApiServer, seed: int) -> None:
    """After any edits, new messages and choices of versions."""
    random = Random(seed)
    chat = await server.create("start")
    await server.play_turn(chat, "to start")
    for number in range(14):
        page = await server.ask("GET", f"/chats/{chat}/messages")
        prompts = [int(str(one["id"])) for one in page.items if one["role"] == "user"]
        found = await groups(server, chat)
        match random.choice(("send", "edit", "edit", "choose")):
            case "send":
                await send(server, chat, f"sent {number}")
            case "choose" if found:
                await choose(server, chat, random.choice(random.choice(found)))
            case _:
                await edit(server, chat, random.choice(prompts), f"edited {number}")
    file = await exported(server, chat)
    copies = [await imported(server, file), await forked(server, chat)]
    assert b'"line":' in file
    for copy in copies:
        content = await exported(server, copy)
        assert content.splitlines()[2:] == file.splitlines()[2:]
    steps: list[tuple[int, int]] = []
    for _ in range(12):
        found = await groups(server, chat)
        group = random.randrange(len(found))
        steps.append((group, random.randrange(len(found[group]))))
        await choose(server, chat, found[group][steps[-1][1]])
    expected = await lines(server, chat)
    for copy in copies:
        assert (await walked(server, copy, tuple(steps)))[-1] == expected


async def test_a_fork_has_the_versions_of_the_messages_up_to_its_end(server: ApiServer) -> None:
    chat = await chat_with_versions(server)
    await choose(server, chat, 1)
    first_answer = 2
    short = await forked(server, chat, first_answer)
    assert [len(group) for group in await groups(server, short)] == [3]
    assert await lines(server, short) == ["user: first", "assistant: to first"]
    seen = await walked(server, short, ((0, 1), (0, 2)))
    assert seen[1:] == [
        ["user: other", "assistant: to other"],
        ["user: third", "assistant: to third"],
    ]
    whole = await forked(server, chat)
    assert await walked(server, whole, WALK[1:]) == await walked(server, chat, WALK[1:])


async def test_a_line_that_left_a_call_open_can_be_shown_in_a_copy(server: ApiServer) -> None:
    chat = await server.create("first")
    await server.act(chat, lambda row: acquire(row, WORKER))
    calling = draft("assistant", text("on it"), call("c1"))
    await server.act(chat, lambda row: commit_step(row, step(row, calling)))
    await edit(server, chat, 1, "other")
    file = await exported(server, chat)
    once = await imported(server, file)
    assert await exported(server, once) == file
    for copy in (once, await forked(server, chat)):
        (shown,) = await groups(server, copy)
        await choose(server, copy, shown[0])
        assert [one.partition(":")[0] for one in await lines(server, copy)] == [
            "user",
            "assistant",
            "tool",
        ]
        await send(server, copy, "go on")


async def test_a_reader_by_a_share_exports_no_hidden_versions(server: ApiServer) -> None:
    chat = await chat_with_versions(server)
    await share(server, chat)
    seen = (await server.ask("GET", f"/chats/{chat}/export", token=OTHER_USER)).content
    assert b"third" in seen
    for hidden in (b"better", b"other", b"version_of", b'"line"'):
        assert hidden not in seen


async def test_an_export_is_of_one_state_while_versions_change(server: ApiServer) -> None:
    chat = await chat_with_versions(server)
    pool = server.replica.pool
    row, copied = await versions.read_state(pool, await server.chat(chat))
    await choose(server, chat, 1)
    await edit(server, chat, 1, "later")
    found = [one async for batch in transfer.read_messages(pool, row, copied) for one in batch]
    in_history = [one.message().content for one in found if one.line is None]
    assert len(in_history) == 2
    assert len(found) == row.next_message_id - 1


async def test_an_export_ends_without_its_last_line_if_retention_comes_between(
    server: ApiServer,
) -> None:
    chat = await chat_with_versions(server)
    pool = server.replica.pool
    row, copied = await versions.read_state(pool, await server.chat(chat))
    assert await retention.clear_deleted_messages(pool, timedelta(0)) > 0
    await raised(Conflict, anext(transfer.read_messages(pool, row, copied)))
    copy = await imported(server, await exported(server, chat))
    assert await groups(server, copy) == []
    assert await groups(server, await forked(server, chat)) == []


async def test_a_fork_waits_for_retention_and_leaves_out_what_it_removed(
    server: ApiServer,
) -> None:
    chat = await chat_with_versions(server)
    pool = server.replica.pool
    async with asyncio.timeout(30), asyncio.TaskGroup() as group, pool.transaction() as held:
        assert await retention.clear_deleted_messages(held, timedelta(0)) > 0
        forking = group.create_task(forked(server, chat))
        await eventually(lambda: has_lock_waiter(pool))
    copy = forking.result()
    assert await groups(server, copy) == []
    assert await lines(server, copy) == ["user: third", "assistant: to third"]
    assert (await server.chat(copy)).next_message_id == 3


async def test_an_export_that_retention_interrupts_is_cut_off(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await chat_with_versions(server)
    read = versions.read_state

    async def read_then_clear(conn: Conn, row: Chat) -> tuple[Chat, CopiedVersions]:
        found = await read(conn, row)
        await retention.clear_deleted_messages(server.replica.pool, timedelta(0))
        return found

    monkeypatch.setattr(versions, "read_state", read_then_clear)
    with pytest.raises(ClientPayloadError):
        await server.ask("GET", f"/chats/{chat}/export")
    monkeypatch.undo()
    assert await groups(server, await imported(server, await exported(server, chat))) == []


def file_of(*found: Json) -> bytes:
    at = "2026-11-01T10:00:00Z"
    made: list[Json] = [
        {"type": "chatd", "version": 1},
        {"type": "chat", "number": 1, "title": "x", "labels": {}, "created_at": at},
        *(
            {"type": "message", "chat": 1, "id": n, "created_at": at, **one}
            for n, one in enumerate(found, 1)
        ),
        {"type": "end", "chats": 1, "messages": len(found)},
    ]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in made)


def said(role: str, words: str = "x", **fields: object) -> Json:
    return {"role": role, "content": [{"type": "text", "text": words}], **fields}


async def refused(server: ApiServer, body: bytes) -> ApiReply:
    pool = server.replica.pool
    before = await pool.fetchval("SELECT count(*) FROM chats")
    reply = await server.ask("POST", "/chats/import", body)
    assert reply.code == (400, "invalid_input"), reply.content
    assert await pool.fetchval("SELECT count(*) FROM chats") == before
    assert await pool.fetchval("SELECT count(*) FROM chat_message_versions") == 0
    return reply


CALL: Json = {"type": "tool-call", "tool_call_id": "c1", "tool_name": "t", "args": {}}
RESULT: Json = {"type": "tool-result", "tool_call_id": "c1", "tool_name": "t", "result": 1}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ([said("user", line=9)], 3),
        ([said("user", line=10**30)], 3),
        ([said("user", line=0)], 3),
        ([said("user", line=1)], 3),
        ([said("user", line=1, version_of=1)], 4),
        ([said("user", version_of=1)], 4),
        ([said("user", version_of=-1)], 3),
        ([said("user"), said("assistant", version_of=2)], 4),
        ([said("user", visibility="model", version_of=1)], 3),
        ([said("user", line=1, version_of=1), said("user"), said("user", version_of=1)], 5),
        (
            [
                said("user", line=1, version_of=1),
                said("user", line=2, version_of=2),
                said("user", line=2, version_of=1),
                said("user", line=1, version_of=2),
            ],
            5,
        ),
        (
            [
                said("user", line=1, version_of=1),
                said("user", version_of=1),
                said("user", version_of=1),
            ],
            5,
        ),
        (
            [
                said("user", line=1, version_of=1),
                {"role": "assistant", "content": [CALL], "line": 1},
                said("user", version_of=1),
                {"role": "tool", "content": [RESULT]},
            ],
            6,
        ),
        (
            [
                said("user", line=1, version_of=1),
                {"role": "assistant", "content": [CALL], "line": 1},
                said("user", version_of=1),
            ],
            6,
        ),
    ],
    ids=[
        *("no such line", "a huge number", "zero", "a line without a version", "all hidden"),
        *("one version", "negative", "of an answer", "of a hidden message", "another place"),
        *("a cycle", "two shown", "a result in another line", "an open call"),
    ],
)
async def test_a_hostile_file_is_refused_and_changes_nothing(
    server: ApiServer, found: list[Json], line: int
) -> None:
    assert (await refused(server, file_of(*found))).field == f"line {line}"


async def test_a_summary_is_shown_in_the_line_in_which_a_model_reads_it(
    server: ApiServer,
) -> None:
    """Else choosing a version would hide what the model still gets."""
    shown: Json = {"type": "tool-call", "tool_call_id": "s1", "tool_name": SUMMARY_TOOL_NAME}
    result: Json = {**shown, "type": "tool-result", "result": {"summary": "All."}}
    summary = said("user", f"{SUMMARY_PREFIX}All.", compressed=True, visibility="model", line=2)
    for line, changes in ((2, {}), (None, {"messages_made_visible": 1})):
        of_line: Json = {"compressed": True} if line is None else {"compressed": True, "line": line}
        body = file_of(
            said("user"),
            said("user", line=2, version_of=2),
            said("user", version_of=2),
            summary,
            {"role": "assistant", "content": [shown], **of_line},
            {"role": "tool", "content": [result], **of_line},
        )
        made = await server.ask("POST", "/chats/import", body)
        assert (made.status, made.json["changes"]) == (201, changes), made.content
