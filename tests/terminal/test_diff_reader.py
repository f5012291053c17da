"""The reader of diffs, on what git prints for everything that can change."""

import subprocess
from pathlib import Path

import pytest

from chatd.terminal.screens.git_diff import FileDiff, parse_git_diff, unquote_name

LINES = [f"line {number}" for number in range(1, 41)]


def _git(root: Path, *words: str) -> str:
    identity = ("-c", "user.name=dev", "-c", "user.email=dev@localhost")
    found = subprocess.run(
        ["git", "-C", str(root), *identity, *words],
        check=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    return found.stdout.decode(errors="replace")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDiff]:
    root = tmp_path_factory.mktemp("repository")
    whole = "\n".join(LINES) + "\n"
    before = {
        "changed.py": whole,
        "moved.txt": whole,
        "old name.txt": whole,
        "gone.txt": "a\nb\n",
        "script.sh": "echo hi\n",
        "end.txt": "one\ntwo",
        "image.bin": "\0\1\2",
        "grüße\t.txt": "before\n",
        "tricky.txt": "-- old\n++ new\n",
        "dos.txt": "one\r\ntwo\r\n",
    }
    edited = [*LINES[:1], "line two", *LINES[2:30], "line thirty-one", "one more", *LINES[31:]]
    after = {
        "changed.py": "\n".join(edited) + "\n",
        "end.txt": "one\ntwo\nthree",
        "image.bin": "\0\t\2",
        "grüße\t.txt": "after\n",
        "tricky.txt": "@@ -1 +1 @@\ndiff --git a/x b/x\n",
        "dos.txt": "one\r\n2\r\n",
        "empty.txt": "",
        "fresh.txt": "only\n",
        "new name.txt": whole + "more\n",
    }
    _git(root, "init", "-q")
    for name, text in before.items():
        (root / name).write_text(text, newline="")
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "first")
    (root / "moved.txt").rename(root / "moved2.txt")
    (root / "old name.txt").unlink()
    (root / "gone.txt").unlink()
    (root / "script.sh").chmod(0o755)
    for name, text in after.items():
        (root / name).write_text(text, newline="")
    _git(root, "add", "-A")
    text = _git(root, "diff", "--cached", "-M", "--no-color", "HEAD")
    return {file.path: file for file in parse_git_diff(text).files}


def test_every_file_is_there_once(files: dict[str, FileDiff]) -> None:
    fresh = {"moved2.txt", "new name.txt", "empty.txt", "fresh.txt"}
    known = {"changed.py", "gone.txt", "script.sh", "end.txt", "image.bin", "tricky.txt", "dos.txt"}
    assert set(files) == fresh | known | {"grüße\t.txt"}


@pytest.mark.parametrize(
    ("name", "kind", "added", "removed", "old_path"),
    [
        ("changed.py", "changed", 3, 2, ""),
        ("moved2.txt", "renamed", 0, 0, "moved.txt"),
        ("new name.txt", "renamed", 1, 0, "old name.txt"),
        ("gone.txt", "deleted", 0, 2, ""),
        ("fresh.txt", "added", 1, 0, ""),
        ("empty.txt", "added", 0, 0, ""),
        ("end.txt", "changed", 2, 1, ""),
        ("tricky.txt", "changed", 2, 2, ""),
        ("grüße\t.txt", "changed", 1, 1, ""),
    ],
)
def test_a_file_has_its_kind_and_its_counts(
    files: dict[str, FileDiff], name: str, kind: str, added: int, removed: int, old_path: str
) -> None:
    file = files[name]
    assert (file.kind, file.added, file.removed, file.old_path) == (kind, added, removed, old_path)


def test_lines_have_their_numbers_on_both_sides(files: dict[str, FileDiff]) -> None:
    first, second = files["changed.py"].hunks
    assert [(one.kind, one.old, one.new) for one in first.lines[:3]] == [
        ("context", 1, 1),
        ("del", 2, None),
        ("add", None, 2),
    ]
    assert (second.lines[-1].old, second.lines[-1].new) == (34, 35)
    assert [one.text for one in files["dos.txt"].hunks[0].lines] == ["one", "two", "2"]


def test_modes_and_binary_files_are_said(files: dict[str, FileDiff]) -> None:
    assert files["script.sh"].modes == ("100644", "100755")
    assert files["image.bin"].is_binary


def test_text_that_is_no_diff_is_a_note() -> None:
    assert parse_git_diff("The diff is too large.\n").note == "The diff is too large."
    assert parse_git_diff("").files == ()


def test_a_diff_that_is_cut_off_or_lies_about_its_length_is_read_as_far_as_it_goes() -> None:
    cut = "--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-a\n+b"
    (file,) = parse_git_diff(cut).files
    assert (file.added, file.removed) == (1, 1)
    (conflict,) = parse_git_diff("diff --cc a.py\nindex 1,2..3\n@@@ -1 -1 +1 @@@\n").files
    assert conflict.kind == "conflict"


def test_names_are_unquoted() -> None:
    assert unquote_name('"gr\\303\\274\\303\\237e\\t\\"\\\\"') == 'grüße\t"\\'
    assert unquote_name('"\\377"') == "\ufffd"
