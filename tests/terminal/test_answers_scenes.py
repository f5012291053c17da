"""Scenes of the demo model in the terminal: a question and an approval in a workspace, and a
plan."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from msgspec.structs import replace

from chatd.domain.ids import ChatId
from chatd.settings.schema import Settings, WorkspaceSettings
from chatd.terminal.answers.question_form import QuestionForm
from tests.support.eventually import eventually
from tests.support.terminal import (
    SMALL,
    TerminalServer,
    run_terminal,
    screen_text,
    serve_terminal,
    until,
    until_shown,
)
from tests.support.terminal_answers import (
    panel_awake,
    panel_gone,
    panel_of,
    results_of,
    tool_call,
    will_call,
)

EXECUTE: Final = {"tool": "execute", "action": "ask", "reason": "Commands need a review."}
TASK: Final = {"type": "general", "prompt": "Deploy it."}


@pytest.fixture
async def with_workspaces(dsn: str, tmp_path: Path) -> AsyncGenerator[TerminalServer]:
    def change(settings: Settings) -> Settings:
        return replace(settings, workspaces=WorkspaceSettings(allow_unsafe=True))

    async with serve_terminal(dsn, tmp_path, change) as server:
        yield server


async def test_a_plan_is_read_and_implemented(with_workspaces: TerminalServer) -> None:
    """Takes seconds: a workspace is made."""
    server = with_workspaces
    chat_id = await server.create_chat("Fix the failing test", mode="plan")
    async with run_terminal(server, chat_id, size=SMALL) as pilot:
        await panel_awake(pilot)
        await until_shown(pilot, "The plan is ready to read")
        await pilot.press("f3", "v")
        await until_shown(pilot, "Esc Back")
        await until_shown(pilot, "3. Run the tests again: all three must pass.")
        await pilot.press("i")
        await panel_gone(pilot)
        await eventually(lambda: _has_said(server, chat_id, "Implement the plan."))
    chat = await server.call("GET", f"/chats/{chat_id}")
    assert "mode" not in chat, "the message ended plan mode"


async def _has_said(server: TerminalServer, chat_id: ChatId, text: str) -> bool:
    page = await server.call("GET", f"/chats/{chat_id}/messages")
    return text in msgspec.json.encode(page["items"]).decode()


async def test_a_question_and_then_an_approval_of_the_demo(
    with_workspaces: TerminalServer,
) -> None:
    """Takes seconds: a workspace is made."""
    server = with_workspaces
    chat_id = await server.create_chat("ask me first", tool_rules=[EXECUTE])
    async with run_terminal(server, chat_id) as pilot:
        panel = await panel_awake(pilot)
        assert isinstance(panel.form, QuestionForm)
        label = panel.form.draft.questions[0].labels[0]
        await pilot.press("f3")
        await until_shown(pilot, f"> ( ) {label}")
        await pilot.press("enter")
        await until_shown(pilot, "Run this command?")
        assert f"$ echo {label}" in await until_shown(pilot, "chatd-demo.txt")
        await panel_awake(pilot)
        await pilot.press("f3", "y")
        await panel_gone(pilot)
        await eventually(lambda: _is_waiting(server, chat_id))
    assert not any(one.get("is_error") for one in await results_of(server, chat_id))


async def _is_waiting(server: TerminalServer, chat_id: ChatId) -> bool:
    return await server.status_of(chat_id) == "waiting"


async def test_what_a_subagent_asks_is_answered_at_its_parent(
    with_workspaces: TerminalServer,
) -> None:
    """The parent's second step and the subagent's first one make the same call, in any order; the
    one that is shown first stays until it is answered."""
    server = with_workspaces
    will_call(server, tool_call(0, "spawn_agent", {**TASK, "title": "Helper"}))
    for _ in range(2):
        will_call(server, tool_call(1, "execute", {"command": "make deploy"}))
    chat_id = await server.create_chat("Go.", "scripted", tool_rules=[EXECUTE])
    async with run_terminal(server, chat_id) as pilot:
        await panel_awake(pilot)
        shown = await until_shown(pilot, " of 2")
        await pilot.press("f3", *([] if "Helper ·" in shown else ["right"]))
        await until_shown(pilot, "Helper · 3 d left · 2 of 2")
        server.will_answer("Then not.")
        await pilot.press("n", *"Not now.", "enter")
        await until(pilot, lambda: "Helper ·" not in screen_text(pilot))
        page = await server.call("GET", f"/chats/{chat_id}/subagents")
        (child,) = msgspec.convert(page["items"], list[dict[str, object]])
        results = await results_of(server, msgspec.convert(child["id"], ChatId))
        assert "Not now." in msgspec.json.encode(results).decode()
        assert panel_of(pilot).form is not None, "the parent's own call still waits"
