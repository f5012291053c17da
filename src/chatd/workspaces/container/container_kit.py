"""The read-only files that every container sees in /opt/chatd: the agent, the first process, and a
Python that needs nothing of the image.

The Python is the runner's own: its program, its standard library, and all shared libraries that
they load, with the dynamic loader, by which the program is started. So it runs in an image without
Python, and in one with another C library. One directory per content, built once and never changed.
"""

import contextlib
import hashlib
import io
import os
import platform
import py_compile
import shutil
import struct
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.local.kit import COMPILE_TIMEOUT_S, GITCONFIG
from chatd.workspaces.local.sandbox_command import INSIDE_KIT
from chatd.workspaces.local.workspace_dirs import KitLock, kit_work_dir, lock_kit

CONTAINER_KIT_REVISION: Final = "1"
LIBRARY_LIST_TIMEOUT_S: Final = 30.0
INIT: Final = "container_init.pyc"
"""Compiled, because Python compiles a program given as text at every start."""
INIT_SOURCE: Final = "container_init.py"
PROGRAM: Final = "python/bin/python3"
LIBRARIES: Final = "python/elf"
SKIPPED_MODULES: Final = frozenset(
    {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"}
    | {"site-packages", "dist-packages", "venv", "distutils", "sitecustomize.py"}
)
PT_INTERP: Final = 3


class ContainerKit(msgspec.Struct, frozen=True, kw_only=True):
    """`python` are the words that run Python inside."""

    path: Path
    python: tuple[str, ...]

    @property
    def plain_python(self) -> tuple[str, ...]:
        """The program without its options."""
        return self.python[: self.python.index("-I")]


def build_container_kit(directory: Path, agent: bytes) -> tuple[ContainerKit, KitLock]:
    """Build the kit of this agent and this Python, if missing, and lock it.

    No process removes a locked kit. Several processes may build at once.
    """
    program = Path(os.path.realpath(sys.executable))
    loader = find_loader(program)
    init = resources.files("chatd.workspaces.container").joinpath(INIT_SOURCE).read_bytes()
    names = (CONTAINER_KIT_REVISION, sys.version, platform.machine(), str(program))
    content = "\0".join(names).encode() + init + agent
    target = directory / hashlib.sha256(content).hexdigest()[:16]
    lock = lock_kit(directory, target.name)
    assert lock is not None  # Only an exclusive lock can be refused.
    if not target.is_dir():
        work_dir = kit_work_dir(directory, target.name)
        try:
            _fill_kit(work_dir, agent, init, program, loader)
            work_dir.rename(target)
        except OSError:
            if not target.is_dir():  # Otherwise another process has just built the same kit.
                lock.close()
                raise
        finally:
            shutil.rmtree(work_dir, ignore_errors=True)
    return ContainerKit(path=target, python=_python_words(loader)), lock


def _python_words(loader: Path | None) -> tuple[str, ...]:
    program = f"{INSIDE_KIT}/{PROGRAM}"
    options = ("-I", "-S", "-B", "-X", "utf8")
    if loader is None:  # A program without shared libraries.
        return (program, *options)
    libraries = f"{INSIDE_KIT}/{LIBRARIES}"
    return (f"{libraries}/{loader.name}", "--library-path", libraries, program, *options)


def _fill_kit(top: Path, agent: bytes, init: bytes, program: Path, loader: Path | None) -> None:
    for name in ("etc", "python/bin", LIBRARIES):
        (top / name).mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(agent)) as archive:
        archive.extractall(top / "agent")  # Python caches bytecode for files, not for zips.
    source = top / INIT_SOURCE
    source.write_bytes(init)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(
        str(source),
        str(top / INIT),
        f"{INSIDE_KIT}/{INIT_SOURCE}",
        doraise=True,
        invalidation_mode=unchecked,
    )
    (top / "etc" / "gitconfig").write_text(GITCONFIG)
    shutil.copyfile(program, top / PROGRAM)
    modules = top / "python" / sys.platlibdir / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    # With the times of the files, which the cached bytecode names.
    shutil.copytree(
        sysconfig.get_paths()["stdlib"],
        modules,
        copy_function=shutil.copy2,
        ignore=lambda _, names: [name for name in names if _is_skipped(name)],
        ignore_dangling_symlinks=True,
    )
    if loader is not None:
        shutil.copyfile(loader, top / LIBRARIES / loader.name)
        for name, path in find_libraries(loader, [program, *modules.rglob("*.so")]).items():
            shutil.copyfile(path, top / LIBRARIES / name)
    _compile(top)
    for directory, _, files in os.walk(top):
        os.chmod(directory, 0o755)
        is_program = directory.endswith(("/bin", LIBRARIES))
        for name in files:
            os.chmod(Path(directory, name), 0o755 if is_program else 0o644)


def _is_skipped(name: str) -> bool:
    unused = ("config-", "_tkinter", "_test", "_ctypes_t")
    return name in SKIPPED_MODULES or name.startswith(unused) or ".opt-" in name


def find_loader(program: Path) -> Path | None:
    """The dynamic loader that an ELF program names; None if it needs none."""
    with program.open("rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            raise BuildFailed(f"{program} is not a 64-bit program of this system.")
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for number in range(count):
            file.seek(table + number * size)
            entry = file.read(size)
            if struct.unpack_from("<I", entry)[0] == PT_INTERP:
                offset, _, _, length = struct.unpack_from("<QQQQ", entry, 8)
                file.seek(offset)
                return Path(file.read(length).rstrip(b"\0").decode())
    return None


def find_libraries(loader: Path, programs: list[Path]) -> dict[str, Path]:
    """The shared libraries that the programs load, by the names under which they look for them."""
    found: dict[str, Path] = {}
    for program in programs:
        try:
            listed = subprocess.run(
                [str(loader), "--list", str(program)],
                capture_output=True, check=True, timeout=LIBRARY_LIST_TIMEOUT_S, env={},
            ).stdout  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue  # A library is not installed: the module cannot be imported here either.
        found |= dict(_parse_libraries(os.fsdecode(listed)))
    # The C library loads this one by itself when a thread ends.
    for path in {path.parent / "libgcc_s.so.1" for path in found.values()}:
        if path.exists():
            found.setdefault(path.name, path)
    return found


def _parse_libraries(text: str) -> Iterator[tuple[str, Path]]:
    """Parse lines such as `libm.so.6 => /lib/libm.so.6 (0x00007f)`."""
    for line in text.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        path = rest.rpartition(" (")[0] or rest
        if arrow and path.startswith("/"):
            yield Path(name).name, Path(path)


def _compile(top: Path) -> None:
    """Compile now, because the kit is read-only in containers. A failure only slows imports
    down."""
    words = ["-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, *words, str(top)],
            capture_output=True, check=False, timeout=COMPILE_TIMEOUT_S, env={},
        )  # fmt: skip
