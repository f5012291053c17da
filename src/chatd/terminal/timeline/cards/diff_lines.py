"""Changes of a file as coloured lines, with line numbers and the words that changed."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct
from rich.text import Text

from chatd.terminal.changes.git_diff import parse_git_diff
from chatd.terminal.timeline.lines import Lines, cut, padded
from chatd.terminal.timeline.markdown.code import coloured, language_of
from chatd.terminal.timeline.palette import Palette

MAX_DIFF_LINES: Final = 400
_MAX_DIFF_CHARS: Final = 200_000
_MAX_PAIRED: Final = 40


class DiffLine(Struct, frozen=True):
    """`number` is the line's number in the new file; of a removed one in the old."""

    kind: Literal["context", "add", "del", "gap"]
    text: str
    number: int | None = None


def read_diff(diff: str) -> list[DiffLine]:
    """Of a unified diff of one file."""
    lines: list[DiffLine] = []
    for file in parse_git_diff(diff[:_MAX_DIFF_CHARS]).files:
        for hunk in file.hunks:
            if lines:
                lines.append(DiffLine("gap", "⋯"))
            for line in hunk.lines:
                number = line.old if line.kind == "del" else line.new
                lines.append(DiffLine(line.kind, line.text, number))
    return lines


def edit_diff(old: str, new: str) -> list[DiffLine]:
    """What one edit replaces by what, before the server has said the diff."""
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
    """One line of the screen for each: a longer one is cut, so that columns stay in place."""
    shown = lines[:MAX_DIFF_LINES]
    texts = coloured("\n".join(line.text for line in shown) or " ", language_of(path), palette)
    digits = len(str(max((line.number or 0 for line in shown), default=0)))
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
    number = "" if line.number is None else str(line.number)
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
    """Of a removed line and the added one in its place: the range that differs."""
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
