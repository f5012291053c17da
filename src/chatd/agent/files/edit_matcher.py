"""Apply one edit to one text.

Four kinds of match, each tried only if the one before found nothing: exact; with other line
endings; by lines without trailing blanks; by lines without leading and trailing blanks. The last
two replace lines with a `Splice`. Text outside a match never changes.

If nothing matches, the error names two mistakes that it recognises, in bounded time: a miscounted
run of one character, and swapped texts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby, islice
from typing import NamedTuple

from chatd.agent.errors import AgentError
from chatd.agent.files.edit_splice import (
    CRLF,
    LF,
    SourceLine,
    dominant_ending,
    drop_overlaps,
    find_runs,
    line_endings,
    prepare_splice,
    split_lines,
    with_ending,
)

MAX_RESULT_CHARS = 32 << 20
MAX_HINTS = 3
MAX_NAMED_LINES = 5
EMPTY_SEARCH_TEXT = "the text to find is empty; to create a new file use write_file"
_MAX_CONTENT_CHARS = 2 << 20
_MAX_SEARCH_CHARS = 8 << 10
_MAX_NEAR_MATCHES = 20
# A shorter text is found in any file.
_MIN_SWAPPED_CHARS = 4
_LINE_KEYS: tuple[Callable[[SourceLine], str], ...] = (
    lambda line: line.without_trail,
    lambda line: line.body,
)


def not_found_error(content: str, search: str, new: str, *, endings_disagree: bool) -> AgentError:
    if endings_disagree:
        return AgentError(
            400,
            "the text to find was not found; it and the new text have different line endings, "
            "so only an exact match counts: read the file again, or use one kind of ending",
        )
    hints = list(islice(_miscount_hints(content, search), MAX_HINTS)) or _swap_hints(content, new)
    advice = hints or ["read the file again and copy the text from it"]
    return AgentError(400, "; ".join(["the text to find was not found", *advice]))


def format_lines(content: str, starts: Sequence[int]) -> str:
    """ "line 3" or "lines 3, 8, 11, ..."."""
    numbers = list(dict.fromkeys(content.count(LF, 0, start) + 1 for start in starts))
    shown = ", ".join(str(number) for number in numbers[:MAX_NAMED_LINES])
    more = ", ..." if len(numbers) > MAX_NAMED_LINES else ""
    return f"{'line' if len(numbers) == 1 else 'lines'} {shown}{more}"


def _miscount_hints(content: str, search: str) -> Iterator[str]:
    if len(content) > _MAX_CONTENT_CHARS or len(search) > _MAX_SEARCH_CHARS:
        return
    content = content.replace("\r\n", LF)
    runs = _runs(search.replace("\r\n", LF))
    for match in islice(_near_matches(content, runs), _MAX_NEAR_MATCHES):
        hint = _miscount_hint(content, match, runs)
        if hint:
            yield hint


def _runs(text: str) -> list[tuple[str, int]]:
    return [(character, sum(1 for _ in group)) for character, group in groupby(text)]


def _near_matches(content: str, runs: Sequence[tuple[str, int]]) -> Iterator[re.Match[str]]:
    """Matches of the text with any number of each repeated character. They begin at the start of a
    run, so that a long run is not tried again from each of its characters."""
    first = re.escape(runs[0][0])
    body = "".join(f"{re.escape(character)}+" for character, _ in runs)
    return re.compile(f"(?<!{first}){body}").finditer(content)


def _miscount_hint(
    content: str, match: re.Match[str], runs: Sequence[tuple[str, int]]
) -> str | None:
    """A hint if exactly one character is miscounted."""
    at = match.start()
    wrong: list[tuple[str, int, int, int]] = []
    for index, (character, count) in enumerate(_runs(match.group())):
        searched = runs[index][1]
        at_edge = index in {0, len(runs) - 1}
        if count != searched and not (at_edge and count > searched):
            wrong.append((character, count, searched, at))
        at += count
    if len({character for character, *_ in wrong}) != 1:
        return None
    character, count, searched, _ = wrong[0]
    where = format_lines(content, [start for *_, start in wrong])
    return (
        f"near match at {where}: the character U+{ord(character):04X} ({character!r}) is repeated "
        f"{count} times in the file, {searched} times in the text to find"
    )


def _swap_hints(content: str, new: str) -> list[str]:
    if len(new.strip()) < _MIN_SWAPPED_CHARS or len(content) > _MAX_CONTENT_CHARS:
        return []
    text = content.replace("\r\n", LF)
    starts = _find_starts(text, new.replace("\r\n", LF))
    if not starts:
        return []
    hint = (
        f"the new text is in the file already, at {format_lines(text, starts)}: "
        "perhaps the two texts were swapped, or the edit was made before"
    )
    return [hint]


class TextChange(NamedTuple):
    """The characters from `start` to `end` become `text`."""

    start: int
    end: int
    text: str


def apply_edit(content: str, search: str, new: str, *, replace_all: bool) -> str:
    """The content after the edit. Raises AgentError with advice if it cannot be applied."""
    if not search:
        raise AgentError(400, EMPTY_SEARCH_TEXT)
    endings_disagree = _endings_disagree(search, new)
    splits_pair = search.startswith(LF) and "\r" + search in content
    if not splits_pair and search in content:
        return _apply_exact(content, search, new, replace_all=replace_all)
    if not endings_disagree:
        changes = _match_loosely(content, search, new, replace_all=replace_all)
    elif splits_pair:
        # A match must not begin between "\r" and "\n".
        pattern = re.compile(r"(?<!\r)" + re.escape(search))
        spans = [each.span() for each in pattern.finditer(content)]
        changes = _build_changes(content, spans, new, replace_all=replace_all)
    else:
        changes = []
    if not changes:
        raise not_found_error(content, search, new, endings_disagree=endings_disagree)
    return _apply_changes(content, changes)


def _apply_exact(content: str, search: str, new: str, *, replace_all: bool) -> str:
    text = _with_file_ending(content, search, new)
    if replace_all:
        _check_size(len(content) + content.count(search) * (len(text) - len(search)))
        return content.replace(search, text)
    first = content.find(search)
    if content.find(search, first + 1) >= 0:
        count = max(content.count(search), 2)
        raise _ambiguous_error(content, _find_starts(content, search), count)
    return _apply_changes(content, [TextChange(first, first + len(search), text)])


def _find_starts(content: str, search: str) -> list[int]:
    """As many as an error names, and one more; matches may overlap."""
    starts: list[int] = []
    at = content.find(search)
    while at >= 0 and len(starts) <= MAX_NAMED_LINES:
        starts.append(at)
        at = content.find(search, at + 1)
    return starts


def _with_file_ending(content: str, search: str, new: str) -> str:
    """A search within one line does not show which ending the caller means: use the file's."""
    ending = dominant_ending(content)
    if ending is None or line_endings(search) or len(line_endings(new)) != 1:
        return new
    return with_ending(new, ending)


