"""Builds docs/ into the site that the server has at /help, src/chatd/help, if its sources have
changed since the last build; and is the hook of mkdocs.yml, which mends links out of docs/.

Run by make site and make wheel, by hatchling for a wheel (tools/wheel_hook.py), and by make serve,
in the background: that one installs the packages of requirements/site.txt beside .venv if they are
missing, and the server has the site as soon as it is whole. CHATD_UI says what happens, as for
tools/page_build.py. Nothing else is loaded from elsewhere: neither by the build nor by the site.
"""

import contextlib
import fcntl
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTE = ".source-hash"
BUILD_TIMEOUT_S = 300
MIN_COMPRESSED = 1000
HEAD_START_S = 15.0
"""Of the server that make serve starts: it is ready by then, with its first database too."""
# For other languages than English, for crawlers, and for who changes the theme.
NOT_SERVED = ("assets/javascripts/lunr", "404.html", "sitemap.xml", "sitemap.xml.gz")
COMPRESSED = {".css", ".html", ".js", ".json", ".svg"}
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(#[^)]*)?\)")
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)

Say = Callable[[str], None]


class HelpNotBuilt(Exception):
    """Why, and what to do."""


def main() -> None:
    mode = os.environ.get("CHATD_UI", "require")
    if "--background" in sys.argv[1:]:
        if mode != "skip" and not is_current(ROOT):
            begin_in_background()
        return
    if "--idle" in sys.argv[1:]:
        time.sleep(HEAD_START_S)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        if "--install" in sys.argv[1:]:
            install_packages(ROOT)
        build_help(ROOT, mode, print)
    except HelpNotBuilt as error:
        sys.exit(f"error: {error}")


def begin_in_background() -> None:
    """It begins when the server should be ready, takes processor time that nothing else wants,
    outlives the server and ends by itself."""
    log = ROOT / "build" / "help-build.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as output:
        subprocess.Popen(
            [sys.executable, "-m", "tools.help_build", "--install", "--idle"],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    print(
        "The documentation at /help is built in the background: within a minute, once.", flush=True
    )


def install_packages(root: Path) -> None:
    """Beside .venv, which a server uses meanwhile. Raises HelpNotBuilt."""
    place, lock = packages_of(root), (root / "requirements" / "site.txt").read_text()
    note = place / NOTE
    with one_at_a_time(root):
        if find_spec("material") is not None or (note.is_file() and note.read_text() == lock):
            return
        shutil.rmtree(place, ignore_errors=True)
        environment = import_module("tools.environment")
        flags = [*environment.LOCKED, "--target", str(place), "-r", "requirements/site.txt"]
        for installer in environment.installers():
            if environment.run_installer([*installer, *flags]) == 0:
                note.write_text(lock)
                return
    raise HelpNotBuilt("The packages of requirements/site.txt could not be installed.")


def packages_of(root: Path) -> Path:
    return root / "build" / "site-packages"


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Generator[None]:
    """The kernel drops the lock if we are killed."""
    directory = os.open(root / "docs", os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def build_help(root: Path, mode: str, say: Say) -> None:
    """Raises HelpNotBuilt with the mode `require`. With `auto` it only says why."""
    if mode == "skip" or not (root / "mkdocs.yml").is_file() or is_current(root):
        return
    try:
        if find_spec("material") is None and not packages_of(root).is_dir():
            raise HelpNotBuilt(
                "The documentation needs mkdocs-material: make site installs and builds it."
            )
        with one_at_a_time(root):
            if not is_current(root):
                run_build(root, help_of(root))
    except HelpNotBuilt as error:
        if mode == "require":
            raise
        say(f"{error} The server is built without /help.")


def is_current(root: Path) -> bool:
    try:
        return (help_of(root) / NOTE).read_text() == source_hash(root)
    except OSError:
        return False


def source_hash(root: Path) -> str:
    """Of all files that the site is made of."""
    digest = hashlib.sha256()
    for path in sources(root):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def sources(root: Path) -> Iterator[Path]:
    names = ("mkdocs.yml", "CHANGELOG.md", "requirements/site.txt", "tools/help_build.py")
    yield from (path for path in map(root.joinpath, names) if path.is_file())
    yield from sorted(path for path in (root / "docs").rglob("*") if path.is_file())


def help_of(root: Path) -> Path:
    """The site_dir of mkdocs.yml."""
    return root / "src" / "chatd" / "help"


def run_build(root: Path, place: Path) -> None:
    """In a directory beside it, which takes its place when it is whole. Raises HelpNotBuilt."""
    built_from = source_hash(root)
    unfinished = place.with_name(".help-unfinished")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--site-dir", str(unfinished)],
        cwd=root, env=environment_of(root), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise HelpNotBuilt(f"mkdocs failed:\n{done.stdout}{done.stderr}")
    prune(unfinished)
    require_one_set_of_scripts(unfinished)
    compress(unfinished)
    (unfinished / NOTE).write_text(built_from)
    shutil.rmtree(place, ignore_errors=True)
    unfinished.rename(place)


def environment_of(root: Path) -> dict[str, str]:
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if find_spec("material") is None:
        env["PYTHONPATH"] = str(packages_of(root))
    return env


def prune(site: Path) -> None:
    for name in NOT_SERVED:
        path = site / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in [*site.rglob("*.map")]:
        path.unlink()


def require_one_set_of_scripts(site: Path) -> None:
    """The server allows the scripts of index.html by their hashes, and no others. Raises
    HelpNotBuilt."""
    known = set(_SCRIPT.findall((site / "index.html").read_text()))
    for path in sorted(site.glob("*.html")):
        if not known >= set(_SCRIPT.findall(path.read_text())):
            raise HelpNotBuilt(f"{path.name} has scripts that index.html has not.")


def compress(site: Path) -> None:
    """The server sends `<file>.gz` to browsers that take it."""
    for path in [*site.rglob("*")]:
        if path.suffix in COMPRESSED and path.stat().st_size >= MIN_COMPRESSED:
            packed = gzip.compress(path.read_bytes(), 9, mtime=0)
            path.with_name(f"{path.name}.gz").write_bytes(packed)


# The hook of mkdocs.yml, the only part that needs mkdocs.


def on_files(files: Any, config: Any) -> Any:
    """The changelog is a page too."""
    files_module = import_module("mkdocs.structure.files")
    text = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(files_module.File.generated(config, "changelog.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _OUTSIDE.sub(mended, markdown)


def mended(link: re.Match[str]) -> str:
    """A file of the checkout that is no page is named, not linked."""
    text, target, anchor = link[1], link[2], link[3] or ""
    return f"[{text}](changelog.md{anchor})" if target == "CHANGELOG.md" else text


if __name__ == "__main__":
    main()
