"""Edits of several files: computed in memory, then written in one rename each."""

import errno
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.files import file_editor
from chatd.agent.files.file_editor import EditSpec, FileEditSpec, edit_files
from tests.agent.unprivileged import denied_without_privileges, shared_directory


def edit_spec(path: Path | str, *pairs: tuple[str, str]) -> FileEditSpec:
    return FileEditSpec(path=str(path), edits=[EditSpec(search=a, replace=b) for a, b in pairs])


def refusal(*files: FileEditSpec) -> tuple[int, str]:
    with pytest.raises(AgentError) as refused:
        edit_files(files, include_diff=True)
    return refused.value.status, refused.value.message


def write_files(directory: Path, **contents: str) -> list[Path]:
    for name, content in contents.items():
        (directory / name).write_text(content, newline="")
    return [directory / name for name in contents]


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


@pytest.mark.covers("files-6")
def test_each_edit_applies_to_the_result_of_the_previous_one(tmp_path: Path) -> None:
    (file,) = write_files(tmp_path, a="one\n")
    diffs = edit_files([edit_spec(file, ("one", "two"), ("two", "three"))], include_diff=False)
    assert file.read_text() == "three\n"
    assert diffs == [{"path": str(file), "diff": ""}]
    assert names(tmp_path) == ["a"]


@pytest.mark.covers("files-6")
def test_diffs_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    b, a = write_files(tmp_path, b="x\n", a="y\n")
    (tmp_path / "link").symlink_to("a")
    link = tmp_path / "link"
    assert edit_files(
        [edit_spec(b, ("x", "z")), edit_spec(link, ("y", "y"))], include_diff=True
    ) == [
        {"path": str(b), "diff": f"--- {b}\n+++ {b}\n@@ -1 +1 @@\n-x\n+z\n"},
        {"path": str(link), "diff": ""},
    ]
    (diff,) = edit_files([edit_spec(link, ("y", "w"))], include_diff=True)
    assert diff["diff"].startswith(f"--- {link}\n+++ {link}\n")
    assert a.read_text() == "w\n"
    assert link.is_symlink()


def test_an_edit_without_a_change_does_not_write_the_file(tmp_path: Path) -> None:
    (file,) = write_files(tmp_path, a="x\n")
    before = file.stat()
    edit_files([edit_spec(file, ("x", "x"))], include_diff=True)
    assert file.stat() == before


@pytest.mark.covers("files-5")
def test_all_invalid_fields_are_reported_at_once(tmp_path: Path) -> None:
    assert refusal() == (
        400,
        "files is required and must not be empty\nnothing in this batch was applied",
    )
    status, message = refusal(
        edit_spec("", ("a", "b")),
        edit_spec("rel", ("a", "b")),
        FileEditSpec(path="/x", edits=()),
        edit_spec("/y", ("a", "b"), ("", "c"), ("\ud800", "")),
    )
    assert status == 400
    assert message.splitlines() == [
        "files[0]: path is required",
        "files[1]: path must be absolute, got 'rel'",
        "files[2].edits is required and must not be empty (/x)",
        "files[3].edits[1]: the text to find is empty; to create a new file use write_file",
        "files[3].edits[2]: the text is not valid Unicode",
        "nothing in this batch was applied",
    ]


@pytest.mark.covers("files-9")
def test_one_failing_file_prevents_all_writes_and_errors_are_joined(tmp_path: Path) -> None:
    good, bad = write_files(tmp_path, good="a\n", bad="a\nb\n")
    os.mkfifo(tmp_path / "pipe")
    status, message = refusal(
        edit_spec(good, ("a", "b")),
        edit_spec(bad, ("nope", ""), ("a", "x"), ("neither", "")),
        edit_spec(tmp_path / "missing", ("a", "b")),
        edit_spec(tmp_path, ("a", "b")),
        edit_spec(tmp_path / "pipe", ("a", "b")),
    )
    assert status == 404
    lines = message.splitlines()
    assert lines[0].startswith(f"{bad}: edit 1 of 3: the text to find was not found")
    assert lines[1].startswith(f"{bad}: edit 3 of 3: the text to find was not found")
    assert lines[2].endswith("no such file or directory")
    assert lines[3].endswith("is a directory, not a file")
    assert "named pipe" in lines[4]
    assert lines[5] == "nothing in this batch was applied"
    assert good.read_text() == "a\n"
    assert bad.read_text() == "a\nb\n"


def test_a_long_list_of_errors_is_clipped(tmp_path: Path) -> None:
    _, message = refusal(*(edit_spec(f"/no/{number}", ("a", "b")) for number in range(50)))
    assert len(message.splitlines()) == 22
    assert "and 30 more" in message


def test_entries_for_one_path_are_merged_in_order(tmp_path: Path) -> None:
    one, two = write_files(tmp_path, one="a\n", two="x\n")
    diffs = edit_files(
        [edit_spec(one, ("a", "b")), edit_spec(two, ("x", "y")), edit_spec(f" {one} ", ("b", "c"))],
        include_diff=True,
    )
    assert [each["path"] for each in diffs] == [str(one), str(two)]
    assert one.read_text() == "c\n"


