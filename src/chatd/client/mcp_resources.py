"""What a test of an MCP server replies."""

from typing import ClassVar

from msgspec import Struct


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
