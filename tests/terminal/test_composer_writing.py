"""Writing and sending in the terminal, on a real server."""

import asyncio
from pathlib import Path

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.pilot import Pilot

from chatd.domain.ids import ChatId
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.composer_lines import NoticeLines
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.main_screen import MainScreen
from chatd.terminal.messages import ShowNotice
from tests.support.providers.server import Gate
from tests.support.terminal import (
    SMALL,
    TerminalServer,
    run_terminal,
    screen_text,
    until,
    until_shown,
)
from tests.support.terminal_chats import prompts_of, until_status


def box_of(pilot: Pilot[None]) -> TextBox:
    return pilot.app.screen.query_one(TextBox)


def composer_of(pilot: Pilot[None]) -> Composer:
    return pilot.app.screen.query_one(Composer)


async def type_text(pilot: Pilot[None], text: str) -> None:
    """By a paste, which is quicker than keys."""
    box_of(pilot).post_message(events.Paste(text))
    await until(pilot, lambda: text in box_of(pilot).text)


async def until_open(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: composer_of(pilot).chat_id is not None)


async def test_the_first_message_creates_a_chat_and_the_next_continues_it(
    server: TerminalServer,
) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        await pilot.press(*"one", "ctrl+j", *"two", "alt+enter", *"three\\", "enter", *"four")
        assert box_of(pilot).text == "one\ntwo\nthree\nfour"
        await pilot.press("enter")
        await until_open(pilot)
        assert box_of(pilot).text == ""
        chat_id = composer_of(pilot).chat_id
        assert chat_id is not None
        await until_status(server, chat_id, "waiting")
        await pilot.press(*"again", "enter")
        await until(pilot, lambda: box_of(pilot).text == "")
        await until_status(server, chat_id, "waiting", turns=2)
        assert await prompts_of(server, chat_id) == ["one\ntwo\nthree\nfour", "again"]


async def test_a_paste_of_many_lines_is_one_draft_which_is_not_sent_and_the_box_grows_to_a_third(
    server: TerminalServer,
) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        box_of(pilot).post_message(events.Paste("/new\r\nrm -rf /\rlast line\x1b[2J\r"))
        await until(pilot, lambda: "last line" in box_of(pilot).text)
        assert box_of(pilot).text == "/new\nrm -rf /\nlast line\n"
        assert composer_of(pilot).chat_id is None
        await type_text(pilot, "\n".join("abcdefghij"))
        await until(pilot, lambda: box_of(pilot).outer_size.height == SMALL[1] // 3)


def type_at_once(pilot: Pilot[None], sent: str) -> None:
    """All bytes in one read of the terminal, as its driver reads them. They have one time, however
    long a busy machine takes to parse them."""
    keys = list(XTermParser().feed(sent))
    for event in keys:
        event.time = keys[0].time
        pilot.app.post_message(event)


async def test_a_paste_of_a_terminal_that_sends_it_as_keys_is_not_sent(
    server: TerminalServer,
) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        type_at_once(pilot, "/new\r\r\tx = 1\rlast\r")
        await until(pilot, lambda: box_of(pilot).text.endswith("last\n"))
        assert box_of(pilot).text == "/new\n\n\tx = 1\nlast\n"
        await pilot.press("ctrl+u", *"see:")
        type_at_once(pilot, "\rmore")
        await until(pilot, lambda: "see:\nmore" in box_of(pilot).text)
        assert composer_of(pilot).chat_id is None
        await pilot.press("enter")
        await until_open(pilot)


async def test_one_line_and_enter_that_come_together_are_sent(server: TerminalServer) -> None:
    """So types `tmux send-keys "text" Enter`, and a person over a link that stalls."""
    async with run_terminal(server, size=SMALL) as pilot:
        type_at_once(pilot, "answer fast\r")
        await until_open(pilot)
        assert box_of(pilot).text == ""


async def test_a_long_paste_is_a_file_which_goes_with_its_word(server: TerminalServer) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        box_of(pilot).post_message(events.Paste("line of a log\n" * 900))
        await until_shown(pilot, "pasted-text-1.txt  attached")
        assert box_of(pilot).text == "[Pasted text 1, 900 lines] "
        await pilot.press("ctrl+u")
        await until(pilot, lambda: not pilot.app.screen.query_one(NoticeLines).notices)
        assert composer_of(pilot).opened.draft.attachments == ()
        box_of(pilot).post_message(events.Paste("line of a log\n" * 900))
        await until_shown(pilot, "pasted-text-1.txt  attached")
        await pilot.press(*"why", "enter")
        await until_open(pilot)
        chat_id = composer_of(pilot).chat_id
        messages = await server.call("GET", f"/chats/{chat_id}/messages")
        assert '"file_id"' in str(messages).replace("'", '"')


async def test_an_unknown_command_sends_nothing_and_two_slashes_send_one(
    server: TerminalServer,
) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        await pilot.press(*"/etc", "enter")
        await until_shown(pilot, "There is no command /etc")
        assert box_of(pilot).text == "/etc"
        assert composer_of(pilot).chat_id is None
        await pilot.press("home", "/", "enter")
        await until_open(pilot)
        chat_id = composer_of(pilot).chat_id
        assert chat_id is not None
        assert await prompts_of(server, chat_id) == ["/etc"]


async def test_drafts_are_kept_for_each_chat(server: TerminalServer) -> None:
    chat_id = await server.create_chat("answer fast")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_open(pilot)
        await pilot.press(*"half")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: composer_of(pilot).chat_id is None)
        assert box_of(pilot).text == ""
        await pilot.press(*"other")
        await pilot.press("alt+down")
        await until(pilot, lambda: box_of(pilot).text == "half")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: box_of(pilot).text == "other")


