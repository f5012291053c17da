"""What to say when the text to find is not in the file.

Two slips are recognised: a long run of one character that was miscounted, and the two texts given
the wrong way round. Both are searched for in bounded time, and only after a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from chatd.agent.matching_lines import LF

MAX_HINTS = 3
MAX_LINES = 5
_MAX_CONTENT = 2 << 20
_MAX_SEARCH = 8 << 10
_MAX_CANDIDATES = 20
# A shorter text stands in any file.
_MIN_SWAPPED = 4


def not_found(content: str, search: str, new: str, *, endings_disagree: bool) -> str:
    if endings_disagree:
        return (
            "the text to find was not found; it and the new text have different line endings, "
            "so only an exact match counts: read the file again, or use one kind of ending"
        )
    hints = list(islice(_miscounted(content, search), MAX_HINTS)) or _swapped(content, new)
    advice = hints or ["read the file again and copy the text from it"]
    return "; ".join(["the text to find was not found", *advice])


def places(content: str, starts: Sequence[int]) -> str:
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
    where = places(content, [start for *_, start in wrong])
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
        f"the new text is in the file already, at {places(text, starts)}: "
        "perhaps the two texts were swapped, or the edit was made before"
    )
    return [hint]


def _distinct(numbers: Iterator[int]) -> list[int]:
    return list(dict.fromkeys(numbers))
