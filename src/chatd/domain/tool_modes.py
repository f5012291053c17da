"""Which tools the mode of a chat allows. One table for all tools, and nothing that a mode adds: a
mode only takes tools away, except those that plan mode alone has.

A user may change the mode of a root chat. Its model is therefore offered the same tools in every
mode, because a changed list of tools costs the whole prompt cache, and calls that the mode does not
allow are refused. The mode of a subagent never changes: it is offered what its mode allows.
Tools that the model's provider runs itself, such as a web search, only look: every mode has them.

A tool of an unknown mode, such as one of a later release, is judged as in explore mode.
"""

from typing import Final, Literal

ChatMode = Literal["plan", "explore", "computer_use"]
"""`plan`: the model looks and writes a plan. `explore`: a subagent that only looks.
`computer_use`: a subagent with a desktop."""

ModeChoice = Literal["plan", "off"]
"""What a user chooses for a chat."""

ToolOrigin = Literal["chatd", "mcp", "mcp_in_plans", "workspace_mcp"]
"""Where a tool comes from. `mcp_in_plans`: an MCP server that an administrator allows in plan mode.
`workspace_mcp`: one that a workspace declares."""

LOOKING_TOOLS: Final = frozenset(
    {"read_file", "execute", "process_output", "read_skill", "read_skill_file", "browser"}
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
    "remember",
}
"""Of a root chat. `write_file` and `edit_files` reach the plan only."""
PLAN_MODE_TOOLS: Final = frozenset({"propose_plan"})
"""Tools that no other mode has."""


def chosen_mode(choice: ModeChoice | None, current: str | None) -> str | None:
    """The mode of a chat after a choice; None chooses nothing."""
    if choice is None:
        return current
    return None if choice == "off" else choice


def allows_tool(mode: str | None, name: str, origin: ToolOrigin, *, is_root: bool) -> bool:
    if mode is None or mode == "computer_use":
        return origin != "chatd" or name not in PLAN_MODE_TOOLS
    if mode == "plan":
        if origin == "chatd":
            return name in (PLANNING_TOOLS if is_root else LOOKING_TOOLS)
        return is_root and origin == "mcp_in_plans"
    if origin == "chatd":
        return name in LOOKING_TOOLS
    return origin != "workspace_mcp"


def offers_tool(mode: str | None, name: str, origin: ToolOrigin, *, is_root: bool) -> bool:
    """Whether the model is sent the tool."""
    return is_root or allows_tool(mode, name, origin, is_root=False)


def allows_client_tools(mode: str | None) -> bool:
    return mode is None or mode == "computer_use"


def refusal_text(mode: str | None, name: str) -> str:
    """The result of a call that the mode does not allow."""
    if mode is None:
        return f"Not run: {name} is for plan mode, which only the user can start."
    if mode == "plan":
        return (
            f"Not run: plan mode does not allow {name}. Look around, write the plan and call"
            " propose_plan; the user decides when the plan is carried out."
        )
    return f"Not run: {mode} mode does not allow {name}."
