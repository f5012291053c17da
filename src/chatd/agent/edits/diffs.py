"""Unified diffs in bounded time and size.

A diff of too many lines is one block; a diff of too many characters is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

CONTEXT_LINES = 3
MAX_DIFF_CHARS = 256 << 10
# Beyond this many changed lines the diff removes one block and adds one block.
_MAX_COMPARED_LINES = 20_000
_NO_NEWLINE = "\\ No newline at end of file\n"

Opcode = tuple[str, int, int, int, int]


def unified_diff(old: str, new: str, label: str) -> str:
    """Empty if nothing changed. `label`, the requested path, names both sides."""
    if old == new:
        return ""
    before, after = _lines(old), _lines(new)
    diff = "".join(_render(before, after, label))
    if len(diff) > MAX_DIFF_CHARS:
        return f"--- {label}\n+++ {label}\n(the diff has {len(diff)} characters and is left out)\n"
    return diff


def _lines(text: str) -> list[str]:
    """Split at "\\n" only, not at a form feed or U+2028."""
    lines = [f"{piece}\n" for piece in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _render(before: Sequence[str], after: Sequence[str], label: str) -> Iterator[str]:
    yield f"--- {label}\n+++ {label}\n"
    for group in _groups(_opcodes(before, after)):
        first, last = group[0], group[-1]
        yield f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@\n"
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                yield from _marked(" ", before[old_from:old_to])
            else:
                yield from _marked("-", before[old_from:old_to])
                yield from _marked("+", after[new_from:new_to])


def _marked(sign: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n{_NO_NEWLINE}"


def _span(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _opcodes(before: Sequence[str], after: Sequence[str]) -> list[Opcode]:
    """Those of difflib, which compares only the lines between the common start and end."""
    head = _common_length(before, after)
    tail = _common_length(before[head:][::-1], after[head:][::-1])
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    codes: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    if max(len(old), len(new)) > _MAX_COMPARED_LINES:
        codes.append(("replace", head, head + len(old), head, head + len(new)))
    else:
        codes += [
            (tag, a + head, b + head, c + head, d + head)
            for tag, a, b, c, d in SequenceMatcher(None, old, new).get_opcodes()
        ]
    if tail:
        codes.append(("equal", len(before) - tail, len(before), len(after) - tail, len(after)))
    return codes


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def _groups(codes: Sequence[Opcode]) -> Iterator[list[Opcode]]:
    """Hunks: changes with their context lines, split where more lines lie between."""
    group: list[Opcode] = []
    for index, (tag, a, b, c, d) in enumerate(codes):
        if tag != "equal":
            group.append((tag, a, b, c, d))
            continue
        if group and (b - a > 2 * CONTEXT_LINES or index == len(codes) - 1):
            keep = min(CONTEXT_LINES, b - a)
            yield [*group, ("equal", a, a + keep, c, c + keep)]
            group = []
        if index < len(codes) - 1:
            keep = b - a if group else min(CONTEXT_LINES, b - a)
            group.append(("equal", b - keep, b, d - keep, d))
    if group:
        yield group
