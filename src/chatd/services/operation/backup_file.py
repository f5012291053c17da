"""The file of a backup: chunks that are compressed, numbered and either sealed or digested, and in
them a manifest and entries.

A chunk knows its number and whether it is the last one, and is bound to the header. So a file that
was cut off, altered, reordered or joined from two is recognized. With a passphrase the chunks are
sealed with AES-256-GCM under a key of scrypt; without one they carry a SHA-256 digest, which finds
accidents and no intent.

Reading and writing hold one chunk in memory, whatever the size of the backup.
"""

import hashlib
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeVar
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from msgspec import Struct

from chatd.domain.errors import ChatdError

MAGIC: Final = b"chatd backup\n"
FORMAT: Final = 1
CHUNK_BYTES: Final = 1024 * 1024
MAX_HEADER_BYTES: Final = 16 * 1024
MAX_RECORD_BYTES: Final = 4 * 1024 * 1024
"""Of the manifest; data comes in smaller pieces."""
MIN_PASSPHRASE_CHARS: Final = 8
COMPRESSION_LEVEL: Final = 3
SCRYPT_COST: Final = 2**17
"""128 MiB and a third of a second for each guess at a passphrase."""
MAX_SCRYPT_COST: Final = 2**20
_FRAME: Final = struct.Struct(">IB")
_RECORD: Final = struct.Struct(">cI")
_DIGEST_BYTES: Final = 32
_TAG_BYTES: Final = 16
PARTIAL_SUFFIX: Final = ".partial"

T = TypeVar("T")


class BackupUnreadable(ChatdError):
    """The file is not a whole backup, or the passphrase does not open it."""

    code = "backup_unreadable"


class WrongPassphrase(BackupUnreadable):
    code = "wrong_passphrase"


class BackupHeader(Struct, frozen=True, kw_only=True):
    """The only part that is readable without the passphrase. Without a `salt` the chunks are not
    sealed."""

    format: int
    id: UUID
    salt: bytes = b""
    scrypt_cost: int = 0

    @property
    def is_sealed(self) -> bool:
        return bool(self.salt)


