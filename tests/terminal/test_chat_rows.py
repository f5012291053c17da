"""The lines of the chat list."""

from datetime import timedelta

import pytest
from rich.style import Style

from chatd.client.resources import ListedChat
from chatd.domain.ids import ChatId
from chatd.terminal.chats.chat_directory import SIGNS, UNREAD, ListFilter
from chatd.terminal.chats.chat_rows import ChatRow, age_text, draw_row, list_rows
from tests.terminal.chat_values import NOW, chat_id, child, listed

WIDTH = 30


def rows_of(*chats: ListedChat, folded: frozenset[ChatId] = frozenset()) -> list[str]:
    """As they are drawn, without the empty ends."""
    rows = list_rows(chats, ListFilter(), folded, NOW)
    drawn = [draw_row(row, WIDTH, lambda _: Style.null(), now=NOW, turn=0) for row in rows]
    return ["".join(one.text for one in row).rstrip() for row in drawn]


def test_chats_stand_in_sections_by_what_they_need_and_by_age() -> None:
    day = 24 * 60
    shown = rows_of(
        listed(1, minutes_ago=3),
        listed(2, minutes_ago=4 * day, has_unread=True),
        listed(3, minutes_ago=50 * day, status="error"),
        listed(4, pin_order=1),
        listed(5, is_owner=False),
        listed(6, status="requires_action", action_summary="Approve: git push"),
    )
    assert shown == [
        " Needs you",
        " ◆ Chat 6                  1m",
        "   Approve: git push",
        "",
        " Pinned",
        " ○ Chat 4                  1m",
        "",
        " Today",
        " ○ Chat 1                  3m",
        "",
        " This week",
        " ● Chat 2                  4d",
        "",
        " Older",
        " ✗ Chat 3                 50d",
        "",
        " Shared with you",
        " ○ Chat 5                  1m",
    ]


def test_subagents_hang_on_the_chat_that_started_them() -> None:
    family = (
        child(21, 1, status="running"),
        child(22, 21, 1),
        child(23, 99, 1, status="requires_action", action_summary="Approve: rm"),
    )
    root = listed(1, status="running", children=family)
    assert rows_of(root) == [
        " Needs you",
        " ◐ Chat 1",
        "   A subagent needs you",
        " ├ ◐ Subagent 21",
        "   └ ✓ Subagent 22",
        " └ ◆ Subagent 23",
        "   Approve: rm",
    ]
    assert rows_of(root, folded=frozenset((chat_id(1),)))[1:] == [
        "▸◐ Chat 1",
        "   A subagent needs you",
    ]


def test_a_hostile_title_stays_one_line_of_plain_characters() -> None:
    shown = rows_of(
        listed(1, title="\x1b]0;owned\x07red [bold]\nsecond\u202e line 漢字漢字漢字漢字")
    )
    assert "\x1b" not in shown[1]
    assert "owned" not in shown[1]
    assert "red [bold] second line" in shown[1]
    assert shown[1].endswith(" 1m")


def test_every_status_has_a_sign_and_a_word_of_its_own() -> None:
    looks = [*SIGNS.values(), UNREAD]
    assert len({look.sign for look in looks}) == len({look.word for look in looks}) == len(looks)


@pytest.mark.parametrize(
    ("passed", "text"),
    [
        (timedelta(seconds=-5), "now"),
        (timedelta(seconds=59), "now"),
        (timedelta(minutes=59), "59m"),
        (timedelta(hours=23), "23h"),
        (timedelta(days=364), "364d"),
        (timedelta(days=800), "2y"),
    ],
)
def test_an_age_fits_into_four_characters(passed: timedelta, text: str) -> None:
    assert age_text(NOW - passed, NOW) == text


def test_a_row_is_as_wide_as_the_list() -> None:
    row = ChatRow(chat=listed(1, title="A title that is far too long for the list"))
    drawn = draw_row(row, WIDTH, lambda _: Style.null(), now=NOW, turn=0)
    assert sum(one.cell_length for one in drawn) == WIDTH


def test_a_mark_takes_the_place_of_the_first_space() -> None:
    row = ChatRow(chat=listed(1), is_open=False)
    drawn = draw_row(row, WIDTH, lambda _: Style.null(), now=NOW, turn=0, mark=">")
    assert "".join(one.text for one in drawn) == ">○ Chat 1                  1m "
