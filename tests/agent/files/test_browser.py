"""Directories and files for a person: order, limits, and no way out of the home directory."""

import os
import socket
from pathlib import Path
from typing import cast

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.files import file_routes
from chatd.agent.files.file_routes import browse_directory, read_piece

Entry = dict[str, object]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    (tmp_path / "secret").write_text("not yours")
    (tmp_path / "home-of-another").mkdir()
    return made


def entries(home: Path, path: str = "") -> dict[str, Entry]:
    listed = cast("list[Entry]", browse_directory(str(home), path)["entries"])
    return {str(each["name"]): each for each in listed}


def refusal(home: Path, path: str) -> AgentError:
    with pytest.raises(AgentError) as refused:
        read_piece(str(home), path, offset=0, limit=10)
    return refused.value


def test_a_directory_lists_directories_first_with_kinds_and_sizes(home: Path) -> None:
    (home / "b.txt").write_text("hello")
    (home / "zeta").mkdir()
    (home / "a link").symlink_to("b.txt")
    os.mkfifo(home / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "sock"))
    found = browse_directory(str(home), "", directory=str(home / "zeta"))
    assert (found["path"], found["home"], found["is_cut"]) == (str(home), str(home), False)
    assert found["directory"] == str(home / "zeta")
    listed = cast("list[Entry]", found["entries"])
    assert [each["name"] for each in listed] == ["zeta", "a link", "b.txt", "pipe", "sock"]
    assert [each["kind"] for each in listed] == ["directory", "link", "file", "other", "other"]
    assert listed[2]["size_bytes"] == 5
    assert (listed[1]["target"], listed[1]["target_kind"]) == ("b.txt", "file")
    assert (listed[3]["detail"], listed[4]["detail"]) == ("named pipe", "socket")


@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/passwd", "a/../../secret", "../home-of-another", "out", "out/passwd", "up"],
)
def test_no_path_and_no_link_leads_out_of_the_home_directory(home: Path, path: str) -> None:
    (home / "a").mkdir()
    (home / "out").symlink_to("/etc")
    (home / "up").symlink_to("../secret")
    assert (refusal(home, path).status, refusal(home, path).code) == (403, "outside_workspace")
    with pytest.raises(AgentError) as refused:
        browse_directory(str(home), path)
    assert refused.value.code == "outside_workspace"
    shown = entries(home)
    assert shown["out"]["kind"] == "link"
    assert (shown["out"]["target"], shown["out"]["target_kind"]) == ("/etc", None)


def test_links_inside_the_home_directory_are_followed(home: Path) -> None:
    (home / "real").mkdir()
    (home / "real" / "f").write_text("inside")
    (home / "relative").symlink_to("real")
    (home / "absolute").symlink_to(home / "real" / "f")
    assert read_piece(str(home), "relative/f", offset=0, limit=10)[1] == b"inside"
    facts, content = read_piece(str(home), str(home / "absolute"), offset=2, limit=3)
    assert (content, facts["path"], facts["size"]) == (b"sid", str(home / "real" / "f"), 6)
    assert entries(home)["relative"]["target_kind"] == "directory"
    assert list(entries(home, "relative")) == ["f"]


def test_a_link_put_in_between_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command replaces a directory by a link after the path was checked."""
    (home / "d").mkdir()
    (home / "d" / "passwd").write_text("mine")
    check = file_routes.resolve_inside

    def resolve_then_swap(base: str, path: str) -> str:
        found = check(base, path)
        (home / "d" / "passwd").unlink()
        (home / "d").rmdir()
        (home / "d").symlink_to("/etc")
        return found

    monkeypatch.setattr(file_routes, "resolve_inside", resolve_then_swap)
    with pytest.raises(AgentError) as refused:
        read_piece(str(home), "d/passwd", offset=0, limit=10)
    assert refused.value.status in (400, 409)


def test_pipes_and_directories_are_not_read_as_files(home: Path) -> None:
    os.mkfifo(home / "pipe")
    assert (refusal(home, "pipe").status, "named pipe" in refusal(home, "pipe").message) == (
        400,
        True,
    )
    assert "is a directory" in refusal(home, "").message
    assert refusal(home, "nothing").status == 404
    assert refusal(home, "a\0b").status == 400
    (home / "loop").symlink_to("loop")
    assert refusal(home, "loop").status == 400


def test_a_large_directory_is_cut_with_a_mark(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        (home / f"{number:02}").touch()
    monkeypatch.setattr(file_routes, "MAX_LISTED_ENTRIES", 10)
    found = browse_directory(str(home), "")
    assert (len(cast("list[Entry]", found["entries"])), found["is_cut"]) == (10, True)
    monkeypatch.setattr(file_routes, "MAX_LISTING_BYTES", 700)
    assert (len(entries(home)), browse_directory(str(home), "")["is_cut"]) == (3, True)
    monkeypatch.undo()
    monkeypatch.setattr(file_routes, "MAX_SCANNED_ENTRIES", 5)
    assert (len(entries(home)), browse_directory(str(home), "")["is_cut"]) == (5, True)


def test_a_piece_has_the_size_and_a_version_that_changes_with_the_file(home: Path) -> None:
    file = home / "f"
    file.write_bytes(b"x" * (file_routes.MAX_PIECE_BYTES + 5))
    facts, content = read_piece(str(home), "f", offset=0, limit=1 << 40)
    assert (len(content), facts["size"]) == (
        file_routes.MAX_PIECE_BYTES,
        file_routes.MAX_PIECE_BYTES + 5,
    )
    assert read_piece(str(home), "f", offset=file_routes.MAX_PIECE_BYTES, limit=10)[1] == b"xxxxx"
    file.write_bytes(b"new")
    assert read_piece(str(home), "f", offset=0, limit=1)[0]["version"] != facts["version"]


def test_times_that_no_calendar_has_are_left_out(home: Path) -> None:
    (home / "far").touch()
    os.utime(home / "far", (2**40, 2**40))
    entry = entries(home)["far"]
    assert entry["kind"] == "file"
