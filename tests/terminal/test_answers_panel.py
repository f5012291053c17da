"""Approvals in the terminal, on a real server."""

import asyncio

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from chatd.client.drafts import CallAnswer
from chatd.domain.ids import ToolCallId
from chatd.terminal.answers.answer_panel import CLOCK_S
from chatd.terminal.answers.ask_form import Answered, head_rows
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.main_screen import MainScreen
from chatd.terminal.safe_text import cell_width
from tests.support.eventually import eventually
from tests.support.terminal import (
    SMALL,
    TerminalServer,
    run_terminal,
    screen_text,
    until,
    until_shown,
)
from tests.support.terminal_answers import (
    ASK,
    TOOL,
    ask_for,
    panel_awake,
    panel_gone,
    panel_of,
    results_of,
    tool_call,
    waiting_calls,
    will_call,
)


async def test_a_call_is_approved_with_one_key_and_the_chat_goes_on(
    server: TerminalServer,
) -> None:
    chat_id = await ask_for(server, {"limit": 3})
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        await until_shown(pilot, "Why it asks  Calls need a review.")
        shown = await until_shown(pilot, "y Approve once")
        assert "Allow list_agents?" in shown
        assert "3 d left" in shown
        await pilot.press("f3", "y")
        await panel_gone(pilot)
        await eventually(lambda: _is_waiting(server, chat_id))
    (result,) = await results_of(server, chat_id)
    assert not result.get("is_error"), "the call ran"


async def _is_waiting(server: TerminalServer, chat_id: object) -> bool:
    return (await server.call("GET", f"/chats/{chat_id}"))["status"] == "waiting"


async def test_an_approval_takes_the_keys_by_itself_while_nothing_is_written(
    server: TerminalServer,
) -> None:
    chat_id = await ask_for(server, {"limit": 3})
    async with run_terminal(server, chat_id) as pilot:
        panel = await panel_awake(pilot)
        await until(pilot, lambda: panel.has_focus_within)
        await until_shown(pilot, "1 y Approve once   2 a Always…   3 n Deny…")
        await pilot.press("1")
        await panel_gone(pilot)
        await eventually(lambda: _is_waiting(server, chat_id))
        assert isinstance(pilot.app.focused, TextBox)
    (result,) = await results_of(server, chat_id)
    assert not result.get("is_error"), "the call ran"


async def test_an_approval_that_comes_while_a_message_is_written_takes_no_keys(
    server: TerminalServer,
) -> None:
    chat_id = await ask_for(server, {})
    async with run_terminal(server) as pilot:
        main = pilot.app.screen
        assert isinstance(main, MainScreen)
        main.query_one(Composer).opened.store.change(
            str(chat_id), lambda was: replace(was, text="Wait")
        )
        main.open(chat_id)
        panel = await panel_awake(pilot)
        async with asyncio.timeout(CLOCK_S / 2):
            await until_shown(pilot, "F3 answers:   y Approve once")
        await pilot.press("y", "n", "a", "Y")
        await until_shown(pilot, "WaitynaY")
        assert not panel.has_focus_within
        assert await waiting_calls(server, chat_id) == 1


async def test_letters_of_somebody_who_began_to_type_go_to_the_message(
    server: TerminalServer,
) -> None:
    chat_id = await ask_for(server, {})
    async with run_terminal(server, chat_id) as pilot:
        panel = panel_of(pilot)
        panel.guard_s = 3600.0
        await until(pilot, lambda: panel.has_focus_within)
        await pilot.press(*"yes")
        await until(pilot, lambda: pilot.app.screen.query_one(TextBox).text == "yes")
        assert await waiting_calls(server, chat_id) == 1
        await pilot.press("f3", "y", "n", "h")
        assert pilot.app.screen.query_one(TextBox).text == "yes", "the form was asked for"
        assert await waiting_calls(server, chat_id) == 1, "and it is not awake yet"


