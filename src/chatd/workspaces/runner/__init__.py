"""The runner process: it dials in to a server and offers the workspaces of its machine.

`runner_client` holds the connections, `backend_calls` runs what the server asks for.
"""
