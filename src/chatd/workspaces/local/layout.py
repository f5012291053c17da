"""Paths of local workspaces, their directories, and the uid under which each workspace runs.

`<data>/ws/<workspace>` contains `home` and `run`, which the workspace sees and owns, and `log` and
`state`, which it does not see. The contents of `home` and `run` are hostile: no link in them is
followed.

When the server is root, each workspace gets its own uid, so that the kernel separates workspaces
even if all other isolation fails. Uids are assigned in ascending order and stored before use. A uid
is reused only after all others were used, when it owns no files or processes.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from chatd.domain.ids import WorkspaceId
from chatd.workspaces.builds.backend import BuildFailed
from chatd.workspaces.local.supervisor.processes import processes_of_uid

AGENT_SOCKET: Final = "agent.sock"
MAX_SOCKET_PATH_BYTES: Final = 107

# Above the uids that distributions assign to users, containers and services, below the maximum.
LOWEST_UID: Final = 1_900_000_000
UID_RANGES: Final = 20_000
UIDS_PER_RANGE: Final = 10_000
UID_MAP: Final = Path("/proc/self/uid_map")


class WorkspacePaths(msgspec.Struct, frozen=True, kw_only=True):
    root: Path

    @property
    def home(self) -> Path:
        """Exists only once it has been filled."""
        return self.root / "home"

    @property
    def new_home(self) -> Path:
        """A home that is being filled."""
        return self.root / "home.new"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def journal(self) -> tuple[Path, Path]:
        """The agent's journal of calls, which its commands must not reach."""
        return self.root / "state" / "once.a", self.root / "state" / "once.b"

    @property
    def clone_proxy(self) -> Path:
        """For the socket by which git leaves the sandbox while it clones."""
        return self.root / "clone"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def lock(self) -> Path:
        """Held by the build that sets up the workspace."""
        return self.root / "lock"

    @property
    def uid_file(self) -> Path:
        return self.root / "account"


class LocalLayout(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: Path

    @property
    def workspaces(self) -> Path:
        return self.data_dir / "ws"

    @property
    def trash(self) -> Path:
        return self.workspaces / ".trash"

    @property
    def uid_counter(self) -> Path:
        return self.workspaces / ".accounts"

    @property
    def kits(self) -> Path:
        return self.data_dir / "ws-toolbox"

    @property
    def supervisor(self) -> Path:
        return self.data_dir / "ws-supervisor"

    def workspace_paths(self, workspace_id: WorkspaceId) -> WorkspacePaths:
        return WorkspacePaths(root=self.workspaces / str(workspace_id))

    def list_workspaces(self) -> list[WorkspaceId]:
        try:
            names = sorted(os.listdir(self.workspaces))
        except FileNotFoundError:
            return []
        return [found for name in names if (found := _parse_id(name)) is not None]

    def create_dirs(self, *, reached_by_host_path: bool) -> None:
        """Without a mount namespace, workspaces reach their files by host paths."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        for path in (self.workspaces, self.trash, self.kits, self.supervisor):
            path.mkdir(mode=0o700, exist_ok=True)
        if reached_by_host_path:
            self.workspaces.chmod(0o711)
        if stat.S_IMODE(self.kits.stat().st_mode) != 0o755:
            self.kits.chmod(0o755)

    def socket(self, workspace_id: WorkspaceId) -> Path:
        """The agent's socket, by a link if the data directory's path is too long for the kernel."""
        direct = self.workspace_paths(workspace_id).run / AGENT_SOCKET
        if len(bytes(direct)) <= MAX_SOCKET_PATH_BYTES:
            return direct
        return self._short_link() / str(workspace_id) / "run" / AGENT_SOCKET

    def _short_link(self) -> Path:
        """A link to the workspaces, in a directory that must belong to this account."""
        uid = os.geteuid()
        digest = hashlib.sha256(bytes(self.workspaces)).hexdigest()[:16]
        directory = Path("/run" if uid == 0 else "/tmp") / f"chatd-ws-{uid}-{digest}"
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
            raise BuildFailed(f"{directory} is in the way: remove it.")
        link = directory / "w"
        with contextlib.suppress(FileExistsError):  # Another server may create it meanwhile.
            if not link.is_symlink():
                link.symlink_to(self.workspaces)
        return link


def create_workspace_dirs(
    paths: WorkspacePaths, *, uid: int | None, reached_by_host_path: bool
) -> None:
    """Create all directories except the home, which appears when it has been filled."""
    for path in (paths.root, paths.run, paths.log, paths.journal[0].parent):
        path.mkdir(mode=0o700, exist_ok=True)
    if reached_by_host_path:
        paths.root.chmod(0o711)
    chown_to_workspace(paths.run, uid)
    temporary = paths.run / "tmp"
    if reached_by_host_path and not os.path.lexists(temporary):
        temporary.mkdir(mode=0o700)
        chown_to_workspace(temporary, uid)


def chown_to_workspace(path: Path, uid: int | None) -> None:
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def _parse_id(name: str) -> WorkspaceId | None:
    try:
        return WorkspaceId(UUID(name))
    except ValueError:
        return None


class UidRange(msgspec.Struct, frozen=True, kw_only=True):
    base: int
    size: int


def choose_uid_range(data_dir: Path, uid_map: str) -> UidRange | None:
    """By a hash, so that two data directories of a host rarely share a range.

    None in a container with too few uids.
    """
    lines = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    top = max((inside + count for inside, _, count in lines), default=0)
    if top >= LOWEST_UID + UID_RANGES * UIDS_PER_RANGE:
        number = int.from_bytes(hashlib.sha256(bytes(data_dir)).digest()[:8], "big") % UID_RANGES
        return UidRange(base=LOWEST_UID + number * UIDS_PER_RANGE, size=UIDS_PER_RANGE)
    if top >= 65_536:
        return UidRange(base=40_000, size=20_000)
    return None


def read_uid(paths: WorkspacePaths) -> int | None:
    try:
        return int(paths.uid_file.read_text())
    except (OSError, ValueError):
        return None


def assign_uid(layout: LocalLayout, paths: WorkspacePaths, uids: UidRange) -> int:
    """The workspace's uid; a new one is stored if it has none."""
    counter = os.open(layout.uid_counter, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(counter, fcntl.LOCK_EX)
        uid = read_uid(paths)
        if uid is None:
            uid = _next_uid(counter, layout, uids)
            _write_durably(paths.uid_file, f"{uid}\n")
        return uid
    finally:
        os.close(counter)


def _next_uid(counter: int, layout: LocalLayout, uids: UidRange) -> int:
    """Write the counter before the uid is used: a crash wastes a uid and assigns none twice."""
    text = os.pread(counter, 32, 0)
    last = int(text) if text.strip().isdigit() else 0
    used = set(_used_uids(layout))
    for step in range(1, uids.size + 1):
        offset = (last + step) % uids.size
        uid = uids.base + offset
        if uid not in used and not processes_of_uid(uid):
            os.pwrite(counter, f"{offset:>31}\n".encode(), 0)
            os.fsync(counter)
            return uid
    raise BuildFailed(f"All {uids.size} accounts are used by workspaces: delete some.")


def _used_uids(layout: LocalLayout) -> Iterator[int]:
    """Includes the trash: its files still have their owner."""
    for parent in (layout.workspaces, layout.trash):
        for entry in parent.iterdir():
            uid = read_uid(WorkspacePaths(root=entry))
            if uid is not None:
                yield uid


def _write_durably(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
