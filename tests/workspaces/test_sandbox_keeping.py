"""One sandbox and how it is kept, without a supervisor around it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from chatd.workspaces.local.plan import Order, Plan
from chatd.workspaces.local.sandbox import MAX_BACKOFF_S, Sandbox, backoff_s
from tests.support.eventually import eventually

WITHIN_S = 40.0


def order(tmp_path: Path, *words: str) -> Order:
    return Order(
        workspace="kept",
        build=1,
        plan=Plan(argv=list(words), env={}),
        socket=str(tmp_path / "agent.sock"),
        log=str(tmp_path / "log"),
        namespaced=False,
    )


def sandbox(tmp_path: Path, *words: str) -> Sandbox:
    return Sandbox(order(tmp_path, *words), births=tmp_path, say=lambda _text: None)


def test_a_sandbox_that_dies_for_days_does_not_end_whoever_keeps_it() -> None:
    assert [backoff_s(young) for young in (0, 1, 2, 3)] == [0, 0.05, 0.1, 0.2]
    assert backoff_s(20) == backoff_s(100_000) == MAX_BACKOFF_S


def test_nobody_is_ended_before_there_is_somebody(tmp_path: Path) -> None:
    """In a process group of its own: the signal would hit all of it."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        sandbox(tmp_path, "/bin/true").end_processes("there is too much on the disk")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def test_a_process_that_has_ended_is_not_signalled_again(tmp_path: Path) -> None:
    """Its number may be a stranger's by then."""
    kept = sandbox(tmp_path, "/bin/false")

    async def between_two_lives() -> bool:
        return kept.status.state == "restarting"

    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        group.create_task(kept.keep())
        await eventually(between_two_lives, within_s=WITHIN_S)
        assert kept.status.pid == 0
        await kept.stop()


def test_whoever_keeps_sandboxes_goes_on_when_there_is_no_room_to_say_so() -> None:
    program = "from chatd.workspaces.local.supervisor import say; say('x'); say('y'); print('on')"
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE, stderr=full, check=True, timeout=WITHIN_S,
        )  # fmt: skip
    assert ended.stdout == b"on\n"
