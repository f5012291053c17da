"""Which card shows which tool."""

from collections.abc import Callable, Mapping
from typing import Final

from chatd.terminal.timeline.cards.agent import (
    interrupt_agent_card,
    list_agents_card,
    message_agent_card,
    spawn_card,
    wait_card,
)
from chatd.terminal.timeline.cards.ask import (
    DENIED_TEXT,
    denied_card,
    plan_card,
    question_card,
    waiting_card,
)
from chatd.terminal.timeline.cards.card import Canvas, Card
from chatd.terminal.timeline.cards.command import (
    command_card,
    process_list_card,
    process_signal_card,
)
from chatd.terminal.timeline.cards.file import edit_card, read_card, search_card, write_card
from chatd.terminal.timeline.cards.other import (
    attach_card,
    generic_card,
    skill_card,
    web_search_card,
    workspace_card,
)
from chatd.terminal.timeline.rows.tool_call import CallFacts

_CARDS: Final[Mapping[str, Callable[[CallFacts, Canvas], Card]]] = {
    "execute": command_card,
    "process_output": command_card,
    "process_list": process_list_card,
    "process_signal": process_signal_card,
    "read_file": lambda facts, _: read_card(facts),
    "write_file": write_card,
    "edit_files": edit_card,
    "list_files": search_card,
    "list_directory": search_card,
    "search_files": search_card,
    "grep": search_card,
    "glob": search_card,
    "web_search": web_search_card,
    "create_workspace": workspace_card,
    "start_workspace": workspace_card,
    "stop_workspace": workspace_card,
    "spawn_agent": spawn_card,
    "spawn_computer_use_agent": spawn_card,
    "wait_agent": wait_card,
    "message_agent": message_agent_card,
    "interrupt_agent": interrupt_agent_card,
    "close_agent": interrupt_agent_card,
    "list_agents": list_agents_card,
    "ask_user_question": question_card,
    "attach_file": attach_card,
    "read_skill": skill_card,
    "read_skill_file": skill_card,
}
KNOWN_TOOLS: Final = (*_CARDS, "propose_plan")


def card_of(facts: CallFacts, canvas: Canvas, *, is_last: bool = False) -> Card:
    """`is_last`: a plan that the user may still answer."""
    name, request = facts.call.name, facts.call.request
    if facts.state == "waiting" and (request is None or request.kind != "question"):
        return waiting_card(facts, canvas)
    if facts.state == "failed" and facts.error.startswith(DENIED_TEXT):
        return denied_card(facts, canvas)
    if name == "propose_plan":
        return plan_card(facts, canvas, is_last=is_last)
    return _CARDS.get(name, generic_card)(facts, canvas)
