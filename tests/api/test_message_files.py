"""Messages that name files: the links of a chat, their limit, and who may name a file."""

import asyncio
from uuid import UUID

import pytest

from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import MAX_FILES_PER_CHAT
from chatd.store import files
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from tests.support.api.server import OTHER_USER, ApiServer, Json
from tests.support.eventually import eventually
from tests.support.factories import CHAT
from tests.support.sample_files import PNG
from tests.support.seeds import Seed
from tests.support.store import dump, has_lock_waiter, insert_seed

SEND = f"/chats/{CHAT}/messages"


async def upload(server: ApiServer, *, token: str | None = None, name: str = "a.png") -> str:
    headers = {
        "content-type": "image/png",
        "content-disposition": f'attachment; filename="{name}"',
    }
    more = {} if token is None else {"token": token}
    made = await server.ask("POST", "/files", PNG, headers=headers, **more)
    assert made.status == 201, made.content
    return str(made.json["id"])


def body(*file_ids: object, **fields: object) -> Json:
    return {"content": [{"type": "file", "file_id": one} for one in file_ids], **fields}


async def links(pool: Pool, chat_id: object = CHAT) -> set[str]:
    rows = await pool.fetch("SELECT file_id FROM chat_files WHERE chat_id = $1", chat_id)
    return {str(row["file_id"]) for row in rows}


async def test_a_chat_begins_with_a_file_alone(server: ApiServer) -> None:
    file_id = await upload(server, name="chart of sales.png")
    made = await server.ask("POST", "/chats", body(file_id))
    assert made.status == 201, made.content
    chat_id = made.json["id"]
    assert made.json["title"] == "chart of sales.png"
    (message,) = (await server.ask("GET", f"/chats/{chat_id}/messages")).at("items")
    named = {"type": "file", "file_id": file_id, "media_type": "image/png"}
    assert message["content"] == [{**named, "name": "chart of sales.png"}]
    assert await links(server.replica.pool, UUID(str(chat_id))) == {file_id}


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("state", [State.W, State.R0])
async def test_a_sent_or_queued_message_links_its_files(
    server: ApiServer, state: State, key: str | None
) -> None:
    await insert_seed(server.replica.pool, Seed(state=state))
    first, second = await upload(server), await upload(server)
    headers = {} if key is None else {"idempotency-key": key}
    sent = await server.ask("POST", SEND, body(first, second, first), headers=headers)
    assert sent.status == 200, sent.content
    assert await links(server.replica.pool) == {first, second}


async def test_edited_messages_link_their_new_files(server: ApiServer) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.R0))
    first, second, third = [await upload(server) for _ in range(3)]
    queued = await server.ask("POST", SEND, body(first))
    item = f"/chats/{CHAT}/queue/{queued.json['queue_id']}"
    edited = await server.ask("PATCH", item, body(second))
    assert edited.status == 200, edited.content
    assert await links(pool) == {first, second}
    promoted = await server.ask("POST", f"{item}/promote")
    assert promoted.status in (200, 202), promoted.content
    rows = (await server.ask("GET", SEND)).at("items")
    user = next(row["id"] for row in rows if row["role"] == "user")
    assert (await server.ask("PATCH", f"{SEND}/{user}", body(third))).status == 200
    assert await links(pool) == {first, second, third}


@pytest.mark.promise("P12", "P15")
async def test_an_unknown_or_foreign_file_is_refused_and_nothing_is_written(
    server: ApiServer,
) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.W))
    mine, foreign = await upload(server), await upload(server, token=OTHER_USER)
    before = await dump(pool)
    for named in (foreign, UUID(int=404)):
        refused = await server.ask("POST", SEND, body(mine, named))
        assert refused.code == (400, "invalid_input")
        assert refused.field == "content[1].file_id"
        assert (await server.ask("POST", "/chats", body(named))).code == (400, "invalid_input")
    assert await dump(pool) == before
    assert await links(pool) == set()


async def test_a_file_that_is_deleted_while_it_is_sent_is_refused(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.W))
    file_id = await upload(server)
    before = await dump(pool)
    found = files.list_attachable

    async def delete_after(*args: object) -> object:
        listed = await found(*args)  # pyright: ignore[reportArgumentType]
        assert (await server.ask("DELETE", f"/files/{file_id}")).status == 204
        return listed

    monkeypatch.setattr(files, "list_attachable", delete_after)
    refused = await server.ask("POST", SEND, body(file_id))
    assert refused.code == (400, "invalid_input")
    assert await dump(pool) == before


async def test_a_linked_file_stays(server: ApiServer) -> None:
    await insert_seed(server.replica.pool, Seed(state=State.W))
    file_id = await upload(server)
    assert (await server.ask("POST", SEND, body(file_id))).status == 200
    assert (await server.ask("DELETE", f"/files/{file_id}")).code == (409, "file_in_use")


async def test_the_messages_of_a_chat_name_at_most_fifty_files(server: ApiServer) -> None:
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.R0))
    made = [await upload(server) for _ in range(MAX_FILES_PER_CHAT + 1)]
    refusal = (409, "too_many_files")
    assert (await server.ask("POST", "/chats", body(*made))).code == refusal
    assert (await server.ask("POST", SEND, body(*made[:30]))).status == 200
    assert (await server.ask("POST", SEND, body(*made[30:]))).code == refusal
    assert (await server.ask("POST", SEND, body(*made[10:50]))).status == 200
    assert (await server.ask("POST", SEND, body(made[50]))).code == refusal
    assert (await server.ask("POST", SEND, body(made[0]))).status == 200, "it is linked already"
    assert len(await links(pool)) == MAX_FILES_PER_CHAT


async def test_a_message_and_a_tool_at_once_do_not_pass_the_limit(server: ApiServer) -> None:
    """The tool links the last file while the message waits to count the files."""
    pool = server.replica.pool
    await insert_seed(pool, Seed(state=State.R0))
    made = [await upload(server) for _ in range(MAX_FILES_PER_CHAT + 1)]
    assert (await server.ask("POST", SEND, body(*made[:49]))).status == 200
    async with asyncio.TaskGroup() as group, pool.transaction() as tool:
        await chats.lock_files(tool, CHAT)
        sent = group.create_task(server.ask("POST", SEND, body(made[49])))
        await eventually(lambda: has_lock_waiter(pool))
        await tool.execute("INSERT INTO chat_files VALUES ($1, $2)", CHAT, UUID(made[50]))
    assert sent.result().code == (409, "too_many_files")
    assert len(await links(pool)) == MAX_FILES_PER_CHAT


async def test_another_user_reads_a_file_only_through_a_shared_chat(server: ApiServer) -> None:
    file_id = await upload(server)
    made = await server.ask("POST", "/chats", body(file_id))
    chat_id = UUID(str(made.json["id"]))
    path = f"/files/{file_id}/content"
    assert (await server.ask("GET", path, token=OTHER_USER)).status == 404
    reader = await server.replica.pool.fetchval("SELECT id FROM users WHERE id = $1", UUID(int=77))
    await server.replica.pool.execute(
        "INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", chat_id, reader
    )
    assert (await server.ask("GET", path, token=OTHER_USER)).content == PNG
