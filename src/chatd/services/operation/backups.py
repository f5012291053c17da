"""Makes a backup of a running deployment: one file with all rows as of one moment, the secrets of
the data directory, and on request the files of the workspaces of this host.

The rows come first, out of one snapshot; the files after it. A workspace that is used meanwhile is
copied file by file, as it is at that moment.
"""

import asyncio
import os
import platform
import re
import stat
import tarfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, Final, Literal, cast
from uuid import UUID

from msgspec import Struct

from chatd import sealed_secrets
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.services.operation.backup_file import (
    PARTIAL_SUFFIX,
    BackupWriter,
    EntryStart,
    Manifest,
    NewFile,
    SchemaStep,
)
from chatd.services.operation.secret_keys import KEY_FILE, KeySource
from chatd.store.database import migrator
from chatd.store.database.conn import Conn, ConnectConfig
from chatd.store.deployment import backups
from chatd.store.deployment.backups import CopiedTable, Snapshot

SECRET_FILES: Final = (KEY_FILE, "secret", "host-id", "admin-token")
"""Of the data directory: the keys of stored secrets, the secret of workspace agents, the id by
which workspaces know their host, and the first administrator's token."""
WORKSPACES: Final = "ws"
BUFFER_BYTES: Final = 1024 * 1024
POLL_INTERVAL_S: Final = 60.0
RETRY_INTERVAL_S: Final = 15 * 60.0
"""After an attempt that failed, or whose process died."""
PARTIAL_LIFETIME: Final = timedelta(days=1)
"""A file that was not finished by then is of a process that died."""
_NAME: Final = re.compile(r"chatd-\d{8}T\d{6}Z\.backup")
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class BackupRequest(Struct, frozen=True, kw_only=True):
    """`s3_bucket` names the bucket of the settings, if there is one. `holds_keys`: whether the
    keys of stored secrets are to be in the backup."""

    data_dir: Path
    connect: ConnectConfig
    keys: KeySource
    passphrase: str | None = None
    holds_keys: bool = True
    holds_workspaces: bool = False
    s3_bucket: str | None = None


class BackupResult(Struct, frozen=True, kw_only=True):
    """`bytes` before compression. `changed` are files of workspaces that changed while they were
    read, `unread` those that could not be read."""

    id: UUID
    made_at: datetime
    bytes: int
    rows: int
    keys: str
    changed: int = 0
    unread: int = 0


Report = Callable[[int, int, str], None]
"""Called with how much is done, how much there is in all, and what is being copied. Of a backup's
tables both are sizes on disk, which are known before they are read."""


def backup_name(at: datetime) -> str:
    return f"chatd-{at:%Y%m%dT%H%M%SZ}.backup"


async def write_backup(
    request: BackupRequest, stream: BinaryIO, backup_id: UUID, report: Report
) -> BackupResult:
    """Raises ChatdError and OSError; then the stream has no whole backup."""
    schema = await migrator.list_applied(request.connect.dsn)
    files = await asyncio.to_thread(_read_secrets, request)
    held = await asyncio.to_thread(request.keys.read)
    writer = await asyncio.to_thread(BackupWriter, stream, backup_id, request.passphrase)
    async with backups.open_snapshot(request.connect) as snapshot:
        facts = snapshot.facts
        if facts.s3_files and request.s3_bucket is None:
            raise ChatdError(
                f"{facts.s3_files} files are in S3, and these settings name no bucket. Run this"
                " with the settings of the server (--config).",
                code="settings",
            )
        manifest = Manifest(
            made_at=facts.at,
            version=metadata.version("chatd"),
            host=platform.node(),
            postgres=facts.postgres,
            schema=tuple(
                SchemaStep(version=one.version, name=one.name, checksum=one.checksum)
                for one in schema
            ),
            tables=tuple(one.name for one in facts.tables),
            sequences=facts.sequences,
            keys=_place_of_keys(request, files, has_keys=bool(held)),
            key_ids=tuple(key.id for key in held),
            s3_bucket=request.s3_bucket if facts.s3_files else None,
            s3_files=facts.s3_files,
            has_workspaces=request.holds_workspaces,
        )
        writer.write_manifest(manifest)
        rows = await _write_tables(snapshot, writer, report)
    for name, content in files.items():
        writer.begin(EntryStart(kind="file", name=name))
        writer.write(content)
        writer.end()
    packed = _Packing()
    if request.holds_workspaces:
        report(writer.bytes, writer.bytes, "workspaces")
        await asyncio.to_thread(packed.write, request.data_dir / WORKSPACES, writer)
    await asyncio.to_thread(writer.finish)
    return BackupResult(
        id=backup_id,
        made_at=manifest.made_at,
        bytes=writer.bytes,
        rows=rows,
        keys=manifest.keys,
        changed=packed.changed,
        unread=packed.unread,
    )


