"""Lock files, the log's size limit and a dead server's lock file, without a server."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from chatd.pg.config import ClusterLayout, PgError
from chatd.pg.directories import LockTimeout, UserLock, create_data_dir, open_file, start_stop_lock
from chatd.pg.postmaster import (
    ROTATED_LOG_BYTES,
    bound_log,
    end_of_log,
    is_stale_pid,
    open_log,
    remove_stale_lock,
)


@pytest.fixture
def layout(tmp_path: Path) -> ClusterLayout:
    layout = ClusterLayout(data_dir=tmp_path, socket_dir=tmp_path / "run")
    layout.socket_dir.mkdir()
    layout.cluster.mkdir()
    return layout


async def test_one_process_at_a_time_holds_the_start_stop_lock(layout: ClusterLayout) -> None:
    inside = asyncio.Event()
    order: list[str] = []

    async def second() -> None:
        await inside.wait()
        async with start_stop_lock(layout.start_stop_lock):
            order.append("second in")

    async with asyncio.TaskGroup() as group, asyncio.timeout(30):
        group.create_task(second())
        async with start_stop_lock(layout.start_stop_lock):
            inside.set()
            with pytest.raises(LockTimeout, match="starting or stopping"):
                async with start_stop_lock(layout.start_stop_lock, timeout_s=0.05):
                    pass
            order.append("first out")

    assert order == ["first out", "second in"]


def test_only_the_last_user_is_last(layout: ClusterLayout) -> None:
    first, second = UserLock(layout.users_lock), UserLock(layout.users_lock)

    assert not first.is_last()
    assert second.is_last()

    first.release()
    second.release()


def test_a_link_in_place_of_a_lock_file_is_not_followed(layout: ClusterLayout) -> None:
    layout.start_stop_lock.symlink_to(layout.data_dir / "elsewhere")

    with pytest.raises(PgError, match="Cannot use"):
        open_file(layout.start_stop_lock)

    assert not (layout.data_dir / "elsewhere").exists()


def test_a_data_directory_is_private_under_any_umask(tmp_path: Path) -> None:
    create_data_dir(tmp_path / "a" / "pg", None)

    assert (tmp_path / "a" / "pg").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["pg"]


def test_a_long_log_is_truncated_in_place_and_its_end_copied(layout: ClusterLayout) -> None:
    log = open_log(layout)
    os.write(log.fd, b"x" * ROTATED_LOG_BYTES + b"the end\n")

    bound_log(layout, max_bytes=ROTATED_LOG_BYTES)
    os.write(log.fd, b"and on\n")  # As a server does that still has it open.
    log.close()

    assert layout.log.read_bytes() == b"and on\n"
    rotated = (layout.data_dir / "server.log.1").read_bytes()
    assert len(rotated) == ROTATED_LOG_BYTES
    assert rotated.endswith(b"xthe end\n")


def test_a_short_log_is_not_changed(layout: ClusterLayout) -> None:
    layout.log.write_text("one line\n")

    bound_log(layout)

    assert end_of_log(layout).endswith("ends with:\none line")
    assert not (layout.data_dir / "server.log.1").exists()


def write_lock(layout: ClusterLayout, pid: int) -> Path:
    lock = layout.cluster / "postmaster.pid"
    lock.write_text(f"{pid}\n{layout.cluster}\n1700000000\n")
    for name in (layout.socket, layout.socket.with_name(f"{layout.socket.name}.lock")):
        name.write_text("")
    return lock


def test_the_pid_of_another_process_in_the_lock_file_is_replaced(layout: ClusterLayout) -> None:
    with subprocess.Popen(["cat"], cwd="/", stdin=subprocess.PIPE) as other:
        lock = write_lock(layout, other.pid)
        remove_stale_lock(layout)
        other.terminate()

    assert lock.read_text() == f"{os.getpid()}\n{layout.cluster}\n1700000000\n"
    assert list(layout.socket_dir.iterdir()) == []
    assert [path.name for path in layout.cluster.iterdir()] == ["postmaster.pid"]


@pytest.mark.parametrize("sign", [1, -1], ids=["server", "single-user mode"])
def test_the_lock_file_of_a_process_in_the_cluster_is_not_changed(
    layout: ClusterLayout, sign: int
) -> None:
    with subprocess.Popen(["cat"], cwd=layout.cluster, stdin=subprocess.PIPE) as worker:
        lock = write_lock(layout, sign * worker.pid)
        before = lock.read_text()

        remove_stale_lock(layout)

        assert lock.read_text() == before
        assert layout.socket.exists()
        worker.terminate()


def test_an_empty_lock_file_is_removed(layout: ClusterLayout) -> None:
    lock = layout.cluster / "postmaster.pid"
    lock.write_text("")

    remove_stale_lock(layout)

    assert not lock.exists()


def test_an_invalid_lock_file_is_not_changed(layout: ClusterLayout) -> None:
    lock = layout.cluster / "postmaster.pid"
    lock.write_text("hello\n")

    remove_stale_lock(layout)

    assert lock.read_text() == "hello\n"


@pytest.mark.parametrize(
    ("stat", "cwd", "expected"),
    [
        ("7 (postgres) S 1 7", "{cluster}", False),
        ("7 (postgres) Z 1 7", "{cluster}", True),
        ("7 (a) Z b) S 1 7", "{cluster}", False),  # A process name may contain any character.
        ("7 (postgres) S 1 7", "/elsewhere", True),
        ("7 (postgres) S 1 7", "{cluster} (deleted)", True),
    ],
)
def test_zombies_and_processes_outside_the_cluster_are_stale(
    tmp_path: Path, layout: ClusterLayout, stat: str, cwd: str, *, expected: bool
) -> None:
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir()
    (process / "stat").write_text(stat)
    (process / "cwd").symlink_to(cwd.format(cluster=layout.cluster.resolve()))

    assert is_stale_pid(7, layout.cluster, tmp_path / "proc") is expected


def test_an_unused_pid_is_stale_and_without_proc_no_pid_is(
    tmp_path: Path, layout: ClusterLayout
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)

    assert is_stale_pid(7, layout.cluster, tmp_path / "proc")
    assert not is_stale_pid(7, layout.cluster, tmp_path / "no-proc")
