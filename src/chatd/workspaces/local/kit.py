"""The read-only files that every workspace of this host sees in /opt/chatd: the agent and pytest.

One directory per content, built once and never changed, so that running workspaces keep theirs
during an upgrade. It also holds generated files for /etc. Workspaces use the host's Python in /usr:
other accounts may not be able to read the server's own.
"""

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import msgspec

from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.local.workspace_dirs import KitLock, kit_work_dir, lock_kit

PYTHONS: Final = ("/usr/bin/python3", "/usr/local/bin/python3")
MIN_PYTHON: Final = (3, 9)
MIN_PYTHON_FOR_PYTEST: Final = (3, 11)
PACKAGES: Final = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
REVISION: Final = "2"
PYTHON_PROBE_TIMEOUT_S: Final = 30.0
COMPILE_TIMEOUT_S: Final = 120.0

PASSWD: Final = (
    "dev:x:1000:1000:dev:/home/dev:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
)
GROUP: Final = "dev:x:1000:\nnogroup:x:65534:\n"
HOSTS: Final = "127.0.0.1 localhost workspace\n::1 localhost\n"
GITCONFIG: Final = (
    "[user]\n\tname = chatd\n\temail = chatd@localhost\n"
    "[init]\n\tdefaultBranch = main\n[safe]\n\tdirectory = *\n"
)
# Not in virtual environments, which have their own packages.
SITECUSTOMIZE: Final = (
    'import sys\n\nif sys.prefix == sys.base_prefix:\n    sys.path.append("/opt/chatd/lib")\n'
)
ETC_FILES: Final = {
    "passwd": PASSWD,
    "group": GROUP,
    "hosts": HOSTS,
    "gitconfig": GITCONFIG,
    "sitecustomize.py": SITECUSTOMIZE,
}
PYTEST: Final = """#!{python}
import os
import runpy
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
"""
AGENT_SHEBANG: Final = b"#!/usr/bin/env python3\n"
AGENT_MAIN: Final = b"from chatd.agent.main import main\n\nmain()\n"
ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class HostPython(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    version: tuple[int, int]

    @property
    def sitecustomize(self) -> Path | None:
        """The path in /etc from which this Python loads `sitecustomize`, if it does."""
        major, minor = self.version
        link = Path(f"/usr/lib/python{major}.{minor}/sitecustomize.py")
        target = Path(f"/etc/python{major}.{minor}/sitecustomize.py")
        return target if link.is_symlink() and os.readlink(link) == str(target) else None


class WorkspaceKit(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    python: HostPython


def agent_zip() -> bytes:
    """The sources of `chatd.agent` as one file that any Python runs.

    Deterministic, so that all replicas of a version build the same kit: it is not compressed,
    because compressed bytes depend on the version of zlib.
    """
    sources = {"__main__.py": AGENT_MAIN, "chatd/__init__.py": b""}
    sources |= _read_sources(resources.files("chatd.agent"), "chatd/agent/")
    raw = io.BytesIO()
    raw.write(AGENT_SHEBANG)
    with zipfile.ZipFile(raw, "a", zipfile.ZIP_STORED) as archive:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, date_time=ZIP_EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, sources[name])
    return raw.getvalue()


def _read_sources(package: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in package.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                found |= _read_sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            found[prefix + entry.name] = entry.read_bytes()
    return found


def find_python() -> HostPython:
    for path in PYTHONS:
        program = "import sys; print(*sys.version_info[:2])"
        try:
            words = subprocess.run(
                [path, "-I", "-c", program],
                capture_output=True, check=True, timeout=PYTHON_PROBE_TIMEOUT_S, env={},
            ).stdout.split()  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        version = (int(words[0]), int(words[1]))
        if version >= MIN_PYTHON:
            return HostPython(path=path, version=version)
    raise BuildFailed(
        f"Workspaces need Python {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer at {PYTHONS[0]} "
        "(Debian and Ubuntu: apt install python3)."
    )


def build_kit(directory: Path, agent: bytes) -> tuple[WorkspaceKit, KitLock]:
    """Build the kit of this agent and these packages, if missing, and lock it.

    No process removes a locked kit. Several processes may build at once.
    """
    python = find_python()
    packages = _find_packages() if python.version >= MIN_PYTHON_FOR_PYTEST else []
    names = [f"{each.name}=={each.version}" for each in packages]
    content = "\0".join([REVISION, python.path, str(python.version), *names]).encode()
    target = directory / hashlib.sha256(content + agent).hexdigest()[:16]
    lock = lock_kit(directory, target.name)
    assert lock is not None  # Only an exclusive lock can be refused.
    if not target.is_dir():
        work_dir = kit_work_dir(directory, target.name)
        try:
            _fill_kit(work_dir, agent, packages, python)
            work_dir.rename(target)
        except OSError:
            if not target.is_dir():  # Otherwise another process has just built the same kit.
                lock.close()
                raise
        finally:
            shutil.rmtree(work_dir, ignore_errors=True)
    return WorkspaceKit(path=target, python=python), lock


def _fill_kit(
    top: Path, agent: bytes, packages: list[metadata.Distribution], python: HostPython
) -> None:
    for name in ("bin", "lib", "etc"):
        (top / name).mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(agent)) as archive:
        archive.extractall(top / "agent")  # Python caches bytecode for files, not for zips.
    for name, text in ETC_FILES.items():
        (top / "etc" / name).write_text(text)
    for package in packages:
        for source, name in _package_files(package):
            path = top / "lib" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
    if packages:
        (top / "bin" / "pytest").write_text(PYTEST.format(python=python.path))
    _compile(top, python)
    for directory, _, files in os.walk(top):
        os.chmod(directory, 0o755)
        for name in files:
            path = Path(directory, name)
            path.chmod(0o755 if path.parent.name == "bin" else 0o644)


def _find_packages() -> list[metadata.Distribution]:
    """All packages or none: pytest does not run without its dependencies."""
    try:
        return [metadata.distribution(name) for name in PACKAGES]
    except metadata.PackageNotFoundError:
        return []


def _package_files(package: metadata.Distribution) -> Iterator[tuple[Path, str]]:
    for file in package.files or ():
        inside = ".." not in file.parts and not Path(file).is_absolute()
        source = Path(str(package.locate_file(file)))
        if inside and "__pycache__" not in file.parts and source.is_file():
            yield source, str(file)


def _compile(top: Path, python: HostPython) -> None:
    """Compile now, because the kit is read-only in workspaces. A failure only slows imports
    down."""
    words = ["-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    unused = "lexers/(?!__init__|_mapping|python|diff)", "styles/", "formatters/(?!__init__|term)"
    excluded = f"pygments/({'|'.join(unused)})"
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [python.path, *words, "-x", excluded, str(top)],
            capture_output=True, check=False, timeout=COMPILE_TIMEOUT_S, env={},
        )  # fmt: skip
