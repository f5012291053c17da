"""Unusable directories and programs: the error says what is wrong and what to do."""

from pathlib import Path

import pytest

from chatd.pg.config import EmbeddedConfig, PgError, choose_socket_dir
from chatd.pg.server import open_server
from tests.pg import fakes
from tests.pg.users import AS_ROOT, ENV, NOBODY, PgInstance

needs_root = pytest.mark.skipif(not AS_ROOT, reason="applies to root only")


async def test_a_read_only_directory_is_named(shared_instance: PgInstance) -> None:
    shared_instance.data_dir.mkdir(mode=0o555)
    user = await shared_instance.user(uid=NOBODY if AS_ROOT else None)

    message = await user.failure()

    assert str(shared_instance.data_dir) in message
    assert "Permission denied" in message
    assert "choose another data directory" in message


async def test_a_parent_that_is_not_writable_is_named(shared_instance: PgInstance) -> None:
    shared_instance.data_dir.mkdir(mode=0o555)
    shared_instance.data_dir /= "inner"
    user = await shared_instance.user(uid=NOBODY if AS_ROOT else None)

    message = await user.failure()

    assert str(shared_instance.data_dir) in message
    assert "Permission denied" in message


async def test_a_file_in_place_of_the_directory_is_refused(empty_instance: PgInstance) -> None:
    empty_instance.data_dir.write_text("precious")

    with pytest.raises(PgError, match="Not a directory"):
        await open_server(empty_instance.config(), ENV)

    assert empty_instance.data_dir.read_text() == "precious"


async def test_a_full_disk_is_named_in_the_error(empty_instance: PgInstance, home: Path) -> None:
    empty_instance.bin_dir = fakes.programs(home / "bin", initdb=fakes.DISK_IS_FULL)

    with pytest.raises(PgError, match="There is not enough disk space for the database") as caught:
        await open_server(empty_instance.config(), ENV)

    assert "No space left on device" in str(caught.value)
    assert not list(empty_instance.data_dir.glob("cluster*"))


async def test_a_cluster_of_another_major_version_is_refused_and_not_changed(
    instance: PgInstance, home: Path
) -> None:
    instance.bin_dir = fakes.programs(home / "bin", version="17.2")

    with pytest.raises(PgError, match="was created by PostgreSQL") as caught:
        await open_server(instance.config(), ENV)

    message = str(caught.value)
    assert "17.2" in message
    assert "pg_dump" in message
    assert "Nothing has been changed" in message
    assert instance.layout.cluster.is_dir()


async def test_a_broken_cluster_is_not_replaced(instance: PgInstance) -> None:
    (instance.layout.cluster / "PG_VERSION").write_text("")

    with pytest.raises(PgError, match="PG_VERSION cannot be read"):
        await open_server(instance.config(), ENV)

    assert (instance.layout.cluster / "base").is_dir()


async def test_a_setting_that_postgresql_rejects_is_quoted_from_its_log(
    instance: PgInstance,
) -> None:
    with pytest.raises(PgError, match='unrecognized configuration parameter "shared_bufers"'):
        await open_server(instance.config(shared_bufers="1MB"), ENV)

    assert await instance.is_dead()


async def test_a_server_that_dies_at_every_start_is_reported_with_its_log(
    instance: PgInstance,
) -> None:
    for segment in (instance.layout.cluster / "pg_wal").glob("0000*"):
        segment.unlink()

    with pytest.raises(PgError, match="could not locate a valid checkpoint record"):
        await open_server(instance.config(), ENV)

    assert await instance.is_dead()


@needs_root
async def test_a_directory_that_the_account_cannot_enter_is_named(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(PgError, match="cannot enter") as caught:
        await open_server(EmbeddedConfig(data_dir=closed / "inner" / "pg"), ENV)

    assert f"cannot enter {closed}. " in str(caught.value)
    assert not list(closed.iterdir())
    assert closed.stat().st_mode & 0o777 == 0o700


@needs_root
async def test_a_cluster_of_another_user_is_refused(instance: PgInstance) -> None:
    instance.data_dir.chmod(0o711)
    user = await instance.user(uid=NOBODY)

    message = await user.failure()

    assert "belongs to" in message
    assert "Start chatd as that user" in message


@needs_root
async def test_a_socket_directory_of_another_owner_is_not_trusted(
    world_writable_dir: Path, open_bin_dir: Path
) -> None:
    instance = PgInstance(world_writable_dir / ("long" * 30), open_bin_dir)
    trap = choose_socket_dir(instance.data_dir, owner=NOBODY)
    trap.mkdir(mode=0o777)
    try:
        user = await instance.user(uid=NOBODY)
        message = await user.failure()
    finally:
        trap.rmdir()

    assert f"{trap} is in the way" in message
