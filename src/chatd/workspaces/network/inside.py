"""What a workspace sees of its proxy: a directory with the socket and the certificates to trust, a
port of its own loopback, and the variables by which programs find them."""

from importlib import resources
from pathlib import Path
from typing import Final

from chatd.workspaces.network.tls_endpoint import WorkspaceAuthority, read_system_roots

INSIDE_NETWORK: Final = "/run/chatd-network"
PROXY_SOCKET: Final = "proxy.sock"
REFUSALS_FILE: Final = "refusals.json"
AUTHORITY_FILE: Final = "ca.pem"
"""The certificate of the workspace's authority."""
BUNDLE_FILE: Final = "ca-bundle.pem"
"""The same certificate, after the roots of the host."""
AUTHORITY_KEY_FILE: Final = "ca.spki"
"""The hash of its public key, by which Chromium trusts it."""
FORWARD_PORT: Final = 17_870
"""A port of the loopback inside, which belongs to the workspace alone."""

BUNDLE_VARIABLES: Final = (
    *("SSL_CERT_FILE", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT"),
    *("CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "NIX_SSL_CERT_FILE"),
)


def proxy_variables(port: int = FORWARD_PORT) -> dict[str, str]:
    """Variables by which programs find the proxy. Some read only lower-case names."""
    address = f"http://127.0.0.1:{port}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    named = {**dict.fromkeys(names, address), "NO_PROXY": "localhost,127.0.0.1,::1"}
    small = {name.lower(): value for name, value in named.items()}
    return {**named, **small, "NODE_USE_ENV_PROXY": "1"}


def write_trust(directory: Path, authority: WorkspaceAuthority) -> None:
    """What the workspace trusts: the hosts with a credential have certificates of the authority.
    Raises OSError."""
    roots = read_system_roots()
    _replace(directory / AUTHORITY_FILE, authority.certificate)
    _replace(directory / AUTHORITY_KEY_FILE, authority.key_hash)
    if roots is not None:
        _replace(directory / BUNDLE_FILE, roots.rstrip(b"\n") + b"\n" + authority.certificate)


def _replace(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.chmod(0o644)
    temporary.replace(path)


def trust_variables(directory: Path, inside: str = INSIDE_NETWORK) -> dict[str, str]:
    """Variables by which programs find what `write_trust` wrote into `directory`, which they see as
    `inside`. Those of `BUNDLE_FILE` replace the roots of a program, so they are left out without
    it."""
    found: dict[str, str] = {}
    if (directory / AUTHORITY_FILE).is_file():
        found = dict.fromkeys(("NODE_EXTRA_CA_CERTS", "DENO_CERT"), f"{inside}/{AUTHORITY_FILE}")
    if (directory / BUNDLE_FILE).is_file():
        found |= dict.fromkeys(BUNDLE_VARIABLES, f"{inside}/{BUNDLE_FILE}")
    return found


def forward_words(
    python: tuple[str, ...], directory: str, port: int = FORWARD_PORT
) -> tuple[str, ...]:
    """Words before a command that runs without an agent: they forward the port while it runs."""
    program = resources.files("chatd.agent.server").joinpath("network_forward.py").read_text()
    return (*python, "-I", "-c", program, f"{directory}/{PROXY_SOCKET}", str(port))


def agent_proxy_config() -> dict[str, object]:
    """The agent's settings for forwarding the port."""
    return {"network_socket": f"{INSIDE_NETWORK}/{PROXY_SOCKET}", "network_port": FORWARD_PORT}
