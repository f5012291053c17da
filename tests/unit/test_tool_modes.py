"""Which tools the mode of a chat allows."""

import re
from pathlib import Path

import pytest

from chatd.domain.chat.parts import InstructionPart
from chatd.domain.prompt.instructions import (
    EXPLORE_MODE_TEXT,
    Instructions,
    mode_texts,
    plan_path,
    update_block,
)
from chatd.domain.tool_modes import ToolOrigin, allows_client_tools, allows_tool, offers_tool
from tests.support.factories import CHAT
from tests.support.tables import table

ALL = {
    "read_file",
    "execute",
    "process_output",
    "read_skill",
    "read_skill_file",
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
    "process_list",
    "process_signal",
    "message_agent",
    "interrupt_agent",
}
LOOKING = {"read_file", "execute", "process_output", "read_skill", "read_skill_file"}
NEVER_IN_PLANS = {"process_list", "process_signal", "message_agent", "interrupt_agent"}


def allowed(mode: str | None, *, is_root: bool) -> set[str]:
    return {name for name in ALL if allows_tool(mode, name, "chatd", is_root=is_root)}


@table(
    "mode is_root names",
    {
        "a chat without a mode has all but the tools of plan mode": (
            None,
            True,
            ALL - {"propose_plan"},
        ),
        "so has a subagent": (None, False, ALL - {"propose_plan"}),
        "plan mode of a root chat": ("plan", True, ALL - NEVER_IN_PLANS),
        "plan mode of a subagent": ("plan", False, LOOKING),
        "explore mode of a root chat": ("explore", True, LOOKING),
        "explore mode of a subagent": ("explore", False, LOOKING),
        "a mode of a later release": ("review", True, LOOKING),
    },
)
def test_a_mode_allows_tools_of_chatd_by_name(
    mode: str | None,
    is_root: bool,  # noqa: FBT001
    names: set[str],
) -> None:
    assert allowed(mode, is_root=is_root) == names


@table(
    "origin modes",
    {
        "mcp": ("mcp", {(None, True), (None, False), ("explore", True), ("explore", False)}),
        "mcp_in_plans": (
            "mcp_in_plans",
            {
                (None, True),
                (None, False),
                ("explore", True),
                ("explore", False),
                ("plan", True),
            },
        ),
        "workspace_mcp": ("workspace_mcp", {(None, True), (None, False)}),
    },
)
def test_a_mode_allows_tools_of_mcp_servers_by_origin(
    origin: ToolOrigin, modes: set[tuple[str | None, bool]]
) -> None:
    tried = [(mode, is_root) for mode in (None, "plan", "explore") for is_root in (True, False)]
    # A server may have a tool with the name of one of chatd's: its origin counts.
    for name in ("github__search", "read_file", "propose_plan"):
        found = {one for one in tried if allows_tool(one[0], name, origin, is_root=one[1])}
        assert found == modes


def test_tools_of_clients_are_for_chats_without_a_mode() -> None:
    assert [allows_client_tools(mode) for mode in (None, "plan", "explore")] == [True, False, False]


def test_a_root_chat_is_offered_the_same_tools_in_every_mode() -> None:
    """Its user may change the mode, and a changed list of tools costs the prompt cache."""
    for mode in (None, "plan", "review"):
        for origin in ("chatd", "mcp", "mcp_in_plans", "workspace_mcp"):
            assert {name for name in ALL if offers_tool(mode, name, origin, is_root=True)} == ALL


@pytest.mark.parametrize("mode", [None, "plan", "explore"])
def test_a_subagent_is_offered_what_its_mode_allows(mode: str | None) -> None:
    offered = {name for name in ALL if offers_tool(mode, name, "chatd", is_root=False)}
    assert offered == allowed(mode, is_root=False)


def test_plan_mode_names_the_plan_of_the_chat() -> None:
    told = Instructions(modes=mode_texts("plan", is_root=True), plan_path=plan_path(CHAT))
    (text,) = [text for section, text in told.sections() if section == "modes"]
    assert f"to ~/.chatd/plans/PLAN-{CHAT}.md with" in text
    assert "{" not in text


def test_the_end_of_a_mode_is_told() -> None:
    told = dict(Instructions(modes=mode_texts(None, is_root=True)).sections())
    text = update_block([InstructionPart(section="modes", text=told["modes"])])
    assert "The instructions of the chat's mode given earlier no longer apply." in text


def test_an_unknown_mode_is_told_as_explore_mode() -> None:
    assert mode_texts("review", is_root=True) == (EXPLORE_MODE_TEXT,)


def test_a_subagent_in_plan_mode_is_told_to_look_and_not_to_write_a_plan() -> None:
    assert mode_texts("plan", is_root=False) == (EXPLORE_MODE_TEXT,)


def test_the_page_lists_the_tools_that_modes_know() -> None:
    page = Path(__file__).parents[2] / "ui/src/settings/policy/rules.ts"
    listed = set(re.findall(r'^  tool\("(\w+)"', page.read_text(), re.MULTILINE))
    assert listed >= ALL
