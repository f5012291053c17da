"""The agent as PID 1 of a namespace: it reaps orphans and returns the agent's exit code."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

PROGRAM = """
import os, pathlib, signal, subprocess, sys
from chatd.agent.main import fork_init
inherited = os.dup(0)
fork_init()
assert os.getppid() == 1, "not in a namespace of its own"
while os.path.exists(f"/proc/1/fd/{inherited}"):
    pass
made = subprocess.run(["sh", "-c", "sleep 0.01 & echo $!; exit 5"], stdout=-1)
assert made.returncode == 5, "an exit code was lost"
orphan = pathlib.Path("/proc", made.stdout.decode().strip())
while orphan.exists():
    pass
print("reaped", flush=True)
"""


async def run(program: str) -> tuple[str, int]:
    child = await asyncio.create_subprocess_exec(
        *UNSHARE, sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(40):
        output, _ = await child.communicate()
    return output.decode(), child.returncode or 0


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Skip where the machine allows no namespaces."""
    if subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces cannot be created here")


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
async def test_pid_1_reaps_orphans_and_exits_with_the_agent(ending: str, code: int) -> None:
    assert await run(PROGRAM + ending) == ("reaped\n", code)


@pytest.mark.usefixtures("namespaces")
async def test_pid_1_forwards_signals_to_the_agent(tmp_path: Path) -> None:
    stopped = "signal.signal(15, lambda *_: sys.exit(9)); os.kill(1, 15); signal.pause()"
    assert await run(PROGRAM + stopped) == ("reaped\n", 9)
