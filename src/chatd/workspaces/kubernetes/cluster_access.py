"""How a runner reaches the API of its cluster: the service account of its own pod, or a kubeconfig.

The token of a service account is replaced about every hour, so its file is read for every request,
and the certificates again when their file has changed.
"""

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from chatd.settings.schema import SettingsError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE: Final = "default"


class ClusterAccess(Struct, frozen=True, kw_only=True):
    """`ca` and `certificate` with `key` are PEM; `ca_file` and `token_file` are read again."""

    server: str
    namespace: str = DEFAULT_NAMESPACE
    ca: str = ""
    ca_file: Path | None = None
    token: str = ""
    token_file: Path | None = None
    certificate: str = ""
    key: str = ""

    def __repr__(self) -> str:
        """Leaves out secrets."""
        return f"ClusterAccess(server={self.server!r}, namespace={self.namespace!r})"

    def headers(self) -> dict[str, str]:
        """Raises OSError if the token's file cannot be read."""
        token = self.token if self.token_file is None else self.token_file.read_text().strip()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def tls(self) -> ssl.SSLContext | None:
        """None for plain HTTP. Raises OSError, SSLError."""
        if not self.server.startswith("https://"):
            return None
        context = ssl.create_default_context(
            cafile=None if self.ca_file is None else str(self.ca_file), cadata=self.ca or None
        )
        if self.certificate:
            with tempfile.NamedTemporaryFile() as file:  # Only files can be loaded; mode 0600.
                file.write(f"{self.certificate}\n{self.key}\n".encode())
                file.flush()
                context.load_cert_chain(file.name)
        return context


def find_access(
    kubeconfig: Path | None, namespace: str, environ: Mapping[str, str]
) -> ClusterAccess:
    """The named kubeconfig, else the service account of this pod, else KUBECONFIG. Raises
    SettingsError."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if kubeconfig is not None:
        found = read_kubeconfig(kubeconfig)
    elif host and (SERVICE_ACCOUNT / "token").exists():
        found = in_cluster_access(host, environ.get("KUBERNETES_SERVICE_PORT", "443"))
    elif environ.get("KUBECONFIG"):
        found = read_kubeconfig(Path(environ["KUBECONFIG"]))
    else:
        raise SettingsError(
            "--backend kubernetes: this is not a pod with a service account. Name a kubeconfig with"
            " --kubeconfig."
        )
    return msgspec.structs.replace(found, namespace=namespace or found.namespace)


def in_cluster_access(host: str, port: str, directory: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    try:
        namespace = (directory / "namespace").read_text().strip()
    except OSError:
        namespace = DEFAULT_NAMESPACE
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace,
        ca_file=directory / "ca.crt",
        token_file=directory / "token",
    )


def read_kubeconfig(path: Path) -> ClusterAccess:
    """The access of its current context. Raises SettingsError."""
    try:
        config = _parse(path.read_bytes())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        if "exec" in user or "auth-provider" in user:
            raise SettingsError(
                f"--kubeconfig: {path} gets its token from a program. Use a token of a service"
                " account instead (kubectl create token), or run the runner in the cluster."
            )
        token_file = user.get("tokenFile")
        return ClusterAccess(
            server=str(cluster["server"]).rstrip("/"),
            namespace=str(context.get("namespace") or DEFAULT_NAMESPACE),
            ca=_pem(cluster, "certificate-authority", path),
            token=str(user.get("token", "")),
            token_file=None if token_file is None else path.parent / str(token_file),
            certificate=_pem(user, "client-certificate", path),
            key=_pem(user, "client-key", path),
        )
    except OSError as error:
        raise SettingsError(f"--kubeconfig: cannot read {path}: {error.strerror}") from None
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise SettingsError(f"--kubeconfig: {path} is not a kubeconfig: {error}") from None


def _parse(raw: bytes) -> Any:
    """Parse JSON, and YAML if a library for it is installed."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.yaml.decode(raw)
    except ImportError:
        raise SettingsError(
            "--kubeconfig: to read YAML, pip install pyyaml; or write the file as JSON:"
            " kubectl config view --raw --flatten -o json"
        ) from None


def _named(config: Any, kind: str, name: str) -> Any:
    for each in config[kind]:
        if each["name"] == name:
            return each
    raise KeyError(f"there is no {name!r} among its {kind}")


def _pem(section: Any, name: str, path: Path) -> str:
    """The text of `name-data`, or of the file that `name` is."""
    if data := section.get(f"{name}-data"):
        return base64.b64decode(data, validate=True).decode()
    if file := section.get(name):
        return Path(os.path.join(path.parent, str(file))).read_text()
    return ""
