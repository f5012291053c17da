"""Rows of files: uploads that die, quotas, links of chats, and what maintenance removes."""

import re
from datetime import timedelta
from typing import LiteralString, cast
from uuid import UUID

import pytest

from chatd.domain.access.permissions import WORKER, Actor, UserActor
from chatd.domain.chat.states import State
from chatd.domain.errors import Conflict, NotFound, Unavailable
from chatd.domain.files import ByteRange, FileLimits, NewFile, StoredFile
from chatd.domain.ids import FileId
from chatd.engine.maintenance import FileSweep
from chatd.store import file_stores, files
from chatd.store.database.conn import DuplicateRow, MissingReference
from chatd.store.database.pool import Pool
from chatd.store.file_stores import DatabaseFileStore, FileStores
from chatd.store.files import SweepPosition
from tests.support.api.server import OTHER_OWNER
from tests.support.clock import FakeClock
from tests.support.factories import CHAT, OWNER
from tests.support.seeds import Seed
from tests.support.store import insert_seed, plan_of, session_to
from tests.support.stream_replica import env_with

ACTOR = UserActor(user_id=OWNER, role="member")
CHUNK_BYTES = 4
LIMITS = FileLimits()


def file_id(number: int) -> FileId:
    return FileId(UUID(int=number))


