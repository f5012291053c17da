"""The hostile attempts at a sandbox and at the agent's state again, on a server without root."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.local_rig import AS_ROOT, NO_BUBBLEWRAP
from tests.workspaces import test_agent_state, test_sandbox_isolation

ROOT = Path(__file__).parents[2]
SITE = Path(pytest.__file__).parents[1]
# The kernel counts the processes of an account, so no other test may have the same one.
ACCOUNT = 60_000 + os.getpid() % 5_000
SUITE_TIMEOUT_S = 240


@pytest.mark.timeout(SUITE_TIMEOUT_S + 10)
@pytest.mark.skipif(not AS_ROOT, reason="all tests run without root already")
@pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")
@pytest.mark.skipif(
    not os.access("/usr/bin/python3", os.X_OK) or sys.version_info[:2] != (3, 11),
    reason="the system's Python cannot use our packages",
)
async def test_a_hostile_workspace_is_contained_on_a_server_without_root() -> None:
    for path in (ROOT, SITE):
        listing = await asyncio.create_subprocess_exec(
            "ls", path, user=ACCOUNT, stdout=-3, stderr=-3
        )
        if await listing.wait() != 0:
            pytest.skip(f"{path} cannot be read by other accounts")
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", "addopts="]
    # The demo project is no attempt at the sandbox, and the slowest of these tests.
    words += ["--import-mode=importlib", "--rootdir", str(ROOT), "-k", "not demo_project"]
    process = await asyncio.create_subprocess_exec(
        "/usr/bin/python3", "-B", "-m", "pytest", *words,
        test_sandbox_isolation.__file__, test_agent_state.__file__,
        user=ACCOUNT, group=ACCOUNT, extra_groups=[], cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{SITE}", "PATH": os.defpath},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(SUITE_TIMEOUT_S):
        output = (await process.communicate())[0].decode()
    passed = re.search(r"(\d+) passed", output)
    assert process.returncode == 0, output
    assert passed is not None
    assert int(passed[1]) > 20, output
