"""The commands of a build in a container of their own, and a container's volume as the target of a
seed."""

import asyncio
import contextlib
import os
import shutil
import tarfile
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import Mount
from chatd.workspaces.build_backend import BuildCancelled, BuildContext, BuildFailed
from chatd.workspaces.container.container_init import (
    DISK_FULL_EXIT_CODE,
    STATUS_FILE,
    TIMED_OUT_EXIT_CODE,
)
from chatd.workspaces.container.container_plan import ContainerPlan
from chatd.workspaces.container.engine_api import (
    EngineClient,
    archive_entry,
    archive_files,
    stream_archive,
)
from chatd.workspaces.local.local_backend import describe_os_error
from chatd.workspaces.local.sandbox_command import INSIDE_HOME, CommandResult
from chatd.workspaces.local.seeds import CopiedTree, SeedCommand, git_variables
from chatd.workspaces.network.inside import proxy_variables, trust_variables
from chatd.workspaces.network.network_proxy import NetworkProxy

EXIT_POLL_S: Final = 0.1
TIMEOUT_GRACE_S: Final = 30.0
"""The first process ends a command at its timeout; this is for an engine that hangs."""
SETUP_LOG_LINES: Final = 200
MAX_STATUS_BYTES: Final = 4096


class InitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the first process of a container says of itself."""

    starts: int = 0
    exit_code: int | None = None
    detail: str = ""


def read_status(run: Path) -> InitStatus:
    try:
        with (run / STATUS_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_STATUS_BYTES), type=InitStatus)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return InitStatus()


class ContainerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A build of one workspace. `directory` is the working directory of commands."""

    context: BuildContext
    plan: ContainerPlan
    engine: EngineClient
    clock: Clock
    directory: str
    disk_interval_s: float

    async def write_order(self, name: str, order: Mapping[str, object]) -> None:
        """Into the socket's directory, which only the runner can reach on the host and only root
        inside: orders have the agent's key and the template's variables. An upload by the engine
        would take as long as half a start."""
        spec, plan = self.plan.spec, self.plan
        whole = {
            "uid": plan.uid,
            "home": INSIDE_HOME,
            "directory": self.directory,
            "base": {
                "CHATD_WORKSPACE_ID": str(plan.names.workspace),
                **(
                    {}
                    if plan.proxy is None
                    else {**proxy_variables(), **trust_variables(plan.proxy)}
                ),
            },
            "variables": dict(spec.env),
            "disk_bytes": spec.limits.disk_bytes,
            "disk_interval_s": self.disk_interval_s,
            **order,
        }
        # Where the engine maps accounts, root inside is not the owner.
        mode = 0o644 if plan.engine.own_users else 0o600
        with describe_os_error("The workspace cannot be created"):
            await asyncio.to_thread(
                _replace_file, plan.run / f"{name}.json", msgspec.json.encode(whole), mode
            )

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        timeout_s: float,
        variables: Mapping[str, str] = {},
        network: bool = False,
        mounts: tuple[Mount, ...] = (),
    ) -> CommandResult:
        """Run one command under the limits of the workspace, to its end."""
        name, engine, spec = self.plan.names.setup, self.engine, self.plan.spec
        await engine.remove_container(name)
        await engine.create_container(
            name, self.plan.setup_container(network=network, mounts=mounts)
        )
        try:
            order = {
                "argv": argv,
                "timeout_s": timeout_s,
                "variables": {**spec.env, **variables},
            }
            await self.write_order("command", order)
            await engine.start_container(name)
            code = await self._wait_exit(timeout_s + TIMEOUT_GRACE_S)
            output = await engine.log_tail(name, SETUP_LOG_LINES)
        finally:
            with contextlib.suppress(ChatdError):  # The next build removes it.
                await engine.remove_container(name)
        if code == DISK_FULL_EXIT_CODE:
            detail = (await asyncio.to_thread(read_status, self.plan.run)).detail
            if detail:
                raise BuildFailed(f"The workspace is too large: {detail}.")
        return CommandResult(code=None if code == TIMED_OUT_EXIT_CODE else code, output=output)

    async def _wait_exit(self, timeout_s: float) -> int:
        deadline = self.clock.monotonic() + timeout_s
        while self.clock.monotonic() < deadline:
            if self.context.cancelled.is_set():
                raise BuildCancelled("The build was cancelled.")
            found = await self.engine.find_container(self.plan.names.setup)
            if found is None:
                raise BuildFailed(
                    "The container of a start-up command was removed while it ran. "
                    "Start the workspace again."
                )
            if not found.is_up and found.status != "created":
                return found.exit_code
            await self.clock.sleep(EXIT_POLL_S, "container_exit")
        return TIMED_OUT_EXIT_CODE


