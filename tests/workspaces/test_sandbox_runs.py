"""One sandbox and its disk quota, without a supervisor."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chatd.workspaces.local.supervisor import cgroups, disk_quota
from chatd.workspaces.local.supervisor.plan import ProcessPlan, SandboxOrder
from chatd.workspaces.local.supervisor.sandbox import MAX_RESTART_DELAY_S, Sandbox, restart_delay_s
from chatd.workspaces.local.supervisor.sandbox_processes import read_process_id
from tests.support.eventually import eventually
from tests.support.outcomes import present

TEST_TIMEOUT_S = 40.0


def order(tmp_path: Path, *words: str) -> SandboxOrder:
    return SandboxOrder(
        workspace="sandbox",
        build=1,
        plan=ProcessPlan(argv=list(words), env={}),
        socket=str(tmp_path / "agent.sock"),
        log=str(tmp_path / "log"),
        namespaced=False,
    )


def sandbox(tmp_path: Path, *words: str) -> Sandbox:
    return Sandbox(order(tmp_path, *words), processes_dir=tmp_path, log_event=lambda _text: None)


def test_the_restart_delay_grows_to_a_maximum() -> None:
    assert [restart_delay_s(exits) for exits in (0, 1, 2, 3)] == [0, 0.05, 0.1, 0.2]
    assert restart_delay_s(20) == restart_delay_s(100_000) == MAX_RESTART_DELAY_S


def test_without_processes_none_is_killed(tmp_path: Path) -> None:
    """In its own process group, which a signal to pid 0 would kill."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        sandbox(tmp_path, "/bin/true").kill_processes("there is too much on the disk")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def test_an_exited_process_is_not_signalled_again(tmp_path: Path) -> None:
    """Another process may have its pid."""
    sandbox_run = sandbox(tmp_path, "/bin/false")

    async def is_restarting() -> bool:
        return sandbox_run.state.phase == "restarting"

    async with asyncio.timeout(TEST_TIMEOUT_S), asyncio.TaskGroup() as group:
        group.create_task(sandbox_run.run())
        await eventually(is_restarting, within_s=TEST_TIMEOUT_S)
        assert sandbox_run.state.pid == 0
        await sandbox_run.stop()


async def test_a_lost_disk_does_not_end_the_sandbox_task(tmp_path: Path) -> None:
    (tmp_path / "births").touch()
    sandbox_run = Sandbox(
        order(tmp_path, "/bin/sleep", "1000"),
        processes_dir=tmp_path / "births",
        log_event=lambda _text: None,
    )
    async with asyncio.timeout(TEST_TIMEOUT_S), asyncio.TaskGroup() as group:
        group.create_task(sandbox_run.run())
        await sandbox_run.stop()
    assert sandbox_run.state.phase == "stopped"


def test_a_log_line_on_a_full_disk_is_ignored() -> None:
    program = (
        "from chatd.workspaces.local.supervisor.service import log; log('x'); log('y'); print('on')"
    )
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE, stderr=full, check=True, timeout=TEST_TIMEOUT_S,
        )  # fmt: skip
    assert result.stdout == b"on\n"


async def test_files_are_counted_as_well_as_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "large").write_bytes(b"x" * 100_000)
    for number in range(20):
        (tmp_path / "below" / f"empty{number}").touch()
    used = present(await disk_quota.measure([str(tmp_path)], asyncio.Event()))
    assert used.bytes >= 100_000
    assert used.files == 23


def test_the_limit_counts_bytes_and_files() -> None:
    assert disk_quota.disk_limit(disk_quota.BYTES_PER_FILE) == disk_quota.DiskUsage(
        disk_quota.BYTES_PER_FILE, disk_quota.MIN_FILE_LIMIT
    )
    limit = disk_quota.disk_limit(1024**3)
    assert limit.files == 262_144
    assert disk_quota.DiskUsage(1024**3, 262_144).within(limit)
    assert not disk_quota.DiskUsage(1024**3 + 1, 1).within(limit)
    assert not disk_quota.DiskUsage(0, 262_145).within(limit)


@pytest.mark.parametrize(
    ("used", "free_before", "free_now", "can_hold"),
    [
        ((90, 1), (500, 500), (500, 500), True),
        ((90, 1), (500, 500), (490, 500), True),
        ((90, 1), (500, 500), (489, 500), False),
        ((90, 1), (500, 500), (900, 500), True),
        ((90, 1), (500, 500), (500, 490), False),
        ((101, 1), (500, 500), (900, 500), False),
    ],
)
def test_files_are_measured_only_if_they_may_have_reached_the_limit(
    used: tuple[int, int],
    free_before: tuple[int, int],
    free_now: tuple[int, int],
    can_hold: object,
) -> None:
    usage = disk_quota.DiskUsage
    limit = usage(100, 10)
    found = disk_quota.can_hold(usage(*used), limit, usage(*free_before), usage(*free_now))
    assert found is can_hold


@pytest.mark.parametrize(
    ("controllers", "limits", "nice"),
    [
        ({"memory", "pids", "cpu"}, {"core": 0}, 0),
        ({"memory", "pids"}, {"core": 0}, cgroups.NICE_WITHOUT_GROUP),
        (set[str](), {"core": 0, "data": 1000}, cgroups.NICE_WITHOUT_GROUP),
    ],
)
def test_what_no_control_group_limits_is_limited_per_process(
    controllers: set[str], limits: dict[str, int], nice: int
) -> None:
    groups = cgroups.CgroupSet(paths=(Path("/g"),), controllers=frozenset(controllers))
    plan = ProcessPlan(argv=["x"], env={}, limits={"core": 0})
    joined = cgroups.join(plan, groups, cgroups.GroupLimits(1000, 10, 100))
    assert (joined.cgroups, joined.limits, joined.nice) == (["/g"], limits, nice)


async def test_a_stop_does_not_wait_for_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "du"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/measuring\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    sandbox_run = Sandbox(
        replace(order(tmp_path, "/bin/true"), disk_bytes=1, disk_interval_s=0.01),
        processes_dir=tmp_path,
        log_event=lambda _text: None,
    )

    async def du_pid() -> int:
        text = (tmp_path / "measuring").read_text() if (tmp_path / "measuring").exists() else ""
        return int(text) if text.endswith("\n") else 0

    async def is_killed() -> bool:
        return read_process_id(du) is None

    async with asyncio.timeout(TEST_TIMEOUT_S), asyncio.TaskGroup() as group:
        group.create_task(disk_quota.enforce_limit(sandbox_run))
        du = await eventually(du_pid, within_s=TEST_TIMEOUT_S)
        sandbox_run.stopping.set()
    await eventually(is_killed, within_s=TEST_TIMEOUT_S)