async def begin(pool: Pool, number: int, data: bytes = b"abcdefghij") -> DatabaseFileStore:
    """An upload with all of its bytes."""
    store = DatabaseFileStore(pool, chunk_bytes=CHUNK_BYTES)
    await file_stores.begin_upload(
        pool, file_id(number), ACTOR, store=store.name, chunk_bytes=store.chunk_bytes
    )
    for start in range(0, len(data), CHUNK_BYTES):
        piece = data[start : start + CHUNK_BYTES]
        await store.write(file_id(number), start // CHUNK_BYTES, piece)
    return store


def new_file(size: int = 10, key: str | None = None) -> NewFile:
    return NewFile(
        name="a.txt", media_type="text/plain", size_bytes=size, sha256="00", request_key=key
    )


async def insert_file(pool: Pool, number: int, *, key: str | None = None) -> StoredFile:
    await begin(pool, number)
    return await file_stores.finish_upload(pool, file_id(number), new_file(key=key), LIMITS)


async def age(pool: Pool, days: float) -> None:
    by = timedelta(days=days)
    await pool.execute("UPDATE files SET created_at = created_at - $1::interval", by)
    await pool.execute("UPDATE file_uploads SET started_at = started_at - $1::interval", by)


async def link(pool: Pool, number: int) -> None:
    await pool.execute(
        "INSERT INTO chat_files (chat_id, file_id) VALUES ($1, $2)", CHAT, file_id(number)
    )


async def counts(pool: Pool) -> tuple[int, ...]:
    """Files, uploads, chunks, and the owner's totals."""
    return (
        await pool.fetchval("SELECT count(*) FROM files"),
        await pool.fetchval("SELECT count(*) FROM file_uploads"),
        await pool.fetchval("SELECT count(*) FROM file_chunks"),
        await pool.fetchval("SELECT coalesce(sum(files), 0)::bigint FROM file_totals"),
        await pool.fetchval("SELECT coalesce(sum(bytes), 0)::bigint FROM file_totals"),
    )


async def sweep(pool: Pool) -> None:
    stores = FileStores(current=DatabaseFileStore(pool))
    await FileSweep(pool, env_with(FakeClock()), stores).run()


async def test_a_file_exists_from_the_end_of_its_upload_on(pool: Pool) -> None:
    await begin(pool, 1)
    assert await counts(pool) == (0, 1, 3, 0, 0)
    with pytest.raises(NotFound):
        await files.get(pool, file_id(1), ACTOR)
    made = await file_stores.finish_upload(pool, file_id(1), new_file(), LIMITS)
    assert await files.get(pool, file_id(1), ACTOR) == made
    assert await counts(pool) == (1, 0, 3, 1, 10)


@pytest.mark.parametrize(
    "part", [ByteRange(0, 10), ByteRange(3, 5), ByteRange(4, 8), ByteRange(9, 10)]
)
async def test_any_part_of_a_file_is_read_chunk_by_chunk(pool: Pool, part: ByteRange) -> None:
    made = await insert_file(pool, 1)
    pieces = [piece async for piece in DatabaseFileStore(pool).read(made, part)]
    assert b"".join(pieces) == b"abcdefghij"[part.start : part.end]
    assert all(0 < len(piece) <= CHUNK_BYTES for piece in pieces)


async def test_a_repeat_after_a_lost_reply_changes_nothing(pool: Pool) -> None:
    store = await begin(pool, 1)
    await begin(pool, 1)
    made = await file_stores.finish_upload(pool, file_id(1), new_file(), LIMITS)
    assert await file_stores.finish_upload(pool, file_id(1), new_file(), LIMITS) == made
    assert await counts(pool) == (1, 0, 3, 1, 10)
    with pytest.raises(Conflict):
        await store.write(file_id(1), 0, b"evil")


async def test_the_quota_is_checked_with_the_size_that_arrived(pool: Pool) -> None:
    await begin(pool, 1)
    for limits in (FileLimits(user_bytes=9), FileLimits(user_files=0)):
        with pytest.raises(Conflict) as refused:
            await file_stores.finish_upload(pool, file_id(1), new_file(), limits)
        assert refused.value.code == "file_quota_exceeded"
    assert await counts(pool) == (0, 1, 3, 0, 0)


async def test_one_request_key_names_one_file(pool: Pool) -> None:
    made = await insert_file(pool, 1, key="k")
    await begin(pool, 2)
    with pytest.raises(DuplicateRow):
        await file_stores.finish_upload(pool, file_id(2), new_file(key="k"), LIMITS)
    assert await files.get_by_request(pool, "k", ACTOR) == made
    assert await counts(pool) == (1, 1, 6, 1, 10)
    await age(pool, 1.1)
    await link_to_chat(pool, 1)
    await sweep(pool)
    assert await files.get_by_request(pool, "k", ACTOR) is None


async def link_to_chat(pool: Pool, number: int) -> None:
    await insert_seed(pool, Seed(state=State.W))
    await link(pool, number)


async def test_maintenance_removes_what_a_killed_process_has_uploaded(pool: Pool) -> None:
    store = await begin(pool, 1)
    await sweep(pool)
    assert await counts(pool) == (0, 1, 3, 0, 0), "the upload may still run"
    await age(pool, 1 / 20)
    await sweep(pool)
    assert await counts(pool) == (0, 0, 0, 0, 0)
    with pytest.raises(Conflict) as ended:
        await store.write(file_id(1), 3, b"late")
    assert ended.value.code == "upload_ended"
    with pytest.raises(Conflict) as ended:
        await file_stores.finish_upload(pool, file_id(1), new_file(), LIMITS)
    assert ended.value.code == "upload_ended"
    assert await counts(pool) == (0, 0, 0, 0, 0)


async def test_maintenance_deletes_files_without_a_chat_after_a_day(pool: Pool) -> None:
    await insert_file(pool, 1)
    await insert_file(pool, 2)
    await link_to_chat(pool, 2)
    await age(pool, 0.9)
    await sweep(pool)
    assert await counts(pool) == (2, 0, 6, 2, 20)
    await age(pool, 0.2)
    await insert_file(pool, 3)
    await sweep(pool)
    assert await counts(pool) == (2, 0, 6, 2, 20), "the first is gone, the third is new"
    assert (await files.get(pool, file_id(2), ACTOR)).id == file_id(2)


async def test_maintenance_deletes_the_files_of_deleted_chats(pool: Pool) -> None:
    await insert_file(pool, 1)
    await link_to_chat(pool, 1)
    await age(pool, 3)
    await sweep(pool)
    assert (await counts(pool))[0] == 1
    await pool.execute("DELETE FROM chats WHERE id = $1", CHAT)
    await sweep(pool)
    assert await counts(pool) == (0, 0, 0, 0, 0)


async def test_a_sweep_walks_over_all_files_in_pages(pool: Pool) -> None:
    for number in range(1, 6):
        await insert_file(pool, number)
    await link_to_chat(pool, 2)
    await link(pool, 5)
    await age(pool, 2)
    position, deleted = SweepPosition(), 0
    while page := await files.sweep(pool, position, timedelta(days=1), limit=2):
        position, deleted = page.position, deleted + page.deleted
    assert deleted == 3
    left = await files.list_own(pool, ACTOR, after=None, limit=10)
    assert {one.id for one in left} == {file_id(2), file_id(5)}


async def test_a_linked_file_cannot_be_deleted(pool: Pool) -> None:
    await insert_file(pool, 1)
    await link_to_chat(pool, 1)
    with pytest.raises(Conflict) as refused:
        await files.delete_own(pool, file_id(1), ACTOR)
    assert refused.value.code == "file_in_use"
    assert await counts(pool) == (1, 0, 3, 1, 10)


async def test_a_link_to_a_file_that_was_just_deleted_is_refused(pool: Pool) -> None:
    await insert_file(pool, 1)
    await files.delete_own(pool, file_id(1), ACTOR)
    with pytest.raises(MissingReference):
        await link_to_chat(pool, 1)


async def test_a_file_that_lost_its_bytes_is_an_error_and_not_an_empty_file(pool: Pool) -> None:
    made = await insert_file(pool, 1)
    await pool.execute("DELETE FROM file_chunks WHERE number = 1")
    with pytest.raises(Unavailable):
        [piece async for piece in DatabaseFileStore(pool).read(made, ByteRange(0, 10))]


READER = UserActor(user_id=OTHER_OWNER, role="member")
SHARE_WITH_USER = "INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)"


async def can_read(pool: Pool, actor: Actor) -> bool:
    try:
        await files.get(pool, file_id(1), actor)
    except NotFound:
        return False
    return True


@pytest.mark.promise("P12")
async def test_readers_of_a_chat_read_its_files(pool: Pool) -> None:
    await insert_file(pool, 1)
    await link_to_chat(pool, 1)
    assert not await can_read(pool, READER)
    assert await files.list_attachable(pool, [file_id(1)], READER) == {}
    await pool.execute(SHARE_WITH_USER, CHAT, READER.user_id)
    assert await can_read(pool, READER)
    assert list(await files.list_attachable(pool, [file_id(1)], READER)) == [file_id(1)]
    with pytest.raises(NotFound):
        await files.delete_own(pool, file_id(1), READER)
    await pool.execute("UPDATE chats SET archived = true, deleted_at = now()")
    assert not await can_read(pool, READER), "the chat was deleted"


async def test_members_of_a_group_read_the_files_of_its_chats(pool: Pool) -> None:
    await insert_file(pool, 1)
    await link_to_chat(pool, 1)
    group = UUID(int=9)
    await pool.execute("INSERT INTO groups (id, name) VALUES ($1, 'blue')", group)
    await pool.execute("INSERT INTO chat_shares (chat_id, group_id) VALUES ($1, $2)", CHAT, group)
    assert not await can_read(pool, READER)
    add = "INSERT INTO group_members (user_id, group_id) VALUES ($1, $2)"
    await pool.execute(add, READER.user_id, group)
    assert await can_read(pool, READER)


async def test_administrators_and_workers_read_every_file_but_attach_only_their_own(
    pool: Pool,
) -> None:
    await insert_file(pool, 1)
    admin = UserActor(user_id=READER.user_id, role="admin")
    assert await can_read(pool, WORKER)
    assert await can_read(pool, admin)
    assert await files.list_attachable(pool, [file_id(1)], admin) == {}


FILL_FILES = """
    INSERT INTO files (id, owner_id, media_type, size_bytes, sha256, store, chunk_bytes, created_at)
    SELECT md5(n::text)::uuid, md5((n % 200)::text)::uuid, 'text/plain', 1, '', 'database', 1,
        now() - n * interval '1 minute' FROM generate_series(1, 10000) n"""
FILL_CHUNKS = """
    INSERT INTO file_chunks (file_id, number, data)
    SELECT md5(n::text)::uuid, 0, 'x' FROM generate_series(1, 10000) n"""
FILL_LINKS = """
    INSERT INTO chat_files (chat_id, file_id)
    SELECT md5((n % 500)::text)::uuid, md5(n::text)::uuid FROM generate_series(1, 5000) n"""
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
FILE_TABLES = {"files", "file_chunks", "chat_files"}


async def test_no_statement_scans_all_files(dsn: str) -> None:
    statements = {
        f"{module.__name__}.{name}": cast("LiteralString", text)
        for module in (files, file_stores)
        for name, text in vars(module).items()
        if name.isupper() and name[0] != "_" and isinstance(text, str) and STATEMENT.match(text)
    }
    assert len(statements) > 12
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        # Without foreign keys: the links name chats that are not there.
        await session.execute("SET LOCAL session_replication_role = replica")
        await session.execute(FILL_FILES)
        await session.execute(FILL_CHUNKS)
        await session.execute(FILL_LINKS)
        for table in sorted(FILE_TABLES):
            await session.script(f"ANALYZE {table}", timeout_s=30)
        for name, statement in statements.items():
            plan = await plan_of(session, statement)
            scanned = {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
            assert not scanned & FILE_TABLES, name
        await session.execute("ROLLBACK")
