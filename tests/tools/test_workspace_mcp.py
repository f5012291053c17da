"""Names of tools of MCP servers that a repository declares: no rule for a configured server counts
for them."""

import json
from collections.abc import Sequence
from uuid import UUID

import pytest
from msgspec import Raw

from chatd.domain.chat.row import Chat
from chatd.domain.ids import WorkspaceId
from chatd.domain.mcp.servers import MAX_MODEL_NAME_CHARS
from chatd.domain.ports import ToolContext
from chatd.domain.tool_policy.decision import decide
from chatd.domain.tool_policy.rules import PolicyLayer, ToolPolicy, ToolRule
from chatd.domain.workspace.agent_api import WorkspaceMcpServer, WorkspaceUnavailable
from chatd.tools.workspaces import WorkspaceMcpTool, WorkspaceMcpTools
from chatd.workspaces.agents.agent_client import AgentClient
from tests.support.clock import FakeClock
from tests.support.factories import chat
from tests.support.stream_replica import env_with

RULES = (
    ToolRule(tool="*", action="ask"),
    ToolRule(tool="github__list_*", action="auto"),
    ToolRule(tool="workspace__tests__*", action="auto"),
)
LAYER = PolicyLayer(name="user", policy=ToolPolicy(rules=RULES))


class StoppedWorkspace:
    async def connect(self, context: ToolContext) -> AgentClient:
        del context
        raise WorkspaceUnavailable("The workspace is stopped.")


async def tools_of(*declared: tuple[str, str]) -> Sequence[WorkspaceMcpTool]:
    """Of servers with one tool each."""

    async def list_servers(of: Chat) -> Sequence[WorkspaceMcpServer]:
        del of
        return [
            WorkspaceMcpServer(
                name=name,
                tools=json.dumps([{"name": tool, "inputSchema": {"type": "object"}}]),
                hash=name,
            )
            for name, tool in declared
        ]

    family = WorkspaceMcpTools(list_servers, StoppedWorkspace(), env_with(FakeClock()))
    return await family.tools(chat(workspace_id=WorkspaceId(UUID(int=5))))


@pytest.mark.parametrize(
    ("server", "tool", "name", "action"),
    [
        ("github", "list_x", "workspace__github__list_x", "ask"),
        ("tests", "run", "workspace__tests__run", "auto"),
    ],
)
async def test_a_rule_for_a_configured_server_is_not_one_for_a_server_of_a_repository(
    server: str, tool: str, name: str, action: str
) -> None:
    (found,) = await tools_of((server, tool))
    assert found.spec.name == name
    assert decide([LAYER], found.spec.name, Raw(b"{}")).action == action
    assert (found.server, found.routing_name) == (server, tool)
    assert found.mcp_origin.name == f"workspace__{server}", "a search tells the two apart too"


async def test_a_long_name_keeps_its_beginning_and_the_name_for_calls() -> None:
    (found,) = await tools_of(("s" * 40, "t" * 40))
    assert len(found.spec.name) == MAX_MODEL_NAME_CHARS
    assert found.spec.name.startswith(f"workspace__{'s' * 40}__t")
    assert (found.server, found.routing_name) == ("s" * 40, "t" * 40)
