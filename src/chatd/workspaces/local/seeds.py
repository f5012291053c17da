"""Filling a home: with nothing, a copy of a directory, a clone, or the demonstration.

Only ever a home that nobody has used yet, so what is written here meets no hostile links. Git runs
inside the sandbox: a repository may come from anywhere. Paths of the host can be copied or cloned
only from below the roots that the settings name.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Final, assert_never

import msgspec

from chatd.domain.workspace.entities import DemoSeed, DirectorySeed, EmptySeed, GitSeed, Mount, Seed
from chatd.workspaces.backend import BuildCancelled, BuildFailed
from chatd.workspaces.local.layout import give
from chatd.workspaces.local.levels import Level, namespaced
from chatd.workspaces.local.once import run_once
from chatd.workspaces.local.recipes import Room, plan, view

GIT_S: Final = 300.0
INSIDE: Final = "/mnt/seed"
URL: Final = re.compile(r"(https?|git)://[^\s]+")
CLONE: Final = 'git clone --no-hardlinks -- "$1" . && { test -z "$2" || git checkout "$2" --; }'
COMMIT: Final = (
    "command -v git >/dev/null || exit 0; "
    "git init -q && git add -A && git commit -q -m 'A basket that cannot do discounts' "
    "|| echo 'Git failed: there are files, but no repository'"
)


class Grounds(msgspec.Struct, frozen=True, kw_only=True):
    """What of the host templates may use: what is below the roots, and never `closed`, which is
    where chatd keeps its own secrets."""

    roots: tuple[Path, ...]
    closed: Path


class Seeding(msgspec.Struct, frozen=True, kw_only=True):
    """`room.home` is the home to be filled; `directory` is where in it, relative."""

    level: Level
    room: Room
    seed: Seed
    directory: str
    grounds: Grounds
    log: Path
    cancelled: asyncio.Event
    say: Callable[[str], None]

    @property
    def target(self) -> Path:
        return self.room.home / self.directory


async def fill(seeding: Seeding) -> None:
    await asyncio.to_thread(_make_target, seeding)
    seed = seeding.seed
    match seed:
        case EmptySeed():
            pass
        case DirectorySeed():
            source = allowed(seed.path, seeding.grounds)
            seeding.say(f"Copying {source}")
            await asyncio.to_thread(_copy, source, seeding)
        case GitSeed():
            if seed.url:
                await _clone(seed, seeding)
        case DemoSeed():
            await asyncio.to_thread(_demo, seeding)
            await _git(seeding, ["/bin/sh", "-c", COMMIT], network=False)
        case _:
            assert_never(seed)


def allowed(path: str, grounds: Grounds) -> Path:
    """The directory that is really meant, if it may be used."""
    try:
        real = Path(path).resolve()
    except ValueError:
        raise BuildFailed(f"{path!r} is not a path.") from None
    closed = grounds.closed.resolve()
    if real.is_relative_to(closed) or closed.is_relative_to(real):
        raise BuildFailed(f"{path} holds chatd's own files: choose another directory.")
    if not any(real.is_relative_to(root.resolve()) for root in grounds.roots):
        raise BuildFailed(
            f"{path} is not below a directory that workspaces may be made from. "
            "Whoever runs chatd can allow it in the settings."
        )
    if not real.is_dir():
        raise BuildFailed(f"{path} is not a directory on this host.")
    return real


def local_path(url: str) -> str | None:
    """The path that a URL of a repository means, if it is on this host."""
    if url.startswith("file://"):
        return url.removeprefix("file://")
    return url if url.startswith("/") else None


def wrong_url(url: str) -> str | None:
    if local_path(url) is None and not URL.fullmatch(url):
        return "is neither an http(s) or git URL nor the path of a directory"
    return None


async def _clone(seed: GitSeed, seeding: Seeding) -> None:
    if (wrong := wrong_url(seed.url)) is not None:
        raise BuildFailed(f"The repository {seed.url!r} {wrong}.")
    if seed.ref.startswith("-"):
        raise BuildFailed("A branch or commit does not begin with a dash.")
    seeding.say(f"Cloning {_without_password(seed.url)}")
    path = local_path(seed.url)
    if path is None:
        await _git(seeding, _clone_words(seed.url, seed.ref), network=True)
        return
    source = allowed(path, seeding.grounds)
    inside = INSIDE if namespaced(seeding.level) else str(source)
    room = msgspec.structs.replace(seeding.room, mounts=(Mount(source=str(source), target=INSIDE),))
    there = msgspec.structs.replace(seeding, room=room)
    await _git(there, _clone_words(inside, seed.ref), network=False)


def _clone_words(url: str, ref: str) -> list[str]:
    return ["/bin/sh", "-c", CLONE, "clone", url, ref]


async def _git(seeding: Seeding, words: list[str], *, network: bool) -> None:
    env = {
        **seeding.room.env,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:http:git" if network else "file",
    }
    room = msgspec.structs.replace(seeding.room, network=network, env=env)
    inside = str(Path(view(seeding.level, room).home, seeding.directory))
    ran = await run_once(
        plan(seeding.level, room, words, directory=inside),
        log=seeding.log,
        within_s=GIT_S,
        cancelled=seeding.cancelled,
    )
    for line in ran.said.splitlines()[-20:]:
        seeding.say(_without_password(line))
    if ran.code is None:
        raise BuildFailed(f"Git did not finish within {GIT_S:.0f} s.")
    if ran.code != 0:
        last = ran.said.strip().splitlines()[-1:] or [f"exit code {ran.code}"]
        raise BuildFailed(f"Git failed: {_without_password(last[0])}")


def _make_target(seeding: Seeding) -> None:
    home = seeding.room.home
    home.mkdir(mode=0o700)
    give(home, seeding.room.uid)
    path = home
    for part in Path(seeding.directory).parts:
        path /= part
        path.mkdir()
        give(path, seeding.room.uid)


def _copy(source: Path, seeding: Seeding) -> None:
    """Links stay links, what is neither file nor directory is left out."""
    room = seeding.room.limits.disk_bytes
    size = 0

    def odd(directory: str, names: list[str]) -> list[str]:
        nonlocal size
        if seeding.cancelled.is_set():
            raise BuildCancelled("The build was cancelled.")
        paths = [Path(directory, name) for name in names]
        size += sum(each.lstat().st_size for each in paths)
        if room and size > room:
            raise BuildFailed(f"{source} is larger than the {room} bytes that are allowed.")
        return [each.name for each in paths if not (each.is_symlink() or _plain(each))]

    shutil.copytree(source, seeding.target, symlinks=True, dirs_exist_ok=True, ignore=odd)
    seeding.target.chmod(0o700 if seeding.target == seeding.room.home else 0o755)
    _give_all(seeding)


def _plain(path: Path) -> bool:
    return path.is_dir() or path.is_file()


def _demo(seeding: Seeding) -> None:
    for entry in resources.files("chatd.workspaces.local").joinpath("demo_repo").iterdir():
        if entry.name.endswith(".txt"):
            name = entry.name.removesuffix(".txt").replace("gitignore", ".gitignore")
            (seeding.target / name).write_bytes(entry.read_bytes())
    _give_all(seeding)


def _give_all(seeding: Seeding) -> None:
    for directory, names, files in os.walk(seeding.room.home):
        for name in (*names, *files):
            give(Path(directory, name), seeding.room.uid)


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://", text)
