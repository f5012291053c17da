"""What the user's commands print: text, aligned columns, JSON.

Texts of servers and models lose everything that a terminal would obey, in pipes too: what reads
them may show them on one. Data, such as a file or the answer of a run, goes into a pipe or a file
as it is. Columns are cut to the width of a terminal.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from chatd.terminal.safe_text import cell_width, fit_line, safe_line, safe_text

_GAP: Final = "  "
_MAX_CELLS: Final = 10_000
_MIN_LAST_CELLS: Final = 12
_BOLD: Final = "\x1b[1m"
_PLAIN: Final = "\x1b[0m"
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


def print_text(text: str, *, is_data: bool = False) -> None:
    """On standard output, ended with a line break."""
    shown = text if is_data and not sys.stdout.isatty() else safe_text(text)
    sys.stdout.write(shown if shown.endswith("\n") else f"{shown}\n")
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Indented for people; `print_json_line` is for programs that read line by line."""
    _write_json(msgspec.json.format(encode_line(value), indent=2).decode())


def print_json_line(value: object) -> None:
    _write_json(encode_line(value).decode())


def _write_json(text: str) -> None:
    sys.stdout.write(f"{escape_json(text) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def print_notice(text: str) -> None:
    """On standard error: for the person, not for a program."""
    sys.stderr.write(f"{safe_text(text)}\n")
    sys.stderr.flush()


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    lines = table_lines(headings, rows, width)
    if is_terminal and not os.environ.get("NO_COLOR"):
        lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    if not rows:
        print_notice("(none)")


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> list[str]:
    """Aligned columns, the headings first. With a width the last column is cut to fit; a column of
    numbers is aligned at its right."""
    shown = [[safe_line(cell, _MAX_CELLS) for cell in row] for row in rows]
    columns = list(zip(headings, *shown, strict=True))
    sizes = [max(map(cell_width, column)) for column in columns]
    if width is not None:
        taken = sum(sizes[:-1]) + len(_GAP) * (len(sizes) - 1)
        sizes[-1] = min(sizes[-1], max(width - taken, _MIN_LAST_CELLS))
    at_right = [bool(shown) and all(map(_is_number, column[1:])) for column in columns]
    lines = zip(*columns, strict=True)
    return [_GAP.join(map(_place, line, sizes, at_right)).rstrip() for line in lines]


def field_lines(fields: Mapping[str, str]) -> list[str]:
    """One field per line, its name first; empty ones are left out."""
    given = {name: text for name, text in fields.items() if text}
    size = max(map(len, given), default=0)
    return [f"{name:<{size}}{_GAP}{safe_line(text, _MAX_CELLS)}" for name, text in given.items()]


def encode_line(value: object) -> bytes:
    """JSON in one line: raw JSON of a tool may have line breaks, which equal spaces there."""
    return msgspec.json.encode(value).replace(b"\n", b" ").replace(b"\r", b" ")


def escape_json(text: str) -> str:
    """The same JSON, with everything that acts on a terminal or hides in it as escapes. JSON itself
    escapes only the control characters of ASCII."""
    if text.isascii():
        return text
    return "".join(
        json.dumps(one)[1:-1] if not one.isascii() and safe_text(one) != one else one
        for one in text
    )


def dollars(micros: int) -> str:
    """Small amounts with four digits, so that a cheap call is not shown as nothing."""
    return f"${micros / 1e6:,.2f}" if micros == 0 or micros >= 10_000 else f"${micros / 1e6:,.4f}"


def short_time(when: datetime | None, now: datetime) -> str:
    """How long ago, or how long from now."""
    if when is None:
        return "never"
    seconds = (now - when).total_seconds()
    unit, size = next(((u, s) for u, s in _UNITS if abs(seconds) >= s), ("s", 1))
    count = f"{int(abs(seconds)) // size} {unit}"
    if abs(seconds) < 1:
        return "now"
    return f"{count} ago" if seconds > 0 else f"in {count}"


def byte_size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _place(text: str, size: int, at_right: bool) -> str:
    fitted = fit_line(text, size)
    space = " " * (size - cell_width(fitted))
    return space + fitted if at_right else fitted + space


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").lstrip("$").isdigit()
