"""Tools of MCP servers: `directory` > `sessions` > `connection` (one task each) >
`http_transport`.

`directory` also knows the servers that a chat uses and how its owner reaches each; `oauth_*` get
tokens.
"""
