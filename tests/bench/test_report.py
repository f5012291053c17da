"""Statistics, verdicts, the table, and parsing /proc."""

import json

import pytest
from msgspec import Struct

from bench.proc_stats import (
    ProcEntry,
    format_number,
    parse_kilobytes,
    parse_stat,
    percentile,
    process_tree,
    ratios,
    spread,
)
from bench.report import (
    Baselines,
    ReportRow,
    at_least,
    at_most,
    format_json,
    format_table,
    has_missed,
    text_row,
    without_target,
)
from bench.run import MachineLoad

STAT = (
    "4711 (a (bad) name) S 4700 4711 4711 0 -1 4194560 900 0 0 0 "
    "120 30 7 3 20 0 1 0 100 1000 200 18446744073709551615"
)


def process(pid: int, parent: int, ticks: int = 0) -> ProcEntry:
    return ProcEntry(pid=pid, name="chatd", parent=parent, ticks=ticks)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.95, 4), (1.0, 4)]
)
def test_a_percentile_is_a_sample(share: float, expected: float) -> None:
    assert percentile([4, 2, 1, 3], share) == expected


def test_a_spread_has_median_minimum_and_maximum() -> None:
    found = spread([3, 1, 100])
    assert (found.median, found.least, found.most, str(found)) == (3, 1, 100, "1 to 100")


def test_ratios_are_of_paired_runs() -> None:
    assert ratios([2, 9], [1, 3]) == [2, 3]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1.5, "1.5"), (1.006, "1.01"), (99.0, "99"), (100.4, "100"), (15234.0, "15,234")],
)
def test_numbers_have_at_most_two_decimals(value: float, shown: str) -> None:
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (at_most("a", 10.0, 10.0), "ok"),
        (at_most("a", 10.01, 10.0), "MISSED"),
        (at_least("a", 0.6, 0.6), "ok"),
        (at_least("a", 0.59, 0.6), "MISSED"),
        (without_target("a", 1e9), ""),
        (text_row("a", "-"), ""),
    ],
)
def test_a_value_equal_to_the_target_meets_it(line: ReportRow, verdict: str) -> None:
    assert line.verdict == verdict
    assert has_missed([text_row("b", "-"), line]) == (verdict == "MISSED")


def test_the_table_has_no_empty_column() -> None:
    assert format_table([text_row("speed", "3"), at_most("waits", 1.0, 2.0, unit=" ms")]) == (
        "what   chatd  target\nspeed      3\nwaits   1 ms  <= 2 ms  ok"
    )


def test_the_table_shows_the_baselines() -> None:
    baselines = Baselines(direct=0.0, relay=50.0)
    shown = format_table(
        [at_most("CPU", 90.0, 100.0, unit=" ms", note="3 runs", baselines=baselines)]
    )
    assert shown.splitlines() == [
        "what  direct  relay  chatd  target",
        "CPU     0 ms  50 ms  90 ms  <= 100 ms  ok  3 runs",
    ]


def test_json_has_numbers_and_the_machine_load() -> None:
    machine = MachineLoad(cores=2, load=(0.5, 1.0), seconds=3.0)
    parsed = json.loads(format_json([without_target("CPU", 90.4, unit=" ms")], machine))
    assert parsed["surroundings"]["load"] == [0.5, 1.0]
    assert (parsed["rows"][0]["value"], parsed["rows"][0]["number"]) == ("90.4 ms", 90.4)


def test_a_process_name_may_contain_brackets() -> None:
    assert parse_stat(STAT) == ProcEntry(pid=4711, name="a (bad) name", parent=4700, ticks=160)


def test_a_process_tree_has_all_descendants_and_no_others() -> None:
    entries = [process(5, 4), process(2, 1), process(4, 2), process(3, 1), process(6, 9)]
    assert {entry.pid for entry in process_tree(entries, 2)} == {2, 4, 5}
    assert process_tree(entries, 99) == []


def test_memory_is_read_by_field_name() -> None:
    status = "Name:\tchatd\nVmRSS:\t  900 kB\nRssAnon:\t  512 kB\n"
    assert parse_kilobytes(status, "RssAnon") == 512
    with pytest.raises(KeyError):
        parse_kilobytes(status, "RssFile")


class _Nothing(Struct):
    pass


def test_json_without_rows_is_valid() -> None:
    assert json.loads(format_json([], _Nothing())) == {"surroundings": {}, "rows": []}
