"""Moved to `resources`."""

from chatd.client.resources import ChatDetail as McpChat
from chatd.client.resources import McpTrial, McpTrialTool, WorkspaceMcpServer

__all__ = ["McpChat", "McpTrial", "McpTrialTool", "WorkspaceMcpServer"]