class VolumeHome(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `SeedTarget` by the home volume of a workspace, through a container that is
    created and never started. `directory` is relative to the home."""

    setup: ContainerSetup
    directory: str
    proxy_dir: Path
    timeout_s: float

    @property
    def network(self) -> bool:
        return self.setup.plan.spec.network == "full"

    @property
    def python(self) -> tuple[str, ...]:
        return self.setup.plan.kit.plain_python

    async def create(self) -> None:
        """The first process gives the home to the account, and creates the working directory."""

    async def copy(self, source: Path) -> None:
        plan, cancelled = self.setup.plan, self.setup.context.cancelled
        # First, because an error while the archive is sent would look like one of the engine.
        size = CopiedTree(source, plan.spec.limits.disk_bytes, cancelled)
        await asyncio.to_thread(_walk, source, size)

        def write(archive: tarfile.TarFile) -> None:
            self._add_parents(archive)
            tree = CopiedTree(source, plan.spec.limits.disk_bytes, cancelled)
            for directory, names in _walk(source, tree):
                for name in names:
                    path = Path(directory, name)
                    inside = Path(self.directory, path.relative_to(source))
                    archive.add(path, str(inside), recursive=False, filter=self._own)

        async with self._container() as name:
            await self.setup.engine.upload(name, INSIDE_HOME, lambda: stream_archive(write))

    async def write(self, files: Mapping[str, bytes]) -> None:
        named = {str(Path(self.directory, name)): content for name, content in files.items()}
        data = archive_files(named, uid=self.setup.plan.uid, mode=0o644)
        async with self._container() as name:
            await self.setup.engine.upload(name, INSIDE_HOME, lambda: data)

    async def run(self, command: SeedCommand) -> CommandResult:
        return await self.setup.run(
            command.words,
            timeout_s=self.timeout_s,
            variables=git_variables(command),
            network=command.network,
            mounts=() if command.mount is None else (command.mount,),
        )

    @contextlib.asynccontextmanager
    async def listening(self, proxy: NetworkProxy) -> AsyncGenerator[Path]:
        async with proxy.listening(self.proxy_dir, None, any_account=True):
            yield self.proxy_dir
        with contextlib.suppress(OSError):
            await asyncio.to_thread(shutil.rmtree, self.proxy_dir)

    @contextlib.asynccontextmanager
    async def _container(self) -> AsyncGenerator[str]:
        name, engine = self.setup.plan.names.setup, self.setup.engine
        await engine.remove_container(name)
        await engine.create_container(
            name, self.setup.plan.setup_container(network=False, mounts=())
        )
        try:
            yield name
        finally:
            with contextlib.suppress(ChatdError):  # The next build removes it.
                await engine.remove_container(name)

    def _add_parents(self, archive: tarfile.TarFile) -> None:
        for parent in (*reversed(Path(self.directory).parents[:-1]), Path(self.directory)):
            if str(parent) != ".":
                uid = self.setup.plan.uid
                archive.addfile(archive_entry(str(parent), uid=uid, mode=0o755, directory=True))

    def _own(self, entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = self.setup.plan.uid
        entry.uname = entry.gname = ""
        return entry


def _replace_file(path: Path, content: bytes, mode: int) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
    temporary.replace(path)


def _walk(source: Path, tree: CopiedTree) -> list[tuple[str, list[str]]]:
    """Directories and the entries in them that are copied."""
    found: list[tuple[str, list[str]]] = []
    for directory, names, files in os.walk(source):
        skipped = set(tree.find_skipped(directory, [*names, *files]))
        found.append((directory, [name for name in (*names, *files) if name not in skipped]))
    return found
