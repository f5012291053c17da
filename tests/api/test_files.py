"""Files over HTTP: uploaded, listed, loaded, linked and deleted."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from uuid import UUID

import msgspec
import pytest

from chatd.domain.access.permissions import UserActor
from chatd.domain.files import FileLimits
from chatd.domain.ids import FileId
from chatd.store import file_stores
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import DOWNLOAD_LINKS, shared_key
from tests.support.api.server import (
    ME,
    OTHER_USER,
    ApiOptions,
    ApiReply,
    ApiServer,
    authorized,
    serve_api,
)
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import OWNER
from tests.support.sample_files import CSV, JPEG, PDF, PNG, SAMPLES, png

KIB = 1024
SMALL_CHUNKS = ApiOptions(chunk_bytes=1000)
ACTOR = UserActor(user_id=OWNER, role="member")
MISSING = UUID(int=404)


async def upload(
    server: ApiServer,
    data: bytes = PNG,
    media_type: str | None = "image/png",
    name: str | None = "a.png",
    **more: str,
) -> ApiReply:
    headers = {} if media_type is None else {"content-type": media_type}
    if name is not None:
        headers["content-disposition"] = f'attachment; filename="{name}"'
    headers |= {key.replace("_", "-"): value for key, value in more.items()}
    return await server.ask("POST", "/files", data, headers=headers)


async def upload_id(server: ApiServer, data: bytes = PNG, media_type: str = "image/png") -> str:
    made = await upload(server, data, media_type, None)
    assert made.status == 201, made.content
    return str(made.json["id"])


async def stored_rows(pool: Pool) -> dict[str, int]:
    """How many rows the tables of files have."""
    return {
        "files": await pool.fetchval("SELECT count(*) FROM files"),
        "uploads": await pool.fetchval("SELECT count(*) FROM file_uploads"),
        "chunks": await pool.fetchval("SELECT count(*) FROM file_chunks"),
    }


NOTHING = {"files": 0, "uploads": 0, "chunks": 0}


@pytest.fixture
async def server(dsn: str) -> AsyncGenerator[ApiServer]:
    async with serve_api(dsn, SMALL_CHUNKS) as server:
        yield server


# Upload


@pytest.mark.parametrize("media_type", SAMPLES)
async def test_an_uploaded_file_is_loaded_byte_for_byte(server: ApiServer, media_type: str) -> None:
    data = SAMPLES[media_type]
    made = await upload(server, data, media_type, "größe €")
    assert made.status == 201, made.content
    assert (
        made.json.items()
        >= {
            "owner_id": str(OWNER),
            "name": "größe €",
            "media_type": media_type,
            "size_bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }.items()
    )
    path = f"/files/{made.json['id']}"
    assert made.headers["location"] == f"/api/v1{path}"
    assert (await server.ask("GET", path)).json == made.json
    loaded = await server.ask("GET", f"{path}/content")
    assert (loaded.status, loaded.content) == (200, data)
    assert loaded.headers["content-type"].partition(";")[0] == media_type
    assert loaded.headers["etag"] == f'"{made.json["sha256"]}"'
    assert loaded.headers["x-content-type-options"] == "nosniff"
    assert loaded.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert loaded.headers["cache-control"] == "private, max-age=31536000, immutable"
    kind = "attachment" if media_type == "application/pdf" else "inline"
    assert loaded.headers["content-disposition"].startswith(f"{kind};")


async def test_a_large_file_is_stored_and_sent_in_chunks(dsn: str) -> None:
    async with serve_api(dsn) as server:
        data = png(padding=3 * 256 * KIB + 5)
        file_id = await upload_id(server, data)
        pool = server.replica.pool
        sizes = await pool.fetch("SELECT length(data) AS size FROM file_chunks ORDER BY number")
        assert [row["size"] for row in sizes][:3] == [256 * KIB] * 3
        assert sum(row["size"] for row in sizes) == len(data)
        server.sent.clear()
        loaded = await server.ask("GET", f"/files/{file_id}/content")
        assert loaded.content == data
        reads = [sql for sql in server.sent if "file_chunks" in sql]
        assert len(reads) == len(sizes), "each statement reads one chunk"


async def test_a_body_without_a_length_is_stored(server: ApiServer) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(PDF), 7):
            yield PDF[start : start + 7]

    async with server.http.post(
        "/api/v1/files",
        data=pieces(),
        headers={**authorized(ME), "content-type": "application/pdf"},
    ) as response:
        assert response.status == 201
        made = await response.json()
    assert made["size_bytes"] == len(PDF)


@pytest.mark.parametrize(
    ("data", "media_type", "name", "refusal"),
    [
        (b"", "image/png", None, (400, "empty_file")),
        (JPEG, "image/png", None, (400, "file_type_mismatch")),
        (PNG, None, "a.jpg", (400, "file_type_mismatch")),
        (PNG[:-12], "image/png", None, (400, "broken_file")),
        (png(60_000, 60_000), "image/png", None, (400, "broken_file")),
        (b"<svg/>", "text/plain", None, (415, "unsupported_file_type")),
        (b"<svg/>", "image/svg+xml", "a.svg", (415, "unsupported_file_type")),
        (b"PK\3\4" + bytes(2000), "application/octet-stream", None, (415, "unsupported_file_type")),
        (b"x" * 1500 + b"\xff", "text/plain", None, (415, "unsupported_file_type")),
        (PNG, "multipart/form-data; boundary=x", None, (415, "unsupported_file_type")),
    ],
)
@pytest.mark.promise("P15")
async def test_a_bad_file_gets_a_clear_error_and_leaves_nothing(
    server: ApiServer, data: bytes, media_type: str, name: str, refusal: tuple[int, str]
) -> None:
    assert (await upload(server, data, media_type, name)).code == refusal
    assert await stored_rows(server.replica.pool) == NOTHING


async def test_a_compressed_body_is_refused(server: ApiServer) -> None:
    refused = await upload(server, content_encoding="gzip")
    assert refused.code == (415, "unsupported_file_type")


async def test_a_file_above_the_limit_is_refused_also_without_a_length(dsn: str) -> None:
    options = ApiOptions(file_limits=FileLimits(max_bytes=2500), chunk_bytes=1000)
    async with serve_api(dsn, options) as server:
        assert (await upload(server, b"x" * 2500, "text/plain", None)).status == 201
        before = await stored_rows(server.replica.pool)
        assert (await upload(server, b"x" * 2501, "text/plain", None)).code == (413, "too_large")

        async def pieces() -> AsyncGenerator[bytes]:
            for _ in range(3):
                yield b"x" * 1000

        headers = {**authorized(ME), "content-type": "text/plain"}
        async with server.http.post("/api/v1/files", data=pieces(), headers=headers) as response:
            assert response.status == 413
        assert await stored_rows(server.replica.pool) == before


async def test_an_upload_that_breaks_off_leaves_nothing(server: ApiServer) -> None:
    pool = server.replica.pool
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /api/v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
        b"Authorization: Bearer " + ME.encode() + b"\r\nContent-Length: 9000\r\n\r\n" + b"x" * 4000
    )
    await eventually(lambda: _has_chunks(pool, 3))
    assert (await stored_rows(pool))["uploads"] == 1
    assert (await server.ask("GET", "/files")).json["items"] == []
    writer.close()
    await eventually(lambda: _is_empty(pool))
    del reader


async def _has_chunks(pool: Pool, count: int) -> bool:
    return (await stored_rows(pool))["chunks"] >= count


async def _is_empty(pool: Pool) -> bool:
    return await stored_rows(pool) == NOTHING


@pytest.mark.parametrize(
    "limits", [FileLimits(user_files=2), FileLimits(user_bytes=len(CSV) * 2 + 1)]
)
async def test_a_user_cannot_store_more_than_the_quota(dsn: str, limits: FileLimits) -> None:
    async with serve_api(dsn, ApiOptions(file_limits=limits)) as server:
        first = await upload_id(server, CSV, "text/csv")
        await upload_id(server, CSV, "text/csv")
        full = (409, "file_quota_exceeded")
        assert (await upload(server, CSV, "text/csv", None)).code == full
        other = await server.ask(
            "POST", "/files", CSV, token=OTHER_USER, headers={"content-type": "text/csv"}
        )
        assert other.status == 201, "each user has a quota of their own"
        assert (await stored_rows(server.replica.pool))["chunks"] == 3
        assert (await server.ask("DELETE", f"/files/{first}")).status == 204
        assert (await upload(server, CSV, "text/csv", None)).status == 201


async def test_uploads_at_once_do_not_exceed_the_quota(dsn: str) -> None:
    options = ApiOptions(file_limits=FileLimits(user_files=3))
    async with serve_api(dsn, options) as server:
        made = await asyncio.gather(*(upload(server, CSV, "text/csv", None) for _ in range(8)))
        assert sorted(reply.status for reply in made) == [201] * 3 + [409] * 5
        assert (await stored_rows(server.replica.pool))["uploads"] == 0


# Idempotency keys


async def test_a_repeated_upload_with_a_key_stores_one_file(server: ApiServer) -> None:
    first = await upload(server, idempotency_key="k")
    again = await upload(server, idempotency_key="k")
    assert (again.status, again.json) == (201, first.json)
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert (await stored_rows(server.replica.pool))["files"] == 1


async def test_a_key_is_refused_for_another_file(server: ApiServer) -> None:
    await upload(server, idempotency_key="k")
    reused = (409, "idempotency_key_reused")
    assert (await upload(server, png(5, 5), idempotency_key="k")).code == reused
    assert (await upload(server, name="b.png", idempotency_key="k")).code == reused


async def test_uploads_at_once_with_one_key_store_one_file(server: ApiServer) -> None:
    made = await asyncio.gather(*(upload(server, idempotency_key="k") for _ in range(4)))
    assert [reply.status for reply in made] == [201] * 4
    assert len({str(reply.json["id"]) for reply in made}) == 1
    assert (await stored_rows(server.replica.pool)).items() >= {"files": 1, "uploads": 0}.items()


# Ranges and cached copies


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=990-2010", 990, 2011),
        ("bytes=-5", -5, None),
        ("bytes=7-", 7, None),
    ],
)
async def test_a_part_of_a_file_is_loaded(
    server: ApiServer, asked: str, start: int, end: int | None
) -> None:
    data = png(padding=3000)
    path = f"/files/{await upload_id(server, data)}/content"
    loaded = await server.ask("GET", path, headers={"range": asked})
    assert (loaded.status, loaded.content) == (206, data[start:end])
    first = start % len(data)
    last = (len(data) if end is None else end) - 1
    assert loaded.headers["content-range"] == f"bytes {first}-{last}/{len(data)}"


async def test_a_range_after_the_end_is_416(server: ApiServer) -> None:
    path = f"/files/{await upload_id(server)}/content"
    refused = await server.ask("GET", path, headers={"range": f"bytes={len(PNG)}-"})
    assert refused.code == (416, "range_not_satisfiable")
    assert refused.headers["content-range"] == f"bytes */{len(PNG)}"


async def test_a_client_that_has_the_content_is_told_so(server: ApiServer) -> None:
    path = f"/files/{await upload_id(server)}/content"
    tag = (await server.ask("GET", path)).headers["etag"]
    for given in (tag, f'"other", W/{tag}', "*"):
        known = await server.ask("GET", path, headers={"if-none-match": given})
        assert (known.status, known.content, known.headers["etag"]) == (304, b"", tag)
    other = await server.ask("GET", path, headers={"if-none-match": '"other"'})
    assert other.status == 200
    newer = await server.ask("GET", path, headers={"range": "bytes=0-1", "if-range": '"other"'})
    assert (newer.status, newer.content) == (200, PNG)


# Access


@pytest.mark.promise("P12")
async def test_another_user_sees_no_file(server: ApiServer) -> None:
    path = f"/files/{await upload_id(server)}"
    for method, where in (
        ("GET", path),
        ("GET", f"{path}/content"),
        ("DELETE", path),
        ("POST", f"{path}/download-url"),
    ):
        refused = await server.ask(method, where, token=OTHER_USER)
        assert refused.code == (404, "not_found"), (method, where)
        unknown = await server.ask(method, where.replace(path, f"/files/{MISSING}"))
        assert unknown.content == refused.content, "both look the same"
    assert (await server.ask("GET", "/files", token=OTHER_USER)).json["items"] == []
    assert (await server.ask("GET", path)).status == 200


async def test_the_list_has_the_newest_file_first_and_pages(server: ApiServer) -> None:
    made = [await upload_id(server) for _ in range(5)]
    found: list[object] = []
    cursor, pages = None, 0
    while cursor is not None or not pages:
        query = "?limit=2" if cursor is None else f"?limit=2&cursor={cursor}"
        page = await server.ask("GET", f"/files{query}")
        found += [item["id"] for item in page.at("items")]
        cursor, pages = page.json["next_cursor"], pages + 1
        assert page.json["has_more"] is (cursor is not None)
    assert found == made[::-1]
    assert pages == 3


# Links


async def test_a_link_loads_the_file_without_a_token(server: ApiServer) -> None:
    file_id = await upload_id(server, PDF, "application/pdf")
    made = await server.ask("POST", f"/files/{file_id}/download-url")
    assert made.status == 200
    assert made.json["sha256"] == hashlib.sha256(PDF).hexdigest()
    url = str(made.json["url"]).removeprefix("/api/v1")
    loaded = await server.ask("GET", url, token=None)
    assert (loaded.status, loaded.content) == (200, PDF)
    assert loaded.headers["cache-control"] == "no-store"
    assert loaded.headers["content-disposition"].startswith("attachment")
    part = await server.ask("GET", url, token=None, headers={"range": "bytes=0-3"})
    assert (part.status, part.content) == (206, PDF[:4])


async def test_a_link_expires_after_five_minutes(dsn: str) -> None:
    clock = FakeClock()
    async with serve_api(dsn, ApiOptions(clock=clock)) as server:
        path = f"/files/{await upload_id(server)}/download-url"
        url = str((await server.ask("POST", path)).json["url"]).removeprefix("/api/v1")
        clock.advance(299)
        assert (await server.ask("GET", url, token=None)).status == 200
        clock.advance(1)
        assert (await server.ask("GET", url, token=None)).code == (403, "link_expired")


async def test_a_changed_link_is_refused(server: ApiServer) -> None:
    mine, other = await upload_id(server), await upload_id(server)
    made = await server.ask("POST", f"/files/{mine}/download-url")
    url = str(made.json["url"]).removeprefix("/api/v1")
    invalid = (403, "link_invalid")
    assert (await server.ask("GET", url.replace(mine, other), token=None)).code == invalid
    assert (await server.ask("GET", f"{url[:-1]}{'A' if url[-1] != 'A' else 'B'}")).code == invalid
    assert (await server.ask("GET", f"/files/{mine}/download?token=x", token=None)).code == invalid
    missing = await server.ask("GET", f"/files/{mine}/download", token=None)
    assert missing.code == (400, "invalid_input")


@pytest.mark.promise("P12")
async def test_a_link_gives_no_more_than_its_user_may_read_now(server: ApiServer) -> None:
    file_id = await upload_id(server)
    made = await server.ask("POST", f"/files/{file_id}/download-url")
    url = str(made.json["url"]).removeprefix("/api/v1")
    suspend = "UPDATE users SET status = $2 WHERE id = $1"
    await server.replica.pool.execute(suspend, OWNER, "suspended")
    assert (await server.ask("GET", url, token=None)).code == (403, "link_invalid")
    await server.replica.pool.execute(suspend, OWNER, "active")
    assert (await server.ask("GET", url, token=None)).status == 200
    assert (await server.ask("DELETE", f"/files/{file_id}")).status == 204
    assert (await server.ask("GET", url, token=None)).code == (404, "not_found")


async def test_all_replicas_sign_links_with_one_key(server: ApiServer) -> None:
    pool = server.replica.pool
    keys = await asyncio.gather(*(shared_key(pool, DOWNLOAD_LINKS) for _ in range(5)))
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32


# Delete


async def test_a_deleted_file_is_gone_with_its_bytes(server: ApiServer) -> None:
    path = f"/files/{await upload_id(server)}"
    assert (await server.ask("DELETE", path)).status == 204
    assert (await server.ask("GET", path)).code == (404, "not_found")
    assert (await server.ask("DELETE", path)).code == (404, "not_found")
    assert await stored_rows(server.replica.pool) == NOTHING


async def test_a_user_has_a_bounded_number_of_uploads_at_once(server: ApiServer) -> None:
    pool = server.replica.pool
    for number in range(file_stores.MAX_UPLOADS_AT_ONCE_PER_USER):
        await file_stores.begin_upload(
            pool, FileId(UUID(int=number)), ACTOR, store="database", chunk_bytes=10
        )
    assert (await upload(server)).code == (429, "too_many_uploads")


async def test_the_api_describes_files(server: ApiServer) -> None:
    document = msgspec.json.decode((await server.ask("GET", "/openapi.json")).content)
    post = document["paths"]["/api/v1/files"]["post"]
    assert post["requestBody"]["content"].keys() >= SAMPLES.keys()
    content = document["paths"]["/api/v1/files/{file_id}/content"]["get"]
    assert {"200", "206", "304", "416"} <= content["responses"].keys()
