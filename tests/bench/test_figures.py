"""What a bench makes of its samples: statistics, verdicts, the table, and the kernel's books."""

import json

import pytest
from msgspec import Struct

from chatd.bench.proc import Entry, parse_kilobytes, parse_stat, tree
from chatd.bench.report import Beside, Line, as_json, at_least, at_most, missed, noted, plain, table
from chatd.bench.run import Surroundings
from chatd.bench.stats import figure, over, percentile, spread

STAT = (
    "4711 (a (bad) name) S 4700 4711 4711 0 -1 4194560 900 0 0 0 "
    "120 30 7 3 20 0 1 0 100 1000 200 18446744073709551615"
)


def process(pid: int, parent: int, ticks: int = 0) -> Entry:
    return Entry(pid=pid, name="chatd", parent=parent, ticks=ticks)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.95, 4), (1.0, 4)]
)
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(share: float, expected: float) -> None:
    assert percentile([4, 2, 1, 3], share) == expected


def test_a_spread_is_the_middle_and_both_ends() -> None:
    found = spread([3, 1, 100])
    assert (found.middle, found.least, found.most, str(found)) == (3, 1, 100, "1 to 100")


def test_ratios_are_of_runs_that_were_made_side_by_side() -> None:
    assert over([2, 9], [1, 3]) == [2, 3]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1.5, "1.5"), (1.006, "1.01"), (99.0, "99"), (100.4, "100"), (15234.0, "15,234")],
)
def test_a_figure_has_as_many_digits_as_one_needs(value: float, shown: str) -> None:
    assert figure(value) == shown


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (at_most("a", 10.0, 10.0), "ok"),
        (at_most("a", 10.01, 10.0), "MISSED"),
        (at_least("a", 0.6, 0.6), "ok"),
        (at_least("a", 0.59, 0.6), "MISSED"),
        (noted("a", 1e9), ""),
        (plain("a", "-"), ""),
    ],
)
def test_a_target_that_is_just_reached_is_met(line: Line, verdict: str) -> None:
    assert line.verdict == verdict
    assert missed([plain("b", "-"), line]) == (verdict == "MISSED")


def test_the_table_has_no_column_that_nobody_uses() -> None:
    assert table([plain("speed", "3"), at_most("waits", 1.0, 2.0, unit=" ms")]) == (
        "what   chatd  target\nspeed      3\nwaits   1 ms  <= 2 ms  ok"
    )


def test_the_table_shows_what_the_same_took_without_us() -> None:
    beside = Beside(direct=0.0, relay=50.0)
    shown = table([at_most("CPU", 90.0, 100.0, unit=" ms", note="3 runs", beside=beside)])
    assert shown.splitlines() == [
        "what  direct  relay  chatd  target",
        "CPU     0 ms  50 ms  90 ms  <= 100 ms  ok  3 runs",
    ]


def test_json_has_numbers_and_the_surroundings() -> None:
    surroundings = Surroundings(cores=2, load=(0.5, 1.0), seconds=3.0)
    told = json.loads(as_json([noted("CPU", 90.4, unit=" ms")], surroundings))
    assert told["surroundings"]["load"] == [0.5, 1.0]
    assert (told["rows"][0]["value"], told["rows"][0]["number"]) == ("90.4 ms", 90.4)


def test_a_process_may_have_any_name() -> None:
    assert parse_stat(STAT) == Entry(pid=4711, name="a (bad) name", parent=4700, ticks=160)


def test_a_tree_has_all_descendants_and_no_strangers() -> None:
    entries = [process(5, 4), process(2, 1), process(4, 2), process(3, 1), process(6, 9)]
    assert {entry.pid for entry in tree(entries, 2)} == {2, 4, 5}
    assert tree(entries, 99) == []


def test_memory_is_read_by_the_name_of_its_field() -> None:
    status = "Name:\tchatd\nVmRSS:\t  900 kB\nRssAnon:\t  512 kB\n"
    assert parse_kilobytes(status, "RssAnon") == 512
    with pytest.raises(KeyError):
        parse_kilobytes(status, "RssFile")


class _Nothing(Struct):
    pass


def test_json_of_no_rows_is_json_all_the_same() -> None:
    assert json.loads(as_json([], _Nothing())) == {"surroundings": {}, "rows": []}
