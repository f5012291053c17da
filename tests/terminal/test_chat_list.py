"""The chat list of the terminal, on a real server."""

from typing import Any, Final, TypeVar

from msgspec.structs import replace
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from chatd.client.calls import ListCall
from chatd.client.resources import ListedChat, Page
from chatd.client.server import ServerApi
from chatd.clock import SystemClock
from chatd.domain.ids import ChatId
from chatd.store import search
from chatd.store.database.pool import Pool
from chatd.terminal.app import ChatTerminal
from chatd.terminal.chats.chat_list import PAGE_SIZE, ChatList
from chatd.terminal.composer.text_box import TextBox
from chatd.terminal.dialogs import LinePrompt, Question
from chatd.terminal.session import open_session
from tests.support.providers.server import Gate
from tests.support.terminal import (
    SMALL,
    WIDE,
    TerminalServer,
    run_terminal,
    screen_text,
    until,
    until_shown,
)

MORE: Final = 10
T = TypeVar("T")


def chat_list(pilot: Pilot[None]) -> ChatList:
    return pilot.app.screen_stack[1].query_one(ChatList)


async def until_resting(pilot: Pilot[None], *chats: ChatId) -> None:
    """The list shows these chats, and none of them works."""

    def rests() -> bool:
        found = [chat_list(pilot).find(chat) for chat in chats]
        return all(chat is not None and chat.status == "waiting" for chat in found)

    await until(pilot, rests)


async def test_chats_that_work_rest_and_vanish_elsewhere_are_followed(
    server: TerminalServer,
) -> None:
    gate = Gate()
    async with run_terminal(server) as pilot:
        await until_shown(pilot, "Chats: none")
        server.will_answer("All is well.", held=gate)
        chat = await server.create_chat("a slow one", "scripted")
        await until(pilot, lambda: "◐◓◑◒".find(sign_before(pilot, "a slow one")) >= 0)
        gate.open()
        await until(pilot, lambda: sign_before(pilot, "a slow one") == "●")
        await server.call("DELETE", f"/chats/{chat}")
        await until_shown(pilot, "Chats: none")


class HeldList(ServerApi):
    """Hands over a list of chats only when the gate is open."""

    def __init__(self, api: ServerApi) -> None:
        super().__init__(api.server, api.http, clock=api.clock)
        self.gate = Gate()

    def list_chats(self, **query: Any) -> "HeldPage":
        asked = super().list_chats(**query)
        return HeldPage(asked, self.gate)


class HeldPage(ListCall[ListedChat]):
    def __init__(self, asked: ListCall[ListedChat], gate: Gate) -> None:
        super().__init__(asked.requests, asked.operation, asked.reply)
        self._gate = gate

    async def _read(self) -> Page[ListedChat]:
        found = await super()._read()
        await self._gate.pass_through()
        return found


async def test_a_chat_that_begins_while_the_list_is_read_is_listed(
    server: TerminalServer,
) -> None:
    here = await server.create_chat("answer fast: here")
    await server.until_status(here, "waiting")
    async with open_session(server.address, SystemClock()) as session:
        api = HeldList(session.api)
        terminal = ChatTerminal(replace(session, api=api), here)
        async with terminal.run_test(size=WIDE, notifications=True) as pilot:
            await until(pilot, api.gate.reached.is_set)
            there = await server.create_chat("answer fast: there")
            await until_shown(pilot, "there» has finished")
            api.gate.open()
            await until(pilot, lambda: chat_list(pilot).directory.is_loaded)
            assert {chat.id for chat in chat_list(pilot).directory.chats()} == {here, there}


def sign_before(pilot: Pilot[None], title: str) -> str:
    """The sign of the line with this title; a space if there is none."""
    before, found, _ = screen_text(pilot).partition(f" {title}")
    return before[-1] if found else " "


async def test_a_chat_is_renamed_pinned_forked_archived_and_deleted_by_keys(
    server: TerminalServer,
) -> None:
    chat = await server.create_chat("answer fast")
    async with run_terminal(server, size=SMALL) as pilot:
        await until_resting(pilot, chat)
        await pilot.press("f2", "home", "r")
        await until(pilot, lambda: isinstance(pilot.app.screen, LinePrompt))
        pilot.app.screen.query_one(Input).value = "A better title"
        await pilot.press("enter")
        await until_shown(pilot, "A better title")
        await pilot.press("p")
        await until_shown(pilot, "Pinned")
        await pilot.press("f")
        forked = await until(pilot, lambda: main_chat(pilot))
        assert forked != chat
        await until_resting(pilot, forked)
        await pilot.press("f2", "home", "a")
        await until(pilot, lambda: screen_text(pilot).count("A better title") == 1)
        await pilot.press("v", "v")
        await until_shown(pilot, "▪ A better title")
        await pilot.press("home", "d")
        await until(pilot, lambda: isinstance(pilot.app.screen, Question))
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(pilot.app.screen, Question))
        assert (await server.call("GET", f"/chats/{chat}"))["archived"] is True
        await pilot.press("d", "y")
        await until_shown(pilot, "Archived: none")
    left = await server.call("GET", "/chats")
    assert [str(forked)] == [str(item["id"]) for item in items_of(left)]


