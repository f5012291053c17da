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
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from importlib import resources
from ipaddress import ip_address
from pathlib import Path
from typing import Final, assert_never

import msgspec

from chatd.domain.errors import ChatdError
from chatd.domain.workspace.entities import DemoSeed, DirectorySeed, EmptySeed, GitSeed, Mount, Seed
from chatd.guarded_dial import AddressRefused, Connection, open_guarded_connection
from chatd.workspaces.build_backend import BuildCancelled, BuildFailed
from chatd.workspaces.local.sandbox_command import (
    CommandLimits,
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
    async def listening(self, directory: Path, uid: int | None) -> AsyncGenerator[None]:
        """On a socket in the directory, which only the workspace's account can use."""
        listener = await asyncio.to_thread(_listen, directory, uid)
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


def _listen(directory: Path, uid: int | None) -> socket.socket:
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
    path.chmod(0o600)
    chown_to_workspace(path, uid)
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


class SeedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fill `directory`, a path relative to `view.home`."""

    level: IsolationLevel
    view: SandboxView
    seed: Seed
    directory: str
    allowed: AllowedPaths
    proxy_dir: Path
    timeout_s: float
    limits: CommandLimits
    log: Path
    cancelled: asyncio.Event
    report: Callable[[str], None]

    @property
    def target(self) -> Path:
        return self.view.home / self.directory


async def fill_from_seed(request: SeedRequest) -> None:
    await asyncio.to_thread(_create_target, request)
    seed = request.seed
    match seed:
        case EmptySeed():
            pass
        case DirectorySeed():
            source = allowed_directory(seed.path, request.allowed)
            request.report(f"Copying {source}")
            await asyncio.to_thread(_copy_tree, source, request)
        case GitSeed():
            if seed.url:
                await _clone(seed, request)
        case DemoSeed():
            await asyncio.to_thread(_write_demo, request)
            await _run_git(request, ["/bin/sh", "-c", COMMIT], "file")
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
    words = ["/bin/sh", "-c", CLONE, "clone"]
    if (path := local_path(seed.url)) is not None:
        source = str(allowed_directory(path, request.allowed))
        url = SEED_MOUNT if has_namespaces(request.level) else source
        request = _with_mount(request, source, SEED_MOUNT)
        await _run_git(request, [*words, url, seed.ref], "file")
    elif request.view.network:
        await _run_git(request, [*words, seed.url, seed.ref], "https:http:git", network=True)
    else:
        await _clone_by_proxy(seed, request, words)


async def _clone_by_proxy(seed: GitSeed, request: SeedRequest, words: list[str]) -> None:
    """Without a network in the sandbox. Only HTTP knows proxies."""
    if not seed.url.startswith("http"):
        raise BuildFailed("Without a network only http(s) addresses can be cloned.")
    if not has_namespaces(request.level):
        raise BuildFailed(
            f"Isolation {request.level} cannot clone for a template without a network. An "
            "administrator can install bubblewrap, or give the template a network."
        )
    proxy = CloneProxy(partial(open_guarded_connection, allow_private=seed.allow_private))
    program = resources.files("chatd.workspaces.local").joinpath("clone_forward.py").read_text()
    inside = [request.view.kit.python.path, "-I", "-c", program, f"{PROXY_MOUNT}/{PROXY_SOCKET}"]
    async with proxy.listening(request.proxy_dir, request.view.uid):
        request = _with_mount(request, str(request.proxy_dir), PROXY_MOUNT)
        try:
            await _run_git(request, [*inside, *words, seed.url, seed.ref], "https:http")
        except BuildFailed:
            for text in proxy.refusals[-1:]:
                raise BuildFailed(f"The repository cannot be cloned: {text}") from None
            raise


def _with_mount(request: SeedRequest, source: str, target: str) -> SeedRequest:
    view = msgspec.structs.replace(request.view, mounts=(Mount(source=source, target=target),))
    return msgspec.structs.replace(request, view=view)


async def _run_git(
    request: SeedRequest, words: list[str], protocols: str, *, network: bool = False
) -> None:
    env = {**request.view.env, "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": protocols}
    view = msgspec.structs.replace(request.view, network=network, env=env)
    directory = str(Path(inside_paths(request.level, view).home, request.directory))
    result = await run_command(
        plan_process(request.level, view, words, directory=directory),
        log=request.log,
        timeout_s=request.timeout_s,
        limits=request.limits,
        cancelled=request.cancelled,
    )
    for line in result.output.splitlines()[-20:]:
        request.report(_without_password(line))
    if result.code is None:
        raise BuildFailed(f"Git did not finish within {request.timeout_s:g} s.")
    if result.code != 0:
        last = result.output.strip().splitlines()[-1:] or [f"exit code {result.code}"]
        raise BuildFailed(f"Git failed: {_without_password(last[0])}")


def _create_target(request: SeedRequest) -> None:
    path = request.view.home
    path.mkdir(mode=0o700)
    chown_to_workspace(path, request.view.uid)
    for part in Path(request.directory).parts:
        path /= part
        path.mkdir()
        chown_to_workspace(path, request.view.uid)


def _copy_tree(source: Path, request: SeedRequest) -> None:
    """Links stay links; sockets, pipes and devices are skipped."""
    max_bytes = request.view.limits.disk_bytes
    size = 0

    def find_skipped(directory: str, names: list[str]) -> list[str]:
        nonlocal size
        if request.cancelled.is_set():
            raise BuildCancelled("The build was cancelled.")
        paths = [Path(directory, name) for name in names]
        size += sum(path.lstat().st_size for path in paths)
        if max_bytes and size > max_bytes:
            raise BuildFailed(f"{source} is larger than the {max_bytes} bytes that are allowed.")
        return [
            path.name
            for path in paths
            if not (path.is_symlink() or path.is_dir() or path.is_file())
        ]

    target = request.target
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=find_skipped)
    target.chmod(0o700 if target == request.view.home else 0o755)
    _chown_home(request)


def _write_demo(request: SeedRequest) -> None:
    for entry in resources.files("chatd.workspaces.local").joinpath("demo_repo").iterdir():
        if entry.name.endswith(".txt"):
            name = entry.name.removesuffix(".txt").replace("gitignore", ".gitignore")
            (request.target / name).write_bytes(entry.read_bytes())
    _chown_home(request)


def _chown_home(request: SeedRequest) -> None:
    for directory, names, files in os.walk(request.view.home):
        for name in (*names, *files):
            chown_to_workspace(Path(directory, name), request.view.uid)


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://", text)
