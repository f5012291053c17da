"""Fill a new home directory: empty, a copy of a directory, a Git clone, or the demo project.

The home has not been used yet, so it contains no hostile links. Git runs inside the sandbox,
because a repository may be hostile, with the template's network. Without one it reaches only public
addresses, through a proxy. Host paths can be copied or cloned only from below the
roots that the settings name.
"""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Final, Protocol, assert_never

import msgspec

from chatd.domain.workspace.entities import DemoSeed, DirectorySeed, EmptySeed, GitSeed, Mount, Seed
from chatd.workspaces.build_backend import BuildCancelled, BuildFailed
from chatd.workspaces.local.sandbox_command import (
    CommandLimits,
    CommandResult,
    IsolationLevel,
    SandboxView,
    has_namespaces,
    inside_paths,
    plan_process,
    run_command,
)
from chatd.workspaces.local.workspace_dirs import chown_to_workspace
from chatd.workspaces.network.inside import forward_words, proxy_variables, trust_variables
from chatd.workspaces.network.network_proxy import NetworkProxy

GIT_CLONE_TIMEOUT_S: Final = 300.0
SEED_MOUNT: Final = "/mnt/seed"
PROXY_MOUNT: Final = "/mnt/clone"
GIT_STALLED_AFTER_S: Final = 60
"""Git gives up a server that sends less than a byte a second for this long."""
PROXIED_GIT: Final = {
    **proxy_variables(),
    "NO_PROXY": "",
    "no_proxy": "",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "http.lowSpeedLimit",
    "GIT_CONFIG_VALUE_0": "1",
    "GIT_CONFIG_KEY_1": "http.lowSpeedTime",
    "GIT_CONFIG_VALUE_1": str(GIT_STALLED_AFTER_S),
}
URL: Final = re.compile(r"(https?|git)://[^\s]+")
CLONE: Final = 'git clone --no-hardlinks -- "$1" . && { test -z "$2" || git checkout "$2" --; }'
COMMIT: Final = (
    "command -v git >/dev/null || exit 0; "
    "git init -q && git add -A && git commit -q -m 'A basket that cannot do discounts' "
    "|| echo 'Git failed: there are files, but no repository'"
)


class AllowedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Templates may use host paths below `roots`, and never `closed`, which has chatd's secrets."""

    roots: tuple[Path, ...]
    closed: Path


class SeedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that fills a home. `protocols` are those that git may use; the mount is read-only,
    for this command only."""

    words: tuple[str, ...]
    protocols: str
    network: bool = False
    mount: Mount | None = None
    variables: Mapping[str, str] = {}


class SeedTarget(Protocol):
    """An empty home that is being filled: a directory of this host, or a container's volume."""

    @property
    def network(self) -> bool:
        """Whether the workspace has a network."""
        ...

    @property
    def python(self) -> tuple[str, ...]:
        """The words that run Python inside."""
        ...

    async def create(self) -> None:
        """Create the home and the working directory in it."""
        ...

    async def copy(self, source: Path) -> None:
        """Copy a host directory into the working directory."""
        ...

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files into the working directory."""
        ...

    async def run(self, command: SeedCommand) -> CommandResult:
        """Run a command inside, in the working directory."""
        ...

    def listening(self, proxy: NetworkProxy) -> contextlib.AbstractAsyncContextManager[Path]:
        """The host directory of the proxy's socket, which `run` can mount. Raises BuildFailed if
        this target cannot clone by a proxy."""
        ...


class SeedRequest(msgspec.Struct, frozen=True, kw_only=True):
    seed: Seed
    target: SeedTarget
    proxy: Callable[[GitSeed], NetworkProxy]
    """How git reaches a repository from a workspace that is not on the whole network."""
    allowed: AllowedPaths
    timeout_s: float
    report: Callable[[str], None]


async def fill_from_seed(request: SeedRequest) -> None:
    seed, target = request.seed, request.target
    await target.create()
    match seed:
        case EmptySeed():
            pass
        case DirectorySeed():
            source = allowed_directory(seed.path, request.allowed)
            request.report(f"Copying {source}")
            await target.copy(source)
        case GitSeed():
            if seed.url:
                await _clone(seed, request)
        case DemoSeed():
            await target.write(_demo_files())
            words = ("/bin/sh", "-c", COMMIT)
            await _run_git(request, SeedCommand(words=words, protocols="file"))
        case _:
            assert_never(seed)


def allowed_directory(path: str, allowed: AllowedPaths) -> Path:
    """The resolved directory. Raises BuildFailed if templates may not use it."""
    try:
        real = Path(path).resolve()
    except ValueError:
        raise BuildFailed(f"{path!r} is not a path.") from None
    closed = allowed.closed.resolve()
    if real.is_relative_to(closed) or closed.is_relative_to(real):
        raise BuildFailed(f"{path} holds chatd's own files: choose another directory.")
    if not any(real.is_relative_to(root.resolve()) for root in allowed.roots):
        raise BuildFailed(
            f"{path} is not below an allowed directory. "
            "An administrator can add one to `workspaces.roots`."
        )
    if not real.is_dir():
        raise BuildFailed(f"{path} is not a directory on this host.")
    return real


def local_path(url: str) -> str | None:
    """The host path of a repository URL; None for a remote one."""
    if url.startswith("file://"):
        return url.removeprefix("file://")
    return url if url.startswith("/") else None


def check_url(url: str) -> str | None:
    if local_path(url) is None and not URL.fullmatch(url):
        return "is neither an http(s) or git URL nor the path of a directory"
    return None


async def _clone(seed: GitSeed, request: SeedRequest) -> None:
    if (problem := check_url(seed.url)) is not None:
        raise BuildFailed(f"The repository {seed.url!r} {problem}.")
    if seed.ref.startswith("-"):
        raise BuildFailed("A branch or commit does not begin with a dash.")
    request.report(f"Cloning {_without_password(seed.url)}")
    words = ("/bin/sh", "-c", CLONE, "clone")
    if (path := local_path(seed.url)) is not None:
        mount = Mount(source=str(allowed_directory(path, request.allowed)), target=SEED_MOUNT)
        words = (*words, SEED_MOUNT, seed.ref)
        await _run_git(request, SeedCommand(words=words, protocols="file", mount=mount))
    elif request.target.network:
        words = (*words, seed.url, seed.ref)
        await _run_git(request, SeedCommand(words=words, protocols="https:http:git", network=True))
    else:
        await _clone_by_proxy(seed, request, (*words, seed.url, seed.ref))


async def _clone_by_proxy(seed: GitSeed, request: SeedRequest, words: tuple[str, ...]) -> None:
    """Without a network in the sandbox. Only HTTP supports proxies."""
    if not seed.url.startswith("http"):
        raise BuildFailed("Without a network only http(s) addresses can be cloned.")
    proxy = request.proxy(seed)
    forward = forward_words(request.target.python, PROXY_MOUNT)
    async with request.target.listening(proxy) as directory:
        mount = Mount(source=str(directory), target=PROXY_MOUNT)
        command = SeedCommand(
            words=(*forward, *words),
            protocols="https:http",
            mount=mount,
            variables={**PROXIED_GIT, **trust_variables(directory, PROXY_MOUNT)},
        )
        try:
            await _run_git(request, command)
        except BuildFailed:
            for refused in proxy.refusals[:1]:
                if refused.reason == "private_address":
                    raise BuildFailed(
                        f"The repository cannot be cloned: {refused.host} is not on the public "
                        "internet. If that is meant, an administrator can set `allow_private` in "
                        "the seed of the template."
                    ) from None
            for text in proxy.failures[-1:]:
                raise BuildFailed(f"The repository cannot be cloned: {text}") from None
            raise


async def _run_git(request: SeedRequest, command: SeedCommand) -> None:
    result = await request.target.run(command)
    for line in result.output.splitlines()[-20:]:
        request.report(_without_password(line))
    if result.code is None:
        raise BuildFailed(f"Git did not finish within {request.timeout_s:g} s.")
    if result.code != 0:
        last = result.output.strip().splitlines()[-1:] or [f"exit code {result.code}"]
        raise BuildFailed(f"Git failed: {_without_password(last[0])}")


def git_variables(command: SeedCommand) -> dict[str, str]:
    own = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": command.protocols}
    return {**own, **command.variables}


def _demo_files() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in resources.files("chatd.workspaces.local").joinpath("demo_repo").iterdir():
        if entry.name.endswith(".txt"):
            name = entry.name.removesuffix(".txt").replace("gitignore", ".gitignore")
            found[name] = entry.read_bytes()
    return found


class CopiedTree:
    """Decides which entries of a host directory are copied: links stay links; sockets, pipes and
    devices are skipped. Raises BuildFailed once more than `max_bytes` would be copied."""

    def __init__(self, source: Path, max_bytes: int, cancelled: asyncio.Event) -> None:
        self._source = source
        self._max_bytes = max_bytes
        self._cancelled = cancelled
        self._size = 0

    def find_skipped(self, directory: str, names: list[str]) -> list[str]:
        if self._cancelled.is_set():
            raise BuildCancelled("The build was cancelled.")
        paths = [Path(directory, name) for name in names]
        self._size += sum(path.lstat().st_size for path in paths)
        if self._max_bytes and self._size > self._max_bytes:
            raise BuildFailed(
                f"{self._source} is larger than the {self._max_bytes} bytes that are allowed."
            )
        return [
            path.name
            for path in paths
            if not (path.is_symlink() or path.is_dir() or path.is_file())
        ]


class SandboxHome(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `SeedTarget` by the directory `view.home`; `directory` is relative to it."""

    level: IsolationLevel
    view: SandboxView
    directory: str
    proxy_dir: Path
    timeout_s: float
    limits: CommandLimits
    log: Path
    cancelled: asyncio.Event

    @property
    def network(self) -> bool:
        return self.view.network

    @property
    def python(self) -> tuple[str, ...]:
        return (self.view.kit.python.path,)

    async def create(self) -> None:
        await asyncio.to_thread(self._create)

    async def copy(self, source: Path) -> None:
        await asyncio.to_thread(self._copy_tree, source)

    async def write(self, files: Mapping[str, bytes]) -> None:
        await asyncio.to_thread(self._write, files)

    async def run(self, command: SeedCommand) -> CommandResult:
        words = list(command.words)
        if command.mount is not None and not has_namespaces(self.level):
            words = [command.mount.source if w == command.mount.target else w for w in words]
        view = msgspec.structs.replace(
            self.view,
            network=command.network,
            proxy=None,
            env={**self.view.env, **git_variables(command)},
            mounts=() if command.mount is None else (command.mount,),
        )
        directory = str(Path(inside_paths(self.level, view).home, self.directory))
        return await run_command(
            plan_process(self.level, view, words, directory=directory),
            log=self.log,
            timeout_s=self.timeout_s,
            limits=self.limits,
            cancelled=self.cancelled,
        )

    @contextlib.asynccontextmanager
    async def listening(self, proxy: NetworkProxy) -> AsyncGenerator[Path]:
        if not has_namespaces(self.level):
            raise BuildFailed(
                f"Isolation {self.level} cannot clone for a template without a network. An "
                "administrator can install bubblewrap, or give the template a network."
            )
        async with proxy.listening(self.proxy_dir, self.view.uid):
            yield self.proxy_dir
        with contextlib.suppress(OSError):
            await asyncio.to_thread(shutil.rmtree, self.proxy_dir)

    def _create(self) -> None:
        path = self.view.home
        path.mkdir(mode=0o700)
        chown_to_workspace(path, self.view.uid)
        for part in Path(self.directory).parts:
            path /= part
            path.mkdir()
            chown_to_workspace(path, self.view.uid)

    def _copy_tree(self, source: Path) -> None:
        tree = CopiedTree(source, self.view.limits.disk_bytes, self.cancelled)
        target = self.view.home / self.directory
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=tree.find_skipped)
        target.chmod(0o700 if target == self.view.home else 0o755)
        self._chown_home()

    def _write(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            (self.view.home / self.directory / name).write_bytes(content)
        self._chown_home()

    def _chown_home(self) -> None:
        for directory, names, files in os.walk(self.view.home):
            for name in (*names, *files):
                chown_to_workspace(Path(directory, name), self.view.uid)


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://", text)
