"""Slash commands that change a chat, on a real server."""

from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from chatd.store.database.pool import Pool
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.text_box import TextBox
from tests.support.providers.server import Gate
from tests.support.terminal import SMALL, TerminalServer, run_terminal, until, until_shown
from tests.support.terminal_chats import prompts_of, until_status


async def run_command(pilot: Pilot[None], line: str) -> None:
    """Written at once, and run by Enter."""
    box = pilot.app.screen.query_one(TextBox)
    box.post_message(events.Paste(line))
    await until(pilot, lambda: box.text == line)
    await pilot.press("enter")


def composer_of(pilot: Pilot[None]) -> Composer:
    return pilot.app.screen.query_one(Composer)


async def test_a_chat_is_renamed_pinned_archived_shared_exported_and_forked(
    server: TerminalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await server.call("POST", "/users", {"username": "ada", "password": "a-long-password-of-ada"})
    chat_id = await server.create_chat("answer fast")
    await until_status(server, chat_id, "waiting")
    path = f"/chats/{chat_id}"
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until(pilot, lambda: composer_of(pilot).opened.facts.chat is not None)
        await run_command(pilot, "/rename A [bold]title")
        await until_shown(pilot, "A [bold]title")
        await run_command(pilot, "/pin")
        await until_shown(pilot, "Pinned.")
        await run_command(pilot, "/mode plan")
        await until_shown(pilot, "plan mode")
        await server.call("POST", "/projects", {"name": "Billing"})
        await run_command(pilot, "/project none-of-this-name")
        await until_shown(pilot, "There is no project")
        await run_command(pilot, "/project")
        await until_shown(pilot, "Your projects: Billing")
        await run_command(pilot, "/project billing")
        await until_shown(pilot, "In Billing.")
        assert "project_id" in await server.call("GET", path)
        await run_command(pilot, "/share nobody-of-this-name")
        await until_shown(pilot, "There is no user or group")
        await run_command(pilot, "/share ada")
        await until_shown(pilot, "ada can read this chat")
        await run_command(pilot, "/export")
        await until_shown(pilot, "Saved")
        await run_command(pilot, "/archive")
        await until_shown(pilot, "This chat is archived")
        found = await server.call("GET", path)
        wanted = {"title": "A [bold]title", "mode": "plan", "archived": True}
        assert {name: found[name] for name in wanted} == wanted
        await run_command(pilot, "/unarchive")
        await until_shown(pilot, "Out of the archive.")
        await run_command(pilot, "/export")
        # One word: where the line is wrapped depends on the length of the directory's name.
        await until_shown(pilot, "exists.")
        await run_command(pilot, "/unshare ada")
        await until_shown(pilot, "ada can no longer read")
        assert (await server.call("GET", f"{path}/acl"))["users"] == []
        await run_command(pilot, "/fork")
        await until(pilot, lambda: composer_of(pilot).chat_id not in (None, chat_id))
    assert "answer fast" in (tmp_path / "a-bold-title.md").read_text()


async def test_a_turn_is_answered_again_and_the_first_answer_is_shown_again(
    server: TerminalServer,
) -> None:
    server.will_answer("the first answer")
    chat_id = await server.create_chat("which one?", "scripted")
    await until_status(server, chat_id, "waiting")
    server.will_answer("the second answer")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_shown(pilot, "the first answer")
        await run_command(pilot, "/version")
        await until_shown(pilot, "No message of this chat was edited")
        await run_command(pilot, "/regenerate nonsense")
        await until_shown(pilot, "No model fits")
        await run_command(pilot, "/regenerate")
        await until_shown(pilot, "the second answer")
        await until_status(server, chat_id, "waiting")
        await run_command(pilot, "/version")
        await until_shown(pilot, "Version 2 of 2")
        await run_command(pilot, "/version 3")
        await until_shown(pilot, "There are the versions 1 to 2.")
        await run_command(pilot, "/version 1")
        await until_shown(pilot, "the first answer")


async def test_the_last_answer_is_rated_and_the_rating_is_taken_back(
    server: TerminalServer,
) -> None:
    server.will_answer("the answer")
    chat_id = await server.create_chat("a question", "scripted")
    await until_status(server, chat_id, "waiting")
    path = f"/chats/{chat_id}/ratings"
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_shown(pilot, "the answer")
        await run_command(pilot, "/rate fine")
        await until_shown(pilot, "follow.")
        await run_command(pilot, "/rate down It forgot the tests.")
        await until_shown(pilot, "Rated:")
        rated = str((await server.call("GET", path))["items"])
        assert "'value': 'down', 'comment': 'It forgot the tests.'" in rated
        await run_command(pilot, "/rate none")
        await until_shown(pilot, "taken")
        assert (await server.call("GET", path))["items"] == []


async def test_a_command_does_not_stop_the_one_before_it_and_both_say_what_they_did(
    server: TerminalServer, pool: Pool
) -> None:
    chat_id = await server.create_chat("answer fast")
    await until_status(server, chat_id, "waiting")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until(pilot, lambda: composer_of(pilot).opened.facts.chat is not None)
        async with pool.transaction() as holding:
            await holding.execute("SELECT 1 FROM chats WHERE id = $1 FOR UPDATE", chat_id)
            await run_command(pilot, "/rename A new title")
            await run_command(pilot, "/pin")
            await run_command(pilot, "/share nobody-of-this-name")
        await until_shown(pilot, "Pinned.")
        await until_shown(pilot, "There is no user or group")
        assert (await server.call("GET", f"/chats/{chat_id}"))["title"] == "A new title"


async def test_a_command_that_cannot_be_used_now_says_why_and_stays_written(
    server: TerminalServer,
) -> None:
    async with run_terminal(server, size=SMALL) as pilot:
        for line, reason in [
            ("/fork", "only in a chat"),
            ("/busy never", "There is no 'never'"),
            ("/model nonsense", "No model fits"),
            ("/effort high", "The efforts of this model: none"),
        ]:
            await run_command(pilot, line)
            await until_shown(pilot, reason)
            pilot.app.screen.query_one(TextBox).clear()
        assert composer_of(pilot).chat_id is None


async def test_a_new_chat_begins_in_plan_mode_and_an_answer_is_interrupted(
    server: TerminalServer,
) -> None:
    gate = Gate()
    server.will_answer("a long answer", held=gate)
    async with run_terminal(server, size=SMALL) as pilot:
        await until(pilot, lambda: len(composer_of(pilot).opened.facts.models) > 0)
        await run_command(pilot, "/mode")
        await until_shown(pilot, "plan mode")
        await run_command(pilot, "/model scripted")
        await until_shown(pilot, "scripted · plan mode")
        await run_command(pilot, "make a plan")
        await until_shown(pilot, "Enter queues")
        chat_id = composer_of(pilot).chat_id
        assert chat_id is not None
        assert (await server.call("GET", f"/chats/{chat_id}"))["mode"] == "plan"
        await run_command(pilot, "/interrupt")
        await until_status(server, chat_id, "waiting")
        assert await prompts_of(server, chat_id) == ["make a plan"]
        gate.open()


async def test_a_message_that_the_server_refuses_is_taken_back_or_sent_again(
    server: TerminalServer,
) -> None:
    chat_id = await server.create_chat("answer fast")
    await until_status(server, chat_id, "waiting")
    await server.call("PATCH", f"/chats/{chat_id}", {"archived": True})
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await until_shown(pilot, "This chat is archived")
        await run_command(pilot, "one")
        await until_shown(pilot, "/unsent edits it, /retry sends it again")
        await run_command(pilot, "/unsent")
        await until(pilot, lambda: pilot.app.screen.query_one(TextBox).text == "one")
        await pilot.press("enter")
        await until_shown(pilot, "/unsent edits it, /retry sends it again")
        await server.call("PATCH", f"/chats/{chat_id}", {"archived": False})
        await run_command(pilot, "/retry")
        await until_status(server, chat_id, "waiting", turns=2)
        assert await prompts_of(server, chat_id) == ["answer fast", "one"]
