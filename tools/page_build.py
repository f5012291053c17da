"""Builds the page of ui/ into src/chatd/page, if its sources have changed since the last build.

Run by the Makefile, and by hatchling for a wheel or an sdist (tools/wheel_hook.py). Uses the
standard library only. CHATD_UI says what happens: `auto` builds it where Node is installed and goes
on without it elsewhere, `require` fails instead, `skip` does nothing.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODES = ("auto", "require", "skip")
OLDEST_NODE = (20, 19)
NODE_TEXT = "Node 20.19 or newer"
NOTE = ".source-hash"
# Not part of the page: what npm installs, what tests write, and the tests themselves.
NOT_SOURCES = {"node_modules", "test-results", "playwright-report", "e2e"}

Say = Callable[[str], None]


class PageNotBuilt(Exception):
    """Why, and what to do."""


def main() -> None:
    mode = os.environ.get("CHATD_UI", "auto")
    try:
        build_page(ROOT, mode, say)
    except PageNotBuilt as error:
        sys.exit(f"error: {error}")


def build_page(root: Path, mode: str, say: Say) -> None:
    """Raises PageNotBuilt with the mode `require`. With `auto` it only says why."""
    if mode not in MODES:
        raise PageNotBuilt(f"CHATD_UI is {mode!r}; it can be {', '.join(MODES)}.")
    if mode == "skip" or not (root / "ui" / "package.json").is_file() or is_current(root):
        return
    try:
        require_node()
        with one_at_a_time(root):
            if not is_current(root):
                install_packages(root, say)
                run_build(root, say)
    except PageNotBuilt as error:
        if mode == "require":
            raise
        served = "an older build of it" if page_of(root).is_dir() else "the lite page"
        say(f"The page is not built: {error} The server serves {served}.")


def is_current(root: Path) -> bool:
    try:
        return (page_of(root) / NOTE).read_text() == source_hash(root)
    except OSError:
        return False


def source_hash(root: Path) -> str:
    """Over the names and the contents of all sources."""
    digest = hashlib.sha256()
    for path in sorted(sources(root / "ui")):
        name = path.relative_to(root).as_posix()
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def sources(directory: Path) -> Generator[Path]:
    for entry in directory.iterdir():
        if entry.name in NOT_SOURCES or entry.name.startswith(".") or ".test." in entry.name:
            continue
        if entry.is_dir():
            yield from sources(entry)
        elif entry.suffix != ".md":
            yield entry


def page_of(root: Path) -> Path:
    """The outDir of ui/vite.config.ts."""
    return root / "src" / "chatd" / "page"


def has_node() -> bool:
    try:
        require_node()
    except PageNotBuilt:
        return False
    return True


def require_node() -> None:
    """Raises PageNotBuilt."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise PageNotBuilt(f"{NODE_TEXT} with npm is not installed.")
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
    numbers = said.stdout.strip().removeprefix("v").split(".")[:2]
    if not all(part.isdecimal() for part in numbers) or tuple(map(int, numbers)) < OLDEST_NODE:
        raise PageNotBuilt(f"{NODE_TEXT} is needed, and here is {said.stdout.strip() or 'none'}.")


def install_packages(root: Path, say: Say) -> None:
    """Only if they differ from the lock file: it takes a minute. Raises PageNotBuilt."""
    lock = root / "ui" / "package-lock.json"
    installed = root / "ui" / "node_modules" / ".package-lock.json"
    if installed.is_file() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return
    say("Installing the packages of the page into ui/node_modules: about a minute ...")
    run(root, ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
    installed.touch()


def run_build(root: Path, say: Say) -> None:
    """The note is written last: a build that was cut off is made again. Raises PageNotBuilt."""
    say("Building the page: some seconds ...")
    built_from = source_hash(root)
    run(root, ["npm", "run", "--silent", "build", "--", "--logLevel", "warn"])
    (page_of(root) / NOTE).write_text(built_from)


def run(root: Path, command: list[str]) -> None:
    """What it prints is shown only if it fails."""
    done = subprocess.run(
        command,
        cwd=root / "ui",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise PageNotBuilt(f"{' '.join(command)} failed in ui/:\n{done.stdout.strip()}\n")


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Generator[None]:
    """The kernel drops the lock if we are killed."""
    directory = os.open(root / "ui", os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
