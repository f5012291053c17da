"""The scroll contract: the timeline follows its end only if it is there, and keeps its place."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.events import MouseScrollUp

from chatd.client.drafts import Draft, PendingSend, TextInput
from chatd.client.state import ShownChat
from chatd.domain.chat.parts import TextPart
from chatd.terminal.timeline.viewport import Place, Viewport
from tests.terminal.timeline_app import TimelineApp, run_timeline, screen_lines
from tests.terminal.timeline_scenes import CHAT, SCENES, Script, live


def long_chat(first: int = 0, last: int = 60, **more: object) -> ShownChat:
    script = Script()
    for number in range(last):
        script.user(f"Question {number}").answer(f"Answer {number}")
    chat = script.chat("running", live=live(TextPart(text="It wor")))
    return replace(chat, messages=chat.messages[first * 2 :], **more)


def last_words(app: TimelineApp) -> str:
    """The last line, without the marks at its edges."""
    return screen_lines(app)[-1].strip(" ▐┃")


async def test_a_chat_opens_at_its_end_and_follows_it() -> None:
    async with run_timeline() as (app, pilot):
        app.show(long_chat())
        await pilot.pause()
        assert last_words(app) == "It wor"
        app.show(replace(long_chat(), live=live(TextPart(text="It works.\n\nAnd\n\nmore"))))
        await pilot.pause()
        assert last_words(app) == "more"


@pytest.mark.parametrize("key", ["up", "pageup", "home", "k", "K", "wheel"])
async def test_any_move_upwards_ends_the_following_at_once(key: str) -> None:
    async with run_timeline() as (app, pilot):
        app.show(long_chat())
        await pilot.pause()
        if key == "wheel":
            app.timeline.post_message(_wheel_up())
            await pilot.pause()
        else:
            await pilot.press(key)
        before = screen_lines(app)
        app.show(replace(long_chat(), live=live(TextPart(text="It works.\n\n" * 9))))
        await pilot.pause()
        assert screen_lines(app)[:-1] == before[:-1]
        await pilot.press("end")
        assert last_words(app) == "It works."


async def test_what_came_below_is_counted_and_a_click_goes_there() -> None:
    async with run_timeline() as (app, pilot):
        app.show(long_chat(last=60))
        await pilot.press("pageup")
        assert "still writing below" in screen_lines(app)[-1]
        app.show(long_chat(last=62))
        await pilot.pause()
        assert "↓ 5 new · End" in screen_lines(app)[-1]
        await pilot.click(offset=(40, 23))
        assert last_words(app) == "It wor"


async def test_scrolling_down_to_the_end_follows_again() -> None:
    async with run_timeline() as (app, pilot):
        app.show(long_chat())
        await pilot.press("up", "up")
        assert not app.timeline.view.is_following
        await pilot.press("down", "down")
        assert app.timeline.view.is_following
        assert app.timeline.new_below is None


async def test_the_place_stays_when_older_messages_come_in() -> None:
    async with run_timeline() as (app, pilot):
        app.show(long_chat(first=40, has_older=True, status="waiting", live=None))
        await pilot.press("home")
        before = screen_lines(app)
        assert "Question 40" in "\n".join(before)
        app.show(long_chat(first=20, has_older=True, status="waiting", live=None))
        await pilot.pause()
        after = screen_lines(app)
        at = next(y for y, line in enumerate(after) if "Question 40" in line)
        assert at == next(y for y, line in enumerate(before) if "Question 40" in line)
        assert any("Answer 39" in line for line in after[:at])


async def test_the_place_stays_when_the_terminal_gets_another_size() -> None:
    async with run_timeline(size=(80, 24)) as (app, pilot):
        app.show(long_chat())
        await pilot.press("pageup", "pageup")
        top = app.timeline.rows[app.timeline.view.top.row].key
        await pilot.resize_terminal(50, 18)
        await pilot.pause()
        assert app.timeline.rows[app.timeline.view.top.row].key == top
        assert max(map(len, screen_lines(app))) <= 50


async def test_a_card_unfolds_and_folds_where_it_is() -> None:
    async with run_timeline(size=(80, 16)) as (app, pilot):
        app.show(SCENES["work"])
        await pilot.press("end", "K", "j")
        lines = screen_lines(app)
        at = next(y for y, line in enumerate(lines) if "Edited" in line)
        assert "▾" in lines[at]
        await pilot.press("enter")
        folded = screen_lines(app)
        assert "▸" in next(line for line in folded if "Edited" in line)
        await pilot.press("space")
        assert [line for line in screen_lines(app) if "async with pool.tx()" in line]


async def test_a_click_on_the_first_line_of_a_card_unfolds_it() -> None:
    async with run_timeline(size=(80, 40)) as (app, pilot):
        app.show(SCENES["work"])
        await pilot.pause()
        at = next(y for y, line in enumerate(screen_lines(app)) if "Ran rg" in line)
        await pilot.click(offset=(10, at))
        lines = screen_lines(app)
        moved = next(y for y, line in enumerate(lines) if "Ran rg" in line)
        assert "src/a.py:1: claim" in lines[moved + 1]


async def test_what_the_user_sends_is_shown_wherever_the_view_was() -> None:
    async with run_timeline() as (app, pilot):
        chat = long_chat(status="waiting", live=None)
        app.show(chat)
        await pilot.press("home")
        send = PendingSend(key="k", chat_id=CHAT, draft=Draft(content=(TextInput("And now?"),)))
        app.show(chat, (send,))
        await pilot.pause()
        assert "And now?" in "\n".join(screen_lines(app)[-4:])


async def test_j_and_k_with_shift_go_from_one_user_message_to_the_next() -> None:
    async with run_timeline() as (app, pilot):
        app.show(long_chat())
        await pilot.press("K")
        assert "Question 59" in "\n".join(screen_lines(app))
        await pilot.press(*["K"] * 19)
        assert "Question 40" in screen_lines(app)[1]
        await pilot.press("J")
        assert "Question 41" in screen_lines(app)[1]


def _wheel_up() -> MouseScrollUp:
    return MouseScrollUp(None, 4, 4, 0, -1, 0, shift=False, meta=False, ctrl=False)


class _Rows(list[int]):
    def height(self, row: int) -> int:
        return self[row]


_HEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=30).map(_Rows)


_BOUNDED = settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@_BOUNDED
@given(_HEIGHTS, st.integers(1, 20), st.lists(st.integers(-30, 30), max_size=12))
def test_the_view_is_always_full_and_never_past_the_end(
    heights: _Rows, lines: int, moves: list[int]
) -> None:
    view = Viewport()
    view.lines = lines
    view.settle(heights)
    for move in moves:
        view.scroll(move, heights)
        places = list(view.visible(heights))
        assert len(places) == min(lines, sum(heights))
        assert all(place.line < heights[place.row] for place in places)
        if view.is_following:
            assert places[-1] == Place(len(heights) - 1, heights[-1] - 1)


@_BOUNDED
@given(_HEIGHTS, st.integers(1, 20), st.integers(1, 40))
def test_lines_up_and_as_many_down_lead_back(heights: _Rows, lines: int, by: int) -> None:
    view = Viewport()
    view.lines = lines
    view.settle(heights)
    by = min(by, max(0, sum(heights) - lines))
    before = list(view.visible(heights))
    view.scroll(-by, heights)
    view.scroll(by, heights)
    assert list(view.visible(heights)) == before


@_BOUNDED
@given(_HEIGHTS, st.integers(1, 20), st.data())
def test_a_row_that_is_asked_for_is_visible(
    heights: _Rows, lines: int, data: st.DataObject
) -> None:
    view = Viewport()
    view.lines = lines
    view.settle(heights)
    row = data.draw(st.integers(0, len(heights) - 1))
    view.show_row(row, heights)
    shown = [place.line for place in view.visible(heights) if place.row == row]
    assert len(shown) == min(heights[row], lines)
