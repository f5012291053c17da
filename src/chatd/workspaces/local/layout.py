"""Where the local backend keeps things, and how its directories are made.

`<data>/ws/<workspace>` holds `home` and `run`, which the workspace sees and owns, and `log`, which
it does not. What is in `home` and `run` is hostile: nothing here follows a link in them.
"""

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from chatd.domain.ids import WorkspaceId
from chatd.workspaces.backend import BuildFailed

SOCKET: Final = "agent.sock"
SOCKET_PATH_MAX: Final = 107


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one workspace."""

    root: Path

    @property
    def home(self) -> Path:
        """Is there only once it has been filled."""
        return self.root / "home"

    @property
    def fresh(self) -> Path:
        """A home that is being filled."""
        return self.root / "home.new"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def lock(self) -> Path:
        """Held by whoever makes the workspace ready."""
        return self.root / "lock"

    @property
    def account(self) -> Path:
        return self.root / "account"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: Path

    @property
    def workspaces(self) -> Path:
        return self.data_dir / "ws"

    @property
    def trash(self) -> Path:
        return self.workspaces / ".trash"

    @property
    def accounts(self) -> Path:
        return self.workspaces / ".accounts"

    @property
    def kits(self) -> Path:
        return self.data_dir / "ws-toolbox"

    @property
    def supervisor(self) -> Path:
        return self.data_dir / "ws-supervisor"

    def spot(self, workspace_id: WorkspaceId) -> Spot:
        return Spot(root=self.workspaces / str(workspace_id))

    def present(self) -> list[WorkspaceId]:
        """What is there, whoever knows of it."""
        try:
            names = sorted(os.listdir(self.workspaces))
        except FileNotFoundError:
            return []
        return [found for name in names if (found := _workspace(name)) is not None]

    def make(self, *, passable: bool) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        for path in (self.workspaces, self.trash, self.kits, self.supervisor):
            path.mkdir(mode=0o700, exist_ok=True)
        if passable:  # Without a namespace of mounts everybody walks the way from the top.
            self.workspaces.chmod(0o711)
        if stat.S_IMODE(self.kits.stat().st_mode) != 0o755:
            self.kits.chmod(0o755)

    def socket(self, workspace_id: WorkspaceId) -> Path:
        """A path that the kernel takes: a socket's address has room for little more than 100
        characters, and a data directory may be deep."""
        direct = self.spot(workspace_id).run / SOCKET
        if len(bytes(direct)) <= SOCKET_PATH_MAX:
            return direct
        return self._short() / str(workspace_id) / "run" / SOCKET

    def _short(self) -> Path:
        """A link to the workspaces, in a directory that only we can have made."""
        uid = os.geteuid()
        digest = hashlib.sha256(bytes(self.workspaces)).hexdigest()[:16]
        directory = Path("/run" if uid == 0 else "/tmp") / f"chatd-ws-{uid}-{digest}"
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
            raise BuildFailed(f"{directory} is in the way: remove it.")
        link = directory / "w"
        with contextlib.suppress(FileExistsError):  # Others of this host may make it just now.
            if not link.is_symlink():
                link.symlink_to(self.workspaces)
        return link


def make_spot(spot: Spot, *, uid: int | None, passable: bool) -> None:
    """All but the home itself, which comes to be by being filled."""
    for path in (spot.root, spot.run, spot.log):
        path.mkdir(mode=0o700, exist_ok=True)
    if passable:
        spot.root.chmod(0o711)
    give(spot.run, uid)
    temporary = spot.run / "tmp"
    if passable and not os.path.lexists(temporary):
        temporary.mkdir(mode=0o700)
        give(temporary, uid)


def give(path: Path, uid: int | None) -> None:
    """To the workspace's account."""
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def _workspace(name: str) -> WorkspaceId | None:
    try:
        return WorkspaceId(UUID(name))
    except ValueError:
        return None