async def test_a_letter_that_answers_nothing_begins_a_message(server: TerminalServer) -> None:
    chat_id = await ask_for(server, {})
    async with run_terminal(server, chat_id) as pilot:
        panel = await panel_awake(pilot)
        await until(pilot, lambda: panel.has_focus_within)
        await pilot.press(*"hay")
        await until(pilot, lambda: pilot.app.screen.query_one(TextBox).text == "hay")
        assert await waiting_calls(server, chat_id) == 1


async def test_a_key_pressed_twice_does_not_answer_the_next_call(server: TerminalServer) -> None:
    chat_id = await ask_for(server, {"limit": 1}, {"limit": 2})
    async with run_terminal(server, chat_id) as pilot:
        panel = await panel_awake(pilot)
        await until_shown(pilot, "1 of 2")
        panel.guard_s = 3600.0
        await pilot.press("f3", "y", "y", "y")
        await until(pilot, lambda: "1 of 2" not in screen_text(pilot))
        await pilot.press("y", "n", "a")
        await pilot.pause()
        assert await waiting_calls(server, chat_id) == 1
        assert panel.form is not None


async def test_a_denial_tells_the_model_what_to_do_instead(server: TerminalServer) -> None:
    chat_id = await ask_for(server, {})
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        await pilot.press("f3", "n", *"no yes", "escape")
        assert await waiting_calls(server, chat_id) == 1, "Escape goes back"
        await pilot.press("n", *"!", "enter")
        await panel_gone(pilot)
    (result,) = await results_of(server, chat_id)
    assert "The reason: no yes!" in msgspec.json.encode(result["result"]).decode()


async def test_always_shows_the_rule_and_stores_it_as_it_was_edited(server: TerminalServer) -> None:
    chat_id = await ask_for(server, {"limit": 3})
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        await pilot.press("f3", "a")
        await until_shown(pilot, "Stored in this chat: run list_agents without asking")
        await pilot.press(*"limit: 4", "enter")
        await until_shown(pilot, "The rule does not match this call")
        await pilot.press("backspace", "3", "enter")
        await panel_gone(pilot)
    policy = await server.call("GET", f"/chats/{chat_id}/tool-policy")
    assert msgspec.convert(policy["rules"], list[object])[-1] == {
        "tool": TOOL,
        "action": "auto",
        "args": {"limit": "3"},
    }


async def test_all_calls_are_shown_before_they_are_approved_together(
    server: TerminalServer,
) -> None:
    chat_id = await ask_for(server, {"limit": 1}, {"limit": 2}, {"offset": 7})
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        await pilot.press("f3", "Y")
        shown = await until_shown(pilot, "Approve all 3 calls?")
        await until_shown(pilot, "offset       7")
        assert await waiting_calls(server, chat_id) == 3, shown
        await pilot.press("y")
        await panel_gone(pilot)
    assert [bool(one.get("is_error")) for one in await results_of(server, chat_id)] == [False] * 3


async def test_an_answer_of_another_client_ends_the_ask_with_a_line(server: TerminalServer) -> None:
    chat_id = await ask_for(server, {})
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        answers = [{"tool_call_id": "call_0", "decision": "deny"}]
        await server.call("POST", f"/chats/{chat_id}/answers", {"answers": answers})
        await until_shown(pilot, "The call was denied in another window.")
        assert panel_of(pilot).form is None


async def test_keys_meant_for_an_ask_that_went_away_do_not_answer_the_next_one(
    server: TerminalServer,
) -> None:
    chat_id = await ask_for(server, {"limit": 1}, {"limit": 2})
    async with run_terminal(server, chat_id) as pilot:
        panel = await panel_awake(pilot)
        await until_shown(pilot, "1 of 2")
        await pilot.press("f3", "n", *"wh")
        answers = [{"tool_call_id": "call_0", "decision": "deny"}]
        await server.call("POST", f"/chats/{chat_id}/answers", {"answers": answers})
        await until_shown(pilot, "The call was denied in another window.")
        await pilot.press("y", "n", "y")
        assert panel.form is not None
        assert not panel.has_focus_within
        assert await waiting_calls(server, chat_id) == 1
        await pilot.press("f3", "y")
        await panel_gone(pilot)