def _place_of_keys(
    request: BackupRequest, files: Mapping[str, bytes], *, has_keys: bool
) -> Literal["included", "environment", "left_out", "none"]:
    if KEY_FILE in files:
        return "included"
    if request.keys.given:
        return "environment"
    return "left_out" if has_keys else "none"


async def _write_tables(snapshot: Snapshot, writer: BackupWriter, report: Report) -> int:
    expected, total = sum(table.bytes for table in snapshot.facts.tables), 0
    buffer = bytearray()
    done = 0

    for table in snapshot.facts.tables:
        before = writer.bytes

        async def write(
            data: bytes, table: CopiedTable = table, done: int = done, before: int = before
        ) -> None:
            buffer.extend(data)
            if len(buffer) >= BUFFER_BYTES:
                taken = bytes(buffer)
                buffer.clear()
                await asyncio.to_thread(writer.write, taken)
                report(done + min(writer.bytes - before, table.bytes), expected, table.name)

        report(done, expected, table.name)
        writer.begin(EntryStart(kind="table", name=table.name, columns=table.columns))
        rows = await snapshot.copy(table, write)
        await asyncio.to_thread(writer.write, bytes(buffer))
        buffer.clear()
        writer.end(rows)
        total += rows
        done += table.bytes
    report(expected, expected, "all tables")
    return total


def _read_secrets(request: BackupRequest) -> dict[str, bytes]:
    """Raises ChatdError if one that exists cannot be read."""
    found: dict[str, bytes] = {}
    for name in SECRET_FILES:
        if name == KEY_FILE and not request.holds_keys:
            continue
        try:
            text = sealed_secrets.read(request.data_dir / name)
        except OSError as error:
            path = request.data_dir / name
            raise ChatdError(
                f"cannot read {path}: {error.strerror}. Run this as the account of the server."
            ) from error
        if text is not None:
            found[name] = text.encode()
    return found


class _EntryStream:
    """What tarfile writes to: the data of the open entry."""

    def __init__(self, writer: BackupWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> int:
        self._writer.write(data)
        return len(data)


class _Packing:
    """The files of workspaces are hostile: no link is followed, also none that a command puts in
    place meanwhile. Pipes, sockets and devices are left out."""

    def __init__(self) -> None:
        self.changed = 0
        self.unread = 0

    def write(self, root: Path, writer: BackupWriter) -> None:
        writer.begin(EntryStart(kind="workspaces", name=WORKSPACES))
        stream = cast("BinaryIO", _EntryStream(writer))
        with tarfile.open(mode="w|", fileobj=stream, format=tarfile.PAX_FORMAT) as archive:
            if root.is_dir():
                self._add(archive, ".", root.stat())
                for top in sorted(os.listdir(root)):
                    try:
                        self._add_tree(archive, root, top)
                    except RecursionError:  # a command made directories too deep to walk
                        self.unread += 1
        writer.end()

    def _add_tree(self, archive: tarfile.TarFile, root: Path, top: str) -> None:
        walk = os.fwalk(root / top, onerror=self._on_error, follow_symlinks=False)
        for path, _, names, directory in walk:
            below = os.path.relpath(path, root)
            self._add(archive, below, os.fstat(directory))
            for name in dict.fromkeys((*names, *_links_in(directory))):
                self._add_file(archive, os.path.join(below, name), name, directory)

    def _on_error(self, error: OSError) -> None:
        self.unread += not isinstance(error, FileNotFoundError)

    def _add_file(self, archive: tarfile.TarFile, path: str, name: str, directory: int) -> None:
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                self._add(archive, path, found, target=os.readlink(name, dir_fd=directory))
                return
            if not stat.S_ISREG(found.st_mode):
                return
            handle = os.open(name, _FILE_FLAGS, dir_fd=directory)
        except FileNotFoundError:
            return
        except OSError:
            self.unread += 1
            return
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode):
                padded = _PaddedFile(file, found.st_size)
                self._add(archive, path, found, content=padded)
                self.changed += padded.was_short

    def _add(
        self,
        archive: tarfile.TarFile,
        path: str,
        found: os.stat_result,
        *,
        target: str | None = None,
        content: "_PaddedFile | None" = None,
    ) -> None:
        member = tarfile.TarInfo(path)
        member.mode, member.mtime = stat.S_IMODE(found.st_mode), found.st_mtime
        member.uid, member.gid = found.st_uid, found.st_gid
        if target is not None:
            member.type, member.linkname = tarfile.SYMTYPE, target
        elif content is None:
            member.type = tarfile.DIRTYPE
        else:
            member.size = found.st_size
        archive.addfile(member, cast("BinaryIO | None", content))


