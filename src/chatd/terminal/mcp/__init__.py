"""The MCP servers of a chat and of the user: which are used, and the user's connections."""
