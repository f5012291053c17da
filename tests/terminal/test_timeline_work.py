"""How much work a token is, in a chat of 10,000 messages: counted, not timed."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from chatd.client.connection import FollowedChat
from chatd.client.state import ShownChat
from chatd.domain.chat.parts import ReasoningPart, TextPart, ToolCallPart
from chatd.domain.ids import ToolCallId
from chatd.terminal.timeline.viewport import MAX_LINES, MAX_ROWS
from tests.support import event_fixtures
from tests.terminal.timeline_app import run_timeline, screen_lines
from tests.terminal.timeline_scenes import Script, live, states_of

TOKENS = 300
HEIGHT = 24


def huge_chat() -> ShownChat:
    script = Script()
    for number in range(5000):
        script.user(f"Question {number}").answer(f"Answer {number}\n\n- a\n- b\n")
    return script.chat("running", live=live(TextPart(text="")))


async def test_a_token_draws_one_row_and_paints_few_lines() -> None:
    async with run_timeline(size=(80, HEIGHT)) as (app, pilot):
        chat = huge_chat()
        app.show(chat)
        await pilot.pause()
        timeline = app.timeline
        assert timeline.cache.drawn_rows <= HEIGHT
        drawn, painted = timeline.cache.drawn_rows, timeline.painted_lines
        text = ""
        for number in range(TOKENS):
            text += f"word{number} " if number % 40 else "\n\n"
            app.show(replace(chat, live=live(TextPart(text=text))))
        assert timeline.cache.drawn_rows - drawn <= TOKENS + HEIGHT
        # The last line, and all lines when one more line has moved them up.
        lines = timeline.painted_lines - painted
        assert lines < TOKENS * 4


async def test_a_token_costs_nothing_while_the_end_is_out_of_sight() -> None:
    async with run_timeline(size=(80, HEIGHT)) as (app, pilot):
        chat = huge_chat()
        app.show(replace(chat, live=live(TextPart(text="x\n\n" * 40))))
        await pilot.press("pageup", "pageup", "pageup")
        painted = app.timeline.painted_lines
        for number in range(TOKENS):
            app.show(replace(chat, live=live(TextPart(text="x\n\n" * 40 + "y" * number))))
        assert app.timeline.painted_lines == painted


async def test_a_walk_through_a_long_chat_keeps_a_bounded_number_of_rows() -> None:
    async with run_timeline(size=(80, HEIGHT)) as (app, pilot):
        app.show(huge_chat())
        await pilot.pause()
        timeline = app.timeline
        for _ in range(200):
            timeline.action_page(-1)
        assert timeline.cache.kept_rows <= MAX_ROWS
        assert timeline.cache.kept_lines <= MAX_LINES
        timeline.action_top()
        assert timeline.view.top == (0, 0)
        # Home draws the first rows, not those between.
        assert timeline.cache.drawn_rows < 200 * HEIGHT


async def test_a_thought_and_a_file_that_grow_show_their_end() -> None:
    content = "".join(f"line {number}\\n" for number in range(400))
    part = ToolCallPart(
        tool_call_id=ToolCallId("w"),
        tool_name="write_file",
        args_delta=f'{{"path":"a.txt","content":"{content}',
    )
    thought = "\n\n".join(f"Thought {number}." for number in range(400))
    async with run_timeline(size=(80, 40)) as (app, pilot):
        for live_part, shown, hidden in (
            (part, " 400 + line 399", "line 380"),
            (ReasoningPart(text=thought), "Thought 399.", "Thought 390."),
        ):
            app.timeline.show(None)
            app.show(Script().user("Go.").chat("running", live=live(live_part)))
            await pilot.pause()
            text = "\n".join(screen_lines(app))
            assert shown in text
            assert hidden not in text


@pytest.mark.parametrize("path", event_fixtures.files(), ids=lambda path: path.stem)
async def test_a_recorded_chat_looks_the_same_whether_watched_or_opened_later(path: Path) -> None:
    states = states_of(path)
    async with run_timeline(size=(80, 40)) as (app, pilot):
        app.set_focus(None)
        await pilot.pause()
        for state in states:
            app.show(state)
        await pilot.pause()
        watched = screen_lines(app)
        app.timeline.show(None)
        app.show(states[-1])
        await pilot.pause()
        assert screen_lines(app) == watched
        assert any(line.strip() for line in watched)


async def test_a_chat_that_is_left_keeps_nothing() -> None:
    async with run_timeline(size=(80, HEIGHT)) as (app, pilot):
        app.show(huge_chat())
        await pilot.pause()
        app.timeline.show(None)
        assert app.timeline.cache.kept_rows == 0
        assert len(app.timeline.rows) == 0
        app.timeline.show(FollowedChat(shown=Script().user("Hi").chat()))
        assert len(app.timeline.rows) == 1