async def test_the_arrow_up_brings_earlier_prompts_and_down_the_draft(
    server: TerminalServer,
) -> None:
    chat_id = await server.create_chat("the first prompt")
    await until_status(server, chat_id, "waiting")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_open(pilot)
        await pilot.press(*"mine", "up")
        await until(pilot, lambda: box_of(pilot).text == "the first prompt")
        await pilot.press("down")
        assert box_of(pilot).text == "mine"


async def test_control_r_finds_a_prompt_of_another_chat(server: TerminalServer) -> None:
    for text in ("paint the\nbikeshed", "feed the cat"):
        await server.until_status(await server.create_chat(text), "waiting")
    async with run_terminal(server) as pilot:
        box = pilot.app.screen.query_one(TextBox)
        await pilot.press(*"draft", "ctrl+r")
        await until_shown(pilot, "1   feed the cat")
        await pilot.press(*"bike", "enter")
        await until(pilot, lambda: box.text == "paint the\nbikeshed")
        await pilot.press("ctrl+r")
        await until_shown(pilot, "1   feed the cat")
        await pilot.press("1")
        await until(pilot, lambda: box.text == "feed the cat")


async def test_a_message_to_a_busy_chat_waits_in_the_queue_and_can_be_edited_and_removed(
    server: TerminalServer,
) -> None:
    gate = Gate()
    server.will_answer("a long answer", held=gate)
    chat_id = await server.create_chat("work", "scripted")
    await until_status(server, chat_id, "running")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_shown(pilot, "Enter queues")
        await pilot.press(*"first", "enter")
        await until_shown(pilot, "Next up 1")
        await pilot.press(*"second", "enter")
        await until_shown(pilot, "Next up 2")
        await pilot.press("up")
        await until_shown(pilot, "Editing a queued message")
        assert box_of(pilot).text == "second"
        await pilot.press(*" one", "enter")
        await until_shown(pilot, "2 second one")
        await pilot.press("alt+q", "down", "K")
        await until_shown(pilot, "1 second one")
        await pilot.press("d")
        shown = await until_shown(pilot, "Next up 1")
        assert "second" not in shown
        gate.open()