class SchemaStep(Struct, frozen=True, kw_only=True):
    """A migration that was applied to the database."""

    version: int
    name: str
    checksum: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What the backup is of. `sequences` have the last number that each has given out. `keys` says
    where the keys of stored secrets are: in this backup, in the environment of the servers, left
    out on request, or nowhere. `s3_files`: files whose bytes are in a bucket, not in here."""

    made_at: datetime
    version: str
    host: str
    postgres: str
    schema: tuple[SchemaStep, ...]
    tables: tuple[str, ...]
    sequences: dict[str, int]
    keys: Literal["included", "environment", "left_out", "none"]
    key_ids: tuple[str, ...] = ()
    s3_bucket: str | None = None
    s3_files: int = 0
    has_workspaces: bool = False


class EntryStart(Struct, frozen=True, kw_only=True):
    """A table in PostgreSQL's text format with its columns, a file of the data directory, or the
    files of all workspaces of the host as a tar archive."""

    kind: Literal["table", "file", "workspaces"]
    name: str
    columns: tuple[str, ...] = ()


class EntryEnd(Struct, frozen=True, kw_only=True):
    """`rows` of a table; else 0."""

    rows: int
    bytes: int
    sha256: str


class BackupEnd(Struct, frozen=True, kw_only=True):
    entries: int
    bytes: int


Piece = Manifest | EntryStart | bytes | EntryEnd | BackupEnd
_TAGS: Final[dict[bytes, type[Manifest | EntryStart | EntryEnd | BackupEnd]]] = {
    b"M": Manifest,
    b"B": EntryStart,
    b"E": EntryEnd,
    b"Z": BackupEnd,
}
_DATA: Final = b"D"


class _ChunkSeal:
    """Protects chunk after chunk: the number, the mark of the last one and the header are part of
    what is sealed or digested."""

    def __init__(self, header: bytes, key: bytes | None) -> None:
        self._bound = hashlib.sha256(MAGIC + header).digest()
        self._cipher = None if key is None else AESGCM(key)
        self._number = 0

    @property
    def overhead(self) -> int:
        return _DIGEST_BYTES if self._cipher is None else _TAG_BYTES

    def _next(self, *, last: bool) -> bytes:
        nonce = self._number.to_bytes(11, "big") + bytes([last])
        self._number += 1
        return nonce

    def close(self, data: bytes, *, last: bool) -> bytes:
        nonce = self._next(last=last)
        if self._cipher is None:
            return hashlib.sha256(self._bound + nonce + data).digest() + data
        return self._cipher.encrypt(nonce, data, self._bound)

    def open(self, body: bytes, *, last: bool) -> bytes:
        """Raises BackupUnreadable."""
        nonce = self._next(last=last)
        if self._cipher is not None:
            try:
                return self._cipher.decrypt(nonce, body, self._bound)
            except InvalidTag:
                if self._number == 1:
                    raise WrongPassphrase(
                        "The passphrase does not open this backup, or the file was altered."
                    ) from None
                raise _damaged("was altered") from None
        data = body[_DIGEST_BYTES:]
        if hashlib.sha256(self._bound + nonce + data).digest() != body[:_DIGEST_BYTES]:
            raise _damaged("was altered")
        return data


def _damaged(what: str) -> BackupUnreadable:
    return BackupUnreadable(f"The backup {what}. Take another copy of it, or an earlier backup.")


def check_passphrase(passphrase: str) -> str:
    """Raises BackupUnreadable."""
    if len(passphrase) < MIN_PASSPHRASE_CHARS:
        text = f"A passphrase has at least {MIN_PASSPHRASE_CHARS} characters."
        raise WrongPassphrase(text)
    return passphrase


def _derive(passphrase: str, header: BackupHeader) -> bytes:
    scrypt = Scrypt(salt=header.salt, length=32, n=header.scrypt_cost, r=8, p=1)
    return scrypt.derive(passphrase.encode())


class BackupWriter:
    """Writes pieces into a stream. The methods block: a server calls them in a thread."""

    def __init__(
        self,
        stream: BinaryIO,
        backup_id: UUID,
        passphrase: str | None,
        *,
        scrypt_cost: int = SCRYPT_COST,
    ) -> None:
        salt = b"" if passphrase is None else os.urandom(16)
        cost = 0 if passphrase is None else scrypt_cost
        header = BackupHeader(format=FORMAT, id=backup_id, salt=salt, scrypt_cost=cost)
        encoded = msgspec.json.encode(header)
        key = None if passphrase is None else _derive(check_passphrase(passphrase), header)
        self._stream = stream
        self._seal = _ChunkSeal(encoded, key)
        self._buffer = bytearray()
        self._digest = hashlib.sha256()
        self._entry_bytes = 0
        self._entries = 0
        self.bytes = 0
        """Of the entries, before compression."""
        stream.write(MAGIC + len(encoded).to_bytes(4, "big") + encoded)

    def write_manifest(self, manifest: Manifest) -> None:
        self._record(b"M", msgspec.json.encode(manifest))

    def begin(self, entry: EntryStart) -> None:
        self._digest = hashlib.sha256()
        self._entry_bytes = 0
        self._record(b"B", msgspec.json.encode(entry))

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), CHUNK_BYTES):
            piece = data[at : at + CHUNK_BYTES]
            self._digest.update(piece)
            self._entry_bytes += len(piece)
            self._record(_DATA, piece)

    def end(self, rows: int = 0) -> None:
        ended = EntryEnd(rows=rows, bytes=self._entry_bytes, sha256=self._digest.hexdigest())
        self._record(b"E", msgspec.json.encode(ended))
        self._entries += 1
        self.bytes += self._entry_bytes

    def finish(self) -> None:
        self._record(b"Z", msgspec.json.encode(BackupEnd(entries=self._entries, bytes=self.bytes)))
        self._flush(last=True)
        self._stream.flush()

    def _record(self, tag: bytes, payload: bytes) -> None:
        self._buffer += _RECORD.pack(tag, len(payload)) + payload
        while len(self._buffer) >= CHUNK_BYTES:
            self._flush(last=False)

    def _flush(self, *, last: bool) -> None:
        taken = bytes(self._buffer[:CHUNK_BYTES])
        del self._buffer[:CHUNK_BYTES]
        body = self._seal.close(zlib.compress(taken, COMPRESSION_LEVEL), last=last)
        self._stream.write(_FRAME.pack(len(body), last) + body)


class BackupReader:
    """Reads a backup from its beginning; `read` may be called once for each reader."""

    def __init__(self, stream: BinaryIO) -> None:
        """Raises BackupUnreadable if the stream does not begin like a backup."""
        self._stream = stream
        if stream.read(len(MAGIC)) != MAGIC:
            raise BackupUnreadable("This is not a backup that chatd backup has written.")
        size = int.from_bytes(self._exactly(4), "big")
        if size > MAX_HEADER_BYTES:
            raise _damaged("has a damaged header")
        self._encoded = self._exactly(size)
        self.header = _decode(self._encoded, BackupHeader)
        if self.header.format != FORMAT:
            raise BackupUnreadable(
                f"The backup has the format {self.header.format}, and this version reads {FORMAT}."
                " Restore it with the version of chatd that made it, or a newer one."
            )
        cost = self.header.scrypt_cost
        if self.header.is_sealed and not (1 < cost <= MAX_SCRYPT_COST and cost & (cost - 1) == 0):
            raise _damaged("has a damaged header")

    def read(self, passphrase: str | None) -> Iterator[Piece]:
        """The manifest, then for each entry its start, its data and its end, then the end of all.
        What an entry claims is compared with its data before its end is given. Raises
        BackupUnreadable at the first fault."""
        key = None
        if self.header.is_sealed:
            if passphrase is None:
                raise WrongPassphrase("The backup is encrypted: it needs its passphrase.")
            key = _derive(passphrase, self.header)
        yield from _checked(self._records(_ChunkSeal(self._encoded, key)))

    def _records(self, seal: _ChunkSeal) -> Iterator[tuple[bytes, bytes]]:
        buffer = bytearray()
        for chunk in self._chunks(seal):
            buffer += chunk
            while len(buffer) >= _RECORD.size:
                tag, size = _RECORD.unpack_from(buffer)
                if size > MAX_RECORD_BYTES:
                    raise _damaged("is damaged")
                if len(buffer) < _RECORD.size + size:
                    break
                yield tag, bytes(buffer[_RECORD.size : _RECORD.size + size])
                del buffer[: _RECORD.size + size]
        if buffer:
            raise _damaged("is damaged")

    def _chunks(self, seal: _ChunkSeal) -> Iterator[bytes]:
        limit = CHUNK_BYTES + CHUNK_BYTES // 100 + 1024
        last = False
        while not last:
            size, mark = _FRAME.unpack(self._exactly(_FRAME.size))
            last = mark == 1
            if not seal.overhead <= size <= limit or mark > 1:
                raise _damaged("was altered")
            inflate = zlib.decompressobj()
            try:
                # One more than there may be: at the limit itself the end is not recognized.
                data = inflate.decompress(
                    seal.open(self._exactly(size), last=last), CHUNK_BYTES + 1
                )
            except zlib.error:
                raise _damaged("is damaged") from None
            if len(data) > CHUNK_BYTES or not inflate.eof:
                raise _damaged("is damaged")
            yield data
        if self._stream.read(1):
            raise _damaged("has something after its end")

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise _damaged("is cut off: its end is missing")
        return data


class _Order:
    """What may follow what, and whether each entry has the bytes that its end claims."""

    def __init__(self) -> None:
        self._entry: EntryStart | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        self._entries = 0
        self._total = 0
        self._is_begun = False
        self.is_ended = False

    def take(self, piece: Piece) -> Piece:
        """Raises BackupUnreadable."""
        if self._is_begun == isinstance(piece, Manifest) or self.is_ended:
            raise _damaged("is damaged")
        self._is_begun = True
        match piece:
            case bytes() if self._entry is not None:
                self._digest.update(piece)
                self._size += len(piece)
            case EntryStart() if self._entry is None:
                self._entry, self._digest, self._size = piece, hashlib.sha256(), 0
            case EntryEnd() if self._entry is not None:
                if (piece.bytes, piece.sha256) != (self._size, self._digest.hexdigest()):
                    raise _damaged(f"is damaged in {self._entry.name}")
                self._entry = None
                self._entries += 1
                self._total += self._size
            case BackupEnd() if self._entry is None:
                if (piece.entries, piece.bytes) != (self._entries, self._total):
                    raise _damaged("is not complete")
                self.is_ended = True
            case Manifest():
                pass
            case _:
                raise _damaged("is damaged")
        return piece


def _checked(records: Iterator[tuple[bytes, bytes]]) -> Iterator[Piece]:
    order = _Order()
    for tag, payload in records:
        if tag != _DATA and tag not in _TAGS:
            raise BackupUnreadable("The backup has parts that this version of chatd does not know.")
        yield order.take(payload if tag == _DATA else _decode(payload, _TAGS[tag]))
    if not order.is_ended:
        raise _damaged("is cut off: its end is missing")


def _decode(payload: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _damaged("is damaged") from None


class NewFile:
    """A file that has its name only once it is whole: until then it is hidden and ends in
    `.partial`. Replaces no file."""

    def __init__(self, target: Path) -> None:
        """Raises FileExistsError and other OSErrors."""
        if target.exists():
            raise FileExistsError(17, "there is a file of this name", str(target))
        name = f".{target.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"
        self._target = target
        self._partial = target.with_name(name)
        handle = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.stream: BinaryIO = os.fdopen(handle, "wb")

    def keep(self) -> None:
        """It is on the disk and has its name. Raises OSError."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        os.link(self._partial, self._target)  # unlike a rename this replaces nothing
        self._partial.unlink()
        directory = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def discard(self) -> None:
        """Harmless after `keep`."""
        with suppress(OSError):
            self.stream.close()
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)
