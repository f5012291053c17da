"""A Podman of its own for tests: storage in a scratch directory, its service, and one small image.

The image has busybox and git, and no Python. Only root runs it here: without root Podman needs
ranges of accounts, which test machines rarely have.
"""

import os
import resource
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support.database import scratch_space

IMAGE: Final = "localhost/chatd-test:1"
START_TIMEOUT_S: Final = 30.0
GIT_PROGRAMS: Final = ("git-remote-http", "git-remote-https", "git-sh-setup")


def missing_reason() -> str:
    """Why no engine can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "Podman is tested as root only"
    for program in ("podman", "busybox", "git"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return ""


class EngineNotStarted(Exception):
    """Podman is installed and does not run on this machine."""


class Podman:
    """`root`: the directory of its storage."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = root / "api.sock"
        self._service: subprocess.Popen[bytes] | None = None

    def run(self, *words: str) -> str:
        ran = subprocess.run(
            [*self._command(), *words],
            capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S,
        )  # fmt: skip
        if ran.returncode:
            raise EngineNotStarted(ran.stderr.strip()[-500:])
        return ran.stdout.strip()

    def run_words(self, *words: str) -> list[str]:
        """`podman run` with limits that this machine allows; its own may exceed them."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = [f"--ulimit=nofile={files}:{files}", "--ulimit=nproc=32768:32768"]
        return [*self._command(), "run", *limits, *words]

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._service = subprocess.Popen(
            [*self._command(), "system", "service", "--time=0", f"unix://{self.socket}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.socket.exists():
            if self._service.poll() is not None or time.monotonic() > deadline:
                raise EngineNotStarted("podman system service has ended")
            time.sleep(0.01)

    def kill(self) -> None:
        """The service, not the containers."""
        if self._service is not None:
            self._service.send_signal(signal.SIGKILL)
            self._service.wait()
            self._service = None

    def close(self) -> None:
        self.kill()
        with suppress(EngineNotStarted, subprocess.TimeoutExpired):
            self.run("rm", "--all", "--force", "--time", "0")
            self.run("volume", "rm", "--all", "--force")

    def _command(self) -> list[str]:
        storage = ["--root", str(self.root / "storage"), "--runroot", str(self.root / "run")]
        runtime = ["--runtime", "runc"] if shutil.which("runc") else []  # crun: no hybrid cgroups
        directory = str(self.root / "tmp")
        return ["podman", *storage, *runtime, "--tmpdir", directory, "--cgroup-manager=cgroupfs"]


@contextmanager
def podman_service(root: Path | None = None) -> Generator[Podman]:
    """Raises EngineNotStarted."""
    top = Path(tempfile.mkdtemp(prefix="chatd-podman-", dir=scratch_space()))
    podman = Podman(root or top)
    try:
        archive = top / "image.tar"
        _write_image(archive)
        podman.run("import", "--change", "ENV=GREETING=from-the-image", str(archive), IMAGE)
        podman.start()
        yield podman
    finally:
        podman.close()
        for mount in ("storage/overlay", "storage"):
            subprocess.run(
                ["umount", "--lazy", str(podman.root / mount)], capture_output=True, check=False
            )
        shutil.rmtree(top, ignore_errors=True)


def _write_image(path: Path) -> None:
    busybox = _program("busybox")
    git_core = Path(
        subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True)
        .stdout.strip()
    )  # fmt: skip
    programs = [busybox, _program("git"), _program("git-upload-pack")]
    programs += [git_core / name for name in GIT_PROGRAMS]
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    with tarfile.open(path, "w") as archive:
        for directory, mode in (("tmp", 0o1777), ("etc", 0o755), ("bin", 0o755), ("root", 0o700)):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        archive.add(busybox, "bin/busybox")
        for name in listed.split():
            if name not in ("busybox", "git"):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
        for file in sorted({*programs[1:], *_libraries(programs)}):
            archive.add(file.resolve(), str(file).lstrip("/"), recursive=False)


def _program(name: str) -> Path:
    found = shutil.which(name)
    assert found is not None
    return Path(found)


def _libraries(programs: list[Path]) -> set[Path]:
    """The files that `ldd` names."""
    found: set[Path] = set()
    for program in programs:
        ran = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
        words = (word for line in ran.stdout.splitlines() for word in line.split())
        found.update(Path(word) for word in words if word.startswith("/"))
    return {path for path in found if path.exists()}
