"""What commands print: columns, amounts and times; and nothing that a terminal would obey."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from chatd.cli.output import (
    byte_size,
    dollars,
    encode_line,
    escape_json,
    field_lines,
    print_notice,
    print_text,
    short_time,
    table_lines,
)

NOW = datetime(2026, 11, 17, 9, 0, tzinfo=UTC)
HOSTILE = "a\x1b]0;title\x07b\x1b[2Jc\u202ed\n\te"
SAFE = "abcd\n\te\n"


def test_columns_are_aligned_and_numbers_stand_at_the_right() -> None:
    lines = table_lines(["NAME", "CALLS", "NOTE"], [["a", "7", ""], ["longer", "1,200", "x"]], None)
    assert lines == ["NAME    CALLS  NOTE", "a           7", "longer  1,200  x"]


def test_only_the_last_column_is_cut_to_the_terminal() -> None:
    title = "a title that is longer than the terminal"
    (heading, row) = table_lines(["ID", "TITLE"], [["0193c5a6", title]], 30)
    assert heading == "ID        TITLE"
    assert row == "0193c5a6  a title that is lon…"


def test_wide_characters_count_twice() -> None:
    lines = table_lines(["A", "B"], [["日本", "x"], ["abcd", "y"]], None)
    assert lines[1:] == ["日本  x", "abcd  y"]


def test_a_cell_loses_escape_sequences_and_line_breaks() -> None:
    lines = table_lines(["TITLE"], [["one\ntwo \x1b]0;owned\x07three\x1b[2J"]], None)
    assert lines[1] == "one two three"


def test_a_table_without_rows_has_its_headings() -> None:
    assert table_lines(["A", "B"], [], 80) == ["A  B"]


def test_empty_fields_are_left_out() -> None:
    assert field_lines({"id": "1", "title": "", "status": "waiting"}) == [
        "id      1",
        "status  waiting",
    ]


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(0, "$0.00"), (120, "$0.0001"), (9_999, "$0.0100"), (20_400_000, "$20.40")],
)
def test_small_amounts_are_not_shown_as_nothing(micros: int, shown: str) -> None:
    assert dollars(micros) == shown


@pytest.mark.parametrize(
    ("ago", "shown"),
    [
        (timedelta(), "now"),
        (timedelta(seconds=59), "59 s ago"),
        (timedelta(minutes=3), "3 min ago"),
        (timedelta(hours=25), "1 d ago"),
        (timedelta(hours=-2), "in 2 h"),
    ],
)
def test_times_are_shown_as_distances(ago: timedelta, shown: str) -> None:
    assert short_time(NOW - ago, NOW) == shown


def test_a_time_that_never_came_is_never() -> None:
    assert short_time(None, NOW) == "never"


@pytest.mark.parametrize(
    ("count", "shown"), [(12, "12 B"), (2048, "2.0 KiB"), (5 << 20, "5.0 MiB")]
)
def test_sizes_have_units(count: int, shown: str) -> None:
    assert byte_size(count) == shown


def test_json_of_a_tool_with_line_breaks_stays_one_line() -> None:
    assert encode_line({"args": msgspec.Raw(b'{"a":\n1}')}) == b'{"args":{"a": 1}}'


def test_json_on_a_terminal_is_the_same_json_without_anything_that_acts() -> None:
    value = {"text": "\x1b[31m \x9b2J \u202eabc é 日 \U000e0041 ok"}
    shown = escape_json(encode_line(value).decode())
    assert msgspec.json.decode(shown) == value
    assert [one for one in shown if not one.isprintable()] == []
    assert "é 日" in shown


def test_a_text_loses_escapes_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(HOSTILE)
    print_notice(HOSTILE)
    assert capsys.readouterr() == (SAFE, SAFE)


def test_data_goes_into_a_pipe_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(HOSTILE, is_data=True)
    assert capsys.readouterr().out == f"{HOSTILE}\n"
