"""Restores a backup into an empty place, and keeps the copy quiet until an administrator confirms
it.

The whole file is read and checked before anything is written. While a restore is under way, the
data directory and the database are marked as unfinished; a server refuses to start on them.
"""

import os
import tarfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO, Final, cast

from msgspec import Struct

from chatd import sealed_secrets
from chatd.aio import InterruptibleSleep
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, Conflict, Unavailable
from chatd.domain.ports import Env
from chatd.services.operation.backup_file import (
    BackupEnd,
    BackupReader,
    BackupUnreadable,
    EntryEnd,
    EntryStart,
    Manifest,
    Piece,
)
from chatd.services.operation.backups import SECRET_FILES, WORKSPACES, Report
from chatd.store.database import migrator
from chatd.store.database.conn import Conn, ConnectConfig
from chatd.store.database.migration_files import load_migrations, packaged_migrations
from chatd.store.deployment import backups
from chatd.store.deployment.backups import RestoreRecord, RowTarget

UNFINISHED_FILE: Final = "restore-unfinished"
_MAY_BE_THERE: Final = frozenset({"chatd.toml", "lost+found"})
MAX_SECRET_FILE_BYTES: Final = 64 * 1024
CONFIRMATION_POLL_S: Final = 10.0
OpenDatabase = Callable[[], AbstractAsyncContextManager[ConnectConfig]]


class RestoreUnfinished(ChatdError):
    code = "restore_unfinished"


class BackupContent(Struct, frozen=True, kw_only=True):
    """What a backup has, as its check found it."""

    manifest: Manifest
    is_encrypted: bool
    rows: int
    bytes: int
    files: tuple[str, ...]


# Check


def check_backup(stream: BinaryIO, passphrase: str | None, report: Report) -> BackupContent:
    """Read all of it. Raises BackupUnreadable, and Conflict if this version cannot restore it."""
    reader = BackupReader(stream)
    size, rows, total = _size(stream), 0, 0
    manifest: Manifest | None = None
    tables: list[str] = []
    files: list[str] = []
    for piece in reader.read(passphrase):
        match piece:
            case Manifest():
                check_schema(piece)
                manifest = piece
            case EntryStart():
                report(stream.tell(), size, piece.name)
                _check_entry(piece)
                (tables if piece.kind == "table" else files).append(piece.name)
            case EntryEnd():
                rows += piece.rows
                total += piece.bytes
            case bytes() | BackupEnd():
                pass
    assert manifest is not None  # the reader begins with it
    if tables != list(manifest.tables) or len(set(files)) < len(files):
        raise BackupUnreadable("The backup does not have the tables that it should have.")
    return BackupContent(
        manifest=manifest,
        is_encrypted=reader.header.is_sealed,
        rows=rows,
        bytes=total,
        files=tuple(files),
    )


def _size(stream: BinaryIO) -> int:
    return os.fstat(stream.fileno()).st_size


def _check_entry(entry: EntryStart) -> None:
    if entry.kind == "file" and entry.name not in SECRET_FILES:
        raise BackupUnreadable(f"The backup has a file {entry.name!r}, which is none of chatd's.")
    if entry.kind == "table" and entry.name in backups.LEFT_OUT:
        raise BackupUnreadable(f"The backup has the table {entry.name!r}, which no backup has.")


def check_schema(manifest: Manifest) -> int:
    """The number of the last migration of the backup. Raises Conflict unless this version has
    exactly these migrations."""
    known = {one.version: one for one in load_migrations(packaged_migrations())}
    for step in manifest.schema:
        migration = known.get(step.version)
        if migration is None:
            raise Conflict(
                f"The backup is of chatd {manifest.version}, whose database is newer than this"
                " version knows. Restore it with that version or a newer one.",
                code="backup_too_new",
            )
        if migration.checksum != step.checksum:
            raise Conflict(
                f"The backup was made with another {migration.file} than this version has. Restore"
                f" it with the version that made it: chatd {manifest.version}.",
                code="foreign_backup",
            )
    if [step.version for step in manifest.schema] != list(range(1, len(manifest.schema) + 1)):
        raise BackupUnreadable("The backup does not name the migrations of its database.")
    return len(manifest.schema)


def check_empty(data_dir: Path) -> None:
    """Raises Conflict if a deployment may be there."""
    try:
        found = sorted(set(os.listdir(data_dir)) - _MAY_BE_THERE)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ChatdError(f"cannot read {data_dir}: {error.strerror}") from error
    if UNFINISHED_FILE in found:
        raise Conflict(_unfinished_text(data_dir), code="not_empty")
    if found:
        raise Conflict(
            f"{data_dir} is not empty: it has {', '.join(found[:4])}. A backup is restored into an"
            " empty place only: name a new directory with --data-dir.",
            code="not_empty",
        )


# Restore


async def restore(
    stream: BinaryIO,
    passphrase: str | None,
    data_dir: Path,
    open_database: OpenDatabase,
    report: Report,
) -> BackupContent:
    """Raises ChatdError. What is raised before `restore-unfinished` is written has changed
    nothing."""
    check_empty(data_dir)
    content = check_backup(stream, passphrase, report)
    mark = data_dir / UNFINISHED_FILE
    try:
        sealed_secrets.replace(mark, _unfinished_text(data_dir))
    except OSError as error:
        raise ChatdError(f"cannot write to {data_dir}: {error.strerror}") from error
    begun = False
    try:
        async with open_database() as connect:
            await backups.begin_restore(connect)
            begun = True
            await migrator.up(connect.dsn, through=check_schema(content.manifest))
            stream.seek(0)
            reader = BackupReader(stream)
            pieces = _reported(reader.read(passphrase), stream, report)
            first_file = await _fill_tables(pieces, content.manifest, connect)
            _write_files(first_file, pieces, data_dir)
            report(_size(stream), _size(stream), "indexes")
            await migrator.up(connect.dsn)
            await migrator.analyze(connect.dsn)
            manifest = content.manifest
            await backups.finish_restore(connect, reader.header.id, manifest.made_at, manifest.host)
    except Conflict:
        if not begun:
            # The database is somebody's: nothing was written to it.
            mark.unlink(missing_ok=True)
        raise
    except OSError as error:
        raise ChatdError(f"the restore is unfinished: {error}") from error
    mark.unlink()
    return content


