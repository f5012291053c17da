"""Chats that wait for a person, and the answer panel that shows them."""

from typing import Final

import msgspec
from textual.pilot import Pilot

from chatd.domain.ids import ChatId
from chatd.terminal.answers.answer_panel import AnswerPanel
from tests.support.eventually import eventually
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.terminal import Json, TerminalServer, until

TOOL: Final = "list_agents"
"""A tool of every root chat, which changes nothing."""
ASK: Final = {"tool": "*", "action": "ask", "reason": "Calls need a review."}
QUESTIONS: Final = [
    {
        "header": "Store",
        "question": "Which database?",
        "options": [
            {"label": "PostgreSQL", "description": "One more server."},
            {"label": "SQLite", "description": "One file."},
        ],
    },
    {"question": "Which tests?", "options": ["unit", "api", "e2e"], "multi_select": True},
]


def tool_call(at: int, tool: str, args: object) -> Json:
    text = args if isinstance(args, str) else msgspec.json.encode(args).decode()
    function = {"name": tool, "arguments": text}
    return {"index": at, "id": f"call_{at}", "type": "function", "function": function}


def will_call(server: TerminalServer, *calls: Json) -> None:
    """The next answer of the model `scripted`."""
    server.vendor.script(chunk(role="assistant", tool_calls=list(calls)), chunk("tool_calls"), DONE)


async def ask_for(server: TerminalServer, *args: object) -> ChatId:
    """A chat that waits for approval of one call for each of these arguments, and then ends."""
    will_call(server, *(tool_call(at, TOOL, one) for at, one in enumerate(args)))
    chat_id = await server.create_chat("Go.", "scripted", tool_rules=[ASK])
    await eventually(lambda: _waits(server, chat_id))
    server.will_answer("All is done now.")
    return chat_id


async def ask_questions(server: TerminalServer, questions: object = QUESTIONS) -> ChatId:
    will_call(server, tool_call(0, "ask_user_question", {"questions": questions}))
    chat_id = await server.create_chat("Ask.", "scripted")
    await eventually(lambda: _waits(server, chat_id))
    server.will_answer("Thank you.")
    return chat_id


async def _waits(server: TerminalServer, chat_id: ChatId) -> bool:
    return await server.status_of(chat_id) == "requires_action"


def panel_of(pilot: Pilot[None]) -> AnswerPanel:
    return pilot.app.screen_stack[1].query_one(AnswerPanel)


async def panel_awake(pilot: Pilot[None]) -> AnswerPanel:
    """The panel with a form that takes keys; later forms take them at once."""
    panel = panel_of(pilot)
    panel.guard_s = 0.0
    await until(pilot, lambda: panel.form is not None and panel.form.is_mounted)
    await until(pilot, lambda: panel.is_awake)
    return panel


async def panel_gone(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: panel_of(pilot).form is None)


async def results_of(server: TerminalServer, chat_id: ChatId) -> list[Json]:
    """The results of calls, in their order."""
    page = await server.call("GET", f"/chats/{chat_id}/messages?limit=100")
    messages = reversed(msgspec.convert(page["items"], list[Json]))
    parts = [part for one in messages for part in msgspec.convert(one["content"], list[Json])]
    return [part for part in parts if part["type"] == "tool-result"]


async def waiting_calls(server: TerminalServer, chat_id: ChatId) -> int:
    chat = await server.call("GET", f"/chats/{chat_id}")
    action = msgspec.convert(chat.get("action") or {}, Json)
    return msgspec.convert(action.get("calls", 0), int)
