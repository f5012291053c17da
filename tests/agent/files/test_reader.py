"""Reading files as bytes and as numbered lines, and the limits."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.files import file_content
from chatd.agent.files.file_content import read_file, read_lines
from tests.agent.unprivileged import Denied, denied_without_privileges


@pytest.mark.covers("files-1", "files-11")
@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("", 400, "path is required"),
        ("   ", 400, "path is required"),
        ("a/b", 400, "must be absolute"),
        ("/no/such/file", 404, "cannot read /no/such/file: no such file"),
        ("/tmp", 400, "is a directory"),
        ("/tmp/a\0b", 400, "NUL"),
        ("/" + "x" * 5000, 400, "longer than"),
        ("/tmp/\ud800", 400, "cannot be a file name"),
        ("/dev/zero", 400, "is a device"),
    ],
)
@pytest.mark.parametrize("read", [read_file, read_lines])
def test_an_unreadable_path_is_refused_with_the_reason(
    read: Callable[[str], object], path: str, status: int, text: str
) -> None:
    with pytest.raises(AgentError) as refused:
        read(path)
    assert refused.value.status == status
    assert text in refused.value.message


@pytest.mark.parametrize("read", [read_file, read_lines])
def test_a_pipe_and_a_socket_are_refused_without_waiting(
    tmp_path: Path, read: Callable[[str], object]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AgentError, match="named pipe"):
        read(str(tmp_path / "pipe"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        with pytest.raises(AgentError, match="socket"):
            read(str(tmp_path / "s"))


@pytest.mark.covers("files-1")
@pytest.mark.parametrize("read", [read_file, read_lines])
def test_reading_without_permission_is_forbidden(
    shared: Path, read: Callable[[str], object]
) -> None:
    secret = shared / "secret"
    secret.write_text("x")
    secret.chmod(0)
    assert denied_without_privileges(lambda: read(str(secret))) == Denied(
        403, f"cannot read {secret}: permission denied"
    )


@pytest.mark.covers("files-2")
@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [
        (0, 0, b"0123456789"),
        (0, 4, b"0123"),
        (7, 0, b"789"),
        (2, 3, b"234"),
        (0, 100, b"0123456789"),
        (10, 0, b""),
        (11, 5, b""),
    ],
)
def test_offset_and_limit_select_bytes(
    tmp_path: Path, offset: int, limit: int, expected: bytes
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    assert read_file(str(tmp_path / "f"), offset=offset, limit=limit)[0] == expected


@pytest.mark.covers("files-2")
@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("a.png", "image/png"),
        ("a.html", "text/html"),
        ("a", "application/octet-stream"),
        ("a.html.gz", "application/octet-stream"),
    ],
)
def test_the_mime_type_comes_from_the_name(tmp_path: Path, name: str, mime: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert read_file(str(tmp_path / name)) == (b"", mime)


@pytest.mark.covers("files-1")
@pytest.mark.parametrize("field", ["offset", "limit"])
@pytest.mark.parametrize("read", [read_file, read_lines])
def test_negative_numbers_are_refused(read: Callable[..., object], field: str) -> None:
    with pytest.raises(AgentError, match=f"{field} must not be negative") as refused:
        read("/etc/passwd", **{field: -1})
    assert refused.value.status == 400


def test_an_offset_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(AgentError, match="too large"):
        read_file(str(tmp_path / "f"), offset=1 << 70)


def test_a_huge_file_can_be_read_in_parts(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 1 << 40)
    with pytest.raises(AgentError, match="offset and limit") as refused:
        read_file(str(huge))
    assert refused.value.status == 413
    assert read_file(str(huge), offset=1 << 39, limit=5)[0] == bytes(5)
    found = read_lines(str(huge))
    assert str(found["content"]).startswith("1\t\x00")
    assert len(str(found["content"])) < 2000


def test_a_proc_file_with_size_zero_is_read() -> None:
    content = read_lines("/proc/self/status")["content"]
    assert isinstance(content, str)
    assert content.startswith("1\tName:")
    assert read_file("/proc/self/status")[0].startswith(b"Name:")


def lines(tmp_path: Path, content: bytes, **options: int) -> dict[str, object]:
    (tmp_path / "f").write_bytes(content)
    return read_lines(str(tmp_path / "f"), **options)


@pytest.mark.covers("files-11")
@pytest.mark.parametrize(
    ("content", "options", "expected", "total", "read"),
    [
        (b"", {}, "", 0, 0),
        (b"a", {}, "1\ta", 1, 1),
        (b"a\nb\n", {}, "1\ta\n2\tb\n3\t", 3, 3),
        (b"a\r\nb", {}, "1\ta\r\n2\tb", 2, 2),
        (b"a\rb\x0cc\xe2\x80\xa8d", {}, "1\ta\rb\x0cc\u2028d", 1, 1),
        (b"a\nb\nc", {"offset": 2}, "2\tb\n3\tc", 3, 2),
        (b"a\nb\nc", {"limit": 1}, "1\ta", 3, 1),
        (b"a\nb\nc", {"offset": 2, "limit": 1}, "2\tb", 3, 1),
        (b"a\nb\nc", {"offset": 0, "limit": 0}, "1\ta\n2\tb\n3\tc", 3, 3),
        (b"a\nb\nc", {"offset": 3, "limit": 9000}, "3\tc", 3, 1),
        (b"\xff\xfe", {}, "1\t\ufffd\ufffd", 1, 1),
        (b"abcdef", {"max_line_bytes": 4}, "1\tabcd... [line cut: 4 of 6 bytes shown]", 1, 1),
        (b"abcd", {"max_line_bytes": 4}, "1\tabcd", 1, 1),
        (
            "aé€x".encode(),
            {"max_line_bytes": 5},
            "1\taé... [line cut: 3 of 7 bytes shown]",
            1,
            1,
        ),
    ],
)
def test_lines_are_numbered(
    tmp_path: Path, content: bytes, options: dict[str, int], expected: str, total: int, read: int
) -> None:
    assert lines(tmp_path, content, **options) == {
        "content": expected,
        "file_size": len(content),
        "total_lines": total,
        "lines_read": read,
    }


@pytest.mark.covers("files-11")
def test_an_offset_past_the_end_reports_the_number_of_lines(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"offset 4 is beyond the end .* has 3 lines"):
        lines(tmp_path, b"a\nb\nc", offset=4)


def test_of_too_many_lines_the_first_page_comes_and_says_how_to_go_on(tmp_path: Path) -> None:
    found = lines(tmp_path, b"x\n" * 3000, offset=5, limit=2500)
    assert (found["lines_read"], found["total_lines"]) == (2000, 3001)
    assert found["next_offset"] == 2005
    assert str(found["note"]).startswith(
        "These are lines 5 to 2004 of 3001. Go on with offset=2005"
    )
    rest = lines(tmp_path, b"x\n" * 3000, offset=2005)
    assert (rest["lines_read"], rest.get("next_offset")) == (997, None)


def test_of_too_many_bytes_the_lines_that_fit_come_and_say_how_to_go_on(tmp_path: Path) -> None:
    content = b"\n".join(b"y" * 500 for _ in range(100))
    found = lines(tmp_path, content)
    assert (found["lines_read"], found["next_offset"]) == (65, 66)
    page = found["content"]
    assert isinstance(page, str)
    assert len(page) <= file_content.MAX_RESPONSE_BYTES
    assert "next_offset" not in lines(tmp_path, content, offset=1, limit=60), "all that was asked"


def test_a_large_file_is_read_by_the_page(tmp_path: Path) -> None:
    row = b"%07d " + b"z" * 92 + b"\n"
    content = b"".join(row % number for number in range(1, 30_001))
    assert len(content) > 2 << 20
    first, late = lines(tmp_path, content), lines(tmp_path, content, offset=25_000, limit=2)
    assert str(first["content"]).startswith("1\t0000001 z")
    assert (first["total_lines"], first["file_size"]) == (30_001, len(content))
    assert [line[:14] for line in str(late["content"]).split("\n")] == [
        "25000\t0025000 ",
        "25001\t0025001 ",
    ]


def test_a_line_longer_than_a_chunk_is_cut_and_its_size_told(tmp_path: Path) -> None:
    found = lines(tmp_path, b"a\n" + b"b" * (3 << 20) + b"\nc")
    assert str(found["content"]).split("\n")[2] == "3\tc"
    assert f"[line cut: 1024 of {3 << 20} bytes shown]" in str(found["content"])


def test_one_line_over_the_response_limit_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"line 1 of .* alone is too long"):
        lines(tmp_path, b"z" * 100, max_response_bytes=50)


@pytest.mark.covers("files-11")
def test_of_a_file_over_the_limit_only_the_beginning_can_be_read_by_line(tmp_path: Path) -> None:
    assert lines(tmp_path, b"a" * 10, max_file_size=10)["file_size"] == 10
    content = b"a\n" * 10
    found = lines(tmp_path, content, max_file_size=10)
    assert str(found["content"]).startswith("1\ta\n2\ta\n")
    with pytest.raises(AgentError, match="after its first 10 bytes") as refused:
        lines(tmp_path, content, offset=9, max_file_size=10)
    assert refused.value.status == 400
