"""The file of a backup: what was written is read again, and whatever else is refused."""

import io
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from chatd.services.operation import backup_file
from chatd.services.operation.backup_file import (
    MAGIC,
    BackupEnd,
    BackupReader,
    BackupUnreadable,
    BackupWriter,
    EntryEnd,
    EntryStart,
    Manifest,
    NewFile,
    Piece,
    WrongPassphrase,
)
from tests.support.factories import AT

MANIFEST = Manifest(
    made_at=AT,
    version="1.0.0",
    host="a",
    postgres="18.1",
    schema=(),
    tables=("one", "two"),
    sequences={},
    keys="none",
)
PASSPHRASES = (None, "correct horse")


def written(
    passphrase: str | None, *entries: tuple[str, bytes], backup_id: int = 1, ends: bool = True
) -> bytes:
    stream = io.BytesIO()
    writer = BackupWriter(stream, UUID(int=backup_id), passphrase, scrypt_cost=2)
    writer.write_manifest(MANIFEST)
    for name, data in entries:
        writer.begin(EntryStart(kind="table", name=name, columns=("a",)))
        writer.write(data)
        writer.end(rows=data.count(b"\n"))
    if ends:
        writer.finish()
    return stream.getvalue()


def read(file: bytes, passphrase: str | None) -> list[Piece]:
    return list(BackupReader(io.BytesIO(file)).read(passphrase))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks in a short file."""
    monkeypatch.setattr(backup_file, "CHUNK_BYTES", 64)


def frames(file: bytes) -> list[bytes]:
    """The header, and each chunk with its frame."""
    start = len(MAGIC)
    at = start + 4 + int.from_bytes(file[start : start + 4], "big")
    found = [file[:at]]
    while at < len(file):
        end = at + 5 + int.from_bytes(file[at : at + 4], "big")
        found.append(file[at:end])
        at = end
    return found


DATA = bytes(random.Random(7).randbytes(300))


@pytest.mark.parametrize("passphrase", PASSPHRASES)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_what_was_written_is_read_again(
    small_chunks: None, passphrase: str | None, size: int
) -> None:
    data = b"a row\n" * size
    pieces = read(written(passphrase, ("one", data), ("two", b"")), passphrase)
    assert pieces[0] == MANIFEST
    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)) == data
    ends = [piece for piece in pieces if isinstance(piece, EntryEnd)]
    assert [(end.rows, end.bytes) for end in ends] == [(size, len(data)), (0, 0)]
    assert pieces[-1] == BackupEnd(entries=2, bytes=len(data))


@pytest.mark.parametrize("passphrase", PASSPHRASES)
def test_a_file_that_was_cut_off_anywhere_is_refused(
    small_chunks: None, passphrase: str | None
) -> None:
    file = written(passphrase, ("one", DATA))
    for size in range(len(file)):
        with pytest.raises(BackupUnreadable):
            read(file[:size], passphrase)


@pytest.mark.parametrize("passphrase", PASSPHRASES)
def test_a_file_that_was_altered_at_any_byte_is_refused(
    small_chunks: None, passphrase: str | None
) -> None:
    file = written(passphrase, ("one", DATA))
    for at in range(len(file)):
        altered = bytearray(file)
        altered[at] ^= 0x11
        with pytest.raises(BackupUnreadable):
            read(bytes(altered), passphrase)


def test_chunks_out_of_order_left_out_doubled_or_of_another_backup_are_refused(
    small_chunks: None,
) -> None:
    for passphrase in PASSPHRASES:
        file = frames(written(passphrase, ("one", DATA)))
        other = frames(written(passphrase, ("one", DATA), backup_id=2))
        assert len(file) > 5

        def changed(file: list[bytes] = file, other: list[bytes] = other) -> Iterator[list[bytes]]:
            for first, second in pairwise(range(1, len(file))):
                swapped = file.copy()
                swapped[first], swapped[second] = file[second], file[first]
                yield swapped
                yield file[:first] + file[second:]
                yield file[:second] + file[first:]
                yield [*file[:first], other[first], *file[second:]]
            yield [*file, file[-1]]

        for one in changed():
            with pytest.raises(BackupUnreadable):
                read(b"".join(one), passphrase)


def test_a_passphrase_is_needed_and_must_be_the_right_one() -> None:
    file = written("correct horse", ("one", b"secret rows\n"))
    assert b"secret" not in file
    assert b"made_at" not in file
    for wrong in ("wrong horse", None):
        with pytest.raises(WrongPassphrase):
            read(file, wrong)
    with pytest.raises(WrongPassphrase, match="at least 8"):
        written("short")


def test_a_backup_that_its_process_did_not_finish_is_refused(small_chunks: None) -> None:
    with pytest.raises(BackupUnreadable, match="cut off"):
        read(written(None, ("one", DATA), ends=False), None)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (b"", "not a backup"),
        (b"PGDMP\x01\x0e\x00" * 9, "not a backup"),
        (MAGIC + b"\xff\xff\xff\xff", "damaged"),
        (MAGIC + b"\x00\x00\x00\x02{}", "damaged"),
        (
            MAGIC + b'\x00\x00\x00\x3c{"format":9,"id":"00000000-0000-0000-0000-000000000001"}    ',
            "9",
        ),
    ],
)
def test_another_file_is_refused_with_the_reason(file: bytes, says: str) -> None:
    with pytest.raises(BackupUnreadable, match=says):
        read(file, None)


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.backup"
    unfinished = NewFile(target)
    unfinished.stream.write(b"half")
    unfinished.stream.flush()
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    unfinished.discard()
    assert list(tmp_path.iterdir()) == []
    whole = NewFile(target)
    whole.stream.write(b"whole")
    whole.keep()
    whole.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["a.backup"]
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"whole", 0o600)
    with pytest.raises(FileExistsError):
        NewFile(target)