async def test_ctrl_g_chooses_what_one_message_does_and_busy_keeps_it(
    server: TerminalServer,
) -> None:
    gate = Gate()
    server.will_answer("a long answer", held=gate)
    chat_id = await server.create_chat("work", "scripted")
    await until_status(server, chat_id, "running")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_shown(pilot, "Enter queues")
        await pilot.press("ctrl+g")
        await until_shown(pilot, "Enter steers once")
        await pilot.press(*"look here", "enter")
        await until_shown(pilot, "↳ look here")
        await until_shown(pilot, "Enter queues")
        await pilot.press(*"/busy refuse", "enter")
        await until_shown(pilot, "is refused while busy")
        await pilot.press(*"no", "enter")
        await until_shown(pilot, "Not sent: the chat works")
        assert box_of(pilot).text == "no"
        gate.open()


async def test_the_last_message_is_edited_and_run_again_and_esc_leaves_the_edit(
    server: TerminalServer,
) -> None:
    chat_id = await server.create_chat("answer fast")
    await until_status(server, chat_id, "waiting")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_open(pilot)
        await until(pilot, lambda: _has_messages(pilot))
        await pilot.press(*"mine", "alt+e")
        await until(pilot, lambda: box_of(pilot).text == "answer fast")
        await pilot.press("escape")
        await until(pilot, lambda: box_of(pilot).text == "mine")
        await pilot.press("alt+e")
        await until_shown(pilot, "Editing a sent message")
        await pilot.press(*" please", "enter")
        await until(pilot, lambda: composer_of(pilot).opened.edited is None)
        assert await prompts_of(server, chat_id) == ["answer fast please"]
        assert box_of(pilot).text == "mine"


async def test_after_an_error_the_message_is_run_again(server: TerminalServer) -> None:
    server.vendor.refuse_with(400)
    chat_id = await server.create_chat("work", "scripted")
    await until_status(server, chat_id, "error")
    server.will_answer("done")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until(pilot, lambda: _has_messages(pilot))
        await pilot.press(*"/continue", "enter")
        await until_status(server, chat_id, "waiting")
        assert await prompts_of(server, chat_id) == ["work"]


def _has_messages(pilot: Pilot[None]) -> bool:
    chat = composer_of(pilot).opened.chat
    return chat is not None and bool(chat.shown.messages) and chat.shown.is_loaded


async def test_files_are_completed_attached_and_refused_before_sending(
    server: TerminalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "notes.txt").write_text("some notes")
    (here / "page.html").write_text("<html></html>")
    monkeypatch.chdir(here)
    async with run_terminal(server, size=SMALL) as pilot:
        await pilot.press(*"see @n")
        await until_shown(pilot, "▸ notes.txt")
        await pilot.press("tab")
        await until_shown(pilot, "notes.txt  attached")
        assert box_of(pilot).text == "see @notes.txt "
        await type_text(pilot, "and @page.html")
        await pilot.press("escape", "enter")
        await until_shown(pilot, "Enter again sends")
        assert [one.name for one in composer_of(pilot).opened.draft.attachments] == ["notes.txt"]
        await pilot.press("enter")
        await until_shown(pilot, "page.html is not attached")
        assert composer_of(pilot).chat_id is None
        for _ in "and @page.html":
            await pilot.press("backspace")
        await pilot.press("enter")
        await until_open(pilot)


async def test_hostile_text_of_the_server_does_not_reach_the_terminal(
    server: TerminalServer,
) -> None:
    chat_id = await server.create_chat("\x1b]0;owned\x07[red]x[/red]\u202e")
    await until_status(server, chat_id, "waiting")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until(pilot, lambda: _has_messages(pilot))
        await pilot.press("up")
        await until(pilot, lambda: box_of(pilot).text == "[red]x[/red]")
        assert "\x1b" not in screen_text(pilot)


