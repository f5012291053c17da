"""The timeline in the whole terminal, on a real server."""

import io

import msgspec

from chatd.client.connection import FollowedChat
from chatd.domain.ids import ChatId
from chatd.terminal.messages import OpenChat
from chatd.terminal.timeline.row import OlderRow
from chatd.terminal.timeline.timeline import Timeline
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.providers.server import Gate
from tests.support.terminal import (
    Json,
    TerminalServer,
    run_terminal,
    screen_text,
    until,
    until_shown,
)


async def test_an_answer_is_shown_while_it_is_written_and_stays(server: TerminalServer) -> None:
    gate = Gate()
    server.will_answer("The **first** half.\n\nThe second half.", held=gate)
    chat_id = await server.create_chat("Tell me.", model="scripted")
    async with run_terminal(server, chat_id) as pilot:
        await until_shown(pilot, "The first")
        assert "second half" not in screen_text(pilot)
        gate.open()
        await until_shown(pilot, "The second half.")
        timeline = pilot.app.screen.query_one(Timeline)
        chat = await until(pilot, lambda: timeline.chat)
        await until(pilot, lambda: timeline.chat and timeline.chat.shown.live is None)
        assert "▌ Tell me." in screen_text(pilot)
        assert chat.chat_id == chat_id


async def test_escape_codes_of_a_model_do_not_reach_the_terminal(server: TerminalServer) -> None:
    server.will_answer("before \x1b]0;owned\x07\x1b[31mafter [bold]plain[/] \u202eend")
    chat_id = await server.create_chat("Tell me.", model="scripted")
    async with run_terminal(server, chat_id) as pilot:
        await until_shown(pilot, "before after [bold]plain[/] end")


async def test_a_failed_turn_says_what_to_do_and_r_tries_it_again(server: TerminalServer) -> None:
    server.vendor.script(chunk(role="assistant", content=""), chunk(finish="content_filter"), DONE)
    chat_id = await server.create_chat("Tell me.", model="scripted")
    async with run_terminal(server, chat_id) as pilot:
        shown = await until_shown(pilot, "filter")
        assert "Tell me." in shown
        timeline = pilot.app.screen.query_one(Timeline)
        await until(pilot, lambda: timeline.chat and timeline.chat.shown.status == "error")
        server.will_answer("It works now.")
        await pilot.press("f4", "r")
        await until_shown(pilot, "It works now.")


async def test_older_messages_are_loaded_when_the_top_is_reached(server: TerminalServer) -> None:
    server.will_answer("Answer.")
    first = await server.create_chat("Question.", model="scripted")
    async with run_terminal(server, first) as pilot:
        await until_shown(pilot, "Answer.")
        timeline = pilot.app.screen.query_one(Timeline)
        await until(pilot, lambda: timeline.chat and timeline.chat.shown.status == "waiting")
        timeline.post_message(OpenChat(await import_long_chat(server, first, turns=560)))
        await until_shown(pilot, "Answer 559.")
        oldest = timeline.rows[1].key
        await pilot.press("f4", "home")
        await until(pilot, lambda: (timeline.index_of(oldest) or 0) > 50)
        places = [timeline.place_at(line) for line in range(5)]
        keys = [timeline.rows[place.row].key for place in places if place is not None]
        assert oldest in keys, "what was read stays in its place"
        while isinstance(timeline.rows[0], OlderRow):
            await pilot.press("home")
        await pilot.press("home")
        await until_shown(pilot, "▌ Question 0.")


async def import_long_chat(server: TerminalServer, first: ChatId, turns: int) -> ChatId:
    """A chat with more messages than the server sends at once, made of the one turn of `first`."""
    async with server.http.get(f"/api/v1/chats/{first}/export") as reply:
        lines = [msgspec.json.decode(line, type=Json) for line in (await reply.read()).splitlines()]
    messages = [line for line in lines if line["type"] == "message"]
    turn = [line for line in messages if line["role"] in ("user", "assistant")]
    many = turn * turns
    copied = [{**line, "id": number} for number, line in enumerate(many, 1)]
    start, end = lines.index(messages[0]), {**lines[-1], "messages": len(copied)}
    texts = [msgspec.json.encode(line) for line in (*lines[:start], *copied, end)]
    numbered = [
        text.replace(b"Question.", b"Question %d." % number).replace(
            b"Answer.", b"Answer %d." % number
        )
        for place, text in enumerate(texts)
        for number in [(place - start) // len(turn)]
    ]
    data = io.BytesIO(b"\n".join(numbered) + b"\n")
    async with server.http.post("/api/v1/chats/import", data=data) as reply:
        body = await reply.read()
        assert reply.status < 300, body
        return msgspec.convert(msgspec.json.decode(body, type=Json)["id"], ChatId)


async def test_a_fork_from_a_message_opens_the_copy(server: TerminalServer) -> None:
    server.will_answer("It works.")
    chat_id = await server.create_chat("Tell me.", model="scripted")
    async with run_terminal(server, chat_id) as pilot:
        await until_shown(pilot, "It works.")
        timeline = pilot.app.screen.query_one(Timeline)
        await until(pilot, lambda: timeline.chat and timeline.chat.shown.status == "waiting")
        await pilot.press("f4", "end", "f")
        copy = await until(pilot, lambda: timeline.chat and _other_than(chat_id, timeline.chat))
        await until_shown(pilot, "It works.")
        assert (await server.call("GET", f"/chats/{copy}"))["id"] == str(copy)


def _other_than(known: ChatId, chat: FollowedChat) -> ChatId | None:
    return None if chat.chat_id == known else chat.chat_id


async def test_e_puts_a_message_of_the_user_into_the_message_box(server: TerminalServer) -> None:
    server.will_answer("It works.")
    chat_id = await server.create_chat("Tell me about it.", model="scripted")
    async with run_terminal(server, chat_id) as pilot:
        await until_shown(pilot, "It works.")
        timeline = pilot.app.screen.query_one(Timeline)
        await until(pilot, lambda: timeline.chat and timeline.chat.shown.status == "waiting")
        await pilot.press("f4", "K", "e")
        await until(pilot, lambda: screen_text(pilot).count("Tell me about it.") == 4)


async def test_pages_scroll_while_the_message_box_has_the_focus(server: TerminalServer) -> None:
    server.will_answer("\n\n".join(f"Paragraph {number}." for number in range(60)))
    chat_id = await server.create_chat("Tell me.", model="scripted")
    async with run_terminal(server, chat_id) as pilot:
        await until_shown(pilot, "Paragraph 59.")
        await pilot.press("pageup", "pageup")
        assert "Paragraph 59." not in screen_text(pilot)
        assert "more below · End" in screen_text(pilot)
        await pilot.press("pagedown", "pagedown")
        await until_shown(pilot, "Paragraph 59.")
