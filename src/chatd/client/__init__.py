"""A typed client of a server, for the commands and the terminal: a method for each operation.

`server` has the operations, `calls` and `exchange` repeat them safely. `connection` is one
WebSocket, `followed_chat` keeps one chat current by it, `state` applies its events, `outbox` holds
messages until the server has them. The page has its own client in `ui/src`.
"""