def _reported(pieces: Iterator[Piece], stream: BinaryIO, report: Report) -> Iterator[Piece]:
    for piece in pieces:
        if isinstance(piece, EntryStart):
            report(stream.tell(), _size(stream), piece.name)
        yield piece


async def _fill_tables(
    pieces: Iterator[Piece], manifest: Manifest, connect: ConnectConfig
) -> Piece:
    """In one transaction. Returns the first piece after the tables."""
    async with backups.open_target(connect, manifest.sequences) as target:
        next(pieces)  # the manifest
        for piece in pieces:
            if not isinstance(piece, EntryStart) or piece.kind != "table":
                return piece
            await _fill_table(target, piece, pieces)
    raise BackupUnreadable("The backup is cut off: its end is missing.")


async def _fill_table(target: RowTarget, table: EntryStart, pieces: Iterator[Piece]) -> None:
    ended: EntryEnd | None = None

    async def data() -> AsyncGenerator[bytes]:
        nonlocal ended
        for piece in pieces:
            if isinstance(piece, EntryEnd):
                ended = piece
                return
            yield cast("bytes", piece)

    rows = await target.fill(table.name, table.columns, data())
    if ended is None or rows != ended.rows:
        raise BackupUnreadable(f"The backup does not have all rows of {table.name}.")


def _write_files(first: Piece, pieces: Iterator[Piece], data_dir: Path) -> None:
    """Raises OSError."""
    piece: Piece | None = first
    while isinstance(piece, EntryStart):
        if piece.kind == "workspaces":
            _unpack(pieces, data_dir / WORKSPACES)
        else:
            content = b"".join(_data_of(pieces))
            if len(content) > MAX_SECRET_FILE_BYTES:
                raise BackupUnreadable(f"{piece.name} of the backup is too long.")
            sealed_secrets.replace(data_dir / piece.name, content.decode(errors="replace"))
        piece = next(pieces, None)


def _data_of(pieces: Iterator[Piece]) -> Iterator[bytes]:
    """Of the open entry, to its end."""
    for piece in pieces:
        if isinstance(piece, EntryEnd):
            return
        yield cast("bytes", piece)


class _DataStream:
    """What tarfile reads from."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._buffer = bytearray()

    def read(self, size: int) -> bytes:
        while len(self._buffer) < size and (piece := next(self._data, None)) is not None:
            self._buffer += piece
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


def _unpack(pieces: Iterator[Piece], target: Path) -> None:
    """With owners, if this process may set them. Nothing is written outside of the target."""
    data = _data_of(pieces)
    target.mkdir(mode=0o700)
    stream = cast("BinaryIO", _DataStream(data))
    with tarfile.open(mode="r|", fileobj=stream) as archive:
        archive.extractall(target, numeric_owner=True, filter=_as_it_was)
    for _ in data:
        pass


def _as_it_was(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """The mode as well, which the standard filter narrows. None for a name that a command changed
    while it was copied, so that it would lead outside of the target."""
    try:
        kept = tarfile.tar_filter(member, path)
    except tarfile.FilterError:
        return None
    return kept.replace(mode=member.mode & 0o777, deep=False)


# Unfinished and unconfirmed


def _unfinished_text(place: Path | str) -> str:
    return (
        f"A restore into {place} was begun and not finished. Empty it (the directory, and the"
        " database that --database-url names, if one was named), and run chatd restore again."
    )


def refuse_unfinished_directory(data_dir: Path) -> None:
    """Raises RestoreUnfinished."""
    if (data_dir / UNFINISHED_FILE).exists():
        raise RestoreUnfinished(_unfinished_text(data_dir))


async def refuse_unfinished_database(connect: ConnectConfig) -> None:
    """Raises RestoreUnfinished."""
    if await backups.is_unfinished(connect):
        raise RestoreUnfinished(_unfinished_text("this database"))


class Confirmation:
    """Whether this deployment may act by itself. One that was never restored may. A restored one
    may as soon as an administrator has confirmed it, and then for ever."""

    def __init__(self, conn: Conn, env: Env) -> None:
        self._conn = conn
        self._env = env
        self._pause = InterruptibleSleep(env.clock)
        self.record: RestoreRecord | None = None
        self._is_known = False

    @property
    def is_given(self) -> bool:
        return self._is_known and (self.record is None or self.record.confirmed_at is not None)

    async def start(self) -> None:
        """Raises Unavailable. Until then nothing is confirmed."""
        self.record = await backups.read_restore(self._conn)
        self._is_known = True
        if self.record is not None and not self.is_given:
            made_at = self.record.made_at.isoformat()
            self._env.emit("restore_unconfirmed", made_at=made_at, made_on=self.record.made_on)

    def on_config_change(self, change: ConfigChange | None) -> None:
        if not self.is_given and (change is None or change.kind == "settings"):
            self._pause.wake()

    async def wait(self) -> None:
        """Until it is given."""
        while not self.is_given:
            await self._pause.sleep(CONFIRMATION_POLL_S, "confirmation")
            try:
                self.record = await backups.read_restore(self._conn)
            except Unavailable:
                continue
