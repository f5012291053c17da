"""Tools of MCP servers: `server_tools` > `sessions` > `connection` (one task each) >
`http_transport`.

`directory` knows the servers that a chat uses and how its owner reaches each; `oauth_*` get tokens.
"""
