"""Pure rules over values: no I/O, no clock, no randomness. Tested as tables.

`decisions` chooses what a chat task does next and how it reacts to a changed row; `ports` has the
protocols by which packages use each other. The packages: `chat` (states, commands, transitions),
`chat_views` (what people see of a chat), `answer` (what a model said), `prompt` (what a model is
sent), `model` (providers' errors, retries, usage), `tool_policy`, `access`, `workspace`, `mcp`,
`deployment`.
"""
