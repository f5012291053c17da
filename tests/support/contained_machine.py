"""The backend `machine` in a process namespace of its own, so that tests may run hostile commands.

Nothing isolates a workspace of this backend: `kill -9 -1` would end every process of the account,
as root of the host. Here its supervisor, and so all it starts, sees and ends the processes of one
namespace only.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from typing import Final

from chatd.domain.ports import Clock
from chatd.workspaces.local.local_backend import LocalBackend, LocalConfig
from chatd.workspaces.local.supervisor.sandbox_processes import MODULE_ENVIRONMENT, module_command
from chatd.workspaces.local.supervisor.service import LOG_FILE
from chatd.workspaces.local.supervisor_client import (
    SUPERVISOR_MODULE,
    SUPERVISOR_START_TIMEOUT_S,
    SupervisorClient,
    SupervisorGone,
)
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks

NAMESPACE: Final = ("setsid", "--fork", "unshare", "--pid", "--fork", "--kill-child")
FIRST_PROCESS: Final = """
import os, subprocess, sys
subprocess.run(sys.argv[1:])
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""
"""The namespace ends when nothing runs in it any more."""
START_POLL_S: Final = 0.02


def missing_namespace() -> str:
    """Why there is none here; empty if there is one."""
    if os.geteuid() != 0:
        return "only root makes the namespace in which its commands cannot harm the host"
    if not shutil.which("unshare") or not shutil.which("setsid"):
        return "unshare is not installed"
    tried = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "this root may make no process namespace"


class ContainedSupervisorClient(SupervisorClient):
    async def _launch(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = [sys.executable, "-S", "-P", "-B", "-c", FIRST_PROCESS]
        options = [str(self._directory), "--idle-s", str(self._idle_s)]
        words = [*NAMESPACE, "--mount-proc", *first, *module_command(SUPERVISOR_MODULE), *options]
        with (self._directory / LOG_FILE).open("ab") as log:
            await asyncio.to_thread(
                subprocess.run, words,
                check=True, cwd="/", env={**MODULE_ENVIRONMENT, "PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        async with asyncio.timeout(SUPERVISOR_START_TIMEOUT_S):
            while not await self._listens():
                await self._clock.sleep(START_POLL_S, "contained")

    async def _listens(self) -> bool:
        try:
            return (await self._send({"op": "hello"})).ok
        except SupervisorGone:
            return False


class ContainedBackend(LocalBackend):
    def __init__(
        self, config: LocalConfig, *, agent: bytes, clock: Clock, networks: WorkspaceNetworks
    ) -> None:
        super().__init__(config, agent=agent, clock=clock, networks=networks)
        self._supervisor = ContainedSupervisorClient(
            self._layout.supervisor, clock, idle_s=config.supervisor_idle_s
        )
