"""`@path`: which files a text names, what is offered, and what cannot be attached."""

import os
from pathlib import Path

import pytest

from chatd.terminal.composer.completion import offer_files, wanted_path
from chatd.terminal.composer.local_files import (
    MAX_FILE_BYTES,
    MAX_SHOWN_NAMES,
    PathWord,
    check_file,
    complete_path,
    existing_mentions,
    mentions_of,
    path_word,
    resolve,
    write_mention,
)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("look at @src/app.py, please", ["src/app.py"]),
        ('@"my file.txt" and @~/x.png.', ["my file.txt", "~/x.png"]),
        ("mail ada@example.com", []),
        ("@a @a\n@b", ["a", "b"]),
        ("@ alone", []),
        ('@"" empty', []),
        ("(see @a.py)", ["a.py"]),
    ],
)
def test_a_text_names_files_after_an_at_sign(text: str, paths: list[str]) -> None:
    assert [one.path for one in mentions_of(text)] == paths
    assert all(one.word in text for one in mentions_of(text))


@pytest.mark.parametrize("path", ["a.py", "my file.txt", "odd.", "dir/ünï.txt", "x)"])
def test_a_written_mention_is_read_as_the_same_path(path: str) -> None:
    assert [one.path for one in mentions_of(f"see {write_mention(path)} now")] == [path]


@pytest.mark.parametrize(
    ("line", "column", "word"),
    [
        ("see @src/a", 10, PathWord(4, "src/a")),
        ("see @src/a", 6, PathWord(4, "s")),
        ("@", 1, PathWord(0, "")),
        ('@"my f', 6, PathWord(0, "my f")),
        ("ada@exam", 8, None),
        ("@a b", 4, None),
    ],
)
def test_the_word_before_the_cursor_is_completed(
    line: str, column: int, word: PathWord | None
) -> None:
    assert path_word(line, column) == word


def test_the_argument_of_attach_is_a_path_too() -> None:
    assert wanted_path("/attach my f", 12) == PathWord(8, "my f")
    assert wanted_path("/model @x", 9) is None


def test_directories_come_first_and_hidden_names_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "beta").mkdir()
    for name in ("Alpha.txt", ".hidden", "big file.txt"):
        (tmp_path / name).write_text("x")
    listed = complete_path("", tmp_path, tmp_path)
    assert [one.path for one in listed] == ["beta", "Alpha.txt", "big file.txt"]
    assert [one.path for one in complete_path("B", tmp_path, tmp_path)] == ["beta", "big file.txt"]
    assert [one.path for one in complete_path(".", tmp_path, tmp_path)] == [".hidden"]
    offers = offer_files(PathWord(0, ""), listed, is_mention=True)
    assert [one.insert for one in offers] == ["@beta/", "@Alpha.txt ", '@"big file.txt" ']


def test_a_path_below_a_directory_or_the_home_is_completed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("x")
    assert [one.path for one in complete_path("src/", tmp_path, Path("/"))] == ["src/app.py"]
    assert [one.path for one in complete_path("~/src/a", Path("/"), tmp_path)] == ["~/src/app.py"]
    assert complete_path("none/", tmp_path, tmp_path) == ()
    assert complete_path("\0/", tmp_path, tmp_path) == ()


def test_hostile_names_are_not_offered(tmp_path: Path) -> None:
    for name in ("a\x1b[2J", "a\nb", 'a"b', "a\u202egpj.exe", "a\u200bb", "a[bold]c"):
        (tmp_path / name).write_text("x")
    (tmp_path / os.fsdecode(b"a\xff")).write_text("x")
    assert [one.path for one in complete_path("a", tmp_path, tmp_path)] == ["a[bold]c"]


def test_a_directory_of_many_names_shows_the_first(tmp_path: Path) -> None:
    for number in range(MAX_SHOWN_NAMES + 10):
        (tmp_path / f"{number:03}").write_text("x")
    assert len(complete_path("", tmp_path, tmp_path)) == MAX_SHOWN_NAMES


def test_what_cannot_be_attached_says_why_without_being_opened(tmp_path: Path) -> None:
    fine, empty, large, pipe = (tmp_path / name for name in ("fine", "empty", "large", "pipe"))
    fine.write_text("text")
    empty.touch()
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    os.mkfifo(pipe)
    assert check_file(fine) == (4, "")
    assert [check_file(path)[1] for path in (empty, large, pipe, tmp_path, tmp_path / "none")] == [
        "It is empty.",
        "It is larger than 20 MiB.",
        "It is not an ordinary file.",
        "It is a directory. Attach its files one by one.",
        "There is no such file.",
    ]
    assert check_file(tmp_path / ("n" * 300))[1].startswith("It cannot be read: ")


def test_only_words_that_name_something_here_are_files(tmp_path: Path) -> None:
    (tmp_path / "ada").write_text("x")
    found = existing_mentions("@ada and @grace and @\0", tmp_path, tmp_path)
    assert [one.path for one in found] == ["ada"]
    assert resolve("~", tmp_path, Path("/home/x")) == Path("/home/x")
