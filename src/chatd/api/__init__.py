"""The HTTP API: routes with their bodies beside them, OpenAPI, SSE, WebSocket; chatd as an MCP
server.

`application` takes a request: `route` finds its route, `accounts/` its caller, `request` reads it,
`errors` writes what went wrong. `routes/` has a module for each resource; `operations` runs
commands to chats; `streams` ends the streams of people who lost access; `sockets/` has what stays
open both ways; `mcp/` begins at `endpoint`.
"""
