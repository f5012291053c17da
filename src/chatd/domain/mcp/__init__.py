"""MCP servers: which a chat uses, their tools and results, tool search, OAuth."""
