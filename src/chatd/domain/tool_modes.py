"""Which tools the mode of a chat allows. One table for all tools, and nothing that a mode adds: a
mode only takes tools away, except those that plan mode alone has.

A tool of an unknown mode, such as one of a later release, is judged as in explore mode.
"""

from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec
from msgspec import Raw

from chatd.domain.text import Json, parse_json

ChatMode = Literal["plan", "explore"]
"""`plan`: the model looks and writes a plan. `explore`: a subagent that only looks."""

ModeChoice = Literal["plan", "off"]
"""What a user chooses for a chat."""

ToolOrigin = Literal["chatd", "mcp", "mcp_in_plans", "workspace_mcp"]
"""Where a tool comes from. `mcp_in_plans`: an MCP server that an administrator allows in plan mode.
`workspace_mcp`: one that a workspace declares."""

LOOKING_TOOLS: Final = frozenset(
    {"read_file", "execute", "process_output", "read_skill", "read_skill_file"}
)
PLANNING_TOOLS: Final = LOOKING_TOOLS | {
    "write_file",
    "edit_files",
    "list_templates",
    "read_template",
    "create_workspace",
    "start_workspace",
    "stop_workspace",
    "propose_plan",
    "spawn_agent",
    "wait_agent",
    "list_agents",
    "list_subagent_models",
    "ask_user_question",
    "attach_file",
}
"""Of a root chat. `write_file` and `edit_files` reach the plan only."""
PLAN_MODE_TOOLS: Final = frozenset({"propose_plan"})
"""Tools that no other mode has."""

_PROVIDER_TOOL_OPTIONS: Final = ("web_search_enabled",)


def chosen_mode(choice: ModeChoice | None, current: str | None) -> str | None:
    """The mode of a chat after a choice; None chooses nothing."""
    if choice is None:
        return current
    return None if choice == "off" else choice


def allows_tool(mode: str | None, name: str, origin: ToolOrigin, *, is_root: bool) -> bool:
    if mode is None:
        return origin != "chatd" or name not in PLAN_MODE_TOOLS
    if mode == "plan":
        if origin == "chatd":
            return name in (PLANNING_TOOLS if is_root else LOOKING_TOOLS)
        return is_root and origin == "mcp_in_plans"
    if origin == "chatd":
        return name in LOOKING_TOOLS
    return origin != "workspace_mcp"


def allows_client_tools(mode: str | None) -> bool:
    return mode is None


def allows_provider_tools(mode: str | None, *, is_root: bool) -> bool:
    """Whether the model's provider may run tools of its own, such as a web search."""
    return mode is None or (mode != "plan" and not is_root)


def without_provider_tools(options: Json) -> Json:
    """The options of a model with the provider's tools disabled."""
    found = parse_json(options)
    values = cast("Mapping[str, object]", found if isinstance(found, dict) else {})
    if not any(values.get(key) for key in _PROVIDER_TOOL_OPTIONS):
        return options
    return Raw(msgspec.json.encode({**values, **dict.fromkeys(_PROVIDER_TOOL_OPTIONS, False)}))
