"""The network of workspaces that may reach named hosts only: a proxy at the runner.

`workspace_networks` has those of one host > `network_proxy` serves one workspace > `http_relay` and
`tls_names` know the protocols. Inside, `agent/server/network_forward.py` leads to the proxy.
"""
