"""Fill a new home directory: empty, a copy of a directory, a Git clone, or the demo project.

The home has not been used yet, so it contains no hostile links. Git runs inside the sandbox,
because a repository may be hostile, with the template's network. Without one it reaches only public
addresses, through a proxy of the server. Host paths can be copied or cloned only from below the
roots that the settings name.
"""

import asyncio
import contextlib
import os
import re
import shutil
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Protocol, assert_never

import msgspec

from chatd.domain.errors import ChatdError
from chatd.domain.workspace.entities import DemoSeed, DirectorySeed, EmptySeed, GitSeed, Mount, Seed
from chatd.guarded_dial import AddressRefused, Connection, open_guarded_connection
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

# The way out of a sandbox without a network while git clones: a SOCKS proxy on a Unix socket.
#
# The proxy connects through the address guard, so every address that git names is checked: the
# repository's, those of redirects, those of alternates. `clone_forward` is the other end, inside.

PROXY_SOCKET: Final = "proxy.sock"
MAX_PROXY_CONNECTIONS: Final = 16
PROXY_IDLE_TIMEOUT_S: Final = 120.0
PROXY_CHUNK_BYTES: Final = 65_536

VERSION: Final = 5
CONNECT: Final = 1
ADDRESS_BYTES: Final = {1: 4, 4: 16}
NAME: Final = 3
DONE, REFUSED, UNREACHABLE, UNSUPPORTED = 0, 2, 4, 7


class CloneProxy:
    """`dial` connects to a host and port. `refusals` says which hosts it refused or did not reach,
    and why."""

    def __init__(self, dial: Callable[[str, int], Awaitable[Connection]]) -> None:
        self.refusals: list[str] = []
        self._dial = dial
        self._open: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def listening(
        self, directory: Path, uid: int | None, *, any_account: bool = False
    ) -> AsyncGenerator[None]:
        """On a socket in the directory, which only the workspace's account can use; or any account
        that can reach the directory, which a private parent then protects."""
        listener = await asyncio.to_thread(_listen, directory, uid, any_account=any_account)
        server = await asyncio.start_unix_server(self._serve, sock=listener)
        try:
            yield
        finally:
            server.close()
            for writer in tuple(self._open):
                writer.transport.abort()
            await asyncio.to_thread(_remove, directory)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A bad or slow client affects only its own connection."""
        self._open.add(writer)
        try:
            if len(self._open) <= MAX_PROXY_CONNECTIONS:
                async with asyncio.timeout(PROXY_IDLE_TIMEOUT_S):
                    host, port = await _read_request(reader, writer)
                await self._forward(host, port, reader, writer)
        except (OSError, EOFError, ValueError, TimeoutError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _forward(
        self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await self._dial(host, port)
        except ChatdError as error:
            self.refusals.append(error.message)
            refused = isinstance(error, AddressRefused)
            writer.write(_reply(REFUSED if refused else UNREACHABLE))
            return
        self._open.add(far_writer)
        try:
            writer.write(_reply(DONE))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_relay(reader, far_writer))
                tasks.create_task(_relay(far_reader, writer))
        finally:
            self._open.discard(far_writer)
            far_writer.close()


def _listen(directory: Path, uid: int | None, *, any_account: bool) -> socket.socket:
    """Bind through the directory's descriptor: the path may be too long for a socket address."""
    directory.mkdir(mode=0o700, exist_ok=True)
    chown_to_workspace(directory, uid)
    path = directory / PROXY_SOCKET
    path.unlink(missing_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{PROXY_SOCKET}")
    except OSError:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    path.chmod(0o666 if any_account else 0o600)
    chown_to_workspace(path, uid)
    if any_account:
        directory.chmod(0o755)
    return listener


def _remove(directory: Path) -> None:
    """What stays is removed with the workspace."""
    with contextlib.suppress(OSError):
        (directory / PROXY_SOCKET).unlink(missing_ok=True)
        directory.rmdir()


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[str, int]:
    """The host and port that the client asks for."""
    version, methods = await reader.readexactly(2)
    await reader.readexactly(methods)
    if version != VERSION:
        raise ValueError("not a SOCKS 5 client")
    writer.write(bytes((VERSION, 0)))  # No authentication: the socket has an owner.
    version, command, _, kind = await reader.readexactly(4)
    if kind == NAME:
        (length,) = await reader.readexactly(1)
        host = (await reader.readexactly(length)).decode("ascii")
    elif kind in ADDRESS_BYTES:
        host = str(ip_address(await reader.readexactly(ADDRESS_BYTES[kind])))
    else:
        raise ValueError("an unknown kind of address")
    port = int.from_bytes(await reader.readexactly(2), "big")
    if command != CONNECT:
        writer.write(_reply(UNSUPPORTED))
        raise ValueError("not a request to connect")
    return host, port


def _reply(code: int) -> bytes:
    return bytes((VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0))


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        while True:
            async with asyncio.timeout(PROXY_IDLE_TIMEOUT_S):
                data = await reader.read(PROXY_CHUNK_BYTES)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.write_eof()


GIT_CLONE_TIMEOUT_S: Final = 300.0
SEED_MOUNT: Final = "/mnt/seed"
PROXY_MOUNT: Final = "/mnt/clone"
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

    def listening(self, proxy: "CloneProxy") -> contextlib.AbstractAsyncContextManager[Path]:
        """The host directory of the proxy's socket, which `run` can mount. Raises BuildFailed if
        this target cannot clone by a proxy."""
        ...


class SeedRequest(msgspec.Struct, frozen=True, kw_only=True):
    seed: Seed
    target: SeedTarget
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
    """Without a network in the sandbox. Only HTTP knows proxies."""
    if not seed.url.startswith("http"):
        raise BuildFailed("Without a network only http(s) addresses can be cloned.")
    proxy = CloneProxy(partial(open_guarded_connection, allow_private=seed.allow_private))
    program = resources.files("chatd.workspaces.local").joinpath("clone_forward.py").read_text()
    forward = (*request.target.python, "-I", "-c", program, f"{PROXY_MOUNT}/{PROXY_SOCKET}")
    async with request.target.listening(proxy) as directory:
        mount = Mount(source=str(directory), target=PROXY_MOUNT)
        command = SeedCommand(words=(*forward, *words), protocols="https:http", mount=mount)
        try:
            await _run_git(request, command)
        except BuildFailed:
            for text in proxy.refusals[-1:]:
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
    return {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": command.protocols}


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
    async def listening(self, proxy: CloneProxy) -> AsyncGenerator[Path]:
        if not has_namespaces(self.level):
            raise BuildFailed(
                f"Isolation {self.level} cannot clone for a template without a network. An "
                "administrator can install bubblewrap, or give the template a network."
            )
        async with proxy.listening(self.proxy_dir, self.view.uid):
            yield self.proxy_dir

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
