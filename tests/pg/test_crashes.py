"""Recovery after crashes of the server, of its users, of both, and of initdb."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from chatd.pg.config import PgError
from chatd.pg.server import open_server
from tests.pg import fakes
from tests.pg.users import AS_ROOT, ENV, PgInstance, fetch, open_backend, until

PR_SET_CHILD_SUBREAPER = 36


async def test_a_killed_server_is_restarted_and_its_users_reconnect(instance: PgInstance) -> None:
    first, second = await instance.user(), await instance.user()
    dsn = await first.dsn()
    await second.dsn()
    await fetch(dsn, "CREATE TABLE stored AS SELECT 7 AS n")

    await instance.kill_postmaster()
    replies = await asyncio.gather(first.ensure_running(), second.ensure_running())

    assert [reply.kind for reply in replies] == ["up", "up"]
    assert await fetch(dsn, "SELECT n FROM stored") == 7
    await first.leave()
    assert await instance.is_up()
    await second.leave()
    assert await instance.is_dead()


async def test_a_server_is_restarted_once_no_backend_of_the_dead_one_is_left(
    instance: PgInstance,
) -> None:
    """PostgreSQL does not start while the old shared memory is in use: here by a stopped
    backend, which cannot notice that its postmaster died."""
    user = await instance.user()
    dsn = await user.dsn()
    async with open_backend(dsn) as pid:
        os.kill(pid, signal.SIGSTOP)
        await instance.kill_postmaster()
        async with asyncio.TaskGroup() as group:
            ensured = group.create_task(user.ensure_running())
            await until(lambda: reports_memory_in_use(instance))
            os.kill(pid, signal.SIGKILL)

    assert ensured.result().kind == "up"
    assert await fetch(dsn, "SELECT 1") == 1


async def reports_memory_in_use(instance: PgInstance) -> bool:
    return "is still in use" in instance.layout.log.read_text()


async def test_after_everything_was_killed_at_once_the_next_user_finds_the_data(
    instance: PgInstance,
) -> None:
    users = [await instance.user() for _ in range(2)]
    dsn, _ = [await user.dsn() for user in users]
    await fetch(dsn, "CREATE TABLE stored AS SELECT 7 AS n")

    await asyncio.gather(*(user.kill() for user in users), instance.kill_postmaster())
    survivor = await instance.user()

    assert await fetch(await survivor.dsn(), "SELECT n FROM stored") == 7
    await survivor.leave()
    assert await instance.is_dead()


async def test_a_server_left_running_by_a_killed_user_is_taken_over(instance: PgInstance) -> None:
    first = await instance.user()
    before = await fetch(await first.dsn(), "SELECT pg_postmaster_start_time()")
    await first.kill()

    second = await instance.user()

    assert await fetch(await second.dsn(), "SELECT pg_postmaster_start_time()") == before
    await second.leave()
    assert await instance.is_dead()


async def test_an_interrupted_initdb_is_repeated(empty_instance: PgInstance, home: Path) -> None:
    empty_instance.bin_dir = fakes.programs(home / "bin", initdb=fakes.STALLS)
    killed = await empty_instance.user()
    await until(lambda: is_stalled(empty_instance))
    await killed.kill()
    orphan = stalled_initdb(empty_instance)

    empty_instance.bin_dir = None
    user = await empty_instance.user()

    try:
        assert await fetch(await user.dsn(), "SELECT 1") == 1
        assert stalled_initdb(empty_instance) is None
    finally:
        os.kill(orphan or 0, signal.SIGKILL)


async def is_stalled(instance: PgInstance) -> bool:
    return stalled_initdb(instance) is not None


def stalled_initdb(instance: PgInstance) -> int | None:
    pids = list(instance.data_dir.glob("cluster.new-*/pid"))
    return int(pids[0].read_text()) if pids else None


async def test_a_lock_file_with_the_pid_of_another_process_does_not_prevent_the_start(
    instance: PgInstance,
) -> None:
    """A restarted container gives the same pids to other processes."""
    user = await instance.user()
    await user.dsn()
    owner = instance.layout.cluster.stat().st_uid
    other = await asyncio.create_subprocess_exec(
        "cat", stdin=asyncio.subprocess.PIPE, user=owner if AS_ROOT else None
    )
    await asyncio.gather(user.kill(), instance.kill_postmaster())
    lock = instance.layout.cluster / "postmaster.pid"
    _, *rest = lock.read_text().splitlines(keepends=True)
    lock.write_text("".join([f"{other.pid}\n", *rest]))

    again = await instance.user()

    assert await fetch(await again.dsn(), "SELECT 1") == 1
    other.kill()
    await other.wait()


async def test_a_server_that_stays_a_zombie_does_not_prevent_the_start(
    instance: PgInstance,
) -> None:
    """In a container without an init process the dead server stays a zombie."""
    with adopting_orphans():
        user = await instance.user()
        await user.dsn()
        await user.kill()
        await instance.kill_postmaster()
        # Its socket closes shortly before the process exits.
        await until(lambda: asyncio.to_thread(is_zombie, instance.postmaster()))

        again = await instance.user()

        assert await fetch(await again.dsn(), "SELECT 1") == 1


def is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


@contextlib.contextmanager
def adopting_orphans() -> Generator[None]:
    """Become the parent of orphaned descendants, and reap them only at the end."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass


async def test_a_database_that_has_vanished_is_not_replaced_by_an_empty_one(
    instance: PgInstance,
) -> None:
    user = await instance.user()
    await user.dsn()
    await instance.kill_postmaster()
    instance.layout.cluster.rename(instance.data_dir / "moved")

    reply = await user.ensure_running()

    assert reply.kind == "failed"
    assert "has vanished" in reply.text
    assert not instance.layout.cluster.exists()


async def test_a_server_that_recovers_for_long_is_not_stopped(instance: PgInstance) -> None:
    """A stop would begin the recovery again with every attempt, and it would never end."""
    (instance.layout.cluster / "standby.signal").write_text("")  # Recovers without end.
    instance.ready_timeout_s = 0.1

    with pytest.raises(PgError, match="try again later"):
        await open_server(instance.config(hot_standby="off"), ENV)

    assert await instance.is_up()


async def test_a_closed_server_is_not_restarted(instance: PgInstance) -> None:
    server = await open_server(instance.config(), ENV)
    await server.close()

    with pytest.raises(PgError, match="has left"):
        await server.ensure_running()
    assert await instance.is_dead()
