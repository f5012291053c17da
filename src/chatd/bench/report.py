"""What was measured, against what was promised, as one table or as JSON."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chatd.bench.stats import figure

Verdict = Literal["ok", "MISSED", ""]


class Line(Struct, frozen=True, kw_only=True):
    """One measurement. `direct` and `relay` are what the same took without us. `target` is text
    for people; the verdict is the measurer's."""

    name: str
    value: str
    direct: str = ""
    relay: str = ""
    target: str = ""
    verdict: Verdict = ""
    note: str = ""
    number: float | UnsetType = UNSET


class Beside(Struct, frozen=True, kw_only=True):
    """The same, straight to the provider and through a program that only passes it on."""

    direct: float | None = None
    relay: float | None = None


ALONE: Final = Beside()


def at_least(
    name: str,
    value: float,
    target: float,
    *,
    unit: str = "",
    note: str = "",
    beside: Beside = ALONE,
) -> Line:
    line = _line(name, value, unit, note, beside)
    return _judged(line, f">= {figure(target)}{unit}", met=value >= target)


def at_most(
    name: str,
    value: float,
    target: float,
    *,
    unit: str = "",
    note: str = "",
    beside: Beside = ALONE,
) -> Line:
    line = _line(name, value, unit, note, beside)
    return _judged(line, f"<= {figure(target)}{unit}", met=value <= target)


def noted(
    name: str, value: float, *, unit: str = "", note: str = "", beside: Beside = ALONE
) -> Line:
    """A number that nothing was promised about."""
    return _line(name, value, unit, note, beside)


def plain(name: str, value: str, *, note: str = "") -> Line:
    return Line(name=name, value=value, note=note)


def _line(name: str, value: float, unit: str, note: str, beside: Beside) -> Line:
    def shown(number: float | None) -> str:
        return "" if number is None else figure(number) + unit

    return Line(
        name=name,
        value=shown(value),
        direct=shown(beside.direct),
        relay=shown(beside.relay),
        note=note,
        number=value,
    )


def _judged(line: Line, target: str, *, met: bool) -> Line:
    return msgspec.structs.replace(line, target=target, verdict="ok" if met else "MISSED")


def missed(lines: Sequence[Line]) -> bool:
    return any(line.verdict == "MISSED" for line in lines)


def table(lines: Sequence[Line]) -> str:
    """Columns that nobody has anything in are left out."""
    head = Line(name="what", direct="direct", relay="relay", value="chatd", target="target")
    columns = ["name", "direct", "relay", "value", "target", "verdict", "note"]
    cells = [[str(getattr(line, column)) for column in columns] for line in lines]
    used = [index for index in range(len(columns)) if any(row[index] for row in cells)]
    rows = [[getattr(head, columns[index]) for index in used]]
    rows += [[row[index] for index in used] for row in cells]
    widths = [max(len(row[place]) for row in rows) for place in range(len(used))]
    numbers = {"direct", "relay", "value"}
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if columns[index] in numbers else f"{cell:<{width}}"
            for cell, width, index in zip(row, widths, used, strict=True)
        ).rstrip()
        for row in rows
    )


def as_json(lines: Sequence[Line], surroundings: Struct) -> bytes:
    whole = {"surroundings": surroundings, "rows": lines}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2)
