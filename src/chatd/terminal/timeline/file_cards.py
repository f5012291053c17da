"""Cards of files that are read, written and edited, with changes as coloured lines."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final

import msgspec
from msgspec import Struct
from rich.text import Text

from chatd.terminal.screens.git_diff import DiffLine, parse_git_diff
from chatd.terminal.themes import Palette
from chatd.terminal.timeline.card import Canvas, Card, failure_lines, output_body, verb_of
from chatd.terminal.timeline.lines import Lines, counted, cut, headline, one_line, padded
from chatd.terminal.timeline.markdown_lines import coloured, language_of
from chatd.terminal.timeline.tool_call import (
    CallFacts,
    as_object,
    list_of,
    number_of,
    objects_of,
    text_of,
)

MAX_DIFF_LINES: Final = 400
_MAX_DIFF_CHARS: Final = 200_000
_MAX_PAIRED: Final = 40


def read_diff(diff: str) -> list[DiffLine]:
    """Parse the unified diff of one file."""
    lines: list[DiffLine] = []
    for file in parse_git_diff(diff[:_MAX_DIFF_CHARS]).files:
        for hunk in file.hunks:
            lines += [DiffLine("note", "⋯")] if lines else []
            lines += hunk.lines
    return lines


def _number(line: DiffLine) -> int | None:
    """The number in the new file; for a removed line, in the old one."""
    return line.old if line.kind == "del" else line.new


def edit_diff(old: str, new: str) -> list[DiffLine]:
    """What one edit replaces by what, before the server has sent the diff."""
    before = [] if old == "" else old[:_MAX_DIFF_CHARS].removesuffix("\n").split("\n")
    after = [] if new == "" else new[:_MAX_DIFF_CHARS].removesuffix("\n").split("\n")
    head = _common(before, after)
    tail = _common(list(reversed(before[head:])), list(reversed(after[head:])))
    middle = slice(head, -tail or None)
    return [
        *(DiffLine("context", line) for line in before[:head]),
        *(DiffLine("del", line) for line in before[middle]),
        *(DiffLine("add", line) for line in after[middle]),
        *(DiffLine("context", line) for line in before[len(before) - tail :]),
    ]


def count_diff(lines: Iterable[DiffLine]) -> tuple[int, int]:
    kinds = [line.kind for line in lines]
    return kinds.count("add"), kinds.count("del")


def diff_lines(lines: Sequence[DiffLine], path: str, width: int, palette: Palette) -> Lines:
    """One line of the screen for each line, cut if it is longer, so that columns stay in place."""
    shown = lines[:MAX_DIFF_LINES]
    texts = coloured("\n".join(line.text for line in shown) or " ", language_of(path), palette)
    digits = len(str(max((_number(line) or 0 for line in shown), default=0)))
    changed = _changed_words(shown)
    result: Lines = []
    for index, (line, text) in enumerate(zip(shown, texts, strict=False)):
        if index in changed:
            style = palette.added_words if line.kind == "add" else palette.removed_words
            text.stylize_before(style, *changed[index])
        result.append(_one_line(line, text, digits, width, palette))
    if len(lines) > len(shown):
        rest = len(lines) - len(shown)
        result.append(Text(f"… {rest:,} more lines are not shown …", palette.faint))
    return result


def _one_line(line: DiffLine, text: Text, digits: int, width: int, palette: Palette) -> Text:
    number = str(_number(line) or "")
    sign = {"add": "+", "del": "-"}.get(line.kind, " ")
    tone = {"add": palette.ok, "del": palette.danger}.get(line.kind, palette.faint)
    gutter = f"{number:>{digits}} " if any(number) or digits > 1 else ""
    whole = Text.assemble((gutter, palette.faint), (f"{sign} ", tone), text)
    ground = {"add": palette.added, "del": palette.removed}.get(line.kind)
    whole = cut(whole, width)
    return whole if ground is None else padded(whole, width, ground)


def _common(one: Sequence[str], two: Sequence[str]) -> int:
    count = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        count += 1
    return count


def _changed_words(lines: Sequence[DiffLine]) -> dict[int, tuple[int, int]]:
    """The range that differs between a removed line and the added one in its place."""
    found: dict[int, tuple[int, int]] = {}
    index = 0
    while index < len(lines):
        start = index
        while index < len(lines) and lines[index].kind == "del":
            index += 1
        middle = index
        while index < len(lines) and lines[index].kind == "add":
            index += 1
        if middle - start == index - middle and 0 < middle - start <= _MAX_PAIRED:
            for old, new in zip(range(start, middle), range(middle, index), strict=True):
                _mark_pair(found, old, new, lines)
        index = max(index, start + 1)
    return found


def _mark_pair(
    found: dict[int, tuple[int, int]], old: int, new: int, lines: Sequence[DiffLine]
) -> None:
    one, two = lines[old].text, lines[new].text
    head = _common(one, two)
    tail = _common(one[head:][::-1], two[head:][::-1])
    # Lines with little in common are two lines, not one that changed.
    if (head + tail) * 5 < max(len(one), len(two)) * 2:
        return
    if head < len(one) - tail:
        found[old] = (head, len(one) - tail)
    if head < len(two) - tail:
        found[new] = (head, len(two) - tail)


# Cards of files: read_file (also several in a row), write_file, edit_files, lists and searches.

_OPEN_LINES: Final = 40
"""A change of at most this many lines is unfolded."""
_WRITING_LINES: Final = 16
_WRITING_CHARS: Final = 8000
_MAX_FILES: Final = 50
_MAX_HITS: Final = 500


def reads_card(reads: Sequence[CallFacts]) -> Card:
    """Files that were read one after the other."""
    if len(reads) == 1:
        return read_card(reads[0])
    names = dict.fromkeys(file_name(text_of(read.args, "path")) for read in reads[:_MAX_FILES])

    def body(inner: Canvas) -> Lines:
        return [
            headline(
                Text(one_line(text_of(read.args, "path")), inner.palette.code),
                Text(_lines_read(read), inner.palette.muted),
                inner.width,
            )
            for read in reads[:_MAX_FILES]
        ]

    return Card(verb=f"Read {len(reads)} files", subject=", ".join(names), meta="", body=body)


def read_card(facts: CallFacts) -> Card:
    is_done = facts.state == "done"
    return Card(
        verb="Read" if is_done else verb_of(facts, "Reading", "Read", "Not read"),
        subject=text_of(facts.args, "path"),
        meta=_lines_read(facts) if is_done else None,
        body=output_body(text_of(facts.result, "content") or "(empty)") if is_done else None,
    )


def _lines_read(facts: CallFacts) -> str:
    read, total = number_of(facts.result, "lines_read"), number_of(facts.result, "total_lines")
    start = int(number_of(facts.args, "offset") or 1)
    if read is None:
        return ""
    if total is None or read >= total:
        return counted(int(read), "line")
    return f"lines {start} to {start + int(read) - 1} of {int(total):,}"


def write_card(facts: CallFacts) -> Card:
    path, content = text_of(facts.args, "path"), text_of(facts.args, "content")
    is_writing = facts.state in ("streaming", "running")
    lines = _written_lines(content, last=_WRITING_LINES if is_writing else 0)

    def body(inner: Canvas) -> Lines:
        if facts.state == "failed":
            return failure_lines(facts.error, inner, "Nothing was written.")
        return diff_lines(lines, path, inner.width, inner.palette)

    return Card(
        verb=verb_of(facts, "Writing", "Wrote", "Not written"),
        subject=path,
        meta=f"+{len(lines)}" if facts.state == "done" else None,
        opens=facts.state != "interrupted" and (is_writing or len(lines) <= _OPEN_LINES),
        body=body if lines or facts.state == "failed" else None,
    )


def _written_lines(content: str, last: int) -> list[DiffLine]:
    """The lines of a new file; with `last` only so many, because they come with each word."""
    if not last:
        texts = [line.text for line in edit_diff("", content)]
    else:
        texts = content[-_WRITING_CHARS:].removesuffix("\n").split("\n")[-last:] if content else []
    first = content.removesuffix("\n").count("\n") + 2 - len(texts) if last else 1
    return [DiffLine("add", text, new=number) for number, text in enumerate(texts, first)]


class _FileChange(Struct, frozen=True):
    path: str
    lines: list[DiffLine]


def edit_card(facts: CallFacts) -> Card:
    files = _changes(facts)
    counts = [count_diff(file.lines) for file in files]
    plus, minus = sum(added for added, _ in counts), sum(removed for _, removed in counts)
    is_failed = facts.state == "failed"

    def body(inner: Canvas) -> Lines:
        if is_failed:
            return failure_lines(facts.error, inner, "Nothing was changed. The agent was told why.")
        lines: Lines = []
        for file in files:
            if len(files) > 1:
                lines.append(Text(one_line(file.path, inner.width), inner.palette.strong))
            lines += diff_lines(file.lines, file.path, inner.width, inner.palette)
        return lines

    done = f"Edited {len(files)} files" if len(files) > 1 else "Edited"
    names = ", ".join(file_name(file.path) for file in files)
    counted_lines = f"+{plus} -{minus}" if facts.state == "done" else None
    return Card(
        verb=verb_of(facts, "Editing", done, "Edit failed"),
        subject=files[0].path if len(files) == 1 else names,
        meta="nothing changed" if is_failed else counted_lines,
        opens=is_failed or (facts.state != "interrupted" and plus + minus <= _OPEN_LINES),
        body=body if files or is_failed else None,
    )


def _changes(facts: CallFacts) -> list[_FileChange]:
    """From the result or, before there is one, from what the model asks for."""
    done = [
        _FileChange(text_of(file, "path"), read_diff(text_of(file, "diff")))
        for file in objects_of(facts.result, "files")[:_MAX_FILES]
    ]
    if done:
        return done
    return [
        _FileChange(
            text_of(file, "path"),
            [
                line
                for edit in objects_of(file, "edits")
                for line in edit_diff(
                    text_of(edit, "old_text", "search"), text_of(edit, "new_text", "replace")
                )
            ],
        )
        for file in objects_of(facts.args, "files")[:_MAX_FILES]
    ]


def search_card(facts: CallFacts) -> Card:
    """Tools that look for files or for text in them: the pattern is what matters."""
    is_listing = facts.call.name.startswith("list")
    names = ("matches", "files", "entries", "results")
    hits = next((found for name in names if (found := list_of(facts.result, name))), ())
    text = "\n".join(_hit_text(hit) for hit in hits[:_MAX_HITS])
    text = text or text_of(facts.result, "output", "content")

    going, done = ("Listing", "Listed") if is_listing else ("Searching", "Searched")
    return Card(
        verb=verb_of(facts, going, done),
        subject=text_of(facts.args, "pattern", "query", "regex", "glob", "path", "directory"),
        meta=counted(len(hits), "hit") if hits else None,
        body=None if facts.state == "failed" else output_body(text),
    )


def _hit_text(hit: object) -> str:
    if isinstance(hit, str):
        return hit
    return text_of(as_object(hit), "path") or msgspec.json.encode(hit).decode()


def file_name(path: str) -> str:
    return PurePosixPath(path[-400:]).name or path[-400:]
