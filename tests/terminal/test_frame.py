"""The frame of the terminal, on a real server: keys, connection, alerts."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from chatd.terminal.app import ChatTerminal
from chatd.terminal.chat_frame import DEMOS, ConnectionBanner, Work, WorkLine, work_text
from chatd.terminal.chats.chat_list import ChatList
from chatd.terminal.chats.switch_screen import SwitchScreen
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.keys import KEYS
from chatd.terminal.main_screen import MainScreen
from chatd.terminal.screens.info_screens import HelpScreen, SignedOutScreen
from chatd.terminal.session import session_of
from tests.support.providers.server import Gate
from tests.support.terminal import (
    SMALL,
    TerminalServer,
    run_terminal,
    screen_text,
    serve_terminal,
    until,
    until_shown,
)


def main_screen(pilot: Pilot[None]) -> MainScreen:
    terminal = pilot.app
    assert isinstance(terminal, ChatTerminal)
    return terminal.main


async def test_escape_interrupts_the_answer_and_says_so(server: TerminalServer) -> None:
    gate = Gate()
    server.will_answer("It was a dark and stormy night.", held=gate)
    chat = await server.create_chat("a story", "scripted")
    async with run_terminal(server, chat) as pilot:
        await until_shown(pilot, "Working")
        await pilot.press("escape")
        assert "Stopping the answer." in await until_shown(pilot, "Stopping the answer.")
        await until_shown(pilot, "Waiting for you")
    assert await server.status_of(chat) == "waiting"
    gate.open()


async def test_a_key_that_comes_while_the_screen_is_empty_does_nothing(
    server: TerminalServer,
) -> None:
    """Before its widgets are there, and while they are removed at the end."""
    async with run_terminal(server) as pilot:
        main = main_screen(pilot)
        await until_shown(pilot, "What should it do?")
        await main.query_one("#columns").remove()
        for key in KEYS["anywhere"]:
            if key.action not in ("detach", "app.suspend_process"):
                await pilot.press(key.keys.split(",")[0])
        main.post_message(ChatList.Left())
        await pilot.pause()
        assert pilot.app.screen is main


async def test_one_control_c_interrupts_and_the_second_leaves(server: TerminalServer) -> None:
    gate = Gate()
    server.will_answer("It was a dark and stormy night.", held=gate)
    chat = await server.create_chat("a story", "scripted")
    async with run_terminal(server, chat) as pilot:
        await until_shown(pilot, "Working")
        await pilot.press("ctrl+c")
        await until_shown(pilot, "Ctrl-C again leaves.")
        await server.until_status(chat, "waiting")
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not pilot.app.is_running)
    gate.open()


async def test_control_c_clears_the_draft_which_comes_back_and_a_second_one_leaves(
    server: TerminalServer,
) -> None:
    chat = await server.create_chat("answer fast")
    async with run_terminal(server, chat, size=SMALL) as pilot:
        await server.until_status(chat, "waiting")
        box = pilot.app.screen.query_one(TextBox)
        await pilot.press(*"half a thought", "ctrl+c")
        await until_shown(pilot, "Draft cleared, ↑ brings it back. Ctrl-C again leaves")
        assert box.text == ""
        await pilot.press("up")
        await until(pilot, lambda: box.text == "half a thought")
        await pilot.press("ctrl+c", "ctrl+c")
        await until(pilot, lambda: not pilot.app.is_running)
    assert await server.status_of(chat) == "waiting"


async def test_a_line_says_how_long_it_works_and_goes_when_it_ends(server: TerminalServer) -> None:
    gate = Gate()
    server.will_answer("It was a dark and stormy night, long ago.", held=gate)
    chat = await server.create_chat("a story", "scripted")
    async with run_terminal(server, chat) as pilot:
        await until_shown(pilot, "Working for ")
        line = pilot.app.screen.query_one(WorkLine)
        await until_shown(pilot, "~5 tokens out")
        gate.open()
        await until(pilot, lambda: not line.display)


@pytest.mark.parametrize(
    ("seconds", "work", "text"),
    [
        (0, {}, "Working for 0s"),
        (-9, {"read": 812}, "Working for 0s · 812 tokens in"),
        (75, {"read": 4830, "written": 130}, "Working for 1m 15s · 5k tokens in · 130 tokens out"),
        (7300, {"written": 9, "is_estimated": True}, "Working for 2h 1m · ~9 tokens out"),
    ],
)
def test_the_work_of_a_turn_is_one_short_line(
    seconds: int, work: dict[str, Any], text: str
) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    assert work_text(Work(began, **work), began + timedelta(seconds=seconds)) == text


async def test_resume_finds_a_chat_and_a_number_opens_it(server: TerminalServer) -> None:
    first = await server.create_chat("answer fast")
    second = await server.create_chat("7 dwarfs")
    async with run_terminal(server, size=SMALL) as pilot:
        await until_shown(pilot, "What should it do?")
        await pilot.press(*"/resume fast", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, SwitchScreen))
        await until_shown(pilot, "answer fast")
        await pilot.press("enter")
        await until(pilot, lambda: main_screen(pilot).chat_id == first)
        await pilot.press("ctrl+p")
        await until_shown(pilot, "2 ")
        await pilot.press(*"dw7arfs")
        await until_shown(pilot, "dw7arfs")
        await pilot.press(*["backspace"] * 7)
        shown = await until_shown(pilot, "7 dwarfs")
        number = re.search(r"(\d) \S 7 dwarfs", shown)
        assert number is not None, shown
        await pilot.press(number[1])
        await until(pilot, lambda: main_screen(pilot).chat_id == second)


async def test_a_person_without_chats_can_start_a_demo(server: TerminalServer) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        for demo in DEMOS:
            await until_shown(pilot, demo.title)
        await pilot.press("shift+tab", "down", "enter")
        chat = await until(pilot, lambda: main_screen(pilot).chat_id)
        await until_shown(pilot, "long story")
    await server.call("POST", f"/chats/{chat}/interrupt")


async def test_a_chat_elsewhere_that_ends_is_told_and_one_that_is_open_is_not(
    server: TerminalServer,
) -> None:
    first, second = Gate(), Gate()
    server.will_answer("One.", held=first)
    here = await server.create_chat("here", "scripted")
    async with run_terminal(server, here) as pilot:
        await until_shown(pilot, "Working")
        server.will_answer("Two.", held=second)
        there = await server.create_chat("there", "scripted")
        listed = main_screen(pilot).chat_list.find
        await until(pilot, lambda: (chat := listed(there)) and chat.status == "running")
        first.open()
        await until_shown(pilot, "Waiting for you")
        second.open()
        shown = await until_shown(pilot, "«there» has finished")
        assert "«here»" not in shown


async def test_an_opened_chat_is_marked_as_read(server: TerminalServer) -> None:
    chat = await server.create_chat("answer fast")
    await server.until_status(chat, "waiting")
    async with run_terminal(server) as pilot:
        listed = main_screen(pilot).chat_list.find
        await until(pilot, lambda: (one := listed(chat)) and one.has_unread)
        main_screen(pilot).open(chat)
        await until(pilot, lambda: (one := listed(chat)) and one.has_unread is False)


async def test_a_chat_that_is_deleted_elsewhere_says_so(server: TerminalServer) -> None:
    chat = await server.create_chat("answer fast")
    await server.until_status(chat, "waiting")
    async with run_terminal(server, chat) as pilot:
        await until_shown(pilot, "Waiting for you")
        await server.call("DELETE", f"/chats/{chat}")
        await until_shown(pilot, "This chat does not exist any more")
        await pilot.press("ctrl+n")
        await until_shown(pilot, "What should it do?")
        assert "does not exist" not in screen_text(pilot)


async def test_a_revoked_token_shows_how_to_sign_in(server: TerminalServer) -> None:
    token = await server.call("POST", "/auth/tokens", {"name": "terminal"})
    async with run_terminal(server, token=str(token["token"])) as pilot:
        await until_shown(pilot, "Chats: none")
        await server.call("DELETE", f"/auth/tokens/{token['id']}")
        await until(pilot, lambda: isinstance(pilot.app.screen, SignedOutScreen))
        await until_shown(pilot, f"chatd login {server.address.url}")
        await pilot.press("escape")
        await until(pilot, lambda: not pilot.app.is_running)


async def test_the_loss_of_the_server_is_shown_with_the_next_try(dsn: str, tmp_path: Path) -> None:
    async with serve_terminal(dsn, tmp_path) as server, run_terminal(server) as pilot:
        await until_shown(pilot, "Chats: none")
        server.stop()
        banner = main_screen(pilot).query_one(ConnectionBanner)
        await until(pilot, lambda: banner.display)
        await until_shown(pilot, "Chats go on; ")


async def test_help_and_go_to_open_on_top_and_close(server: TerminalServer) -> None:
    chat = await server.create_chat("answer fast")
    async with run_terminal(server, size=SMALL) as pilot:
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        await until_shown(pilot, "Start a new chat")
        await pilot.press("escape", "ctrl+p")
        await until(pilot, lambda: isinstance(pilot.app.screen, SwitchScreen))
        await pilot.press(*"answer")
        await until_shown(pilot, "answer fast")
        await pilot.press("enter")
        await until(pilot, lambda: main_screen(pilot).chat_id == chat)


async def test_go_to_runs_a_command_only_after_a_slash(server: TerminalServer) -> None:
    chat = await server.create_chat("answer fast")
    async with run_terminal(server, chat) as pilot:
        await until_shown(pilot, "answer fast")
        await pilot.press("ctrl+p", *"archive", "enter")
        await pilot.pause()
        assert isinstance(pilot.app.screen, SwitchScreen), "no chat fits, and nothing is done"
        assert not (await server.call("GET", f"/chats/{chat}")).get("archived")
        await pilot.press(*["backspace"] * 7, *"/archive")
        await until_shown(pilot, "/archive ")
        await pilot.press("enter")
        await until_shown(pilot, "Archived. /unarchive undoes it.")


async def test_control_c_closes_what_is_on_top_and_control_d_leaves_from_there(
    server: TerminalServer,
) -> None:
    async with run_terminal(server) as pilot:
        await until_shown(pilot, "Chats: none")
        for _ in range(2):
            await pilot.press("f1")
            await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
            await pilot.press("ctrl+c")
            await until(pilot, lambda: pilot.app.screen is main_screen(pilot))
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        await pilot.press("ctrl+d")
        await until(pilot, lambda: not pilot.app.is_running)


async def test_leaving_with_a_message_that_is_not_sent_asks_first(dsn: str, tmp_path: Path) -> None:
    async with serve_terminal(dsn, tmp_path) as server, run_terminal(server) as pilot:
        await until_shown(pilot, "Chats: none")
        server.stop()
        await until(pilot, lambda: main_screen(pilot).query_one(ConnectionBanner).display)
        await pilot.press(*"hello", "enter")
        session = session_of(main_screen(pilot))
        await until(pilot, lambda: session.outbox.unsent)
        await pilot.press("ctrl+d")
        await until_shown(pilot, "A message is not sent yet and would be lost.")
        await pilot.press("escape")
        assert pilot.app.is_running
        await pilot.press("ctrl+d", "y")
        await until(pilot, lambda: not pilot.app.is_running)


async def test_on_a_narrow_terminal_the_list_takes_the_place_of_the_chat(
    server: TerminalServer,
) -> None:
    chat = await server.create_chat("answer fast")
    await server.until_status(chat, "waiting")
    async with run_terminal(server, size=SMALL) as pilot:
        await until_shown(pilot, "What should it do?")
        assert "answer fast" not in screen_text(pilot)
        await pilot.press("f2")
        assert "What should it do?" not in await until_shown(pilot, "● answer fast")
        await pilot.press("home", "enter")
        await until_shown(pilot, "Waiting for you")
        await pilot.resize_terminal(120, 36)
        await until_shown(pilot, "○ answer fast")
