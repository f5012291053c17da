"""Files in an S3-compatible bucket."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.app.replica import file_store_config
from chatd.clock import SystemClock
from chatd.domain.errors import Unavailable
from chatd.domain.files import ByteRange, FileLimits, StoredFile
from chatd.domain.ids import FileId
from chatd.settings.schema import FileSettings, SettingsError
from chatd.store.file_stores import (
    FileStoreConfig,
    FileStores,
    S3Credentials,
    S3FileStore,
    build_file_stores,
    s3_signature_headers,
)
from tests.api.test_files import stored_rows
from tests.support.api.server import ApiOptions, serve_api
from tests.support.factories import OWNER
from tests.support.fake_s3 import CREDENTIALS, FakeS3, running_s3
from tests.support.sample_files import png

CHUNK_BYTES = 4
MIB = 1024 * 1024
DATA = b"abcdefghij"
FILE = StoredFile(
    id=FileId(UUID(int=1)),
    owner_id=OWNER,
    name=None,
    media_type="text/plain",
    size_bytes=len(DATA),
    sha256=sha256(DATA).hexdigest(),
    store="s3",
    chunk_bytes=CHUNK_BYTES,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.fixture
async def s3() -> AsyncGenerator[FakeS3]:
    async with running_s3() as fake:
        yield fake


@pytest.fixture
async def store(s3: FakeS3) -> AsyncGenerator[S3FileStore]:
    store = S3FileStore(s3.config(), SystemClock(), chunk_bytes=CHUNK_BYTES)
    for number in range(3):
        await store.write(FILE.id, number, DATA[number * CHUNK_BYTES :][:CHUNK_BYTES])
    yield store
    await store.close()


def test_a_request_is_signed_as_in_the_example_of_the_documentation() -> None:
    headers = s3_signature_headers(
        "GET",
        "https://examplebucket.s3.amazonaws.com/test.txt",
        headers={"range": "bytes=0-9"},
        body=b"",
        credentials=S3Credentials(
            region="us-east-1",
            access_key_id="AKIAIOSFODNN7EXAMPLE",
            secret_access_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ),
        at=datetime(2013, 5, 24, tzinfo=UTC),
    )
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        " SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        " Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


@pytest.mark.parametrize(
    "part", [ByteRange(0, 10), ByteRange(3, 5), ByteRange(4, 8), ByteRange(9, 10), ByteRange(2, 10)]
)
async def test_any_part_of_a_file_is_read(store: S3FileStore, part: ByteRange) -> None:
    pieces = [piece async for piece in store.read(FILE, part)]
    assert b"".join(pieces) == DATA[part.start : part.end]
    assert all(len(piece) <= CHUNK_BYTES for piece in pieces)


async def test_a_removed_file_leaves_no_object(s3: FakeS3, store: S3FileStore) -> None:
    assert sorted(s3.objects) == [f"a b/{FILE.id}/{number:05d}" for number in range(3)]
    large = 40 * MIB  # few numbers to try
    await store.remove(FILE.id, large)
    assert s3.objects == {}
    await store.remove(FILE.id, large)


async def test_missing_and_short_objects_are_lost_files(s3: FakeS3, store: S3FileStore) -> None:
    name = f"a b/{FILE.id}/00001"
    for content in (b"ef", None):
        if content is None:
            del s3.objects[name]
        else:
            s3.objects[name] = content
        with pytest.raises(Unavailable) as lost:
            [piece async for piece in store.read(FILE, ByteRange(0, 10))]
        assert lost.value.code == "file_lost"


@pytest.mark.parametrize(
    ("status", "code"), [(500, "file_store_down"), (403, "file_store_refused")]
)
async def test_a_failure_of_the_server_is_named(
    s3: FakeS3, store: S3FileStore, status: int, code: str
) -> None:
    s3.failures = [status]
    with pytest.raises(Unavailable) as failed:
        await store.write(FILE.id, 0, b"x")
    assert failed.value.code == code
    await store.write(FILE.id, 0, b"x")


async def test_a_wrong_key_is_refused_and_not_shown(s3: FakeS3) -> None:
    wrong = replace(CREDENTIALS, secret_access_key="guessed-secret")
    store = S3FileStore(replace(s3.config(), credentials=wrong), SystemClock())
    with pytest.raises(Unavailable) as refused:
        await store.write(FILE.id, 0, b"x")
    await store.close()
    assert refused.value.code == "file_store_refused"
    assert "guessed-secret" not in f"{refused.value!r} {wrong!r} {s3.config()!r}"


async def test_a_server_that_is_away_is_unavailable(s3: FakeS3) -> None:
    away = replace(s3.config(), endpoint="http://127.0.0.1:1")
    store = S3FileStore(away, SystemClock())
    with pytest.raises(Unavailable) as failed:
        await store.write(FILE.id, 0, b"x")
    await store.close()
    assert failed.value.code == "file_store_down"


async def test_files_are_uploaded_loaded_and_deleted_over_the_api(s3: FakeS3, dsn: str) -> None:
    bucket = S3FileStore(s3.config(prefix=""), SystemClock(), chunk_bytes=2 * MIB)
    options = ApiOptions(file_limits=FileLimits(), stores=FileStores(current=bucket))
    data = png(padding=5 * MIB)
    async with serve_api(dsn, options) as server:
        headers = {"content-type": "image/png"}
        s3.failures = [503]  # the first chunk is sent again
        made = await server.ask("POST", "/files", data, headers=headers)
        assert made.status == 201, made.content
        assert max(size for _, _, size in s3.requests) <= 2 * MIB
        path = f"/files/{made.json['id']}"
        assert (await server.ask("GET", f"{path}/content")).content == data
        part = await server.ask(
            "GET", f"{path}/content", headers={"range": f"bytes={2 * MIB - 6}-{2 * MIB + 5}"}
        )
        assert part.content == data[2 * MIB - 6 : 2 * MIB + 6]
        refused = await server.ask("POST", "/files", data[:-20], headers=headers)
        assert refused.code == (400, "broken_file")
        assert (await server.ask("DELETE", path)).status == 204
        assert s3.objects == {}
        rows = await stored_rows(server.replica.pool)
        assert rows == {"files": 0, "uploads": 0, "chunks": 0}
    await bucket.close()


S3_SETTINGS = FileSettings(
    s3_endpoint="http://s3.test", s3_bucket="b", s3_access_key_id="i", s3_secret_access_key="secret"
)


async def test_the_settings_choose_where_new_files_go() -> None:
    clock, conn = SystemClock(), None

    def stores(config: FileStoreConfig) -> list[str]:
        built = build_file_stores(config, conn, clock)  # pyright: ignore[reportArgumentType]
        return [store.name for store in (built.current, *built.others)]

    assert stores(file_store_config(FileSettings())) == ["database"]
    assert stores(file_store_config(S3_SETTINGS)) == ["database", "s3"]
    assert stores(file_store_config(replace(S3_SETTINGS, store="s3"))) == ["s3", "database"]
    assert "secret'" not in repr(S3_SETTINGS)


@pytest.mark.parametrize(
    "settings", [FileSettings(store="s3"), replace(S3_SETTINGS, s3_bucket=None)]
)
def test_settings_of_s3_that_are_incomplete_are_refused(settings: FileSettings) -> None:
    with pytest.raises(SettingsError, match=r"files\.s3_bucket"):
        file_store_config(settings)
