"""Archives of a workspace's files: what is packed, and that a hostile one does no harm."""

import io
import os
import socket
import stat
import tarfile
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.files.archive_pack import ArchiveLimits, pack, survey
from chatd.agent.files.archive_routes import ArchivePlace, find_place
from chatd.agent.files.archive_unpack import Unpacking, UnpackResult, leads_out

LIMITS = ArchiveLimits()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def packed(home: Path, limits: ArchiveLimits = LIMITS, *, compress: bool = False) -> bytes:
    return b"".join(pack(ArchivePlace(str(home), str(home)).open, limits, compress=compress))


def unpack(
    target: Path,
    content: bytes,
    limits: ArchiveLimits = LIMITS,
    *,
    piece: int = 700,
    keeps_links: bool = False,
) -> UnpackResult:
    target.mkdir(exist_ok=True)
    unpacking = Unpacking(
        lambda: os.open(target, os.O_RDONLY | os.O_DIRECTORY), limits, keeps_links=keeps_links
    )
    result: UnpackResult | None = None
    for start in range(0, max(len(content), 1), piece):
        is_last = start + piece >= len(content)
        result = unpacking.take(start, content[start : start + piece], is_last=is_last)
    assert result is not None
    return result


def member(name: str, kind: bytes = tarfile.REGTYPE, **more: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for key, value in more.items():
        setattr(made, key, value)
    return made


def archive(*members: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Each file has as many letters as its size says."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for each in members:
            made.addfile(each, io.BytesIO(b"x" * each.size))
    return out.getvalue()


def names_below(place: Path) -> set[str]:
    return {str(each.relative_to(place)) for each in place.rglob("*")}


@pytest.mark.parametrize("compress", [False, True])
def test_a_directory_comes_back_as_it_was(home: Path, tmp_path: Path, *, compress: bool) -> None:
    long_name = "n" * 200
    (home / "src" / "deep").mkdir(parents=True)
    (home / "src" / "run.sh").write_text("echo hä")
    (home / "src" / "run.sh").chmod(0o4755)
    (home / "src" / "deep" / long_name).write_bytes(os.urandom(300_000))
    (home / "empty").touch()
    os.utime(home / "empty", (1_600_000_000, 1_600_000_000))
    (home / "link").symlink_to("src/run.sh")
    (home / "nothing").symlink_to("gone")
    os.mkdir(os.fsencode(home) + b"/not-utf8-\xff")
    target = tmp_path / "copy"
    result = unpack(target, packed(home, compress=compress))
    assert names_below(target) == names_below(home)
    assert (target / "src/deep" / long_name).read_bytes() == (
        home / "src/deep" / long_name
    ).read_bytes()
    assert (target / "src/run.sh").read_text() == "echo hä"
    assert stat.S_IMODE((target / "src/run.sh").stat().st_mode) == 0o755, "without setuid"
    assert (target / "empty").stat().st_mtime == 1_600_000_000
    assert os.readlink(target / "link") == "src/run.sh"
    assert (result.files, result.links, result.directories, result.skipped) == (3, 2, 3, 0)


def test_special_files_are_counted_and_unreadable_ones_are_named(home: Path) -> None:
    os.mkfifo(home / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "sock"))
    (home / "file").write_text("12345")
    deep = "/".join(["d" * 250] * 17)
    fd = os.open(home, os.O_RDONLY)
    for part in deep.split("/"):
        os.mkdir(part, dir_fd=fd)
        fd, before = os.open(part, os.O_RDONLY, dir_fd=fd), fd
        os.close(before)
    os.close(fd)
    count = survey(ArchivePlace(str(home), str(home)).open, LIMITS)
    assert (count.files, count.size, count.skipped) == (1, 5, 2)
    assert [len(name) > 4000 for name in count.unreadable] == [True], "no path may be so long"
    with tarfile.open(fileobj=io.BytesIO(packed(home))) as made:
        assert {"file"} == {each.name for each in made if not each.isdir()}


@pytest.mark.parametrize(
    ("limits", "says"),
    [(ArchiveLimits(max_bytes=9), "larger"), (ArchiveLimits(max_entries=1), "entries")],
)
def test_an_archive_has_limits_in_both_directions(
    home: Path, tmp_path: Path, limits: ArchiveLimits, says: str
) -> None:
    for name in ("a", "b"):
        (home / name).write_text("12345")
    source = ArchivePlace(str(home), str(home)).open
    whole = packed(home)
    for work in (
        lambda: survey(source, limits),
        lambda: packed(home, limits),
        lambda: unpack(tmp_path / "copy", whole, limits),
    ):
        with pytest.raises(AgentError, match=says) as refused:
            work()
        assert (refused.value.status, refused.value.code) == (413, "archive_too_large")


def test_a_bomb_of_gzip_is_refused_when_its_size_is_announced(tmp_path: Path, home: Path) -> None:
    (home / "zeros").write_bytes(bytes(1 << 20))
    whole = packed(home, compress=True)
    assert len(whole) < 10_000
    with pytest.raises(AgentError, match="larger"):
        unpack(tmp_path / "copy", whole, ArchiveLimits(max_bytes=1000))
    assert names_below(tmp_path / "copy") == set()


def test_a_file_that_gets_shorter_while_it_is_packed_is_an_error(home: Path) -> None:
    (home / "log").write_bytes(bytes(400_000))
    pieces = pack(ArchivePlace(str(home), str(home)).open, LIMITS, compress=False)
    next(pieces)
    (home / "log").write_bytes(b"")
    with pytest.raises(AgentError, match="shorter"):
        list(pieces)


@pytest.mark.parametrize("path", ["..", "../secret", "/etc", "out"])
def test_only_the_home_and_the_working_directory_are_packed(home: Path, path: str) -> None:
    (home / "out").symlink_to("/etc")
    with pytest.raises(AgentError) as refused:
        find_place(str(home), str(home), path)
    assert refused.value.code == "outside_workspace"


def test_a_working_directory_elsewhere_is_packed_by_its_absolute_path(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "work" / "a").mkdir(parents=True)
    found = find_place(str(home), str(tmp_path / "work"), str(tmp_path / "work" / "a"))
    assert found == ArchivePlace(str(tmp_path / "work"), str(tmp_path / "work" / "a"))


HOSTILE = {
    "an absolute path": [member("/etc/evil", size=1)],
    "a path with ..": [member("a/../../evil", size=1)],
    "a directory with ..": [member("../evil", tarfile.DIRTYPE)],
    "an absolute path in a long header": [member("/" + "e" * 200, size=1)],
    "a file through a link of the archive": [
        member("out", tarfile.SYMTYPE, linkname=".."),
        member("inside", tarfile.SYMTYPE, linkname="."),
        member("inside/evil", size=1),
    ],
    "a directory over a link": [
        member("inside", tarfile.SYMTYPE, linkname="."),
        member("inside", tarfile.DIRTYPE),
    ],
    "a hard link with ..": [member("evil", tarfile.LNKTYPE, linkname="../secret")],
    "an absolute hard link": [member("evil", tarfile.LNKTYPE, linkname="/etc/passwd")],
    "a hard link to a link": [
        member("link", tarfile.SYMTYPE, linkname="gone"),
        member("evil", tarfile.LNKTYPE, linkname="link"),
    ],
    "a file over a directory": [member("d", tarfile.DIRTYPE), member("d", size=1)],
    "a file without a name": [member(".", size=1)],
}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_writes_nothing_elsewhere(
    tmp_path: Path, name: str, form: int
) -> None:
    (tmp_path / "secret").write_text("not yours")
    target = tmp_path / "target"
    with pytest.raises(AgentError) as refused:
        unpack(target, archive(*HOSTILE[name], form=form), keeps_links=True)
    assert refused.value.status < 500 or "directory" in refused.value.message
    assert names_below(tmp_path) - {f"target/{each}" for each in names_below(target)} == {
        "secret",
        "target",
    }
    assert not [each for each in names_below(target) if "evil" in each or "unpack" in each]


def test_devices_and_links_that_lead_out_are_left_out(tmp_path: Path) -> None:
    content = archive(
        member("null", tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("disk", tarfile.BLKTYPE),
        member("pipe", tarfile.FIFOTYPE),
        member("absolute", tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("a/up", tarfile.SYMTYPE, linkname="../../x"),
        member("a/inside", tarfile.SYMTYPE, linkname="../b"),
        member("last", size=3),
    )
    result = unpack(tmp_path / "one", content)
    assert (result.skipped, result.left_out) == (3, ["absolute", "a/up"])
    assert names_below(tmp_path / "one") == {"a", "a/inside", "last"}
    assert unpack(tmp_path / "two", content, keeps_links=True).left_out == []
    assert os.readlink(tmp_path / "two" / "absolute") == "/etc/passwd"


@pytest.mark.parametrize(
    ("place", "target", "expected"),
    [
        ("a", "b", False),
        ("a", ".", False),
        ("a", "..", True),
        ("a/b", "..", False),
        ("a/b", "../../c", True),
        ("a/b", "x/../../../a", True),
        ("a", "/", True),
        ("a", "./b/../c", False),
    ],
)
def test_where_a_link_leads(place: str, target: str, *, expected: bool) -> None:
    assert leads_out(place.split("/"), target) is expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a tar" * 200,
        archive(member("a", size=5))[:600],
        archive(member("a", size=600))[:1024],
        archive(member("a", size=5))[:1024],
        b"\x1f\x8b" + b"\0" * 1000,
    ],
    ids=["nothing", "text", "in a header", "in a file", "without its end", "broken gzip"],
)
def test_a_damaged_archive_is_refused_and_leaves_no_half_written_file(
    tmp_path: Path, content: bytes
) -> None:
    with pytest.raises(AgentError) as refused:
        unpack(tmp_path / "target", content)
    assert refused.value.code == "bad_archive"
    assert names_below(tmp_path / "target") <= {"a"}
    if "a" in names_below(tmp_path / "target"):
        assert (tmp_path / "target" / "a").read_bytes() == b"xxxxx", "whole, or not there"


def test_files_are_replaced_whole_and_hard_links_stay_together(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "a").write_text("before")
    (target / "kept").write_text("kept")
    twice = member("b", tarfile.LNKTYPE, linkname="a")
    result = unpack(target, archive(member("a", size=3), twice, twice))
    assert (target / "a").read_text() == (target / "b").read_text() == "xxx"
    assert (target / "a").stat().st_nlink == 2
    assert (result.files, result.links) == (1, 2)
    assert names_below(target) == {"a", "b", "kept"}


def test_a_repeated_piece_changes_nothing_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    content = archive(member("a", size=2000))
    unpacking = Unpacking(lambda: os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), LIMITS)
    for _ in range(2):
        assert unpacking.take(0, content[:1000], is_last=False) is None
    for wrong in (999, 1001, 0):
        with pytest.raises(AgentError) as refused:
            unpacking.take(wrong, content[1000:], is_last=True)
        assert refused.value.code == "wrong_offset"
    first = unpacking.take(1000, content[1000:], is_last=True)
    assert first is not None
    assert unpacking.take(1000, content[1000:], is_last=True) == first
    assert (tmp_path / "a").read_bytes() == b"x" * 2000


def test_an_aborted_transfer_removes_what_is_half_written(tmp_path: Path) -> None:
    content = archive(member("a", size=2000))
    unpacking = Unpacking(lambda: os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), LIMITS)
    unpacking.take(0, content[:1000], is_last=False)
    assert len(names_below(tmp_path)) == 1
    unpacking.abort(AgentError(409, "given up"))
    assert names_below(tmp_path) == set()
    with pytest.raises(AgentError, match="given up"):
        unpacking.take(1000, content[1000:], is_last=True)
