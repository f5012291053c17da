"""What died comes back: the server, its users, both at once, an initdb cut off in the middle."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from chatd.pg.errors import PgError
from chatd.pg.server import start
from chatd.pg.watch import watch
from tests.pg import fakes
from tests.pg.users import AS_ROOT, ENV, Place, a_backend, fetch, until

PR_SET_CHILD_SUBREAPER = 36


async def test_a_killed_server_is_restarted_and_its_users_reconnect(place: Place) -> None:
    first, second = await place.user(), await place.user()
    dsn = await first.dsn()
    await second.dsn()
    await fetch(dsn, "CREATE TABLE kept AS SELECT 7 AS n")

    await place.kill_postmaster()
    said = await asyncio.gather(first.ensure(), second.ensure())

    assert [answer.word for answer in said] == ["up", "up"]
    assert await fetch(dsn, "SELECT n FROM kept") == 7
    await first.leave()
    assert await place.is_up()
    await second.leave()
    assert await place.is_dead()


async def test_a_server_is_restarted_once_no_backend_of_the_dead_one_is_left(
    place: Place,
) -> None:
    """PostgreSQL refuses for as long as the old shared memory is in use: here by a backend
    that is held in mid-air and so cannot see that its postmaster is gone."""
    user = await place.user()
    dsn = await user.dsn()
    async with a_backend(dsn) as pid:
        os.kill(pid, signal.SIGSTOP)
        await place.kill_postmaster()
        async with asyncio.TaskGroup() as group:
            ensured = group.create_task(user.ensure())
            await until(lambda: says_in_use(place))
            os.kill(pid, signal.SIGKILL)

    assert ensured.result().word == "up"
    assert await fetch(dsn, "SELECT 1") == 1


async def says_in_use(place: Place) -> bool:
    return "is still in use" in place.layout.log.read_text()


async def test_after_everything_was_killed_at_once_the_next_user_finds_the_data(
    place: Place,
) -> None:
    users = [await place.user() for _ in range(2)]
    dsn, _ = [await user.dsn() for user in users]
    await fetch(dsn, "CREATE TABLE kept AS SELECT 7 AS n")

    await asyncio.gather(*(user.kill() for user in users), place.kill_postmaster())
    survivor = await place.user()

    assert await fetch(await survivor.dsn(), "SELECT n FROM kept") == 7
    await survivor.leave()
    assert await place.is_dead()


async def test_a_server_left_running_by_a_killed_user_is_taken_over(place: Place) -> None:
    first = await place.user()
    before = await fetch(await first.dsn(), "SELECT pg_postmaster_start_time()")
    await first.kill()

    second = await place.user()

    assert await fetch(await second.dsn(), "SELECT pg_postmaster_start_time()") == before
    await second.leave()
    assert await place.is_dead()


async def test_an_initdb_that_was_cut_off_is_done_again(empty: Place, home: Path) -> None:
    empty.bin_dir = fakes.programs(home / "bin", initdb=fakes.STALLS)
    killed = await empty.user()
    await until(lambda: is_stalled(empty))
    await killed.kill()
    orphan = stalled_initdb(empty)

    empty.bin_dir = None
    user = await empty.user()

    try:
        assert await fetch(await user.dsn(), "SELECT 1") == 1
        assert stalled_initdb(empty) is None
    finally:
        os.kill(orphan or 0, signal.SIGKILL)


async def is_stalled(place: Place) -> bool:
    return stalled_initdb(place) is not None


def stalled_initdb(place: Place) -> int | None:
    pids = list(place.data_dir.glob("cluster.new-*/pid"))
    return int(pids[0].read_text()) if pids else None


async def test_a_lock_file_with_the_pid_of_somebody_else_does_not_stop_the_start(
    place: Place,
) -> None:
    """A container that starts anew gives the same pids to other processes."""
    user = await place.user()
    await user.dsn()
    owner = place.layout.cluster.stat().st_uid
    stranger = await asyncio.create_subprocess_exec(
        "cat", stdin=asyncio.subprocess.PIPE, user=owner if AS_ROOT else None
    )
    await asyncio.gather(user.kill(), place.kill_postmaster())
    lock = place.layout.cluster / "postmaster.pid"
    _, *rest = lock.read_text().splitlines(keepends=True)
    lock.write_text("".join([f"{stranger.pid}\n", *rest]))

    again = await place.user()

    assert await fetch(await again.dsn(), "SELECT 1") == 1
    stranger.kill()
    await stranger.wait()


async def test_a_dead_server_that_nobody_reaps_does_not_stop_the_start(place: Place) -> None:
    """In a container without an init process the dead server stays a zombie."""
    with adopting_orphans():
        user = await place.user()
        await user.dsn()
        await user.kill()
        await place.kill_postmaster()
        # Its socket is closed a moment before it is dead.
        await until(lambda: asyncio.to_thread(is_zombie, place.postmaster()))

        again = await place.user()

        assert await fetch(await again.dsn(), "SELECT 1") == 1


def is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


@contextlib.contextmanager
def adopting_orphans() -> Generator[None]:
    """Be the one that orphans below us fall to, and leave them unreaped until the end."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass


async def test_a_database_that_has_vanished_is_not_replaced_by_an_empty_one(place: Place) -> None:
    user = await place.user()
    await user.dsn()
    await place.kill_postmaster()
    place.layout.cluster.rename(place.data_dir / "moved")

    said = await user.ensure()

    assert said.word == "failed"
    assert "has vanished" in said.text
    assert not place.layout.cluster.exists()


async def test_a_server_that_recovers_for_long_is_left_to_finish(place: Place) -> None:
    """Stopping it would begin the recovery anew with every try, and it would never end."""
    (place.layout.cluster / "standby.signal").write_text("")  # Recovers for ever.
    place.ready_within_s = 0.1

    with pytest.raises(PgError, match="try again later"):
        await start(place.config(hot_standby="off"), ENV)

    assert await place.is_up()


async def test_the_watch_restarts_a_killed_server(place: Place) -> None:
    server = await start(place.config(), ENV)
    reports: list[PgError] = []
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(watch(server, reports.append, every_s=0.01))
            await place.kill_postmaster()
            await until(place.is_up)
            task.cancel()
        assert reports == []
    finally:
        await server.close()


async def test_a_server_that_was_left_does_not_come_back(place: Place) -> None:
    server = await start(place.config(), ENV)
    await server.close()

    with pytest.raises(PgError, match="has left"):
        await server.ensure()
    assert await place.is_dead()
