"""Text of others shows as plain text and never acts on the terminal."""

import re
import subprocess
import sys
import time
from unicodedata import category

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatd.terminal.safe_text import MAX_MARKS, cell_width, safe_line, safe_text

ESC = "\x1b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\r\n", "\n"),
        (f"{ESC}[31mred{ESC}[0m", "red"),
        (f"{ESC}[38;2;1;2;3mrgb", "rgb"),
        (f"{ESC}[?1049h{ESC}[2J{ESC}[Hgone", "gone"),
        (f"a{ESC}[31", "a"),
        (f"{ESC}]0;title\x07after", "after"),
        (f"{ESC}]52;c;ZXZpbA=={ESC}\\after", "after"),
        (f"{ESC}]8;;https://evil{ESC}\\link{ESC}]8;;{ESC}\\", "link"),
        (f"{ESC}]0;two\nlines\x07after", "after"),
        (f"{ESC}]0;never ended", "0;never ended"),
        (f"{ESC}P1$r0m{ESC}\\after", "after"),
        (f"{ESC}_Gf=100;AAAA{ESC}\\after", "after"),
        (f"{ESC}^private{ESC}\\after", "after"),
        (f"{ESC}Xstring{ESC}\\after", "after"),
        (f"{ESC}(0lqk", "lqk"),
        (f"{ESC}c{ESC}7{ESC}8{ESC}=x", "x"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x9d0;title\x9cafter", "after"),
        ("\x90data\x9cafter", "after"),
        (f"{ESC}{ESC}[0m[31mred", "[31mred"),
        ("\x00\x07\x08\x0b\x0c\x0e\x7f\x85", ""),
        ("abc\rxyz", "abcxyz"),
        ("a\u202eb\u202cc\u2066d\u2069e\u200ef\u061cg", "abcdefg"),
        ("z\u200be\u200cr\u200do\u2060w\ufeffi\u00add\u034ft\u3164h", "zerowidth"),
        ("tag\U000e0041\U000e007f", "tag"),
        ("❤\ufe0f", "❤"),
        ("\ud800lone\udfff", "lone"),
        ("one\u2028two\u2029three", "one\ntwo\nthree"),
        ("e\u0301 is e\u0301", "e\u0301 is e\u0301"),
        ("e" + "\u0301" * 500, "e" + "\u0301" * MAX_MARKS),
        ("日本語 🙂 עברית عربى", "日本語 🙂 עברית عربى"),
        ("[bold]not[/] [@click=app.quit]markup[/]", "[bold]not[/] [@click=app.quit]markup[/]"),
    ],
)
def test_a_text_shows_without_what_acts_or_hides(text: str, shown: str) -> None:
    assert safe_text(text) == shown


_PIECES = st.sampled_from(
    (ESC, "[", "]", "P", "\\", "\x07", "\x9b", "\x9d", "\x9c", "31", ";", "m", "\n", "\t", "\r")
) | st.sampled_from("\u202e\u200b\ufeff\ud800\u0301日x ")
_HOSTILE = st.lists(_PIECES | st.characters(), max_size=60).map("".join)


_BOUNDED = settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@_BOUNDED
@given(_HOSTILE)
def test_no_control_bidi_or_surrogate_character_passes(text: str) -> None:
    shown = safe_text(text)
    left = {character for character in shown if category(character) in ("Cc", "Cs", "Zl", "Zp")}
    assert left <= {"\n", "\t"}
    assert not re.search("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u061c]", shown)


@_BOUNDED
@given(_HOSTILE)
def test_a_safe_text_stays_as_it_is(text: str) -> None:
    assert safe_text(safe_text(text)) == safe_text(text)


@_BOUNDED
@given(st.text(st.characters(categories=("L", "Nd", "P", "Zs")), max_size=80))
def test_letters_digits_and_punctuation_of_all_scripts_stay(text: str) -> None:
    assert safe_text(text) == "".join(c for c in text if c not in "\u115f\u1160\u3164\uffa0")


@pytest.mark.parametrize(
    ("text", "width", "line"),
    [
        ("short", 10, "short"),
        ("exactly10!", 10, "exactly10!"),
        ("exactly 11!", 10, "exactly 1…"),
        ("two\n\n  lines\tof text", 40, "two lines of text"),
        ("  around  ", 40, "around"),
        ("日本語日本語", 7, "日本語…"),
        ("日本語日本語", 6, "日本…"),
        (f"{ESC}[31mred{ESC}[0m text", 20, "red text"),
        ("word word", 6, "word…"),
        ("x", 0, ""),
        ("", 5, ""),
    ],
)
def test_a_line_is_cut_to_its_cells(text: str, width: int, line: str) -> None:
    assert safe_line(text, width) == line


@_BOUNDED
@given(_HOSTILE, st.integers(0, 30))
def test_a_line_never_fills_more_than_its_width(text: str, width: int) -> None:
    line = safe_line(text, width)
    assert "\n" not in line
    assert "\t" not in line
    assert cell_width(line) <= width


@pytest.mark.parametrize(
    "piece", [f"{ESC}]0;", f"{ESC}[", f"{ESC}P", "\x9d", f"{ESC}[31m", "\u0301", "x", f"{ESC}(("]
)
def test_megabytes_take_linear_time(piece: str) -> None:
    before = time.process_time()
    safe_text(piece * (3_000_000 // len(piece)))
    safe_line(piece * (3_000_000 // len(piece)), 80)
    # A quadratic scan of as many introducers would take hours.
    assert time.process_time() - before < 10


def test_the_module_needs_neither_textual_nor_rich() -> None:
    code = (
        "import sys, chatd.terminal.safe_text as s; "
        "sys.exit(any(m.split('.')[0] in ('textual', 'rich') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
