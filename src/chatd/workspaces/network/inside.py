"""What a workspace sees of its proxy: a directory with the socket, a port of its own loopback, and
the variables by which programs find it."""

from importlib import resources
from typing import Final

INSIDE_NETWORK: Final = "/run/chatd-network"
PROXY_SOCKET: Final = "proxy.sock"
REFUSALS_FILE: Final = "refusals.json"
FORWARD_PORT: Final = 17_870
"""Of the loopback inside, which belongs to the workspace alone."""


def proxy_variables(port: int = FORWARD_PORT) -> dict[str, str]:
    """By which programs find the proxy. Some know only the small letters."""
    address = f"http://127.0.0.1:{port}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    named = {**dict.fromkeys(names, address), "NO_PROXY": "localhost,127.0.0.1,::1"}
    small = {name.lower(): value for name, value in named.items()}
    return {**named, **small, "NODE_USE_ENV_PROXY": "1"}


def forward_words(
    python: tuple[str, ...], directory: str, port: int = FORWARD_PORT
) -> tuple[str, ...]:
    """Words before a command that runs without an agent: they forward the port meanwhile."""
    program = resources.files("chatd.agent.server").joinpath("network_forward.py").read_text()
    return (*python, "-I", "-c", program, f"{directory}/{PROXY_SOCKET}", str(port))


def agent_proxy_config() -> dict[str, object]:
    """For the agent, which forwards the port."""
    return {"network_socket": f"{INSIDE_NETWORK}/{PROXY_SOCKET}", "network_port": FORWARD_PORT}
