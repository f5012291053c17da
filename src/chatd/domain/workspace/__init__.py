"""Workspaces: builds and deadlines, templates, the agent's API, pull requests."""
