"""Directories of local workspaces: their paths, the uid under which each workspace runs, and the
removal of hostile trees and unused kits.

`<data>/ws/<workspace>` contains `home` and `run`, which the workspace sees and owns, and `log` and
`state`, which it does not see. The contents of `home` and `run` are hostile: no link in them is
followed.

When the server is root, each workspace gets its own uid, so that the kernel separates workspaces
even if all other isolation fails. Uids are assigned in ascending order and stored before use. A uid
is reused only after all others were used, when it owns no files or processes.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from chatd.domain.ids import WorkspaceId
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.local.supervisor import syscalls
from chatd.workspaces.local.supervisor.sandbox_processes import processes_of_uid

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
        """The directory of the socket by which git leaves the sandbox while it clones."""
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

    def is_socket(self, path: str) -> bool:
        """Whether it is the agent's socket of a workspace here."""
        workspace_id = _parse_id(Path(path).parent.parent.name)
        return workspace_id is not None and path == str(self.socket(workspace_id))

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
        with contextlib.suppress(FileExistsError):  # Another server may have created it.
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
    """Chosen by a hash, so that two data directories of a host rarely share a range.

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


# Removal.
#
# Trees: every step goes from an open directory to a name in it and never follows a link. A
# directory is emptied by moving its subdirectories up to the trash, so depth costs neither
# recursion nor descriptors. Modes that forbid reading or writing are changed first.
#
# Kits: every server locks its own kit while it runs, and the supervisor knows which kits its
# sandboxes use. A kit is removed only if neither uses it; if the supervisor cannot be asked, all
# kits stay. Workspaces do not see the lock files, or they could block a server.

OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
KIT_NAME_PATTERN: Final = re.compile(r"\.?([0-9a-f]{16})(-[0-9a-f]+)?")
"""A kit, or a kit that is being built or removed."""


def move_to_trash(path: Path, trash: Path) -> None:
    """Atomic. Does nothing if the path does not exist."""
    unmount_below(path)
    with contextlib.suppress(FileNotFoundError):
        parent = os.open(path.parent, OPEN_DIRECTORY)
        try:
            _make_writable(parent, path.name)  # A rename changes the directory's `..` entry.
        finally:
            os.close(parent)
        number = 0
        while os.path.lexists(trash / f"{path.name}.{number}"):
            number += 1
        path.rename(trash / f"{path.name}.{number}")


def empty_trash(trash: Path) -> None:
    """Remove everything in the trash. Several processes may do so at once."""
    top = os.open(trash, OPEN_DIRECTORY)
    counter = 0
    try:
        while names := os.listdir(top):
            for name in names:
                counter = _remove_entry(top, name, counter)
    finally:
        os.close(top)


def unmount_below(path: Path) -> None:
    """Unmount what a crashed program left mounted; sandboxes mount in their own namespace."""
    root = os.fsencode(path.absolute())
    for line in reversed(Path("/proc/self/mountinfo").read_bytes().splitlines()):
        point = line.split()[4].replace(b"\\040", b" ")
        if point == root or point.startswith(root + b"/"):
            syscalls.unmount(os.fsdecode(point))


def _remove_entry(top: int, name: str, counter: int) -> int:
    """Remove one entry of the trash. Its subdirectories become entries of the trash."""
    try:
        if _unlink_file(top, name):
            return counter
        _make_writable(top, name)
        inner = os.open(name, OPEN_DIRECTORY, dir_fd=top)
    except FileNotFoundError:
        return counter
    try:
        for entry in os.listdir(inner):
            counter = _move_up(inner, entry, top, counter)
    finally:
        os.close(inner)
    try:
        os.rmdir(name, dir_fd=top)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # A new entry: the next pass removes it.
            raise
    return counter


def _move_up(inner: int, entry: str, top: int, counter: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        if _unlink_file(inner, entry) or _try_rmdir(inner, entry):
            return counter
        _make_writable(inner, entry)
        while True:
            counter += 1
            try:
                os.rename(entry, f"{os.getpid()}.{counter}", src_dir_fd=inner, dst_dir_fd=top)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return counter
    return counter


def _unlink_file(directory: int, name: str) -> bool:
    """False if it is a directory."""
    if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=directory)
    return True


def _make_writable(directory: int, name: str) -> None:
    """Change it through a descriptor of the entry itself, so that a link put there since is
    ignored."""
    descriptor = os.open(name, OPEN_PATH, dir_fd=directory)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)


def _try_rmdir(directory: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError:
        return False
    return True


class KitLock:
    """A lock on a kit, released by `close` or by the garbage collector."""

    def __init__(self, descriptor: int) -> None:
        self._close = weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        self._close()


def kit_work_dir(directory: Path, name: str) -> Path:
    """A unique directory for building or removing this kit."""
    return directory / f".{name}-{secrets.token_hex(8)}"


def lock_kit(directory: Path, name: str, *, exclusive: bool = False) -> KitLock | None:
    """Shared, waiting for an exclusive holder; or exclusive, None if any process holds it."""
    path = directory / f"{name}.lock"
    mode = fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, mode)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_same_file(path, descriptor):
            return KitLock(descriptor)
        os.close(descriptor)  # The last holder has removed the file.


async def remove_unused_kits(
    directory: Path,
    current: str,
    words_in_use: Callable[[Sequence[str]], Awaitable[AbstractSet[str] | None]],
) -> None:
    """`words_in_use` returns which of these names running sandboxes use; None if unknown."""
    locks: dict[str, KitLock] = {}
    try:
        for name in _kit_names(directory) - {current}:
            if (lock := lock_kit(directory, name, exclusive=True)) is not None:
                locks[name] = lock
        used = await words_in_use(sorted(locks)) if locks else None
        if used is not None:
            for name in locks.keys() - used:
                await asyncio.to_thread(_remove_kit, directory, name)
    finally:
        for lock in locks.values():
            lock.close()


def _kit_names(directory: Path) -> set[str]:
    """Empty if the directory is a link, thus shared: other supervisors may use its kits."""
    entries = [] if directory.is_symlink() else os.listdir(directory)
    found = (KIT_NAME_PATTERN.fullmatch(entry) for entry in entries)
    return {match[1] for match in found if match is not None}


def _remove_kit(directory: Path, name: str) -> None:
    """Rename it before removal, so that a kit is always complete or absent."""
    if (directory / name).is_dir():
        (directory / name).rename(kit_work_dir(directory, name))
    for entry in os.listdir(directory):
        if entry.startswith(f".{name}-"):
            shutil.rmtree(directory / entry, ignore_errors=True)
    (directory / f"{name}.lock").unlink(missing_ok=True)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
