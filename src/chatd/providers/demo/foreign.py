"""Tools that the demo model has no script for: those that a client has declared, or a server.

It calls one that the prompt speaks of, or any if there is nothing else to do, with arguments
that fit the schema, and shows what came back.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from chatd.domain.model import ToolSpec
from chatd.providers.demo.beats import Say, Scene, Use
from chatd.providers.demo.sample import sample
from chatd.providers.demo.turn import Turn

# What chatd offers itself; scripts of their own use some of these.
OURS: Final = frozenset(
    {
        "ask_user_question",
        "attach_file",
        "close_agent",
        "computer",
        "create_workspace",
        "edit_files",
        "execute",
        "interrupt_agent",
        "list_agents",
        "list_subagent_models",
        "list_templates",
        "message_agent",
        "process_list",
        "process_output",
        "process_signal",
        "propose_plan",
        "read_file",
        "read_skill",
        "read_skill_file",
        "read_template",
        "spawn_agent",
        "start_workspace",
        "stop_workspace",
        "wait_agent",
        "write_file",
    }
)
_SHORTEST_WORD: Final = 4


def foreign(turn: Turn) -> list[ToolSpec]:
    return [tool for name, tool in turn.tools.items() if name not in OURS]


def mentioned(turn: Turn) -> ToolSpec | None:
    """The first whose name, or a word of it, is in the prompt."""
    said = set(_words(turn.prompt))
    for tool in foreign(turn):
        words = [word for word in _words(tool.name) if len(word) >= _SHORTEST_WORD]
        if tool.name.lower() in turn.prompt.lower() or said & set(words):
            return tool
    return None


def call(tool: ToolSpec, turn: Turn) -> Scene:
    try:
        args = msgspec.json.decode(sample(tool.input_schema, turn.prompt), type=dict[str, object])
    except msgspec.ValidationError:  # a schema of something that is no object
        args = dict[str, object]()
    return Scene(
        beats=(Say(text=f"I'll ask the tool `{tool.name}`."), Use(name=tool.name, args=args))
    )


def _words(text: str) -> Iterable[str]:
    """Also of names such as get_weather and getWeather."""
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
