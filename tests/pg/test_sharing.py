"""Several processes share one server: who starts it, who stops it, what it inherits."""

import asyncio
import os
from pathlib import Path

import pytest

from chatd.pg.config import Config
from chatd.pg.server import start
from tests.pg.users import AS_ROOT, ENV, NOBODY, Place, copy_data_dir, fetch


def open_files(pid: int) -> dict[str, str]:
    return {fd.name: str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}


async def test_three_processes_at_once_on_an_empty_directory_share_one_server(
    empty: Place,
) -> None:
    users = await asyncio.gather(*(empty.user() for _ in range(3)))

    addresses = [await user.dsn() for user in users]

    starts = {await fetch(dsn, "SELECT pg_postmaster_start_time()") for dsn in addresses}
    assert len(starts) == 1


async def test_the_last_to_leave_stops_the_server(place: Place) -> None:
    first, second = await place.user(), await place.user()
    await first.dsn()
    await second.dsn()

    await first.leave()
    assert await place.is_up()

    await second.leave()
    assert await place.is_dead()
    assert not (place.layout.cluster / "postmaster.pid").exists()


async def test_a_killed_user_counts_as_gone(place: Place) -> None:
    first, second = await place.user(), await place.user()
    await first.dsn()
    await second.dsn()

    await first.kill()
    assert await place.is_up()

    await second.leave()
    assert await place.is_dead()


async def test_two_servers_in_one_process_count_as_two_users(place: Place) -> None:
    first = await start(place.config(), ENV)
    second = await start(place.config(), ENV)

    await first.close()
    await first.close()
    assert await fetch(second.dsn, "SELECT 1") == 1

    await second.close()
    assert await place.is_dead()


async def test_an_interrupt_from_the_terminal_does_not_reach_the_server(place: Place) -> None:
    starter, other = await place.user(), await place.user()
    dsn = await starter.dsn()
    await other.dsn()
    before = await fetch(dsn, "SELECT pg_postmaster_start_time()")

    starter.interrupt_group()
    assert (await starter.says()).word == "left"
    await starter.end()

    assert await fetch(dsn, "SELECT pg_postmaster_start_time()") == before


async def test_the_server_lives_in_its_own_session_and_inherits_nothing(place: Place) -> None:
    user = await place.user()
    await user.dsn()

    postmaster = place.postmaster()
    held = open_files(postmaster)

    assert os.getsid(postmaster) == postmaster
    assert held["0"] == "/dev/null"
    assert held["1"] == held["2"] == str(place.layout.log)
    assert not {str(place.layout.gate), str(place.layout.users)} & set(held.values())


async def test_nothing_listens_on_the_network_and_others_cannot_reach_the_socket(
    place: Place,
) -> None:
    server = await start(place.config(), ENV)
    try:
        assert await fetch(server.dsn, "SHOW listen_addresses") == ""
        mode = place.layout.socket_dir.stat().st_mode & 0o777
        assert mode == 0o700
    finally:
        await server.close()


async def test_settings_reach_the_server_and_ours_can_be_overridden(place: Place) -> None:
    server = await start(place.config(work_mem="5MB", max_connections="7"), ENV)
    try:
        assert await fetch(server.dsn, "SHOW work_mem") == "5MB"
        assert await fetch(server.dsn, "SHOW max_connections") == "7"
        assert await fetch(server.dsn, "SHOW timezone") == "UTC"
    finally:
        await server.close()


async def test_text_is_unicode_in_code_point_order(place: Place) -> None:
    server = await start(place.config(), ENV)
    try:
        assert await fetch(server.dsn, "SHOW server_encoding") == "UTF8"
        assert await fetch(server.dsn, "SELECT 'Z' < 'a' AND 'z' < 'ä'") is True
    finally:
        await server.close()


@pytest.mark.parametrize("name", ["long-" * 30, 'a,"b', " spaces, ümlauts %s?&#"])
async def test_any_directory_name_works(home: Path, made: Path, name: str) -> None:
    place = Place(home / name)
    copy_data_dir(made, place.data_dir)
    try:
        server = await start(place.config(), ENV)
        assert await fetch(server.dsn, "SELECT 1") == 1
        await server.close()
    finally:
        await place.clean_up()


async def test_a_database_url_is_passed_through_and_nothing_is_started(tmp_path: Path) -> None:
    url = "postgresql://elsewhere/db"

    server = await start(Config(database_url=url, data_dir=tmp_path / "pg"), {})
    await server.ensure()
    await server.close()

    assert server.dsn == url
    assert not (tmp_path / "pg").exists()


@pytest.mark.skipif(not AS_ROOT, reason="the whole suite is the test of an ordinary user")
async def test_an_ordinary_user_starts_shares_and_stops_a_server(
    shared: Place,
) -> None:
    first, second = await shared.user(uid=NOBODY), await shared.user(uid=NOBODY)
    dsn = await first.dsn()
    await second.dsn()

    assert await fetch(dsn, "SELECT current_user") == "chatd"
    assert shared.data_dir.stat().st_uid == NOBODY
    assert shared.data_dir.stat().st_mode & 0o777 == 0o700

    await first.leave()
    await second.leave()
    assert await shared.is_dead()


@pytest.mark.skipif(not AS_ROOT, reason="needs two users")
async def test_root_joins_and_restarts_the_server_of_an_ordinary_user(shared: Place) -> None:
    owner = await shared.user(uid=NOBODY)
    await owner.dsn()
    root = await shared.user()
    dsn = await root.dsn()
    await owner.leave()
    assert await fetch(dsn, "SELECT 1") == 1

    await shared.kill_postmaster()
    assert (await root.ensure()).word == "up"

    owner_again = await shared.user(uid=NOBODY)
    await owner_again.dsn()
    await root.leave()
    await owner_again.leave()
    assert await shared.is_dead()