@pytest.mark.parametrize("kind", ["symlink", "hard link", "dots", "directory link"])
def test_two_paths_to_one_file_are_refused(tmp_path: Path, kind: str) -> None:
    (file,) = write_files(tmp_path, file="a\n")
    other = str(tmp_path / "other")
    if kind == "symlink":
        os.symlink("file", other)
    elif kind == "hard link":
        os.link(file, other)
    elif kind == "dots":
        other = f"{tmp_path}/./file"
    else:
        os.symlink(".", other)
        other += "/file"
    status, message = refusal(edit_spec(file, ("a", "b")), edit_spec(other, ("a", "c")))
    assert status == 400
    assert "are the same file" in message
    assert file.read_text() == "a\n"


@pytest.mark.covers("files-9")
def test_the_mode_and_invalid_utf8_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"\xff\xfe a \x80\r\n\x00b\r\n")
    file.chmod(0o751)
    (diff,) = edit_files([edit_spec(file, ("a", "é"), ("b\n", "c\n"))], include_diff=True)
    assert file.read_bytes() == b"\xff\xfe \xc3\xa9 \x80\r\n\x00c\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o751
    diff["diff"].encode("utf-8")


@pytest.mark.covers("files-5")
def test_editing_a_file_without_write_permission_is_forbidden() -> None:
    with shared_directory() as shared:
        shared.chmod(0o777)
        (file,) = write_files(shared, f="a\n")
        file.chmod(0o444)
        denied = denied_without_privileges(
            lambda: edit_files([edit_spec(file, ("a", "b"))], include_diff=False)
        )
    assert denied is not None
    assert denied.status == 403


def test_files_over_the_size_limits_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, large = write_files(tmp_path, one="a" * 10, two="b" * 10, large="c" * 21)
    monkeypatch.setattr(file_editor, "MAX_EDITED_FILE_BYTES", 20)
    monkeypatch.setattr(file_editor, "MAX_EDITED_BYTES", 15)
    assert refusal(edit_spec(large, ("c", "d")))[0] == 413
    status, message = refusal(edit_spec(one, ("a", "x")), edit_spec(two, ("b", "x")))
    assert status == 413
    assert f"{two} is too large" in message


def test_too_many_edits_are_refused(tmp_path: Path) -> None:
    (file,) = write_files(tmp_path, f="a")
    status, message = refusal(edit_spec(file, *[("a", "a")] * 1001))
    assert (status, "at most" in message) == (400, True)


@pytest.mark.covers("files-5")
def test_an_error_after_the_first_write_names_the_written_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = write_files(tmp_path, one="a\n", two="a\n", three="a\n")
    rename = os.replace

    def fails_on_two(source: str, target: str) -> None:
        if target == str(two):
            raise OSError(errno.EIO, "broken")
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fails_on_two)
        status, message = refusal(*(edit_spec(each, ("a", "b")) for each in (one, two, three)))
    assert status == 500
    assert f"already written: {one}; not written: {two} and the files after it" in message
    assert [each.read_text() for each in (one, two, three)] == ["b\n", "a\n", "a\n"]
    assert names(tmp_path) == ["one", "three", "two"]


def write_before_each_stat(
    monkeypatch: pytest.MonkeyPatch, file: Path, contents: Iterator[str]
) -> None:
    """Write the next content to the file before each stat by the editor."""
    stat_target = file_editor.stat_target

    def write_first(target: str) -> os.stat_result | None:
        for content in islice(contents, 1):
            file.write_text(content)
        return stat_target(target)

    monkeypatch.setattr(file_editor, "stat_target", write_first)


def test_a_file_changed_during_the_edit_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = write_files(tmp_path, f="a\nb\n")
    write_before_each_stat(monkeypatch, file, iter(["a\nb\nlonger\n", "a\nb\nlonger yet\n"]))
    edit_files([edit_spec(file, ("b", "x"))], include_diff=False)
    assert file.read_text() == "a\nx\nlonger yet\n"


def test_an_edit_that_no_longer_applies_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = write_files(tmp_path, f="a\nb\n")
    write_before_each_stat(monkeypatch, file, iter(["something else\n"]))
    status, message = refusal(edit_spec(file, ("b", "x")))
    assert (status, "not found" in message) == (400, True)
    assert file.read_text() == "something else\n"


def test_an_edit_that_no_longer_applies_says_what_was_written_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = write_files(tmp_path, one="a\n", two="a\n")
    write_before_each_stat(monkeypatch, two, iter(["a\n", "something else\n"]))
    _, message = refusal(edit_spec(one, ("a", "b")), edit_spec(two, ("a", "b")))
    assert f"already written: {one}; not written: {two}" in message
    assert "nothing in this batch" not in message
    assert (one.read_text(), two.read_text()) == ("b\n", "something else\n")


def test_an_edit_of_a_file_that_keeps_changing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = write_files(tmp_path, f="a\n")
    write_before_each_stat(monkeypatch, file, (f"a\n{'x' * number}" for number in range(100)))
    status, message = refusal(edit_spec(file, ("a", "x")))
    assert (status, "kept changing" in message) == (409, True)
    assert file.read_text().startswith("a\n")


def test_concurrent_edits_of_one_file_are_all_applied(tmp_path: Path) -> None:
    (file,) = write_files(tmp_path, f="".join(f"<{number}>\n" for number in range(16)))

    def one(number: int) -> None:
        edit_files([edit_spec(file, (f"<{number}>", f"[{number}]"))], include_diff=False)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(16)))
    assert file.read_text() == "".join(f"[{number}]\n" for number in range(16))
