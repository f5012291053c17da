"""What administrators and users do that is no command to a chat, below the API.

`models/`, `workspaces/` and `operation/`; here what a deployment is connected to and what
runs in it on its own: MCP servers, webhooks, hooks, repositories, schedules.
"""
