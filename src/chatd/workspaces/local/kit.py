"""What every workspace of this host finds in /opt/chatd: the agent, and a pytest to run.

A directory per content, made once and never changed, so that running workspaces keep theirs when
the server is upgraded. It also holds the few files of /etc that are made up. The Python inside is
the host's, from /usr: the server's own may live where nobody else can go.
"""

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from chatd.workspaces.backend import BuildFailed
from chatd.workspaces.local.old_kits import Hold, hold, scratch

PYTHONS: Final = ("/usr/bin/python3", "/usr/local/bin/python3")
OLDEST: Final = (3, 9)
OLDEST_FOR_TOOLS: Final = (3, 11)
PACKAGES: Final = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
REVISION: Final = "2"
ASK_S: Final = 30.0
COMPILE_S: Final = 120.0

PASSWD: Final = (
    "dev:x:1000:1000:dev:/home/dev:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
)
GROUP: Final = "dev:x:1000:\nnogroup:x:65534:\n"
HOSTS: Final = "127.0.0.1 localhost workspace\n::1 localhost\n"
GITCONFIG: Final = (
    "[user]\n\tname = chatd\n\temail = chatd@localhost\n"
    "[init]\n\tdefaultBranch = main\n[safe]\n\tdirectory = *\n"
)
# Not in virtual environments: those bring their own packages.
SITECUSTOMIZE: Final = (
    'import sys\n\nif sys.prefix == sys.base_prefix:\n    sys.path.append("/opt/chatd/lib")\n'
)
PYTEST: Final = """#!{python}
import os
import runpy
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
"""


class Python(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    version: tuple[int, int]

    @property
    def sitecustomize(self) -> Path | None:
        """Where this Python looks for one in /etc, if it does."""
        major, minor = self.version
        link = Path(f"/usr/lib/python{major}.{minor}/sitecustomize.py")
        target = Path(f"/etc/python{major}.{minor}/sitecustomize.py")
        return target if link.is_symlink() and os.readlink(link) == str(target) else None


class Kit(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    python: Python

    @property
    def etc(self) -> Path:
        return self.path / "etc"


def find_python() -> Python:
    for path in PYTHONS:
        question = "import sys; print(*sys.version_info[:2])"
        try:
            said = subprocess.run(
                [path, "-I", "-c", question],
                capture_output=True, check=True, timeout=ASK_S, env={},
            ).stdout.split()  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        version = (int(said[0]), int(said[1]))
        if version >= OLDEST:
            return Python(path=path, version=version)
    raise BuildFailed(
        f"Workspaces need Python {OLDEST[0]}.{OLDEST[1]} or newer at {PYTHONS[0]} "
        "(Debian and Ubuntu: apt install python3)."
    )


def make_kit(directory: Path, agent: bytes) -> tuple[Kit, Hold]:
    """The one for this agent and these packages, which nobody removes while it is held. Safe to
    be called by several at once."""
    python = find_python()
    packages = _packages() if python.version >= OLDEST_FOR_TOOLS else []
    names = [f"{each.name}=={each.version}" for each in packages]
    content = "\0".join([REVISION, python.path, str(python.version), *names]).encode()
    target = directory / hashlib.sha256(content + agent).hexdigest()[:16]
    held = hold(directory, target.name)
    assert held is not None  # Only who wants it alone may be refused.
    if not target.is_dir():
        fresh = scratch(directory, target.name)
        try:
            _fill(fresh, agent, packages, python)
            fresh.rename(target)
        except OSError:
            if not target.is_dir():  # Else somebody was quicker, with the same.
                held.close()
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return Kit(path=target, python=python), held


def _fill(fresh: Path, agent: bytes, packages: list[metadata.Distribution], python: Python) -> None:
    for name in ("bin", "lib", "etc"):
        (fresh / name).mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(agent)) as archive:
        archive.extractall(fresh / "agent")  # As files it can be compiled once and for all.
    texts = {
        "passwd": PASSWD,
        "group": GROUP,
        "hosts": HOSTS,
        "gitconfig": GITCONFIG,
        "sitecustomize.py": SITECUSTOMIZE,
    }
    for name, text in texts.items():
        (fresh / "etc" / name).write_text(text)
    for package in packages:
        for source, name in _files(package):
            path = fresh / "lib" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
    if packages:
        (fresh / "bin" / "pytest").write_text(PYTEST.format(python=python.path))
    _compile(fresh, python)
    _open_to_all(fresh)


def _packages() -> list[metadata.Distribution]:
    """All of them or none: half a pytest is of no use."""
    try:
        return [metadata.distribution(name) for name in PACKAGES]
    except metadata.PackageNotFoundError:
        return []


def _files(package: metadata.Distribution) -> Iterator[tuple[Path, str]]:
    for file in package.files or ():
        inside = ".." not in file.parts and not Path(file).is_absolute()
        source = Path(str(package.locate_file(file)))
        if inside and "__pycache__" not in file.parts and source.is_file():
            yield source, str(file)


def _compile(top: Path, python: Python) -> None:
    """Nobody can write here later, so it is done now. If it fails, things are slower."""
    words = ["-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    unused = "lexers/(?!__init__|_mapping|python|diff)", "styles/", "formatters/(?!__init__|term)"
    rarely = f"pygments/({'|'.join(unused)})"
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [python.path, *words, "-x", rarely, str(top)],
            capture_output=True, check=False, timeout=COMPILE_S, env={},
        )  # fmt: skip


def _open_to_all(top: Path) -> None:
    for directory, _, files in os.walk(top):
        os.chmod(directory, 0o755)
        for name in files:
            path = Path(directory, name)
            path.chmod(0o755 if path.parent.name == "bin" else 0o644)