async def test_letters_that_come_with_the_key_before_go_to_the_message_and_archive_nothing(
    server: TerminalServer,
) -> None:
    chat = await server.create_chat("answer fast")
    async with run_terminal(server, size=WIDE) as pilot:
        await until_resting(pilot, chat)
        for key in ("f2", "home", "escape", *"a pad"):
            pilot.app.post_message(events.Key("space" if key == " " else key, key[-1:]))
        box = pilot.app.screen_stack[1].query_one(TextBox)
        await until(pilot, lambda: box.text == "a pad")
    assert (await server.call("GET", f"/chats/{chat}"))["archived"] is False


async def test_keys_that_come_while_the_terminal_ends_are_dropped(server: TerminalServer) -> None:
    async with run_terminal(server, size=WIDE) as pilot:
        app = pilot.app
    forwarded = events.Key("a", "a")
    forwarded._set_forwarded()  # pyright: ignore[reportPrivateUsage] # as a widget sends it up
    for key in (events.Key("a", "a"), forwarded):
        await app.on_event(key)


async def test_the_last_archiving_is_undone_by_u_with_its_pin(server: TerminalServer) -> None:
    chat = await server.create_chat("answer fast")
    async with run_terminal(server, size=WIDE) as pilot:
        await until_resting(pilot, chat)
        await pilot.press("f2", "home", "p")
        await until_shown(pilot, "Pinned")
        await pilot.press("a")
        await until_shown(pilot, "U takes it out again")
        await until_shown(pilot, "Chats: none")
        await pilot.press("u")
        await until_shown(pilot, "Pinned")
    found = await server.call("GET", f"/chats/{chat}")
    assert (found["archived"], bool(found["pin_order"])) == (False, True)


def main_chat(pilot: Pilot[None]) -> ChatId | None:
    return chat_list(pilot).chats.open_chat


def items_of(page: dict[str, object]) -> list[dict[str, object]]:
    items = page["items"]
    assert isinstance(items, list)
    return items  # pyright: ignore[reportUnknownVariableType]


async def test_a_search_finds_words_of_messages_and_escape_ends_it(
    server: TerminalServer, pool: Pool
) -> None:
    first = await server.create_chat("answer fast: lamps")
    second = await server.create_chat("answer fast: boats")
    async with run_terminal(server) as pilot:
        await until_resting(pilot, first, second)
        # A replica does it every ten seconds.
        await search.index_batch(pool)
        chat_list(pilot).chats.focus()
        await pilot.press("slash", *"boats")
        await until_shown(pilot, "Found")
        await until(pilot, lambda: len(chat_list(pilot).directory) == 1)
        assert "lamps" not in screen_text(pilot)
        await pilot.press("escape")
        await until_shown(pilot, "lamps")


async def test_a_long_list_is_read_page_by_page_when_it_is_scrolled(
    server: TerminalServer,
) -> None:
    """Slow: creates chats enough for two pages."""
    chat = await server.create_chat("answer fast")
    await server.until_status(chat, "waiting")
    for _ in range(PAGE_SIZE + MORE - 1):
        await server.call("POST", f"/chats/{chat}/fork", {})
    async with run_terminal(server) as pilot:
        await until(pilot, lambda: len(chat_list(pilot).directory) >= PAGE_SIZE)
        # Its lines are drawn a moment later than they are read.
        await until(pilot, lambda: chat_list(pilot).chats.virtual_size.height >= PAGE_SIZE)
        chat_list(pilot).chats.focus()
        await pilot.press("end")
        await until(pilot, lambda: len(chat_list(pilot).directory) == PAGE_SIZE + MORE)


async def test_enter_in_the_list_opens_its_first_chat_when_none_is_open(
    server: TerminalServer,
) -> None:
    chat = await server.create_chat("answer fast one")
    await server.until_status(chat, "waiting")
    async with run_terminal(server) as pilot:
        await until_resting(pilot, chat)
        assert main_chat(pilot) is None
        await until(pilot, lambda: chat_list(pilot).chats.neighbour(None, 1) is not None)
        await pilot.press("f2")
        await until(pilot, lambda: chat_list(pilot).chats.has_focus)
        chosen = chat_list(pilot).chats.selected
        assert chosen is not None
        assert chosen.id == chat
        await pilot.press("enter")
        await until(pilot, lambda: main_chat(pilot) == chat)


async def test_the_cursor_of_the_list_goes_to_a_chat_that_is_opened_before_it_is_listed(
    server: TerminalServer,
) -> None:
    older = await server.create_chat("answer fast one")
    await server.until_status(older, "waiting")
    async with run_terminal(server, older) as pilot:
        tree = chat_list(pilot).chats
        await until(pilot, lambda: tree.selected is not None)
        await pilot.press("ctrl+n", *"answer", "space", *"fast", "enter")
        await until(pilot, lambda: main_chat(pilot) not in (None, older))
        await until(pilot, lambda: tree.selected is not None and tree.selected.id != older)


async def test_the_keys_for_the_next_chat_follow_the_list(server: TerminalServer) -> None:
    older = await server.create_chat("answer fast one")
    await server.until_status(older, "waiting")
    newer = await server.create_chat("answer fast two")
    async with run_terminal(server, newer) as pilot:
        neighbour = chat_list(pilot).chats.neighbour
        await until_resting(pilot, older, newer)
        await until(pilot, lambda: (below := neighbour(newer, 1)) and below.id == older)
        await pilot.press("alt+down")
        assert main_chat(pilot) == older
        await pilot.press("alt+down")
        assert main_chat(pilot) == older
        await pilot.press("alt+up")
        assert main_chat(pilot) == newer
