"""One edit on one text: order of match kinds, endings, end of file, refusals."""

import re

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.files import edit_matcher
from chatd.agent.files.edit_matcher import apply_edit


def edit(content: str, search: str, new: str, *, every: bool = False) -> str:
    return apply_edit(content, search, new, replace_all=every)


def refusal(content: str, search: str, new: str = "new", *, every: bool = False) -> str:
    with pytest.raises(AgentError) as refused:
        edit(content, search, new, every=every)
    return refused.value.message


@pytest.mark.covers("files-7")
@pytest.mark.parametrize(
    ("content", "search", "new", "expected"),
    [
        # Exact: within a line, over several lines, at both ends.
        ("a b c", "b", "x", "a x c"),
        ("a\nb\nc\n", "a\nb", "x", "x\nc\n"),
        ("a\nb", "a\nb", "", ""),
        ("a\n", "a\n", "b", "b"),
        # An exact match wins over an earlier loose one.
        ("\tfoo\n  foo\n", "  foo\n", "  bar\n", "\tfoo\n  bar\n"),
        ("foo  \nfoo \n", "foo \n", "bar\n", "foo  \nbar\n"),
        # Ignoring trailing blanks wins over ignoring leading and trailing blanks.
        ("  a  \nx\na  \n", "a\n", "b\n", "  a  \nx\nb  \n"),
    ],
)
def test_the_closest_kind_of_match_wins(content: str, search: str, new: str, expected: str) -> None:
    assert edit(content, search, new) == expected


@pytest.mark.covers("files-7")
@pytest.mark.parametrize(
    ("content", "search", "new", "expected"),
    [
        # Trailing blanks: kept where both texts agree, changed where they differ.
        ("a  \nb\n", "a\nb\n", "a\nc\n", "a  \nc\n"),
        ("a\nb\n", "a  \nb\n", "a  \nc\n", "a\nc\n"),
        ("a \nb\n", "a\nb\n", "a\t\nb\n", "a\t\nb\n"),
        # A line of blanks in the file, kept or replaced.
        ("a\n  \nb\n", "a\n\nb\n", "a\n\nc\n", "a\n  \nc\n"),
        ("a \n  \nb\n", "a\n\nb\n", "a\nx\nb\n", "a \nx\nb\n"),
    ],
)
def test_trailing_blanks_stay_unless_the_edit_changes_them(
    content: str, search: str, new: str, expected: str
) -> None:
    assert edit(content, search, new) == expected


@pytest.mark.parametrize(
    ("content", "search", "new", "expected"),
    [
        # LF in both texts, CRLF in the file, and the reverse.
        ("a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\n", "x\r\ny\r\nc\r\n"),
        ("a\r\nb\r\n", "a\nb\n", "x\ny\nz\n", "x\r\ny\r\nz\r\n"),
        ("f(\r\n  x)\r\n", "(\n  x", "(\n  y,\n  z", "f(\r\n  y,\r\n  z)\r\n"),
        ("a\nb\n", "a\r\nb\r\n", "x\r\ny\r\n", "x\ny\n"),
        # A match within one line: new lines get the file's ending.
        ("a\r\nb\r\n", "b", "b\nc", "a\r\nb\r\nc\r\n"),
        ("a\nb\n", "b", "b\r\nc", "a\nb\nc\n"),
        ("ab", "b", "b\r\nc", "ab\r\nc"),
        # Mixed endings in the file: matched lines keep theirs, new lines get the most frequent one.
        ("a\r\nb \nc\nd\n", "a\nb\nc\n", "a\nb\nx\nc\n", "a\r\nb \nx\nc\nd\n"),
        # An exact match is replaced exactly.
        ("a\r\nb\r\n", "a\r\nb", "a\nb", "a\nb\r\n"),
        ("a\nb\n", "a\nb", "a\r\nb", "a\r\nb\n"),
        ("a\r\nb", "\r", "", "a\nb"),
        # A search that begins with LF does not split a CRLF.
        ("a\r\nb\r\n", "\nb", "b", "ab\r\n"),
        ("a\nb\r\nc", "\n", "\r\n", "a\r\nb\r\nc"),
    ],
)
def test_line_endings_stay_unless_the_edit_changes_them(
    content: str, search: str, new: str, expected: str
) -> None:
    assert edit(content, search, new) == expected


def test_texts_with_different_endings_match_only_exactly() -> None:
    message = refusal("a  \nb\n", "a\nb\n", "a\r\nb\r\n")
    assert "different line endings" in message
    assert "only an exact match" in message