async def test_keys_that_come_at_once_act_in_their_order(server: TerminalServer) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        box = box_of(pilot)
        for key, character in [("a", "a"), ("b", "b"), ("backspace", None), ("ctrl+j", None)]:
            box.post_message(events.Key(key, character))
        for key, character in [("c", "c"), ("enter", None), ("d", "d")]:
            box.post_message(events.Key(key, character))
        await until_open(pilot)
        chat_id = composer_of(pilot).chat_id
        assert chat_id is not None
        assert await prompts_of(server, chat_id) == ["a\nc"]
        await until(pilot, lambda: box_of(pilot).text == "d")
        for key, character in [("enter", None), ("e", "e"), ("enter", None), ("f", "f")]:
            box.post_message(events.Key(key, character))
        await until(pilot, lambda: box_of(pilot).text == "f")
        await until_status(server, chat_id, "waiting", turns=3)
        assert await prompts_of(server, chat_id) == ["a\nc", "d", "e"]


async def test_an_enter_while_the_chat_is_created_sends_the_next_message(
    server: TerminalServer,
) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        box = box_of(pilot)
        for key, character in [
            ("a", "a"),
            ("enter", None),
            ("b", "b"),
            ("enter", None),
            ("c", "c"),
        ]:
            box.post_message(events.Key(key, character))
        await until_open(pilot)
        chat_id = composer_of(pilot).chat_id
        assert chat_id is not None
        await until(pilot, lambda: box_of(pilot).text == "c")
        await until_status(server, chat_id, "waiting", turns=2)
        assert await prompts_of(server, chat_id) == ["a", "b"]


async def test_tab_on_a_command_that_cannot_be_taken_stays_in_the_box(
    server: TerminalServer,
) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        await pilot.press(*"/compac")
        await until_shown(pilot, "/compact")
        await pilot.press("tab")
        await pilot.press(*"t")
        assert box_of(pilot).text == "/compact"
        assert box_of(pilot).has_focus


async def test_plan_switches_plan_mode_on_for_a_new_chat_and_for_an_open_one(
    server: TerminalServer,
) -> None:
    async with run_terminal(server) as pilot:
        await pilot.press(*"/plan", "enter")
        await until_shown(pilot, "plan mode")
        await pilot.press(*"answer fast", "enter")
        await until_open(pilot)
        chat_id = composer_of(pilot).chat_id
        assert chat_id is not None
        assert (await server.call("GET", f"/chats/{chat_id}"))["mode"] == "plan"
        await until_status(server, chat_id, "waiting")
        await pilot.press(*"/plan", "enter")
        await until_shown(pilot, "has proposed no plan")


async def test_a_message_goes_to_the_chat_that_it_was_written_in(server: TerminalServer) -> None:
    """Its files are read and sent first, and another chat may be opened meanwhile."""
    first = await server.create_chat("one")
    second = await server.create_chat("two")
    async with run_terminal(server, first) as pilot:
        composer = composer_of(pilot)
        await until(pilot, lambda: composer.chat_id == first)
        main = pilot.app.screen
        assert isinstance(main, MainScreen)
        sending = composer._delivery.send("for the first", "for the first")  # pyright: ignore[reportPrivateUsage]
        async with asyncio.TaskGroup() as group:
            group.create_task(sending)
            group.create_task(_open(main, second))
        assert composer.chat_id == second
        await until_status(server, first, "waiting", turns=2)
        assert await prompts_of(server, first) == ["one", "for the first"]
        assert await prompts_of(server, second) == ["two"]


async def _open(main: MainScreen, chat_id: ChatId) -> None:
    """Runs while the message before it waits for a thread that looks for its files."""
    main.open(chat_id)


async def test_notices_of_a_server_do_not_act_on_the_terminal(server: TerminalServer) -> None:
    async with run_terminal(server) as pilot:
        hostile = "gone \x1b]52;c;eHl6\x1b\\\x1b[2J\x9b31m [red]end[/red]"
        pilot.app.screen.post_message(ShowNotice(hostile, "error"))
        shown = await until_shown(pilot, "[red]end[/red]")
        assert not {"\x1b", "\x9b"} & set(shown)
