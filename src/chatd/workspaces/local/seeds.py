"""Fill a new home directory: empty, a copy of a directory, a Git clone, or the demo project.

The home has not been used yet, so it contains no hostile links. Git runs inside the sandbox,
because a repository may be hostile, with the template's network. Without one it reaches only public
addresses, through a proxy of the server. Host paths can be copied or cloned only from below the
roots that the settings name.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Final, assert_never

import msgspec

from chatd.domain.workspace.entities import DemoSeed, DirectorySeed, EmptySeed, GitSeed, Mount, Seed
from chatd.guarded_dial import open_guarded_connection
from chatd.workspaces.builds.backend import BuildCancelled, BuildFailed
from chatd.workspaces.local.clone_proxy import PROXY_SOCKET, CloneProxy
from chatd.workspaces.local.layout import chown_to_workspace
from chatd.workspaces.local.one_shot import CommandLimits, run_command
from chatd.workspaces.local.process_plan import (
    IsolationLevel,
    SandboxView,
    has_namespaces,
    inside_paths,
    plan_process,
)

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
            await asyncio.to_thread(_copy, source, request)
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


def _copy(source: Path, request: SeedRequest) -> None:
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