async def test_who_answers_second_is_told_who_was_first(server: TerminalServer) -> None:
    chat_id = await ask_for(server, {}, {})
    async with run_terminal(server, chat_id) as pilot:
        panel = await panel_awake(pilot)
        answers = [{"tool_call_id": "call_0", "decision": "deny"}]
        await server.call("POST", f"/chats/{chat_id}/answers", {"answers": answers})
        late = CallAnswer(tool_call_id=ToolCallId("call_0"), decision="approve")
        panel.post_message(Answered(chat_id, [late]))
        await until_shown(pilot, "has denied the call")


async def test_a_call_is_approved_only_with_its_arguments_on_the_screen(
    server: TerminalServer,
) -> None:
    """As if the request came before the message that has the arguments."""
    chat_id = await ask_for(server, {"limit": 3})
    async with run_terminal(server, chat_id) as pilot:
        panel = await panel_awake(pilot)
        chat = panel.asks.chat
        assert chat is not None
        (call,) = chat.requested_calls
        early = replace(chat, messages=(), requested_calls=(replace(call, args=UNSET),))
        panel.asks.chat = early
        panel._show_asks()  # pyright: ignore[reportPrivateUsage]
        await until_shown(pilot, "(not readable)")
        assert "n Deny" in await until_shown(pilot, "The arguments have not arrived")
        # The line of keys is drawn after the form: for a frame it is that of the form before.
        await until(pilot, lambda: "y Approve" not in screen_text(pilot))
        await pilot.press("f3", "y")
        await pilot.pause()
        assert await waiting_calls(server, chat_id) == 1
        panel.asks.chat = chat
        panel._show_asks()  # pyright: ignore[reportPrivateUsage]
        assert "(not readable)" not in await until_shown(pilot, "limit        3")
        await until_shown(pilot, "y Approve once")


async def test_a_long_command_is_folded_with_its_end_in_sight(server: TerminalServer) -> None:
    text = "\n".join(["first", *[""] * 300, "rm -rf \u202e~"])
    chat_id = await ask_for(server, {"command": text})
    async with run_terminal(server, chat_id, size=(80, 24)) as pilot:
        shown = await until_shown(pilot, "o shows all")
        assert "$ first" in shown
        assert "> rm -rf \\u202e~" in shown, "the end is in sight at once"
        await panel_awake(pilot)
        await pilot.press("f3", "o")
        await until_shown(pilot, "more below ↓")
        await pilot.press("end")
        await until_shown(pilot, "> rm -rf \\u202e~")
        assert "o shows all" not in screen_text(pilot)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_title_is_whole_and_the_note_gives_way(width: int) -> None:
    name = "github__create_pull_request_review_" + "x" * 60
    note = "Research of the deployment no… · 3 d left · more below ↓ · 1 of 2"
    rows = head_rows(f"◆ Allow {name}?", note, width)
    assert "".join(title for title, _ in rows) == f"◆ Allow {name}?"
    assert all(cell_width(title + shown) <= width for title, shown in rows)
    shown = rows[-1][1].strip()
    assert shown == note if width >= len(note) else shown.startswith("Research of the deployment")


async def test_the_whole_name_of_a_tool_is_read_in_a_small_terminal(
    server: TerminalServer,
) -> None:
    name = "github__create_pull_request_review_of_another"
    tools = [{"name": name, "description": "One.", "input_schema": {"type": "object"}}]
    will_call(server, *(tool_call(at, name, {"body": "b\n" * 30}) for at in range(2)))
    chat_id = await server.create_chat("Go.", "scripted", tool_rules=[ASK], client_tools=tools)
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await panel_awake(pilot)
        await until_shown(pilot, "1 of 2")
        assert f"◆ Allow {name}?" in screen_text(pilot)
