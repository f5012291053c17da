"""What was measured, against what was promised, as one table."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "MISSED", ""]


class Line(Struct, frozen=True, kw_only=True):
    """One measurement. `target` is text for people; the verdict is the measurer's."""

    name: str
    value: str
    target: str = ""
    verdict: Verdict = ""
    note: str = ""


def at_least(name: str, value: float, target: float, *, note: str = "") -> Line:
    return _line(name, value, f">= {target:g}", met=value >= target, note=note)


def at_most(name: str, value: float, target: float, *, unit: str = "", note: str = "") -> Line:
    return _line(name, value, f"<= {target:g}{unit}", met=value <= target, note=note, unit=unit)


def plain(name: str, value: str, *, note: str = "") -> Line:
    return Line(name=name, value=value, note=note)


def _line(name: str, value: float, target: str, *, met: bool, note: str, unit: str = "") -> Line:
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")
    verdict: Verdict = "ok" if met else "MISSED"
    return Line(name=name, value=shown + unit, target=target, verdict=verdict, note=note)


def table(lines: Sequence[Line]) -> str:
    head = Line(name="what", value="value", target="target", note="")
    rows = [(line.name, line.value, line.target, line.verdict, line.note) for line in lines]
    shown = [(head.name, head.value, head.target, "", "note"), *rows]
    widths = [max(len(row[column]) for row in shown) for column in range(5)]
    return "\n".join(
        f"{name:<{widths[0]}}  {value:>{widths[1]}}  {target:<{widths[2]}}  "
        f"{verdict:<{widths[3]}}  {note}".rstrip()
        for name, value, target, verdict, note in shown
    )
