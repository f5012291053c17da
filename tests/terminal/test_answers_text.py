"""What an approval shows of its call: everything, and nothing that can hide."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec import UNSET, Raw

from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.ids import ToolCallId
from chatd.terminal.answers.approval_form import CallView
from chatd.terminal.answers.asks import time_left
from chatd.terminal.answers.exact_text import (
    HEAD_ROWS,
    TAIL_ROWS,
    ExactRow,
    describe_call,
    exact_rows,
    exact_text,
    folded,
)
from chatd.terminal.safe_text import cell_width, safe_text

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


def asked(tool: str = "execute", reason: str = "") -> RequestedCall:
    return RequestedCall(
        tool_call_id=ToolCallId("c1"), tool_name=tool, kind="approval", reason=reason
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("git push", "git push"),
        ("ls\nrm x", "ls\nrm x"),
        ("a\tb\rc", "a\\tb\\rc"),
        ("\x1b[2J\x1b]0;t\x07", "\\u001b[2J\\u001b]0;t\\u0007"),
        ("rm\u202e fdp.exe", "rm\\u202e fdp.exe"),
        ("a\u200bb\ufeffc\u00a0d\u3000e", "a\\u200bb\\ufeffc\\u00a0d\\u3000e"),
        ("x\u2028y\u0085z", "x\\u2028y\\u0085z"),
        ("\U000e0041tag", "\\U000e0041tag"),
        ("\u2800\u3164", "\\u2800\\u3164"),
        ("a\u180bb\u180fc\U0001d159", "a\\u180bb\\u180fc\\U0001d159"),
        ("cafe\u0301 naïve 漢字", "cafe\u0301 naïve 漢字"),
        (" \u0301", " \\u0301"),
        ("\ud83d", "\\ud83d"),
    ],
)
def test_what_cannot_be_seen_is_shown_as_an_escape(given: str, shown: str) -> None:
    assert exact_text(given) == shown


def test_no_character_is_lost_and_none_acts_on_the_terminal() -> None:
    """Takes half a second: every block with characters that do something, and one plane more."""
    for code in (*range(0x3200), *range(0xD800, 0x11000), *range(0xE0000, 0xE1000)):
        shown = exact_text(f"a{chr(code)}b")
        assert len(shown) >= 3, hex(code)
        assert safe_text(shown) == shown, hex(code)


def test_rows_fit_and_together_have_the_whole_text() -> None:
    text = "echo " + "漢x" * 40 + "\n\n" + "y" * 33 + "; rm -rf /"
    rows = exact_rows(text, 16)
    assert all(cell_width(row.text) <= 16 for row in rows)
    assert "".join("\n" * row.starts + row.text for row in rows)[1:] == text


@pytest.mark.parametrize("lines", [1, HEAD_ROWS + TAIL_ROWS + 1, HEAD_ROWS + TAIL_ROWS + 2, 500])
def test_a_folded_text_shows_its_end_and_says_how_much_is_hidden(lines: int) -> None:
    rows = exact_rows("\n".join(["echo", *[""] * (lines - 2), "rm -rf /"][:lines]), 40)
    shown = folded(rows)
    assert shown[-1] == rows[-1]
    assert len(shown) <= HEAD_ROWS + TAIL_ROWS + 1
    assert len([row for row in shown if not row.hidden]) + sum(row.hidden for row in shown) == lines
    assert ExactRow("echo") == shown[0]


def test_a_command_is_shown_first_and_every_other_argument_below() -> None:
    args = Raw(b'{"workdir":"/srv","command":"make \\u202edeploy","background":true,"n":{"a":1}}')
    text = describe_call(asked(reason="Deploys need a review."), args)
    assert text.title == "Run this command?"
    assert [(block.kind, block.name, block.text) for block in text.blocks] == [
        ("command", "", "make \u202edeploy"),
        ("argument", "Directory", "/srv"),
        ("argument", "background", "true"),
        ("argument", "n", '{"a": 1}'),
    ]
    assert text.facts == (("Why it asks", "Deploys need a review."),)
    assert text.warnings == ("Invisible characters are shown as escapes such as \\u200b.",)


@pytest.mark.parametrize(
    ("args", "texts", "warning"),
    [
        (b'{"command":"ls","command":"rm x"}', ["ls", "rm x"], "given twice"),
        (b'{"files":{"p":1,"p":2}}', ['{"p": 1, "p": 2}'], ""),
        (b'["ls"]', ['["ls"]'], "no JSON object"),
        (b'{"host":"p\\u0430ypal.com"}', ["p\u0430ypal.com"], "several alphabets"),
        (b'{"list":[1,"a",null]}', ['[1, "a", null]'], ""),
        (b"{}", [], ""),
    ],
)
def test_arguments_are_shown_as_they_came(args: bytes, texts: list[str], warning: str) -> None:
    text = describe_call(asked("deploy"), Raw(args))
    assert text.title == "Allow deploy?"
    assert [block.text for block in text.blocks] == texts
    assert warning in " ".join(text.warnings)
    assert bool(text.warnings) == bool(warning)


def test_arguments_that_nobody_has_are_said_to_be_unreadable() -> None:
    text = describe_call(asked(), UNSET)
    assert [block.text for block in text.blocks] == ["(not readable)"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("limit", "limit"),
        ("a\nto ok@x", '"a\\nto ok@x"'),
        ("Why it asks", '"Why it asks"'),
        ("Directory", '"Directory"'),
        ("", '""'),
        ("a\u3164\u202eb", '"a\\u3164\\u202eb"'),
        ("n\u3164", "n\\u3164"),
        ("größe", "größe"),
    ],
)
def test_a_name_is_exact_in_one_line_and_never_like_words_of_the_panel(
    name: str, shown: str
) -> None:
    args = Raw(msgspec.json.encode({name: "evil", "to": "bob"}))
    text = describe_call(asked("deploy"), args)
    assert [block.name for block in text.blocks] == [shown, "to"]
    assert describe_call(asked(name or "x"), Raw(b"{}")).title.count("\n") == 0


def test_an_approval_has_each_argument_in_rows_of_its_own() -> None:
    args = Raw(msgspec.json.encode({"a\nto ok@x": "evil", "漢漢漢漢漢漢漢": "wide" * 20}))
    rows = list(CallView([describe_call(asked("deploy"), args)])._lay_out(60))  # pyright: ignore[reportPrivateUsage]
    lines = ["".join(piece for _, piece in row) for row in rows]
    assert lines[0] == '"a\\nto ok@x" evil'
    assert not any("\n" in line for line in lines)
    assert max(map(cell_width, lines)) <= 60, "nothing is cut off at the right"
    assert "".join(line.strip() for line in lines[2:]) == "wide" * 20


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (timedelta(hours=71, minutes=59), "3 d left"),
        (timedelta(hours=47), "47 h left"),
        (timedelta(minutes=119), "119 min left"),
        (timedelta(seconds=119), "119 s left"),
        (timedelta(), "time is over"),
    ],
)
def test_the_time_that_is_left_is_said(left: timedelta, words: str) -> None:
    assert time_left(NOW + left, NOW) == words
    assert time_left(None, NOW) == ""
