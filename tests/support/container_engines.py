"""A container engine of its own for tests: storage in a scratch directory, its service, and one
small image.

The image has busybox and git, and no Python. `CHATD_TEST_ENGINE` chooses the engine: `podman`, or
`docker`. As root, unless `podman` is named for an account with ranges of accounts: then it is
rootless.
"""

import os
import resource
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support.database import scratch_space

IMAGE: Final = "localhost/chatd-test:1"
START_TIMEOUT_S: Final = 30.0
GIT_PROGRAMS: Final = ("git-remote-http", "git-remote-https", "git-sh-setup")
CHOSEN: Final = os.environ.get("CHATD_TEST_ENGINE", "")
PROGRAMS: Final = {"": ("podman",), "podman": ("podman",), "docker": ("dockerd", "docker")}


def missing_reason() -> str:
    """Why no engine can be started here; empty if one can."""
    if CHOSEN not in PROGRAMS:
        return f"CHATD_TEST_ENGINE={CHOSEN} is not podman or docker"
    if os.geteuid() != 0 and CHOSEN != "podman":
        return "containers are tested as root, or with CHATD_TEST_ENGINE=podman"
    for program in (*PROGRAMS[CHOSEN], "busybox", "git"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return ""


class EngineNotStarted(Exception):
    """The engine is installed and does not run on this machine."""


class Podman:
    """`root`: the directory of its storage."""

    name: Final = "Podman"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = root / "api.sock"
        self._service: subprocess.Popen[bytes] | None = None

    def run(self, *words: str) -> str:
        return _run([*self._command(), *words], self._variables())

    def run_words(self, *words: str) -> list[str]:
        """`podman run` with limits that this machine allows; its own may exceed them."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = [f"--ulimit=nofile={files}:{files}", "--ulimit=nproc=32768:32768"]
        return [*self._command(), "run", *limits, *words]

    def start(self) -> None:
        service = ["system", "service", "--time=0", f"unix://{self.socket}"]
        self._service = _start([*self._command(), *service], self.socket, self._variables())

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
        for mount in ("storage/overlay", "storage"):
            subprocess.run(
                ["umount", "--lazy", str(self.root / mount)], capture_output=True, check=False
            )
        if os.geteuid() != 0:  # Files of the accounts inside, which this one may not remove.
            words = ["unshare", "rm", "-rf", str(self.root / "storage")]
            with suppress(EngineNotStarted, subprocess.TimeoutExpired):
                self.run(*words)

    def _variables(self) -> Mapping[str, str]:
        """Rootless it keeps more in the home and in the run directory of the account."""
        if os.geteuid() == 0:
            return os.environ
        run = self.root / "xdg"
        run.mkdir(mode=0o700, exist_ok=True)
        return {**os.environ, "XDG_RUNTIME_DIR": str(run)}

    def _command(self) -> list[str]:
        storage = ["--root", str(self.root / "storage"), "--runroot", str(self.root / "run")]
        runtime = ["--runtime", "runc"] if shutil.which("runc") else []  # crun: no hybrid cgroups
        directory = str(self.root / "tmp")
        return ["podman", *storage, *runtime, "--tmpdir", directory, "--cgroup-manager=cgroupfs"]


class Docker:
    """A daemon and its containerd, without a bridge and without rules of the firewall."""

    name: Final = "Docker"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = root / "api.sock"
        self._service: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None

    def run(self, *words: str) -> str:
        if self._service is None:
            self.start()
        return _run([*self._command(), *words], os.environ)

    def run_words(self, *words: str) -> list[str]:
        return [*self._command(), "run", *words]

    def start(self) -> None:
        if self._service is not None:
            return
        address = self.root / "containerd.sock"
        if self._containerd is None:
            config = self.root / "containerd.toml"
            config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
            words = [f"--config={config}", f"--address={address}"]
            words += [f"--{name}={self.root / 'containerd' / name}" for name in ("root", "state")]
            self._containerd = _start(["containerd", *words], address, os.environ)
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        words = [f"--{name}={self.root / place}" for name, place in places.items()]
        words += ["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs"]
        # A restart of the daemon alone leaves containers running, as that of Podman's service does.
        words += ["--live-restore", f"--containerd={address}", f"--host=unix://{self.socket}"]
        (self.root / "pid").unlink(missing_ok=True)
        self._service = _start(["dockerd", *words], self.socket, os.environ)

    def kill(self) -> None:
        """The daemon, not the containers."""
        if self._service is not None:
            self._service.send_signal(signal.SIGKILL)
            self._service.wait()
            self._service = None

    def close(self) -> None:
        with suppress(EngineNotStarted, subprocess.TimeoutExpired):
            if found := self.run("ps", "--all", "--quiet").split():
                self.run("rm", "--force", "--volumes", *found)
        for service in (self._service, self._containerd):
            if service is not None:
                service.terminate()
                try:
                    service.wait(START_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    service.kill()
                    service.wait()

    def _command(self) -> list[str]:
        return ["docker", "--host", f"unix://{self.socket}"]


Engine = Podman | Docker


def _run(words: list[str], variables: Mapping[str, str]) -> str:
    ran = subprocess.run(
        words,
        capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S, env=dict(variables),
    )  # fmt: skip
    if ran.returncode:
        raise EngineNotStarted(ran.stderr.strip()[-500:])
    return ran.stdout.strip()


def _start(
    words: list[str], listens: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    listens.unlink(missing_ok=True)
    service = subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=dict(variables),
    )  # fmt: skip
    deadline = time.monotonic() + START_TIMEOUT_S
    while not listens.exists():
        if service.poll() is not None or time.monotonic() > deadline:
            raise EngineNotStarted(f"{words[0]} has ended")
        time.sleep(0.01)
    return service


@contextmanager
def engine_service(root: Path | None = None) -> Generator[Engine]:
    """Raises EngineNotStarted."""
    top = Path(tempfile.mkdtemp(prefix="chatd-engine-", dir=scratch_space()))
    place = root or top
    place.mkdir(exist_ok=True)
    engine = Docker(place) if CHOSEN == "docker" else Podman(place)
    try:
        archive = top / "image.tar"
        _write_image(archive)
        engine.run("import", "--change", "ENV GREETING=from-the-image", str(archive), IMAGE)
        engine.start()
        yield engine
    finally:
        engine.close()
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
        files = sorted({*programs[1:], *_libraries(programs)})
        # Docker would make directories without an entry that only root can enter.
        for parent in sorted({parent for file in files for parent in file.parents[:-1]}):
            if str(parent) != "/bin":
                entry = tarfile.TarInfo(str(parent).lstrip("/"))
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
        for file in files:
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
