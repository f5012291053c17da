"""Credentials that a proxy adds to the requests of workspaces, so that no workspace holds them.

A credential is bound to one host and port, and to a path and what is below it. Programs in the
workspace send their requests without it. Bodies with a credential have rules here, so that a header
is always one that HTTP allows and that says nothing about the connection.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.workspace.network import NetworkTarget, normal_host
from chatd.domain.workspace.pull_requests import GitHostKind

CredentialScheme = Literal["bearer", "basic", "header"]
CredentialScope = Literal["user", "group", "deployment"]

HTTPS_PORT: Final = 443
MIN_SECRET_CHARS: Final = 8
"""A shorter value would be found by chance in what hosts answer."""
MAX_SECRET_CHARS: Final = 8192
MAX_PATH_CHARS: Final = 500
MAX_UNQUOTES: Final = 4
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_SECRET: Final = re.compile(r"[\x21-\x7e]+")
_USERNAME: Final = re.compile(r"[\x21-\x39\x3b-\x7e]{1,200}")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_PATH: Final = re.compile(r"/[A-Za-z0-9._~!$&'()*+,=:@/-]*")
_GIT_REQUESTS: Final = ("/info/refs", "/git-upload-pack", "/git-receive-pack")
_GIT_LFS: Final = "/info/lfs/"
_GIT_USERS: Final[dict[GitHostKind, str]] = {"gitlab": "oauth2"}
_CLOSED_HEADERS: Final = frozenset(
    (
        *("host", "content-length", "content-encoding", "content-type", "transfer-encoding"),
        *("connection", "keep-alive", "te", "trailer", "upgrade", "expect", "http2-settings"),
        *("accept-encoding", "range", "if-range", "max-forwards", "via", "forwarded"),
    )
)
"""Headers that belong to the request or to its connection."""


class HostCredential(Struct, frozen=True, kw_only=True):
    """A header for the requests to one host, over TLS only. `hidden` are the texts in it that must
    not come back in a response. `git_only`: for git's own requests and no others."""

    host: str
    port: int = HTTPS_PORT
    path: str = "/"
    header: str
    value: str
    hidden: tuple[str, ...]
    git_only: bool = False

    def __repr__(self) -> str:
        """Without the value: it must not end up in logs."""
        return f"HostCredential(host={self.host!r}, port={self.port}, path={self.path!r})"


def find_problem(
    *, scheme: CredentialScheme, header: str, username: str, secret: str
) -> tuple[str, str] | None:
    """The invalid field and what is wrong with it, never quoting the secret; None if all are
    valid."""
    if scheme == "header":
        lowered = header.lower()
        if HEADER_NAME.fullmatch(header) is None:
            return "header", "must be the name of a header, such as PRIVATE-TOKEN"
        if lowered in _CLOSED_HEADERS or lowered.startswith(("proxy-", "sec-")):
            return "header", "belongs to the request itself: choose another one"
    elif header:
        return "header", "is given only with the scheme header"
    if scheme == "basic" and _USERNAME.fullmatch(username) is None:
        return "username", "must have 1 to 200 printable characters without a colon"
    if scheme != "basic" and username:
        return "username", "is given only with the scheme basic"
    if not MIN_SECRET_CHARS <= len(secret) <= MAX_SECRET_CHARS:
        return "secret", f"must have {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} characters"
    if _SECRET.fullmatch(secret) is None:
        return "secret", "must have printable ASCII characters only, without spaces and line breaks"
    return None


def normal_path(text: str) -> str:
    """Normalize a path: no slash at the end. Raises ValueError that says what is wrong."""
    if len(text) > MAX_PATH_CHARS or _PATH.fullmatch(text) is None:
        raise ValueError("must begin with / and have letters, digits and simple signs only")
    if "//" in text or _has_dots(text):
        raise ValueError("must not have empty segments, . or ..")
    return text.rstrip("/") or "/"


def make_credential(
    *,
    host: str,
    port: int = HTTPS_PORT,
    path: str = "/",
    scheme: CredentialScheme,
    header: str = "",
    username: str = "",
    secret: str,
) -> HostCredential:
    """Build a credential from values checked by `find_problem` and `normal_path`."""
    hidden: tuple[str, ...] = (secret,)
    match scheme:
        case "bearer":
            name, value = "Authorization", f"Bearer {secret}"
        case "basic":
            encoded = b64encode(f"{username}:{secret}".encode()).decode()
            name, value, hidden = "Authorization", f"Basic {encoded}", (encoded, secret)
        case "header":
            name, value = header, secret
    return HostCredential(host=host, port=port, path=path, header=name, value=value, hidden=hidden)


def git_credential(host: str, kind: GitHostKind, token: str) -> HostCredential | None:
    """A user's token for a git host, for git's own requests by HTTPS. `host` may have a port. None
    if the proxy cannot use it."""
    name, _, port = host.partition(":")
    if find_problem(scheme="bearer", header="", username="", secret=token) is not None:
        return None
    try:
        normal = normal_host(name)
    except ValueError:
        return None
    username = _GIT_USERS.get(kind, "x-access-token")
    encoded = b64encode(f"{username}:{token}".encode()).decode()
    return HostCredential(
        host=normal,
        port=int(port or HTTPS_PORT),
        header="Authorization",
        value=f"Basic {encoded}",
        hidden=(encoded, token),
        git_only=True,
    )


def repository_credentials(
    url: str, repository: str, kind: GitHostKind, token: str
) -> tuple[HostCredential, ...]:
    """A token for git in one repository of a host, by both names that it has there. `url` is that
    of the host's pages."""
    address, _, path = url.partition("://")[2].partition("/")
    made = git_credential(address, kind, token)
    if made is None:
        return ()
    try:
        place = normal_path(f"/{path}/{repository}" if path else f"/{repository}")
    except ValueError:
        return ()
    return tuple(replace(made, path=each) for each in (place, f"{place}.git"))


def is_bound(credentials: Iterable[HostCredential], target: NetworkTarget) -> bool:
    """Whether any request to the host may get a credential."""
    return any((each.host, each.port) == (target.host, target.port) for each in credentials)


def find_credential(
    credentials: Sequence[HostCredential], target: NetworkTarget, path: str
) -> HostCredential | None:
    """The first that fits: earlier ones take precedence. `path` may have a query."""
    plain = path.partition("?")[0]
    for each in credentials:
        if (each.host, each.port) != (target.host, target.port):
            continue
        if (each.path != "/" or each.git_only) and _has_dots(plain):
            continue
        is_below = each.path in ("/", plain) or plain.startswith(f"{each.path}/")
        if is_below and (not each.git_only or _is_git_request(plain)):
            return each
    return None


def _is_git_request(path: str) -> bool:
    """Whether git sends it: not an API call for a file or branch named like one of git's paths."""
    is_api = path.startswith("/api/")
    return not is_api and (path.endswith(_GIT_REQUESTS) or _GIT_LFS in path)


def _has_dots(path: str) -> bool:
    """Whether a server may read the path as another one: with `..`, even encoded several times,
    with a backslash, or with parameters (`..;`)."""
    for _ in range(MAX_UNQUOTES):
        decoded = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path)
        if decoded == path:
            break
        path = decoded
    else:
        return True
    segments = path.replace("\\", "/").split("/")
    return any(segment.partition(";")[0] in (".", "..") for segment in segments)
