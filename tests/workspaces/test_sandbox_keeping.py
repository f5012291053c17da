"""One sandbox and how it is kept, without a supervisor around it."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chatd.workspaces.local.supervisor import disk_quota
from chatd.workspaces.local.supervisor.plan import ProcessPlan, SandboxOrder
from chatd.workspaces.local.supervisor.processes import read_process_id
from chatd.workspaces.local.supervisor.sandbox import MAX_RESTART_DELAY_S, Sandbox, restart_delay_s
from tests.support.eventually import eventually

WITHIN_S = 40.0


def order(tmp_path: Path, *words: str) -> SandboxOrder:
    return SandboxOrder(
        workspace="kept",
        build=1,
        plan=ProcessPlan(argv=list(words), env={}),
        socket=str(tmp_path / "agent.sock"),
        log=str(tmp_path / "log"),
        namespaced=False,
    )


def sandbox(tmp_path: Path, *words: str) -> Sandbox:
    return Sandbox(order(tmp_path, *words), processes_dir=tmp_path, log_event=lambda _text: None)


def test_a_sandbox_that_dies_for_days_does_not_end_whoever_keeps_it() -> None:
    assert [restart_delay_s(young) for young in (0, 1, 2, 3)] == [0, 0.05, 0.1, 0.2]
    assert restart_delay_s(20) == restart_delay_s(100_000) == MAX_RESTART_DELAY_S


def test_nobody_is_ended_before_there_is_somebody(tmp_path: Path) -> None:
    """In a process group of its own: the signal would hit all of it."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        sandbox(tmp_path, "/bin/true").kill_processes("there is too much on the disk")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def test_a_process_that_has_ended_is_not_signalled_again(tmp_path: Path) -> None:
    """Its number may be a stranger's by then."""
    kept = sandbox(tmp_path, "/bin/false")

    async def between_two_lives() -> bool:
        return kept.state.phase == "restarting"

    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        group.create_task(kept.run())
        await eventually(between_two_lives, within_s=WITHIN_S)
        assert kept.state.pid == 0
        await kept.stop()


async def test_a_disk_that_is_gone_ends_nobody(tmp_path: Path) -> None:
    (tmp_path / "births").touch()
    kept = Sandbox(
        order(tmp_path, "/bin/sleep", "1000"),
        processes_dir=tmp_path / "births",
        log_event=lambda _text: None,
    )
    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        group.create_task(kept.run())
        await kept.stop()
    assert kept.state.phase == "stopped"


def test_whoever_keeps_sandboxes_goes_on_when_there_is_no_room_to_say_so() -> None:
    program = (
        "from chatd.workspaces.local.supervisor.service import log; log('x'); log('y'); print('on')"
    )
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE, stderr=full, check=True, timeout=WITHIN_S,
        )  # fmt: skip
    assert ended.stdout == b"on\n"


async def test_files_are_counted_as_well_as_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "large").write_bytes(b"x" * 100_000)
    for number in range(20):
        (tmp_path / "below" / f"empty{number}").touch()
    used = await disk_quota.measure([str(tmp_path)], asyncio.Event())
    assert used is not None
    assert used.bytes >= 100_000
    assert used.files == 23


def test_a_disk_has_room_for_many_files_and_not_for_any_number() -> None:
    assert disk_quota.disk_limit(disk_quota.BYTES_PER_FILE) == disk_quota.DiskUsage(
        disk_quota.BYTES_PER_FILE, disk_quota.MIN_FILE_LIMIT
    )
    limit = disk_quota.disk_limit(1024**3)
    assert limit.files == 262_144
    assert disk_quota.DiskUsage(1024**3, 262_144).within(limit)
    assert not disk_quota.DiskUsage(1024**3 + 1, 1).within(limit)
    assert not disk_quota.DiskUsage(0, 262_145).within(limit)


async def test_a_stop_does_not_wait_for_a_look_at_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "du"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/looking\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    kept = Sandbox(
        replace(order(tmp_path, "/bin/true"), disk_bytes=1, disk_interval_s=0.01),
        processes_dir=tmp_path,
        log_event=lambda _text: None,
    )

    async def looking() -> int:
        text = (tmp_path / "looking").read_text() if (tmp_path / "looking").exists() else ""
        return int(text) if text.endswith("\n") else 0

    async def ended() -> bool:
        return read_process_id(du) is None

    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        group.create_task(disk_quota.enforce_limit(kept))
        du = await eventually(looking, within_s=WITHIN_S)
        kept.stopping.set()
    await eventually(ended, within_s=WITHIN_S)
