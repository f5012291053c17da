"""Workers that run chats: acquire them, hold a lease, run turns, commit every step.

`worker` owns the others. `acquirer` gets chats while slots are free, `lease` renews the lease and
reaps dead workers, `chat_tasks` has a task for each chat: `turn_loop` > `model_step` >
`model_call`, or `tool_runner`. `model/` has the calls of models: `attempt` holds what a task knows,
and the committer that writes its steps. Before a call: `spend_guard`, `budget`; after it:
`call_records`. `subagents` wakes parents.
"""
