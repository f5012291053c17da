"""Notes in the terminal: written by a command, proposed by a model, and decided on in their screen,
on a real server."""

from typing import Any, cast

import msgspec

from chatd.domain.ids import ChatId
from tests.support.eventually import eventually
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.terminal import (
    WIDE,
    TerminalServer,
    run_terminal,
    screen_text,
    until,
    until_shown,
)
from tests.terminal.test_composer_chat_commands import run_command


async def notes(server: TerminalServer) -> list[tuple[str, bool]]:
    found = cast("list[dict[str, Any]]", (await server.call("GET", "/memory/notes"))["items"])
    return [(one["text"], one["enabled"]) for one in found]


async def chat_with_proposals(server: TerminalServer, *texts: str) -> ChatId:
    await server.call("PATCH", "/settings/me", {"memory": "proposals"})
    for at, text in enumerate(texts):
        arguments = msgspec.json.encode({"text": text}).decode()
        function = {"name": "remember", "arguments": arguments}
        call = {"index": 0, "id": f"c{at}", "type": "function", "function": function}
        server.vendor.script(chunk(tool_calls=[call]), chunk(finish="tool_calls"), DONE)
    server.vendor.script(chunk(content="Proposed."), chunk(finish="stop"), DONE)
    return await server.create_chat("remember it", model="scripted")


async def test_proposed_notes_are_shown_and_decided_on(server: TerminalServer) -> None:
    chat_id = await chat_with_proposals(server, "Ada\u202e works.", "Bob.", "Eve.")
    async with run_terminal(server, chat_id, size=WIDE) as pilot:
        shown = await until_shown(pilot, "Proposed.")
        assert "Ada\\u202e works." in shown, "what cannot be seen is shown"
        assert "Nothing is kept until you accept it: /memory" in shown
        await run_command(pilot, "/remember I use tabs.")
        await until_shown(pilot, "Kept. The models of your chats")
        await run_command(pilot, "/memory")
        shown = await until_shown(pilot, "Proposed by models")
        assert "on   I use tabs." in shown
        await pilot.press("a")
        await until_shown(pilot, "on   Ada works.")
        await pilot.press("d")
        await until(pilot, lambda: "Bob." not in screen_text(pilot))
        await pilot.press("e")
        await until_shown(pilot, "Keep this note")
        await pilot.press("end", *" Too", "enter")
        await until_shown(pilot, "on   Eve. Too")
        await until_shown(pilot, "Memory: models are told them, and may propose some")
    kept = await notes(server)
    assert sorted(kept) == [("Ada works.", True), ("Eve. Too", True), ("I use tabs.", True)]
    left = await server.call("GET", "/memory/notes?state=proposed")
    assert left["items"] == []


async def test_notes_are_added_moved_switched_off_and_deleted(server: TerminalServer) -> None:
    for text in ("first", "second"):
        await server.call("POST", "/memory/notes", {"text": text})
    async with run_terminal(server, None, size=WIDE) as pilot:
        await run_command(pilot, "/memory")
        await until_shown(pilot, "on   second")
        await pilot.press("n")
        await until_shown(pilot, "A note for all your chats")
        await pilot.press(*"third", "enter")
        await until_shown(pilot, "on   third")
        await pilot.press("J")

        async def is_moved() -> bool:
            return [text for text, _ in await notes(server)] == ["second", "first", "third"]

        await eventually(is_moved)
        await pilot.press("space")
        await until_shown(pilot, "off  first")
        await pilot.press("m")
        await until_shown(pilot, "and may propose some")
        await pilot.press("d")
        await until_shown(pilot, "Delete the note «first»?")
        await pilot.press("y")
        await until_shown(pilot, "on   third")
    assert await notes(server) == [("second", True), ("third", True)]
