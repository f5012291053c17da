"""Properties of all edits and diffs."""

import difflib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chatd.agent.errors import AgentError
from chatd.agent.files import file_editor
from chatd.agent.files.edit_matcher import apply_edit
from chatd.agent.files.edit_splice import (
    BLANKS,
    dominant_ending,
    drop_overlaps,
    find_runs,
    line_endings,
    split_lines,
)
from chatd.agent.files.file_editor import EditSpec, FileEditSpec, edit_files, unified_diff
from tests.support.outcomes import present
from tests.support.run_length import fuzzed

# Few and fixed examples in an ordinary run; see tests.support.run_length.
few_examples = fuzzed if fuzzed.max_examples > 300 else settings(fuzzed, max_examples=60)

TEXTS = st.lists(st.sampled_from(["a", "b", "é", " ", "\t", "\n", "\r\n", "\r"]), max_size=16).map(
    "".join
)
LINE = st.sampled_from(
    ["a", "  a", "\ta", "a ", "    b", "\tb\t", " \tb", "", "  ", "if x:", "\t\t}", "é\u2028"]
)


def joined(lines: list[str], ending: str, last: str) -> str:
    return ending.join(lines) + (ending if last else "")


FILES = st.builds(
    joined,
    st.lists(LINE, max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "yes"]),
)
# Ways to write the same line with other blanks.
STYLES: list[Callable[[str], str]] = [
    str.strip,
    str.rstrip,
    lambda line: line,
    lambda line: f"{line} ",
    lambda line: line.expandtabs(4),
    lambda line: f"  {line}",
]


def restyle(content: str, window: tuple[int, int], style: int, ending: str) -> str:
    """Some lines of the file, written with other blanks and endings."""
    lines = split_lines(content)[window[0] :][: window[1]]
    texts = [STYLES[style](line.lead + line.body + line.trail) for line in lines]
    return joined(texts, ending, lines[-1].ending if lines else "")


@st.composite
def edits_that_match(draw: st.DrawFn) -> tuple[str, str, str]:
    content = draw(FILES)
    window = draw(st.tuples(st.integers(0, 5), st.integers(1, 4)))
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    search = restyle(content, window, draw(st.integers(0, len(STYLES) - 1)), ending)
    new = draw(FILES).replace("\r\n", "\n").replace("\n", ending)
    return content, search, new


def applied(content: str, search: str, new: str, *, replace_all: bool = False) -> str | None:
    try:
        return apply_edit(content, search, new, replace_all=replace_all)
    except AgentError:
        return None


@few_examples
@given(TEXTS)
def test_the_parts_of_lines_join_to_the_text(text: str) -> None:
    lines = split_lines(text)
    assert "".join(line.text for line in lines) == text
    for line in lines:
        assert line.body == line.body.strip(BLANKS)
        assert not (line.lead + line.trail).strip(BLANKS)
        assert line.ending in {"", "\n", "\r\n"}
        assert "\n" not in line.body


@few_examples
@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=4), st.lists(st.sampled_from("ab")))
def test_all_runs_are_found(needle: list[str], keys: list[str]) -> None:
    length = len(needle)
    everywhere = [at for at in range(len(keys)) if keys[at : at + length] == needle]
    assert find_runs(needle, keys) == everywhere
    assert len(drop_overlaps(everywhere, length)) == "".join(keys).count("".join(needle))


@pytest.mark.covers("files-7")
@few_examples
@given(TEXTS, st.tuples(st.integers(0, 15), st.integers(1, 5)), TEXTS, st.sampled_from([0, 1]))
def test_an_exact_match_is_always_preferred(
    content: str, window: tuple[int, int], new: str, every: int
) -> None:
    search = content[window[0] :][: window[1]]
    replace_all = bool(every)
    if not search or (search[0] == "\n" and "\r\n" in content) or "\r\r" in new:
        return
    once = content.find(search) == content.rfind(search)
    result = applied(content, search, new, replace_all=replace_all)
    if not once and not replace_all:
        assert result is None
        return
    verbatim = content.replace(search, new)
    if (
        line_endings(search)
        or len(line_endings(new)) != 1
        or dominant_ending(content) in {None, *line_endings(new)}
    ):
        assert result == verbatim
    else:
        assert result is not None
        assert result.replace("\r\n", "\n") == content.replace(search, new).replace("\r\n", "\n")


@pytest.mark.covers("files-7")
@few_examples
@given(edits_that_match())
@example(("\r\n", "\n", ""))
def test_nothing_outside_the_match_changes(edit: tuple[str, str, str]) -> None:
    """The result begins and ends with the text around one of the possible matches."""
    content, search, new = edit
    result = applied(content, search, new)
    if result is None:
        return
    if search in content and not (search[0] == "\n" and "\r" + search in content):
        at = content.index(search)
        around = [(content[:at], content[at + len(search) :])]
    else:
        around = list(_around_loose_matches(content, search))
    assert any(
        result.startswith(before)
        and result.endswith(after)
        and len(result) >= len(before) + len(after)
        for before, after in around
    )


