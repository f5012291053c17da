"""The rows of a bench, their targets and verdicts, as a table or as JSON."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from bench.proc_stats import format_number

Verdict = Literal["ok", "MISSED", ""]


class ReportRow(Struct, frozen=True, kw_only=True):
    """One measurement. `direct` and `relay` are the same measurement without chatd. `target` is
    for display; the module that measures sets the verdict."""

    name: str
    value: str
    direct: str = ""
    relay: str = ""
    target: str = ""
    verdict: Verdict = ""
    note: str = ""
    number: float | UnsetType = UNSET


class Baselines(Struct, frozen=True, kw_only=True):
    """The same measurement direct to the provider and through the relay."""

    direct: float | None = None
    relay: float | None = None


NO_BASELINE: Final = Baselines()


def at_least(
    name: str,
    value: float,
    target: float,
    *,
    unit: str = "",
    note: str = "",
    baselines: Baselines = NO_BASELINE,
) -> ReportRow:
    row = _row(name, value, unit, note, baselines)
    return _judged(row, f">= {format_number(target)}{unit}", met=value >= target)


def at_most(
    name: str,
    value: float,
    target: float,
    *,
    unit: str = "",
    note: str = "",
    baselines: Baselines = NO_BASELINE,
) -> ReportRow:
    row = _row(name, value, unit, note, baselines)
    return _judged(row, f"<= {format_number(target)}{unit}", met=value <= target)


def without_target(
    name: str, value: float, *, unit: str = "", note: str = "", baselines: Baselines = NO_BASELINE
) -> ReportRow:
    return _row(name, value, unit, note, baselines)


def text_row(name: str, value: str, *, note: str = "") -> ReportRow:
    return ReportRow(name=name, value=value, note=note)


def _row(name: str, value: float, unit: str, note: str, baselines: Baselines) -> ReportRow:
    def shown(number: float | None) -> str:
        return "" if number is None else format_number(number) + unit

    return ReportRow(
        name=name,
        value=shown(value),
        direct=shown(baselines.direct),
        relay=shown(baselines.relay),
        note=note,
        number=value,
    )


def _judged(row: ReportRow, target: str, *, met: bool) -> ReportRow:
    return msgspec.structs.replace(row, target=target, verdict="ok" if met else "MISSED")


def has_missed(rows: Sequence[ReportRow]) -> bool:
    return any(row.verdict == "MISSED" for row in rows)


def format_table(rows: Sequence[ReportRow]) -> str:
    """Empty columns are left out."""
    head = ReportRow(name="what", direct="direct", relay="relay", value="chatd", target="target")
    columns = ["name", "direct", "relay", "value", "target", "verdict", "note"]
    cells = [[str(getattr(row, column)) for column in columns] for row in rows]
    used = [index for index in range(len(columns)) if any(row[index] for row in cells)]
    shown = [[getattr(head, columns[index]) for index in used]]
    shown += [[row[index] for index in used] for row in cells]
    widths = [max(len(row[place]) for row in shown) for place in range(len(used))]
    numbers = {"direct", "relay", "value"}
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if columns[index] in numbers else f"{cell:<{width}}"
            for cell, width, index in zip(row, widths, used, strict=True)
        ).rstrip()
        for row in shown
    )


def format_json(rows: Sequence[ReportRow], machine: Struct) -> bytes:
    whole = {"surroundings": machine, "rows": rows}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2)
