"""MCP servers of a chat's workspace, and what a test of an MCP server replies."""

from typing import ClassVar

from msgspec import Struct

from chatd.client.resources import Chat


class WorkspaceMcpServer(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "WorkspaceMcpItem"

    name: str = ""
    tools: int = 0
    error: str = ""


class McpChat(Chat, frozen=True, kw_only=True):
    api_name: ClassVar = "ChatReply"

    workspace_mcp_servers: tuple[WorkspaceMcpServer, ...] = ()


class McpTrialTool(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "McpTrialTool"

    name: str = ""
    is_used: bool = True


class McpTrial(Struct, frozen=True, kw_only=True):
    api_name: ClassVar = "McpTrialReply"

    ok: bool = False
    problem: str = ""
    duration_ms: int = 0
    tools: tuple[McpTrialTool, ...] = ()