@pytest.mark.parametrize(
    ("content", "search", "new", "expected"),
    [
        # No newline at the end of the file: it matches, and none is added.
        ("a\nb", "a\nb\n", "a\nc\n", "a\nc"),
        ("b", "b\n", "c\n", "c"),
        ("a\nb ", "a\nb\n", "a\nb\nc\n", "a\nb \nc"),
        ("a \nb", "a\nb", "a\nb\nc\n", "a \nb\nc"),
        # A shorter replacement is not joined with the next line.
        ("a \nb\nc\n", "a\nb\n", "x", "x \nc\n"),
        ("a \nb\nc\n", "a\nb\n", "", "c\n"),
        ("a \nb\nc\n", "a\nb", "", "\nc\n"),
        ("x\na \nb", "a\nb\n", "", "x\n"),
    ],
)
def test_the_final_newline_is_neither_added_nor_lost(
    content: str, search: str, new: str, expected: str
) -> None:
    assert edit(content, search, new) == expected


@pytest.mark.covers("files-6", "files-8")
@pytest.mark.parametrize(
    ("content", "search", "new", "expected"),
    [
        ("a a a", "a", "bb", "bb bb bb"),
        ("aaa", "aa", "b", "ba"),
        ("a \nx\na  \n", "a\n", "b\n", "b \nx\nb  \n"),
        ("\ta\n\t\ta\n", "  a\n", "  b\n", "\tb\n\t\tb\n"),
        ("a\r\nb\nc\na\r\nb\n", "a\nb", "x\ny", "x\ny\nc\nx\ny\n"),
        ("a \na \na \n", "a\na\n", "b\n", "b \na \n"),
    ],
)
def test_replace_all_replaces_every_match_of_the_closest_kind(
    content: str, search: str, new: str, expected: str
) -> None:
    assert edit(content, search, new, every=True) == expected


@pytest.mark.covers("files-6")
@pytest.mark.parametrize(
    ("content", "search", "count", "where"),
    [
        ("a\nb\na\n", "a", 2, "lines 1, 3"),
        ("a a a", "a", 3, "line 1"),
        ("aaa", "aa", 2, "line 1"),
        ("  a\nx\n\ta\n", "   a\n", 2, "lines 1, 3"),
        ("a \r\nb\r\na \r\nb\r\n", "a \nb", 2, "lines 1, 3"),
        ("x\n" * 9, "x", 9, "lines 1, 2, 3, 4, 5, ..."),
    ],
)
def test_an_ambiguous_match_is_refused_with_the_count(
    content: str, search: str, count: int, where: str
) -> None:
    message = refusal(content, search)
    assert f"occurs {count} times ({where});" in message
    assert "replace_all" in message


def test_an_empty_search_is_refused() -> None:
    assert "write_file" in refusal("a", "")
    assert "write_file" in refusal("a", "", every=True)


def test_blanks_alone_match_only_themselves() -> None:
    assert "not found" in refusal("a\n\n\nb\n", "  \n", every=True)
    assert edit("a\n  \nb\n", "  \n", "x\n") == "a\nx\nb\n"


def test_a_result_over_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_matcher, "MAX_RESULT_CHARS", 100)
    for content in ("a" * 20, " a\n" * 20):
        with pytest.raises(AgentError, match="over the limit") as refused:
            edit(content, "a" if "\n" not in content else "  a\n", "b" * 60, every=True)
        assert refused.value.status == 413
    assert edit("a" * 20, "a", "b" * 5, every=True) == "b" * 100


@pytest.mark.parametrize(
    ("content", "search", "hint"),
    [
        (
            "x\n# ------\ny\n",
            "# -----\n",
            "line 2: the character U+002D ('-') is repeated 6 times in the file, 5 times in the",
        ),
        (
            "=====\ntitle\n=====\n",
            "====\ntitle\n====\n",
            "near match at line 3: the character U+003D ('=')",
        ),
        (
            "a = b\n\n\n\nc\n",
            "a = b\n\nc\n",
            "U+000A ('\\n') is repeated 4 times in the file, 2 times",
        ),
        ("f(a,  b)\r\n", "f(a, b)", "U+0020 (' ') is repeated 2 times in the file, 1 times"),
    ],
)
def test_a_miscounted_character_is_named(content: str, search: str, hint: str) -> None:
    assert hint in refusal(content, search)


def test_hints_are_limited() -> None:
    message = refusal("<====>\n" * 50, "<===>\n")
    assert message.count("near match") == 3
    many = refusal("--- a\n" * 9 + "end", "-- a\n" * 9 + "end")
    assert re.search(r"near match at lines 2, 3, 4, 5, 6, \.\.\.:", many)


def test_two_miscounted_characters_give_no_hint() -> None:
    assert "near match" not in refusal("[---] ++++\n", "[--] +++\n")


def test_swapped_texts_are_recognised() -> None:
    message = refusal("one\r\ntwo\r\nthree\r\n", "four", "two\nthree")
    assert "already, at line 2" in message
    assert "swapped" in message
    assert "swapped" not in refusal("one\n", "four", "\n")
    assert "read the file again" in refusal("one\n", "four", "five")
