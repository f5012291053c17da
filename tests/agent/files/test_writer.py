"""Atomic writes of files."""

import errno
import os
import stat
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.files.file_content import write_file
from tests.agent.unprivileged import Denied, denied_without_privileges
from tests.support.outcomes import present


def refusal(path: str | Path, content: bytes = b"new") -> tuple[int, str]:
    with pytest.raises(AgentError) as refused:
        write_file(str(path), content)
    return refused.value.status, refused.value.message


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


@pytest.mark.covers("files-3")
def test_a_new_file_gets_parents_and_the_umask_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(str(tmp_path / "a/b/c.txt"), b"hello")
    finally:
        os.umask(before)
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"hello"
    assert stat.S_IMODE((tmp_path / "a/b/c.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o750
    assert names(tmp_path / "a/b") == ["c.txt"]


@pytest.mark.covers("files-4")
@pytest.mark.parametrize("mode", [0o600, 0o755, 0o644, 0o4755, 0o222])
def test_the_mode_of_an_existing_file_is_kept(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    file.chmod(mode)
    write_file(str(file), b"new")
    assert stat.S_IMODE(file.stat().st_mode) == mode
    file.chmod(0o600)
    assert file.read_bytes() == b"new"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_the_owner_of_an_existing_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    os.chown(file, 65534, 65534)
    write_file(str(file), b"new")
    assert (file.stat().st_uid, file.stat().st_gid) == (65534, 65534)


@pytest.mark.covers("files-4", "files-9")
def test_writing_to_a_link_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "one").symlink_to("real")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    write_file(str(tmp_path / "two"), b"new")
    assert (tmp_path / "two").is_symlink()
    assert (tmp_path / "one").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert names(tmp_path) == ["one", "real", "two"]


def test_writing_to_a_dangling_link_creates_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("deep/target")
    write_file(str(tmp_path / "link"), b"new")
    assert (tmp_path / "deep/target").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.covers("files-3")
def test_invalid_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    assert refusal("relative/path")[0] == 400
    assert refusal("")[0] == 400
    assert refusal(tmp_path) == (400, f"{tmp_path} is a directory, not a file")
    assert refusal(f"{tmp_path}/new/") == (400, f"{tmp_path}/new/ names a directory, not a file")
    status, message = refusal(tmp_path / "file/below/it")
    assert (status, "parent of it is a file" in message) == (400, True)
    assert refusal(tmp_path / "file/below")[0] == 400
    assert refusal(tmp_path / "pipe") == (
        400,
        f"{tmp_path}/pipe is a named pipe, not a regular file",
    )
    assert refusal(tmp_path / "loop")[0] == 400
    assert refusal("/dev/null")[0] == 400
    assert names(tmp_path) == ["file", "loop", "pipe"]


@pytest.mark.covers("files-3")
def test_writing_without_permission_is_forbidden(shared: Path) -> None:
    locked = shared / "locked"
    locked.mkdir()
    (locked / "f").write_bytes(b"old")
    locked.chmod(0o555)
    read_only = shared / "open"
    read_only.mkdir()
    read_only.chmod(0o777)
    (read_only / "f").write_bytes(b"old")
    (read_only / "f").chmod(0o444)
    for file in (locked / "f", locked / "new", read_only / "f"):
        denied = denied_without_privileges(lambda path=file: write_file(str(path), b"new"))
        assert denied == Denied(403, f"cannot write {file}: permission denied")
    assert (read_only / "f").read_bytes() == b"old"
    assert names(read_only) == ["f"]
    below = locked / "sub" / "f"
    denied = present(denied_without_privileges(lambda: write_file(str(below), b"new")))
    assert denied.status == 403


@pytest.mark.covers("files-4")
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "fchmod"])
def test_a_failed_write_keeps_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        status, message = refusal(file)
    assert (status, message) == (500, f"cannot write {file}: no space left on device")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["f"]


def test_partial_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write

    def three_at_most(fd: int, data: memoryview) -> int:
        return whole(fd, data[:3])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", three_at_most)
        write_file(str(tmp_path / "f"), b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"0123456789"


def test_a_name_of_maximum_length_is_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "é" * 127):
        write_file(str(tmp_path / name), b"x")
        assert (tmp_path / name).read_bytes() == b"x"
    assert refusal(tmp_path / ("n" * 256))[0] == 400


def test_an_open_reader_keeps_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    with file.open("rb") as reader:
        write_file(str(file), b"new")
        assert reader.read() == b"old"
