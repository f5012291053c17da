"""Uploads to a real process: killed in the middle, it leaves nothing; a large file is not held in
its memory."""

import asyncio
from collections.abc import AsyncGenerator
from io import BytesIO
from pathlib import Path

import pytest

from chatd.engine.maintenance import FileSweep
from chatd.store.database.pool import Pool
from chatd.store.file_stores import DatabaseFileStore, FileStores
from tests.e2e.test_serve import TOKEN, address, chatd, client_of
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.stream_replica import env_with

SIZE = 4 * 1024 * 1024
SLICE = 64 * 1024
LARGE = 20 * 1024 * 1024


async def count(pool: Pool) -> tuple[int, int, int]:
    return (
        await pool.fetchval("SELECT count(*) FROM files"),
        await pool.fetchval("SELECT count(*) FROM file_uploads"),
        await pool.fetchval("SELECT count(*) FROM file_chunks"),
    )


def peak_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def reset_peak(pid: int) -> int:
    """The memory of now, in KiB, from which a new peak is counted."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_kib(pid)


async def zeros(size: int) -> AsyncGenerator[bytes]:
    for _ in range(size // SLICE):
        yield b"0" * SLICE


async def test_a_file_of_twenty_megabytes_passes_through_little_memory(
    dsn: str, tmp_path: Path
) -> None:
    """Slow: starts a server. Its peak grows by less than half of one file."""
    arguments = ("serve", "--data-dir", tmp_path, "--port", "0", "--database-url", dsn)
    variables = {"CHATD_ADMIN_TOKEN": TOKEN, "CHATD_WORKSPACES_ENABLED": "false"}
    text = {"content-type": "text/plain"}
    async with (
        chatd(*arguments, **variables) as process,
        client_of(await address(process), TOKEN) as client,
    ):

        async def pass_through(size: int) -> None:
            async with client.post("/api/v1/files", data=zeros(size), headers=text) as made:
                assert made.status == 201, await made.text()
                file = await made.json()
            async with client.get(f"/api/v1/files/{file['id']}/content") as loaded:
                read = 0
                async for piece in loaded.content.iter_chunked(SLICE):
                    read += len(piece)
            assert read == size

        await pass_through(LARGE // 10)
        before = reset_peak(process.pid)
        for _ in range(3):
            await pass_through(LARGE)
        assert peak_kib(process.pid) - before < LARGE // 1024 // 2


@pytest.mark.promise("P15")
async def test_an_upload_to_a_killed_server_leaves_no_file_and_is_sent_again(
    dsn: str, pool: Pool, tmp_path: Path
) -> None:
    arguments = ("serve", "--data-dir", tmp_path, "--port", "0", "--database-url", dsn)
    variables = {"CHATD_ADMIN_TOKEN": TOKEN, "CHATD_WORKSPACES_ENABLED": "false"}
    head = (
        "POST /api/v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Length: {SIZE}\r\n\r\n"
    )

    async def has_chunks() -> bool:
        return (await count(pool))[2] >= 2

    async with chatd(*arguments, **variables) as process:
        port = int((await address(process)).rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"x" * (SIZE // 2))
        await eventually(has_chunks)
        process.kill()
        await process.wait()
        writer.close()
    assert (await count(pool))[:2] == (0, 1)
    async with (
        chatd(*arguments, **variables) as process,
        client_of(await address(process), TOKEN) as client,
    ):
        text, body = {"content-type": "text/plain"}, BytesIO(b"x" * SIZE)
        async with client.post("/api/v1/files", data=body, headers=text) as made:
            assert made.status == 201
            file = await made.json()
        async with client.get(f"/api/v1/files/{file['id']}/content") as loaded:
            assert await loaded.read() == b"x" * SIZE
    await pool.execute("UPDATE file_uploads SET started_at = started_at - interval '2 hours'")
    await FileSweep(pool, env_with(FakeClock()), FileStores(current=DatabaseFileStore(pool))).run()
    assert await count(pool) == (1, 0, SIZE // (256 * 1024))
