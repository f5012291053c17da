"""Applying one edit to one text: where it matches, and what comes in its place.

Four tries, each only if the one before found nothing: to the character; with other line endings;
line by line without blanks at the end; line by line without blanks at either end. The last two
put lines in, see `edits_splice`. What lies outside a match is never touched.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from chatd.agent.edits_hints import not_found, places
from chatd.agent.edits_splice import prepare
from chatd.agent.errors import AgentError
from chatd.agent.matching_lines import (
    CRLF,
    LF,
    Line,
    apart,
    dominant_ending,
    endings,
    occurrences,
    split_lines,
    with_ending,
)

MAX_RESULT_CHARS = 32 << 20
_KEYS: tuple[Callable[[Line], str], ...] = (lambda line: line.loose_end, lambda line: line.body)


class Change(NamedTuple):
    """The characters from `start` to `end` become `text`."""

    start: int
    end: int
    text: str


def apply_edit(content: str, search: str, new: str, *, replace_all: bool) -> str:
    """The content after the edit. Refuses with AgentError, telling what to do about it."""
    if not search:
        raise AgentError(400, "the text to find is empty; to make a new file use write_file")
    splits = search.startswith(LF) and "\r" + search in content
    if not splits and search in content:
        return _exactly(content, search, new, replace_all=replace_all)
    if not _disagree(search, new):
        changes = _loosely(content, search, new, replace_all=replace_all)
    elif splits:
        # Half of a "\r\n" is not a place where the search begins.
        pattern = re.compile(r"(?<!\r)" + re.escape(search))
        spans = [each.span() for each in pattern.finditer(content)]
        changes = _at(content, spans, new, replace_all=replace_all)
    else:
        changes = []
    if not changes:
        disagree = _disagree(search, new)
        raise AgentError(400, not_found(content, search, new, endings_disagree=disagree))
    return _applied(content, changes)


def _exactly(content: str, search: str, new: str, *, replace_all: bool) -> str:
    text = _in_file_ending(content, search, new)
    if replace_all:
        _bounded(len(content) + content.count(search) * (len(text) - len(search)))
        return content.replace(search, text)
    first = content.find(search)
    if content.find(search, first + 1) >= 0:
        raise _ambiguous(content, _starts_of(content, search), max(content.count(search), 2))
    return _applied(content, [Change(first, first + len(search), text)])


def _starts_of(content: str, search: str) -> list[int]:
    """The first few, overlaps included: enough to be named."""
    starts: list[int] = []
    at = content.find(search)
    while at >= 0 and len(starts) < 6:
        starts.append(at)
        at = content.find(search, at + 1)
    return starts


def _in_file_ending(content: str, search: str, new: str) -> str:
    """A match within one line says nothing of endings, so new lines end as the file's do."""
    ending = dominant_ending(content)
    if ending is None or endings(search) or len(endings(new)) != 1:
        return new
    return with_ending(new, ending)


def _disagree(search: str, new: str) -> bool:
    """Endings that differ between the two texts are what the edit is about: no guessing then."""
    theirs, ours = endings(search), endings(new)
    return bool(theirs and ours and theirs != ours)


def _loosely(content: str, search: str, new: str, *, replace_all: bool) -> list[Change]:
    changes = _but_for_endings(content, search, new, replace_all=replace_all)
    if changes or not search.strip():
        return changes  # blanks alone would match every empty line
    lines = split_lines(content)
    needle = split_lines(search)
    for key in _KEYS:
        starts = occurrences([key(line) for line in needle], [key(line) for line in lines])
        if starts:
            return _by_lines(content, lines, starts, (search, new), replace_all=replace_all)
    return []


def _but_for_endings(content: str, search: str, new: str, *, replace_all: bool) -> list[Change]:
    """Both texts are compared with plain endings; finds are counted back to where they were."""
    if not endings(search) or CRLF not in content + search:
        return []
    plain, needle = content.replace(CRLF, LF), search.replace(CRLF, LF)
    pairs = _pairs(content)
    spans: list[tuple[int, int]] = []
    at = plain.find(needle)
    while at >= 0:
        end = at + len(needle)
        spans.append((at + bisect_left(pairs, at), end + bisect_left(pairs, end)))
        at = plain.find(needle, end if replace_all else at + 1)
        if not replace_all and len(spans) > 100:
            break  # refused in any case
    ending = dominant_ending(content)
    text = with_ending(new, ending) if ending and len(endings(new)) == 1 else new
    return _at(content, spans, text, replace_all=replace_all)


def _pairs(content: str) -> list[int]:
    """Where each "\\r\\n" is once all of them have become one character."""
    return [each.start() - index for index, each in enumerate(re.finditer(CRLF, content))]


def _at(
    content: str, spans: Sequence[tuple[int, int]], text: str, *, replace_all: bool
) -> list[Change]:
    if len(spans) > 1 and not replace_all:
        raise _ambiguous(content, [start for start, _ in spans[:6]], len(spans))
    return [Change(start, end, text) for start, end in spans]


def _by_lines(
    content: str,
    lines: Sequence[Line],
    starts: Sequence[int],
    texts: tuple[str, str],
    *,
    replace_all: bool,
) -> list[Change]:
    offsets = [0, *accumulate(len(line.text) for line in lines)]
    if len(starts) > 1 and not replace_all:
        raise _ambiguous(content, [offsets[start] for start in starts[:6]], len(starts))
    splice = prepare(
        *texts,
        ending=dominant_ending(content),
        leads=[line.lead for line in lines if line.body],
    )
    length = len(splice.search)
    return [
        Change(
            offsets[start],
            offsets[start + length],
            splice.replace(lines[start : start + length]),
        )
        for start in apart(starts, length)
    ]


def _applied(content: str, changes: Sequence[Change]) -> str:
    growth = sum(len(change.text) - (change.end - change.start) for change in changes)
    _bounded(len(content) + growth)
    pieces: list[str] = []
    done = 0
    for change in changes:
        pieces += [content[done : change.start], change.text]
        done = change.end
    return "".join((*pieces, content[done:]))


def _bounded(size: int) -> None:
    if size > MAX_RESULT_CHARS:
        raise AgentError(
            413, f"the result would have {size} characters, over the limit of {MAX_RESULT_CHARS}"
        )


def _ambiguous(content: str, starts: Sequence[int], count: int) -> AgentError:
    return AgentError(
        400,
        f"the text to find occurs {count} times ({places(content, starts)}); add lines around "
        "it to make it unique, or set replace_all to change every one",
    )
