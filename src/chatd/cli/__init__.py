"""The commands: of the operator here, of users in `chats/` and `account/`, of administrators in
`administration/`, over the API.

`main` has the options; the modules beside it the work. `target` finds the server that a command
uses, `api_session` maps errors to exit codes, `chats/run_turn` says how a run ended.
"""
