"""Questions of the model in the terminal, on a real server, by keys alone."""

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot

from chatd.terminal import key_order
from chatd.terminal.answers.question_form import QuestionForm
from chatd.terminal.main_screen import MainScreen
from tests.support.terminal import (
    SMALL,
    TerminalServer,
    run_terminal,
    screen_text,
    until,
    until_shown,
)
from tests.support.terminal_answers import (
    ask_questions,
    panel_awake,
    panel_gone,
    panel_of,
    results_of,
)


async def test_options_and_own_words_answer_several_questions(server: TerminalServer) -> None:
    chat_id = await ask_questions(server)
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        panel = await panel_awake(pilot)
        await until_shown(pilot, "2 questions for you")
        await pilot.press("f3")
        await until_shown(pilot, "> 1 ( ) PostgreSQL")
        await pilot.press("ctrl+s")
        await until_shown(pilot, "Not answered yet: question 1, 2.")
        await pilot.press("down", "enter")
        await until_shown(pilot, "> 1 [ ] unit")
        await pilot.press("space", "down", "down", "space", "down", *"only [b]fast[/b]")
        await until_shown(pilot, "2 of 2 answered")
        await pilot.press("enter")
        await panel_gone(pilot)
        assert panel.form is None
    (result,) = await results_of(server, chat_id)
    answers = msgspec.convert(result["result"], dict[str, list[dict[str, object]]])["answers"]
    assert [(one["chosen"], one["text"]) for one in answers] == [
        (["SQLite"], ""),
        (["unit", "e2e"], "only [b]fast[/b]"),
    ]


async def test_a_draft_is_there_again_after_a_look_at_another_chat(server: TerminalServer) -> None:
    chat_id = await ask_questions(server)
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        await pilot.press("f3")
        await until_shown(pilot, "> 1 ( ) PostgreSQL")
        await pilot.press("space", "down", "down", *"17")
        await until_shown(pilot, "1 of 2 answered")
        screen = pilot.app.screen
        assert isinstance(screen, MainScreen)
        screen.open(None)
        await panel_gone(pilot)
        screen.open(chat_id)
        await panel_awake(pilot)
        await until_shown(pilot, "(•) PostgreSQL")
        form = panel_of(pilot).form
        assert isinstance(form, QuestionForm)
        assert form.draft.replies[0].text == "17"


async def test_numbers_choose_options_and_the_last_one_sends(server: TerminalServer) -> None:
    chat_id = await ask_questions(server)
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        await until_shown(pilot, "> 1 ( ) PostgreSQL")
        await pilot.press("7", "2")
        await until_shown(pilot, "> 1 [ ] unit")
        await pilot.press("3", "1", "enter")
        await panel_gone(pilot)
    (result,) = await results_of(server, chat_id)
    answers = msgspec.convert(result["result"], dict[str, list[dict[str, object]]])["answers"]
    assert [one["chosen"] for one in answers] == [["SQLite"], ["unit", "e2e"]]


def press_at_once(pilot: Pilot[None], *keys: str) -> None:
    """As keys that come in one read."""
    for key in keys:
        pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))


async def test_keys_that_come_at_once_go_where_the_ones_before_have_led(
    server: TerminalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long a busy machine takes for a key.
    monkeypatch.setattr(key_order, "MAX_WAIT_S", 30.0)
    one = [{"question": "Which?", "options": [{"label": "first"}, {"label": "second"}]}]
    chat_id = await ask_questions(server, one)
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        press_at_once(pilot, "f3", "down", "down", "o", "w", "n", "up", "enter")
        await panel_gone(pilot)
    (result,) = await results_of(server, chat_id)
    answers = msgspec.convert(result["result"], dict[str, list[dict[str, object]]])["answers"]
    assert [(one["chosen"], one["text"]) for one in answers] == [(["second"], "own")]


async def test_a_person_can_let_the_model_decide(server: TerminalServer) -> None:
    one = [{"question": "Which?\u202e", "options": [{"label": "a\x1b[31m"}, {"label": "[red]b"}]}]
    chat_id = await ask_questions(server, one)
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        await until(pilot, lambda: "[red]b" in screen_text(pilot))
        await pilot.press("f3")
        await until_shown(pilot, "> 1 ( ) a")
        await pilot.press("d")
        await panel_gone(pilot)
    (result,) = await results_of(server, chat_id)
    assert "Decide yourself." in msgspec.json.encode(result["result"]).decode()
