"""Markdown as lines, whole and while it is being written."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from chatd.terminal.themes import DARK_PALETTE, LIGHT_PALETTE
from chatd.terminal.timeline.lines import plain_text
from chatd.terminal.timeline.markdown_lines import LiveMarkdown, markdown_lines
from tests.terminal.timeline_scenes import MARKDOWN

LONG_CODE = "Look:\n\n```python\n" + "x = f(1)  # one\n" * 200 + "```\n\nThat was **it**.\n"
LONG_LIST = "\n".join(f"{number}. item `{number}`" for number in range(1, 60)) + "\n\nDone.\n"
TEXTS = {"report": MARKDOWN, "long code": LONG_CODE, "long list": LONG_LIST}


def text_of(markdown: str, width: int = 60) -> str:
    return plain_text(markdown_lines(markdown, width, DARK_PALETTE))


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("# Title\n\ntext", "Title\n\ntext"),
        ("one\ntwo", "one two"),
        ("one  \ntwo", "one\ntwo"),
        ("- a\n  - b\n- c", "• a\n  • b\n• c"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("> quoted", "▏ quoted"),
        ("---", "─" * 60),
        ("`a` **b** ~~c~~", "a b c"),
        ("[text](https://a.test)", "text (https://a.test)"),
        ("<https://a.test>", "https://a.test"),
        ("![alt](https://a.test/x.png)", "[image: alt] (https://a.test/x.png)"),
        ("<script>x</script>", "<script>x</script>"),
        ("[text](javascript:alert)", "[text](javascript:alert)"),
        ("```\ncode\n  more\n```", " code\n   more"),
        ("| a | b |\n|---|--:|\n| 1 | 22 |", "a   b\n─  ──\n1  22"),
        ("&lt;b&gt; &amp;", "<b> &"),
        ("", ""),
    ],
)
def test_markdown_becomes_text(markdown: str, text: str) -> None:
    assert text_of(markdown) == text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_an_answer_that_grew_in_small_pieces_looks_like_the_whole(text: str) -> None:
    live = LiveMarkdown(60, DARK_PALETTE)
    lines = [live.lines(text[:end]) for end in range(0, len(text) + 3, 3)][-1]
    assert plain_text(lines) == text_of(text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_growing_answer_reads_only_its_last_block_again(text: str) -> None:
    many = text * 10
    live = LiveMarkdown(60, DARK_PALETTE)
    updates = 0
    for end in range(0, len(many), 40):
        live.lines(many[:end])
        updates += 1
    # The whole text each time would be half its length for each update.
    assert live.parsed_chars / updates < min(1600, len(many) / 5)


def test_a_paragraph_without_end_is_read_in_bounded_pieces() -> None:
    text = "word " * 12_000
    live = LiveMarkdown(60, DARK_PALETTE)
    for end in range(0, len(text), 500):
        live.lines(text[:end])
    assert live.parsed_chars / (len(text) / 500) < 20_000


def test_an_open_emphasis_is_shown_closed_while_it_is_written() -> None:
    live = LiveMarkdown(60, DARK_PALETTE)
    assert [plain_text(live.lines(text)) for text in ("a **bo", "a **bold**", "a **bold** `c")] == [
        *("a bo", "a bold", "a bold c")
    ]


def test_a_text_that_does_not_go_on_is_read_anew() -> None:
    live = LiveMarkdown(60, DARK_PALETTE)
    live.lines("one\n\ntwo\n\nthree")
    assert plain_text(live.lines("other")) == "other"


_MARKS = st.sampled_from("#*-`>|[]()~_<&\\! \n\ta日\x1b") | st.sampled_from(
    ("1. ", "\n\n", "```\n")
)


_BOUNDED = settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@_BOUNDED
@example("1. 1. ```\n", 5)
@given(st.lists(_MARKS, max_size=50).map("".join), st.integers(5, 70))
def test_any_markdown_fits_its_width_whole_and_growing(text: str, width: int) -> None:
    live = LiveMarkdown(width, LIGHT_PALETTE)
    for end in (*range(0, len(text), 7), len(text)):
        for line in (*live.lines(text[:end]), *markdown_lines(text[:end], width, LIGHT_PALETTE)):
            assert cell_len(line.plain) <= width


def test_code_has_colours_and_an_unknown_language_none() -> None:
    known = markdown_lines("```python\ndef f(): pass\n```", 60, DARK_PALETTE)
    assert any(span.style == DARK_PALETTE.accent for line in known for span in line.spans)
    unknown = markdown_lines("```nonsense\ndef f(): pass\n```", 60, DARK_PALETTE)
    assert not any(span.style == DARK_PALETTE.accent for line in unknown for span in line.spans)