def _around_loose_matches(content: str, search: str) -> list[tuple[str, str]]:
    parts = [re.escape(line.body) for line in split_lines(search)]
    blanks = f"[{BLANKS}]*"
    pattern = r"\r?\n".join(f"{blanks}{part}{blanks}" for part in parts)
    compiled = re.compile(f"{pattern}(?:\r?\n)?")
    found = [compiled.match(content, at) for at in range(len(content) + 1)]
    return [(content[: each.start()], content[each.end() :]) for each in found if each]


@pytest.mark.covers("files-7")
@few_examples
@given(edits_that_match())
def test_endings_and_the_final_newline_are_kept(edit: tuple[str, str, str]) -> None:
    content, search, new = edit
    if search.replace("\r\n", "\n") in content.replace("\r\n", "\n"):
        return  # an exact match, so a missing ending is intended
    result = applied(content, search, new)
    if result is None or "\n" not in content:
        return
    assert line_endings(result) <= line_endings(content)
    if new.strip("\r\n") and not new.endswith(("\n\n", "\n\r\n")):
        assert content.endswith("\n") == result.endswith("\n")


@few_examples
@given(edits_that_match())
def test_replacing_lines_by_themselves_changes_nothing(edit: tuple[str, str, str]) -> None:
    content, search, _ = edit
    result = applied(content, search, search)
    assert result in {None, content}


@pytest.mark.covers("files-8")
@few_examples
@given(st.integers(0, 6), st.sampled_from(["a", "a b"]), st.sampled_from(["", "x", "yy"]))
def test_replace_all_replaces_every_occurrence(count: int, search: str, new: str) -> None:
    content = "-".join([search] * count)
    result = applied(content, search, new, replace_all=True)
    assert result == ("-".join([new] * count) if count else None)
    loose = "".join(f"\t{search} \nz\n" for _ in range(count))
    result = applied(loose, f" {search}\n", f" {new}\n", replace_all=True)
    assert result == ("".join(f"\t{new} \nz\n" if new else " \nz\n" for _ in range(count)) or None)


@pytest.mark.covers("files-7")
@settings(few_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=FILES, search=TEXTS, new=TEXTS)
def test_a_refused_edit_leaves_the_file_untouched(
    tmp_path: Path, content: str, search: str, new: str
) -> None:
    file = tmp_path / "f"
    file.write_bytes(content.encode())
    before = file.stat()
    try:
        edit_files(
            [FileEditSpec(str(file), [EditSpec(search, new), EditSpec("never there", "")])],
            include_diff=False,
        )
    except AgentError:
        assert file.read_bytes() == content.encode()
        assert file.stat().st_mtime_ns == before.st_mtime_ns
        assert [each.name for each in tmp_path.iterdir()] == ["f"]
    else:
        pytest.fail("an edit without a match was applied")


def kept_lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def patched(old: str, diff: str) -> str:
    """Apply the diff to the text and check every number and line in it."""
    lines = kept_lines(old)
    result: list[str] = []
    at = 0
    diff = re.sub(r"\n\\ No newline at end of file\n", "\0", diff)
    for hunk in re.split(r"^(?=@@ )|(?<=\0)(?=@@ )", diff, flags=re.MULTILINE)[1:]:
        head, *body = re.findall(r"[^\n\0]*[\n\0]", hunk)
        numbers = present(re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n", head))
        start, length = int(numbers[1]), int(numbers[2] or 1)
        first = start - 1 if length else start
        result += lines[at:first]
        at = first
        signs = [line[0] for line in body]
        assert signs.count(" ") + signs.count("-") == length
        assert signs.count(" ") + signs.count("+") == int(numbers[4] or 1)
        for line in body:
            text = line[1:].removesuffix("\0")
            if line[0] in " -":
                assert lines[at] == text
                at += 1
            if line[0] in " +":
                result.append(text)
    return "".join(result + lines[at:])


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\x0c\n", "\n"]), max_size=25).map("".join)


@few_examples
@given(LINES, LINES, st.sampled_from(["", "a"]), st.sampled_from(["", "a"]))
def test_a_diff_turns_the_old_text_into_the_new(
    old: str, new: str, old_end: str, new_end: str
) -> None:
    before, after = old + old_end, new + new_end
    diff = unified_diff(before, after, "f")
    assert bool(diff) == (before != after)
    assert patched(before, diff) == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb\nc\n", "a\nx\nc\n"),
        ("\n".join("abcdefghijklmnop") + "\n", "\n".join("aXcdefghijklmnYp") + "\n"),
        ("", "a\nb\n"),
        ("a\n", ""),
        ("a\nb\n", "b\n"),
    ],
)
def test_a_diff_equals_that_of_difflib(old: str, new: str) -> None:
    usual = difflib.unified_diff(kept_lines(old), kept_lines(new), "f", "f")
    assert unified_diff(old, new, "f") == "".join(usual)


def test_a_large_diff_is_coarse_and_a_long_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "".join(f"{number}\n" for number in range(30))
    new = "x\n" + "".join(f"{number}\n" for number in range(1, 29)) + "y\n"
    fine = unified_diff(old, new, "f")
    monkeypatch.setattr(file_editor, "_MAX_COMPARED_LINES", 10)
    coarse = unified_diff(old, new, "f")
    assert patched(old, coarse) == patched(old, fine) == new
    assert coarse.count("\n") > fine.count("\n")
    monkeypatch.setattr(file_editor, "MAX_DIFF_CHARS", 50)
    assert "is left out" in unified_diff(old, new, "f")
