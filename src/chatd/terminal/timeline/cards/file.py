"""Cards of files: read_file (also several in a row), write_file, edit_files, lists and searches."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

import msgspec
from msgspec import Struct
from rich.text import Text

from chatd.terminal.timeline.cards.card import Canvas, Card, failure_body, failure_lines, verb_of
from chatd.terminal.timeline.cards.diff_lines import (
    DiffLine,
    count_diff,
    diff_lines,
    edit_diff,
    read_diff,
)
from chatd.terminal.timeline.cards.output import output_lines
from chatd.terminal.timeline.duration import counted
from chatd.terminal.timeline.lines import Lines, headline, one_line
from chatd.terminal.timeline.rows.json_values import (
    as_object,
    list_of,
    number_of,
    objects_of,
    text_of,
)
from chatd.terminal.timeline.rows.tool_call import CallFacts

_OPEN_LINES: Final = 40
"""A change of at most so many lines is unfolded."""
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
    content = text_of(facts.result, "content")
    if facts.state == "done":

        def body(inner: Canvas) -> Lines:
            return output_lines(content or "(empty)", inner.width, inner.palette)

        return Card(
            verb="Read", subject=text_of(facts.args, "path"), meta=_lines_read(facts), body=body
        )
    return Card(
        verb=verb_of(facts, "Reading", "Read", "Not read"),
        subject=text_of(facts.args, "path"),
        opens=facts.state == "failed",
        body=failure_body(facts),
    )


def _lines_read(facts: CallFacts) -> str:
    read, total = number_of(facts.result, "lines_read"), number_of(facts.result, "total_lines")
    start = int(number_of(facts.args, "offset") or 1)
    if read is None:
        return ""
    if total is None or read >= total:
        return counted(int(read), "line")
    return f"lines {start} to {start + int(read) - 1} of {int(total):,}"


def write_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
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
    return [DiffLine("add", text, number) for number, text in enumerate(texts, first)]


class _FileChange(Struct, frozen=True):
    path: str
    lines: list[DiffLine]


def edit_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
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


def search_card(facts: CallFacts, canvas: Canvas) -> Card:
    """Tools that look for files or for text in them: the pattern is what matters."""
    del canvas
    is_listing = facts.call.name.startswith("list")
    names = ("matches", "files", "entries", "results")
    hits = next((found for name in names if (found := list_of(facts.result, name))), ())
    text = "\n".join(_hit_text(hit) for hit in hits[:_MAX_HITS])
    text = text or text_of(facts.result, "output", "content")

    def body(inner: Canvas) -> Lines:
        return output_lines(text, inner.width, inner.palette)

    going, done = ("Listing", "Listed") if is_listing else ("Searching", "Searched")
    return Card(
        verb=verb_of(facts, going, done),
        subject=text_of(facts.args, "pattern", "query", "regex", "glob", "path", "directory"),
        meta=counted(len(hits), "hit") if hits else None,
        opens=facts.state == "failed",
        body=body if text and facts.state != "failed" else failure_body(facts),
    )


def _hit_text(hit: object) -> str:
    if isinstance(hit, str):
        return hit
    return text_of(as_object(hit), "path") or msgspec.json.encode(hit).decode()


def file_name(path: str) -> str:
    return PurePosixPath(path[-400:]).name or path[-400:]
