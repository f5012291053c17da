"""What chatd's own image does in the pod of a workspace: it brings the kit, and it dials in.

The init container copies the kit (the agent, its first process, a Python of their own) into a
volume that the container of the workspace sees. The other container connects to the server with
the token of the build and passes exchanges on to the agent's socket, in a volume that both see. So
the image of the workspace needs neither Python nor certificates, and its commands run in another
container than the process with the token.
"""

import asyncio
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.domain.ports import Clock
from chatd.settings.schema import SettingsError
from chatd.workspaces.container.container_kit import INIT, build_container_kit
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.sandbox_command import INSIDE_KIT
from chatd.workspaces.runner.backend_calls import BackendCalls
from chatd.workspaces.runner.runner_client import RunnerClient, RunnerConfig
from chatd.workspaces.tunnels.byte_streams import is_answered

READY_KIT: Final = Path("/opt/chatd-kit")
KIT_START: Final = "start"
"""A shell script that runs the kit's first process: only the image knows how its Python starts."""
READY_POLL_S: Final = 0.1
POD_RUNNER_ID: Final = "pod"
"""The server knows a pod by its token."""


class PodLinkOptions(Struct, frozen=True, kw_only=True):
    """`ready_file` appears when the server is connected and the agent answers."""

    server_url: str
    token: str
    socket: Path
    ready_file: Path

    def __repr__(self) -> str:
        """Leaves out the token."""
        return f"PodLinkOptions(server_url={self.server_url!r})"


def copy_kit(target: Path, kits: Path | None = None, ready: Path = READY_KIT) -> None:
    """Put the kit into an empty directory. It takes some seconds to build, so an image may have it
    ready; `kits` keeps built ones. Raises SettingsError."""
    try:
        if kits is None and target != ready and (ready / KIT_START).is_file():
            _copy_into(ready, target)
            return
        with tempfile.TemporaryDirectory() as temporary:
            kit, lock = build_container_kit(kits or Path(temporary), agent_zip())
            try:
                _copy_into(kit.path, target)
                words = shlex.join((*kit.python, f"{INSIDE_KIT}/{INIT}"))
                (target / KIT_START).write_text(f'exec {words} "$@"\n')
            finally:
                lock.close()
    except OSError as error:
        raise SettingsError(f"cannot put the kit into {target}: {error}") from None


def _copy_into(source: Path, target: Path) -> None:
    """The directory itself keeps its rights: that of a volume belongs to another account."""
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(entry, target / entry.name)


async def run_pod_link(options: PodLinkOptions, clock: Clock, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Raises RunnerRefused once the workspace was built again."""
    config = RunnerConfig(
        server_url=options.server_url,
        token=options.token,
        runner_id=POD_RUNNER_ID,
        name=POD_RUNNER_ID,
    )
    client = RunnerClient(config, BackendCalls({}, only_socket=str(options.socket)), clock)
    options.ready_file.unlink(missing_ok=True)
    ready = asyncio.get_running_loop().create_task(_report_ready(client, options, clock))
    try:
        await client.run(stop)
    finally:
        ready.cancel()
        await asyncio.wait({ready})


async def _report_ready(client: RunnerClient, options: PodLinkOptions, clock: Clock) -> None:
    """Create the file once: the cluster checks only until then."""
    while True:
        await client.connected.wait()
        if await is_answered(str(options.socket)):
            break
        await clock.sleep(READY_POLL_S, "pod_ready")
    options.ready_file.touch()
