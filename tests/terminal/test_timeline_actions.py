"""What keys and the mouse do to rows: open, copy, select text, send again, discard."""

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.client.connection import FollowedChat
from chatd.client.drafts import Draft, PendingSend, SendProblem, TextInput
from chatd.domain.chat.parts import TextPart, ToolResultPart
from chatd.domain.ids import ChatId, ToolCallId
from chatd.terminal.messages import EditMessage, OpenChat, OpenScreen, ShowNotice
from chatd.terminal.timeline.agent_cards import child_view
from chatd.terminal.timeline.row_actions import MAX_FOLLOWED, Children
from chatd.terminal.timeline.row_model import RowModel
from tests.terminal.timeline_app import TimelineApp, run_timeline, screen_lines
from tests.terminal.timeline_scenes import CHAT, CHILD, SCENES, Script, call, live

HOSTILE = "copy \x1b]0;owned\x07this\u202e"


def posted(app: TimelineApp, kind: type) -> list[object]:
    return [message for message in app.posted if isinstance(message, kind)]


async def test_enter_on_the_card_of_a_subagent_opens_its_chat() -> None:
    async with run_timeline() as (app, pilot):
        app.show(SCENES["agents"])
        await pilot.press("home", "j", "enter")
        (message,) = posted(app, OpenChat)
        assert isinstance(message, OpenChat)
        assert message.chat_id == ChatId(UUID(CHILD))


async def test_c_copies_what_was_written_without_what_acts() -> None:
    async with run_timeline() as (app, pilot):
        app.show(Script().user("Hi").answer(HOSTILE).chat())
        await pilot.press("end", "c")
        assert app.clipboard == "copy this"
        assert posted(app, ShowNotice)


async def test_shift_c_copies_one_code_block_after_the_other() -> None:
    async with run_timeline() as (app, pilot):
        app.show(Script().user("Hi").answer("```\none\n```\n\n```py\ntwo\x1b[2J\n```").chat())
        copied: list[str] = []
        for keys in (("end", "C"), ("C",), ("C",)):
            await pilot.press(*keys)
            copied.append(app.clipboard)
        assert copied == ["one\n", "two\n", "one\n"]


async def test_text_is_selected_with_the_mouse_as_it_is_shown() -> None:
    async with run_timeline() as (app, pilot):
        app.show(Script().user("Hi").answer("Some words to select.").chat())
        await pilot.hover(offset=(10, 3))
        await pilot.mouse_down(offset=(7, 3))
        await pilot.hover(offset=(11, 3))
        await pilot.mouse_up(offset=(11, 3))
        await pilot.press("c")
        assert app.clipboard == "words"


async def test_only_a_message_of_the_user_can_be_edited() -> None:
    async with run_timeline() as (app, pilot):
        app.show(SCENES["work"])
        await pilot.press("end", "k", "e")
        assert posted(app, ShowNotice)
        await pilot.press("J", "e")
        (message,) = posted(app, EditMessage)
        assert isinstance(message, EditMessage)
        assert message.edited == SCENES["work"].messages[-1]


async def test_a_selected_row_that_is_gone_gives_way_to_the_last_one() -> None:
    async with run_timeline() as (app, pilot):
        app.show(SCENES["working"])
        await pilot.press("end")
        app.show(SCENES["stopped"])
        await pilot.press("c")
        assert app.timeline.chosen == len(app.timeline.rows) - 1


async def test_the_selected_row_is_marked_only_while_keys_act_on_it() -> None:
    async with run_timeline() as (app, pilot):
        app.show(SCENES["stopped"])
        await pilot.press("end")
        assert "┃ ■ Stopped by you." in "\n".join(screen_lines(app))
        app.set_focus(None)
        await pilot.pause()
        assert "┃" not in "\n".join(screen_lines(app))


async def test_m_opens_the_models() -> None:
    async with run_timeline() as (app, pilot):
        app.show(SCENES["failed"])
        await pilot.press("m")
        assert posted(app, OpenScreen)


def refused(key: str) -> PendingSend:
    problem = SendProblem(code="invalid_input", message="The text is too long. Shorten it.")
    draft = Draft(content=(TextInput("And now?"),))
    return PendingSend(key=key, chat_id=CHAT, draft=draft, state="refused", problem=problem)


