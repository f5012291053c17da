"""Several processes share one server: start, stop, isolation and settings."""

import asyncio
import os
from pathlib import Path

import pytest

from chatd.pg.config import EmbeddedConfig
from chatd.pg.server import open_server
from tests.pg.users import AS_ROOT, ENV, NOBODY, PgInstance, copy_data_dir, fetch


def open_files(pid: int) -> dict[str, str]:
    return {fd.name: str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}


async def test_three_processes_at_once_on_an_empty_directory_share_one_server(
    empty_instance: PgInstance,
) -> None:
    users = await asyncio.gather(*(empty_instance.user() for _ in range(3)))

    addresses = [await user.dsn() for user in users]

    starts = {await fetch(dsn, "SELECT pg_postmaster_start_time()") for dsn in addresses}
    assert len(starts) == 1


async def test_the_last_user_stops_the_server(instance: PgInstance) -> None:
    first, second = await instance.user(), await instance.user()
    await first.dsn()
    await second.dsn()

    await first.leave()
    assert await instance.is_up()

    await second.leave()
    assert await instance.is_dead()
    assert not (instance.layout.cluster / "postmaster.pid").exists()


async def test_a_killed_user_no_longer_counts(instance: PgInstance) -> None:
    first, second = await instance.user(), await instance.user()
    await first.dsn()
    await second.dsn()

    await first.kill()
    assert await instance.is_up()

    await second.leave()
    assert await instance.is_dead()


async def test_two_servers_in_one_process_count_as_two_users(instance: PgInstance) -> None:
    first = await open_server(instance.config(), ENV)
    second = await open_server(instance.config(), ENV)

    await first.close()
    await first.close()
    assert await fetch(second.dsn, "SELECT 1") == 1

    await second.close()
    assert await instance.is_dead()


async def test_an_interrupt_from_the_terminal_does_not_reach_the_server(
    instance: PgInstance,
) -> None:
    starter, other = await instance.user(), await instance.user()
    dsn = await starter.dsn()
    await other.dsn()
    before = await fetch(dsn, "SELECT pg_postmaster_start_time()")

    starter.interrupt_group()
    assert (await starter.read_reply()).kind == "left"
    await starter.end()

    assert await fetch(dsn, "SELECT pg_postmaster_start_time()") == before


async def test_the_server_runs_in_its_own_session_and_inherits_nothing(
    instance: PgInstance,
) -> None:
    user = await instance.user()
    await user.dsn()

    postmaster = instance.postmaster()
    held = open_files(postmaster)

    assert os.getsid(postmaster) == postmaster
    assert held["0"] == "/dev/null"
    assert held["1"] == held["2"] == str(instance.layout.log)
    assert not {
        str(instance.layout.start_stop_lock),
        str(instance.layout.users_lock),
    } & set(held.values())


async def test_nothing_listens_on_the_network_and_other_users_cannot_reach_the_socket(
    instance: PgInstance,
) -> None:
    server = await open_server(instance.config(), ENV)
    try:
        assert await fetch(server.dsn, "SHOW listen_addresses") == ""
        mode = instance.layout.socket_dir.stat().st_mode & 0o777
        assert mode == 0o700
    finally:
        await server.close()


async def test_settings_reach_the_server_and_override_our_defaults(instance: PgInstance) -> None:
    server = await open_server(instance.config(work_mem="5MB", max_connections="7"), ENV)
    try:
        assert await fetch(server.dsn, "SHOW work_mem") == "5MB"
        assert await fetch(server.dsn, "SHOW max_connections") == "7"
        assert await fetch(server.dsn, "SHOW timezone") == "UTC"
    finally:
        await server.close()


async def test_text_is_unicode_in_code_point_order(instance: PgInstance) -> None:
    server = await open_server(instance.config(), ENV)
    try:
        assert await fetch(server.dsn, "SHOW server_encoding") == "UTF8"
        assert await fetch(server.dsn, "SELECT 'Z' < 'a' AND 'z' < 'ä'") is True
    finally:
        await server.close()


@pytest.mark.parametrize("name", ["long-" * 30, 'a,"b', " spaces, ümlauts %s?&#"])
async def test_any_directory_name_works(home: Path, prepared_data_dir: Path, name: str) -> None:
    instance = PgInstance(home / name)
    copy_data_dir(prepared_data_dir, instance.data_dir)
    try:
        server = await open_server(instance.config(), ENV)
        assert await fetch(server.dsn, "SELECT 1") == 1
        await server.close()
    finally:
        await instance.clean_up()


async def test_a_database_url_is_passed_through_and_nothing_is_started(tmp_path: Path) -> None:
    url = "postgresql://elsewhere/db"

    server = await open_server(EmbeddedConfig(database_url=url, data_dir=tmp_path / "pg"), {})
    await server.ensure_running()
    await server.close()

    assert server.dsn == url
    assert not (tmp_path / "pg").exists()


@pytest.mark.skipif(not AS_ROOT, reason="the whole suite runs as an ordinary user")
async def test_an_ordinary_user_starts_shares_and_stops_a_server(
    shared_instance: PgInstance,
) -> None:
    first, second = (
        await shared_instance.user(uid=NOBODY),
        await shared_instance.user(uid=NOBODY),
    )
    dsn = await first.dsn()
    await second.dsn()

    assert await fetch(dsn, "SELECT current_user") == "chatd"
    assert shared_instance.data_dir.stat().st_uid == NOBODY
    assert shared_instance.data_dir.stat().st_mode & 0o777 == 0o700

    await first.leave()
    await second.leave()
    assert await shared_instance.is_dead()


@pytest.mark.skipif(not AS_ROOT, reason="needs two users")
async def test_root_joins_and_restarts_the_server_of_an_ordinary_user(
    shared_instance: PgInstance,
) -> None:
    owner = await shared_instance.user(uid=NOBODY)
    await owner.dsn()
    root = await shared_instance.user()
    dsn = await root.dsn()
    await owner.leave()
    assert await fetch(dsn, "SELECT 1") == 1

    await shared_instance.kill_postmaster()
    assert (await root.ensure_running()).kind == "up"

    owner_again = await shared_instance.user(uid=NOBODY)
    await owner_again.dsn()
    await root.leave()
    await owner_again.leave()
    assert await shared_instance.is_dead()
