"""Applying one edit to one text: where it matches, and what comes in its place.

Four tries, each only if the one before found nothing: to the character; with other line endings;
line by line without blanks at the end; line by line without blanks at either end. The last two
put lines in, see `edits_splice`. What lies outside a match is never touched.

What to say when the text to find is not in the file.

Two slips are recognised: a long run of one character that was miscounted, and the two texts given
the wrong way round. Both are searched for in bounded time, and only after a failure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby, islice
from typing import NamedTuple

from chatd.agent.edits.lines import (
    CRLF,
    LF,
    SourceLine,
    dominant_ending,
    drop_overlaps,
    find_runs,
    line_endings,
    split_lines,
    with_ending,
)
from chatd.agent.edits.splice import prepare_splice
from chatd.agent.errors import AgentError

MAX_HINTS = 3
MAX_LINES = 5
_MAX_CONTENT = 2 << 20
_MAX_SEARCH = 8 << 10
_MAX_CANDIDATES = 20
# A shorter text stands in any file.
_MIN_SWAPPED = 4


def not_found_error(content: str, search: str, new: str, *, endings_disagree: bool) -> str:
    if endings_disagree:
        return (
            "the text to find was not found; it and the new text have different line endings, "
            "so only an exact match counts: read the file again, or use one kind of ending"
        )
    hints = list(islice(_miscounted(content, search), MAX_HINTS)) or _swapped(content, new)
    advice = hints or ["read the file again and copy the text from it"]
    return "; ".join(["the text to find was not found", *advice])


def format_lines(content: str, starts: Sequence[int]) -> str:
    """ "line 3" or "lines 3, 8, 11, ..."."""
    numbers = _distinct(content.count(LF, 0, start) + 1 for start in starts)
    shown = ", ".join(str(number) for number in numbers[:MAX_LINES])
    more = ", ..." if len(numbers) > MAX_LINES else ""
    return f"{'line' if len(numbers) == 1 else 'lines'} {shown}{more}"


def _miscounted(content: str, search: str) -> Iterator[str]:
    if len(content) > _MAX_CONTENT or len(search) > _MAX_SEARCH:
        return
    content = content.replace("\r\n", LF)
    runs = _runs(search.replace("\r\n", LF))
    for match in islice(_squeezed_matches(content, runs), _MAX_CANDIDATES):
        hint = _difference(content, match, runs)
        if hint:
            yield hint


def _runs(text: str) -> list[tuple[str, int]]:
    return [(character, sum(1 for _ in group)) for character, group in groupby(text)]


def _squeezed_matches(content: str, runs: Sequence[tuple[str, int]]) -> Iterator[re.Match[str]]:
    """The text with any number of each repeated character. Begins at the beginning of a run, so
    that a long run is not tried again from each of its characters."""
    first = re.escape(runs[0][0])
    body = "".join(f"{re.escape(character)}+" for character, _ in runs)
    return re.compile(f"(?<!{first}){body}").finditer(content)


def _difference(content: str, match: re.Match[str], runs: Sequence[tuple[str, int]]) -> str | None:
    """A hint, if one character alone is miscounted."""
    at = match.start()
    wrong: list[tuple[str, int, int, int]] = []
    for index, (character, count) in enumerate(_runs(match.group())):
        asked = runs[index][1]
        at_edge = index in {0, len(runs) - 1}
        if count != asked and not (at_edge and count > asked):
            wrong.append((character, count, asked, at))
        at += count
    if len({character for character, *_ in wrong}) != 1:
        return None
    character, count, asked, _ = wrong[0]
    where = format_lines(content, [start for *_, start in wrong])
    return (
        f"near match at {where}: the character U+{ord(character):04X} ({character!r}) stands "
        f"{count} in a row in the file, {asked} in the text to find"
    )


def _swapped(content: str, new: str) -> list[str]:
    if len(new.strip()) < _MIN_SWAPPED or len(content) > _MAX_CONTENT:
        return []
    text = content.replace("\r\n", LF)
    wanted = new.replace("\r\n", LF)
    starts: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(starts) <= MAX_LINES:
        starts.append(at)
        at = text.find(wanted, at + len(wanted))
    if not starts:
        return []
    hint = (
        f"the new text is in the file already, at {format_lines(text, starts)}: "
        "perhaps the two texts were swapped, or the edit was made before"
    )
    return [hint]


def _distinct(numbers: Iterator[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


MAX_RESULT_CHARS = 32 << 20
_KEYS: tuple[Callable[[SourceLine], str], ...] = (
    lambda line: line.loose_end,
    lambda line: line.body,
)


class TextChange(NamedTuple):
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
        raise AgentError(400, not_found_error(content, search, new, endings_disagree=disagree))
    return _applied(content, changes)


def _exactly(content: str, search: str, new: str, *, replace_all: bool) -> str:
    text = _in_file_ending(content, search, new)
    if replace_all:
        _bounded(len(content) + content.count(search) * (len(text) - len(search)))
        return content.replace(search, text)
    first = content.find(search)
    if content.find(search, first + 1) >= 0:
        raise _ambiguous(content, _starts_of(content, search), max(content.count(search), 2))
    return _applied(content, [TextChange(first, first + len(search), text)])


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
    if ending is None or line_endings(search) or len(line_endings(new)) != 1:
        return new
    return with_ending(new, ending)


def _disagree(search: str, new: str) -> bool:
    """Endings that differ between the two texts are what the edit is about: no guessing then."""
    theirs, ours = line_endings(search), line_endings(new)
    return bool(theirs and ours and theirs != ours)


def _loosely(content: str, search: str, new: str, *, replace_all: bool) -> list[TextChange]:
    changes = _but_for_endings(content, search, new, replace_all=replace_all)
    if changes or not search.strip():
        return changes  # blanks alone would match every empty line
    lines = split_lines(content)
    needle = split_lines(search)
    for key in _KEYS:
        starts = find_runs([key(line) for line in needle], [key(line) for line in lines])
        if starts:
            return _by_lines(content, lines, starts, (search, new), replace_all=replace_all)
    return []


def _but_for_endings(content: str, search: str, new: str, *, replace_all: bool) -> list[TextChange]:
    """Both texts are compared with plain endings; finds are counted back to where they were."""
    if not line_endings(search) or CRLF not in content + search:
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
    text = with_ending(new, ending) if ending and len(line_endings(new)) == 1 else new
    return _at(content, spans, text, replace_all=replace_all)


def _pairs(content: str) -> list[int]:
    """Where each "\\r\\n" is once all of them have become one character."""
    return [each.start() - index for index, each in enumerate(re.finditer(CRLF, content))]


def _at(
    content: str, spans: Sequence[tuple[int, int]], text: str, *, replace_all: bool
) -> list[TextChange]:
    if len(spans) > 1 and not replace_all:
        raise _ambiguous(content, [start for start, _ in spans[:6]], len(spans))
    return [TextChange(start, end, text) for start, end in spans]


def _by_lines(
    content: str,
    lines: Sequence[SourceLine],
    starts: Sequence[int],
    texts: tuple[str, str],
    *,
    replace_all: bool,
) -> list[TextChange]:
    offsets = [0, *accumulate(len(line.text) for line in lines)]
    if len(starts) > 1 and not replace_all:
        raise _ambiguous(content, [offsets[start] for start in starts[:6]], len(starts))
    splice = prepare_splice(
        *texts,
        ending=dominant_ending(content),
        leads=[line.lead for line in lines if line.body],
    )
    length = len(splice.search)
    return [
        TextChange(
            offsets[start],
            offsets[start + length],
            splice.replace(lines[start : start + length]),
        )
        for start in drop_overlaps(starts, length)
    ]


def _applied(content: str, changes: Sequence[TextChange]) -> str:
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
        f"the text to find occurs {count} times ({format_lines(content, starts)}); add lines "
        "around it to make it unique, or set replace_all to change every one",
    )
