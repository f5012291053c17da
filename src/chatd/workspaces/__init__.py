"""Where tools act: templates, builds and their worker, access to agents, sandboxes on this host.

`provisioner` starts and stops, `build_worker` runs builds under a lease, `build_maintenance` stops
what is unused. `agents/` resolves a chat's agent, sends, rebinds and sends again. `local/` has the
sandboxes; `local/supervisor/` is their parent process and outlives the server.
"""
