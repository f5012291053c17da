"""How a replica reaches agents that are not on its own host.

A runner dials in: `wire` has its messages, `runner_link` one connected runner and all of them,
`remote_backend` its backends as this replica calls them. `reach` opens a byte stream to an agent:
by a runner that is connected here, or by the replica that holds it (`peers`, over `peer_sockets`).
"""
