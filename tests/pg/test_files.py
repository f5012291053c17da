"""Locks, the log's bound, the lock file of a dead server: files, without a server."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from chatd.pg import remains
from chatd.pg.dirs import make_data_dir, open_file
from chatd.pg.errors import PgError
from chatd.pg.locks import GateBusy, Membership, gate
from chatd.pg.log import KEPT_BYTES, bound_log, end_of_log, open_log
from chatd.pg.places import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(data_dir=tmp_path, socket_dir=tmp_path / "run")
    layout.socket_dir.mkdir()
    layout.cluster.mkdir()
    return layout


async def test_the_gate_lets_one_through_at_a_time(layout: Layout) -> None:
    inside = asyncio.Event()
    order: list[str] = []

    async def second() -> None:
        await inside.wait()
        async with gate(layout.gate):
            order.append("second in")

    async with asyncio.TaskGroup() as group, asyncio.timeout(30):
        group.create_task(second())
        async with gate(layout.gate):
            inside.set()
            with pytest.raises(GateBusy, match="starting or stopping"):
                async with gate(layout.gate, within_s=0.05):
                    pass
            order.append("first out")

    assert order == ["first out", "second in"]


def test_only_the_last_member_is_last(layout: Layout) -> None:
    first, second = Membership(layout.users), Membership(layout.users)

    assert not first.is_last()
    assert second.is_last()

    first.leave()
    second.leave()


def test_a_link_in_place_of_a_lock_file_is_not_followed(layout: Layout) -> None:
    layout.gate.symlink_to(layout.data_dir / "elsewhere")

    with pytest.raises(PgError, match="Cannot use"):
        open_file(layout.gate)

    assert not (layout.data_dir / "elsewhere").exists()


def test_a_data_directory_appears_closed_whatever_the_umask(tmp_path: Path) -> None:
    make_data_dir(tmp_path / "a" / "pg", None)

    assert (tmp_path / "a" / "pg").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["pg"]


def test_a_long_log_is_cut_in_place_and_its_end_kept(layout: Layout) -> None:
    log = open_log(layout)
    os.write(log.fd, b"x" * KEPT_BYTES + b"the end\n")

    bound_log(layout, max_bytes=KEPT_BYTES)
    os.write(log.fd, b"and on\n")  # As a server does that has had it open all along.
    log.close()

    assert layout.log.read_bytes() == b"and on\n"
    kept = (layout.data_dir / "server.log.1").read_bytes()
    assert len(kept) == KEPT_BYTES
    assert kept.endswith(b"xthe end\n")


def test_a_short_log_is_left_alone(layout: Layout) -> None:
    layout.log.write_text("one line\n")

    bound_log(layout)

    assert end_of_log(layout).endswith("ends with:\none line")
    assert not (layout.data_dir / "server.log.1").exists()


def write_lock(layout: Layout, pid: int) -> Path:
    lock = layout.cluster / "postmaster.pid"
    lock.write_text(f"{pid}\n{layout.cluster}\n1700000000\n")
    for name in (layout.socket, layout.socket.with_name(f"{layout.socket.name}.lock")):
        name.write_text("")
    return lock


def test_the_pid_of_a_stranger_in_the_lock_file_is_made_harmless(layout: Layout) -> None:
    with subprocess.Popen(["cat"], cwd="/", stdin=subprocess.PIPE) as stranger:
        lock = write_lock(layout, stranger.pid)
        remains.clear(layout)
        stranger.terminate()

    assert lock.read_text() == f"{os.getpid()}\n{layout.cluster}\n1700000000\n"
    assert list(layout.socket_dir.iterdir()) == []
    assert [path.name for path in layout.cluster.iterdir()] == ["postmaster.pid"]


@pytest.mark.parametrize("sign", [1, -1], ids=["server", "single-user mode"])
def test_a_process_that_works_in_the_cluster_keeps_its_lock_file(layout: Layout, sign: int) -> None:
    with subprocess.Popen(["cat"], cwd=layout.cluster, stdin=subprocess.PIPE) as worker:
        lock = write_lock(layout, sign * worker.pid)
        before = lock.read_text()

        remains.clear(layout)

        assert lock.read_text() == before
        assert layout.socket.exists()
        worker.terminate()


def test_an_empty_lock_file_is_removed(layout: Layout) -> None:
    lock = layout.cluster / "postmaster.pid"
    lock.write_text("")

    remains.clear(layout)

    assert not lock.exists()


def test_a_lock_file_that_makes_no_sense_is_left_to_postgresql(layout: Layout) -> None:
    lock = layout.cluster / "postmaster.pid"
    lock.write_text("hello\n")

    remains.clear(layout)

    assert lock.read_text() == "hello\n"


@pytest.mark.parametrize(
    ("stat", "cwd", "expected"),
    [
        ("7 (postgres) S 1 7", "{cluster}", False),
        ("7 (postgres) Z 1 7", "{cluster}", True),
        ("7 (a) Z b) S 1 7", "{cluster}", False),  # A name may hold anything.
        ("7 (postgres) S 1 7", "/elsewhere", True),
        ("7 (postgres) S 1 7", "{cluster} (deleted)", True),
    ],
)
def test_whether_a_pid_can_be_the_server(
    tmp_path: Path, layout: Layout, stat: str, cwd: str, *, expected: bool
) -> None:
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir()
    (process / "stat").write_text(stat)
    (process / "cwd").symlink_to(cwd.format(cluster=layout.cluster.resolve()))

    assert remains.is_gone(7, layout.cluster, tmp_path / "proc") is expected


def test_a_pid_that_nobody_has_is_gone_and_without_proc_nothing_is_known(
    tmp_path: Path, layout: Layout
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)

    assert remains.is_gone(7, layout.cluster, tmp_path / "proc")
    assert not remains.is_gone(7, layout.cluster, tmp_path / "no-proc")