def _endings_disagree(search: str, new: str) -> bool:
    """If so, the edit is meant to change the endings, and only an exact match is safe."""
    old_endings, new_endings = line_endings(search), line_endings(new)
    return bool(old_endings and new_endings and old_endings != new_endings)


def _match_loosely(content: str, search: str, new: str, *, replace_all: bool) -> list[TextChange]:
    changes = _match_any_ending(content, search, new, replace_all=replace_all)
    if changes or not search.strip():
        return changes  # blanks alone would match every empty line
    lines = split_lines(content)
    needle = split_lines(search)
    for key in _LINE_KEYS:
        starts = find_runs([key(line) for line in needle], [key(line) for line in lines])
        if starts:
            return _splice_lines(content, lines, starts, (search, new), replace_all=replace_all)
    return []


def _match_any_ending(
    content: str, search: str, new: str, *, replace_all: bool
) -> list[TextChange]:
    """Compare with "\\n" endings and convert the positions back."""
    if not line_endings(search) or CRLF not in content + search:
        return []
    plain, needle = content.replace(CRLF, LF), search.replace(CRLF, LF)
    # The position of each "\r\n" in `plain`.
    pairs = [each.start() - index for index, each in enumerate(re.finditer(CRLF, content))]
    spans: list[tuple[int, int]] = []
    at = plain.find(needle)
    while at >= 0:
        end = at + len(needle)
        spans.append((at + bisect_left(pairs, at), end + bisect_left(pairs, end)))
        at = plain.find(needle, end if replace_all else at + 1)
        if not replace_all and len(spans) > 100:
            break  # ambiguous in any case
    ending = dominant_ending(content)
    text = with_ending(new, ending) if ending and len(line_endings(new)) == 1 else new
    return _build_changes(content, spans, text, replace_all=replace_all)


def _build_changes(
    content: str, spans: Sequence[tuple[int, int]], text: str, *, replace_all: bool
) -> list[TextChange]:
    if len(spans) > 1 and not replace_all:
        raise _ambiguous_error(content, [start for start, _ in spans], len(spans))
    return [TextChange(start, end, text) for start, end in spans]


def _splice_lines(
    content: str,
    lines: Sequence[SourceLine],
    starts: Sequence[int],
    texts: tuple[str, str],
    *,
    replace_all: bool,
) -> list[TextChange]:
    offsets = [0, *accumulate(len(line.text) for line in lines)]
    if len(starts) > 1 and not replace_all:
        raise _ambiguous_error(content, [offsets[start] for start in starts], len(starts))
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


def _apply_changes(content: str, changes: Sequence[TextChange]) -> str:
    growth = sum(len(change.text) - (change.end - change.start) for change in changes)
    _check_size(len(content) + growth)
    pieces: list[str] = []
    done = 0
    for change in changes:
        pieces += [content[done : change.start], change.text]
        done = change.end
    return "".join((*pieces, content[done:]))


def _check_size(size: int) -> None:
    if size > MAX_RESULT_CHARS:
        raise AgentError(
            413, f"the result would have {size} characters, over the limit of {MAX_RESULT_CHARS}"
        )


def _ambiguous_error(content: str, starts: Sequence[int], count: int) -> AgentError:
    lines = format_lines(content, starts[: MAX_NAMED_LINES + 1])
    return AgentError(
        400,
        f"the text to find occurs {count} times ({lines}); add lines around it to make it unique, "
        "or set replace_all to change every one",
    )