async def test_a_refused_message_says_why_and_is_discarded_by_x() -> None:
    async with run_timeline() as (app, pilot):
        session = app.session
        sent = session.outbox.send(CHAT, Draft(content=(TextInput("And now?"),)))
        app.show(Script().user("Hi").chat(), (replace(refused(sent.key)),))
        await pilot.pause()
        text = "\n".join(screen_lines(app))
        assert "✗ Not sent: The text is too long. Shorten it." in text
        assert "r sends it again · x discards it" in text
        await pilot.press("end", "x")
        assert session.outbox.unsent == ()


async def test_a_busy_chat_shows_only_what_its_queue_does_not() -> None:
    async with run_timeline() as (app, pilot):
        waiting = PendingSend(
            key="w", chat_id=CHAT, draft=Draft(content=(TextInput("On its way"),))
        )
        app.show(SCENES["working"], (waiting, refused("r")))
        await pilot.pause()
        text = "\n".join(screen_lines(app))
        assert "And now?" in text
        assert "On its way" not in text


async def test_a_running_command_shows_its_last_lines_and_its_time() -> None:
    async with run_timeline() as (app, pilot):
        tail = ToolResultPart(
            tool_call_id=ToolCallId("run"),
            tool_name="execute",
            result_delta="".join(f"line {number}\n" for number in range(100)),
        )
        app.show(replace(SCENES["running"], live=live(tail)))
        await pilot.pause()
        text = "\n".join(screen_lines(app))
        assert "line 99" in text
        assert "line 80" not in text
        assert "running 4 s" in text


async def test_a_subagent_on_the_screen_is_followed_and_left_with_its_card() -> None:
    async with run_timeline() as (app, pilot):
        app.show(SCENES["agents"])
        await pilot.pause()
        connection = app.session.connection
        assert connection._chats.get(ChatId(UUID(CHILD))).is_followed  # pyright: ignore[reportPrivateUsage]
        app.timeline.show(None)
        await pilot.pause()
        assert not connection._chats.get(ChatId(UUID(CHILD))).is_followed  # pyright: ignore[reportPrivateUsage]


async def test_a_bounded_number_of_subagents_is_followed() -> None:
    async with run_timeline() as (app, _):
        changed = asyncio.Event()
        children = Children(changed.set)
        ids = [str(UUID(int=number)) for number in range(1, 50)]
        children.follow(ids, app.session.connection)
        assert changed.is_set()
        assert len(children.views()) == MAX_FOLLOWED
        children.stop()


def test_the_steps_of_a_subagent_are_its_last_rows() -> None:
    script = Script().user("Go.").answer("First.").ran("c", "execute", {"command": "ls"}, {})
    chat = script.chat("running", live=live(call("d", "grep", {"pattern": "x"})))
    view = child_view(chat, RowModel())
    assert [(step.text, step.is_going) for step in view.steps] == [
        ("First.", False),
        ("Execute ls", False),
        ("Grep x", True),
    ]
    assert child_view(chat, RowModel(), gone=True).gone


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_states_are_words_too_and_stay_without_colours(
    theme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with run_timeline(theme="light" if theme == "light" else "dark") as (app, pilot):
        app.timeline.show(FollowedChat(shown=SCENES["work"]))
        await pilot.pause()
        strips = app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
        colours = {
            (triplet.red, triplet.green, triplet.blue)
            for strip in strips
            for segment in strip
            if segment.style is not None and segment.style.color is not None
            for triplet in [segment.style.color.get_truecolor()]
        }
        assert all(max(one) - min(one) <= 1 for one in colours), colours
        assert "Edit failed" in "\n".join(screen_lines(app))


async def test_an_answer_in_a_new_theme_is_drawn_in_its_colours() -> None:
    async with run_timeline() as (app, pilot):
        app.show(
            Script().user("Hi").answer("# Title").chat("running", live=live(TextPart(text="x")))
        )
        await pilot.pause()
        dark = app.timeline.render_line(1)
        app.theme = "chatd-light"
        await pilot.pause()
        assert app.timeline.render_line(1) != dark
