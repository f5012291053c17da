"""Rows of workspaces: templates, builds under a lease, agents, bindings of chats."""
