"""Screens on top of the chat: changes, MCP servers, tool policy, usage, help."""