def _links_in(directory: int) -> list[str]:
    """Links to directories, which a walk lists among the directories."""
    found: list[str] = []
    with os.scandir(directory) as entries:
        for one in entries:
            with suppress(
                OSError
            ):  # a loop, or closed to this account: the walk lists it as a file
                if one.is_symlink() and one.is_dir():
                    found.append(one.name)
    return found


class _PaddedFile:
    """Reads as many bytes as the file had: one that became shorter meanwhile ends in zeros."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size
        self.was_short = False

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left))
        if len(data) < min(size, self._left):
            self.was_short = True
            data = data.ljust(min(size, self._left), b"\0")
        self._left -= len(data)
        return data


# Backups at intervals


class ScheduleConfig(Struct, frozen=True, kw_only=True):
    directory: Path
    every_s: float
    keep: int


class ScheduledBackups:
    """Of all replicas that have the setting, one makes each backup. `run` goes on until it is
    cancelled."""

    def __init__(
        self, conn: Conn, request: BackupRequest, config: ScheduleConfig, env: Env
    ) -> None:
        self._conn = conn
        self._request = request
        self._config = config
        self._env = env

    async def run(self) -> None:
        while True:
            try:
                await self.run_due()
            except Exception as error:  # noqa: BLE001 - a backup must not end the server
                kind = getattr(error, "code", type(error).__name__)
                self._env.emit("backup_failed", error_kind=kind, reason=str(error))
            await self._env.clock.sleep(POLL_INTERVAL_S, "backups")

    async def run_due(self) -> bool:
        """Whether a backup was made. Raises Unavailable."""
        backup_id = self._env.new_id()
        target = self._config.directory / backup_name(self._env.clock.now())
        async with backups.one_at_a_time(self._request.connect) as is_alone:
            if not is_alone or not await backups.begin(
                self._conn,
                backup_id,
                platform.node(),
                str(target),
                every_s=self._config.every_s,
                retry_s=RETRY_INTERVAL_S,
            ):
                return False
            error = None
            size: int | None = None
            try:
                size = await self._make(target, backup_id)
            except Exception as failure:  # noqa: BLE001 - recorded, and tried again later
                error = str(failure)
                kind = getattr(failure, "code", type(failure).__name__)
                self._env.emit("backup_failed", error_kind=kind, reason=error)
            await backups.end(self._conn, backup_id, size=size, error=error)
        return size is not None

    async def _make(self, target: Path, backup_id: UUID) -> int:
        await asyncio.to_thread(self._config.directory.mkdir, parents=True, exist_ok=True)
        async with new_backup_file(target) as stream:
            await write_backup(self._request, stream, backup_id, _report_nothing)
        size = (await asyncio.to_thread(target.stat)).st_size
        self._env.emit("backup_made", file=str(target), bytes=size)
        removed = await asyncio.to_thread(
            prune, self._config.directory, self._config.keep, self._env.clock.now()
        )
        if removed:
            self._env.emit("backups_removed", files=removed)
        return size


def _report_nothing(done: int, expected: int, what: str) -> None:
    del done, expected, what


@asynccontextmanager
async def new_backup_file(target: Path) -> AsyncGenerator[BinaryIO]:
    """The file has its name only if nothing was raised. Raises ChatdError."""
    try:
        file = await asyncio.to_thread(NewFile, target)
        try:
            yield file.stream
            await asyncio.to_thread(file.keep)
        finally:
            file.discard()
    except OSError as error:
        raise ChatdError(f"cannot write {target}: {error.strerror or error}") from error


def prune(directory: Path, keep: int, now: datetime) -> int:
    """Remove the oldest scheduled backups, and what processes that died have left unfinished.
    Returns the number of backups removed."""
    old = sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))[:-keep]
    for path in old:
        with suppress(OSError):
            path.unlink()
    for path in _partial_files(directory):
        with suppress(OSError):
            if path.stat().st_mtime < (now - PARTIAL_LIFETIME).timestamp():
                path.unlink()
    return len(old)


def _partial_files(directory: Path) -> Iterator[Path]:
    return directory.glob(f".chatd-*.backup.*{PARTIAL_SUFFIX}")
