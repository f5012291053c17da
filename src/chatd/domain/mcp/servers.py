"""MCP servers as administrators configure them, which of them a chat uses, how one user reaches
one, and the names of their tools.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Final, Literal, Protocol

from msgspec import Struct

from chatd.domain.chat.row import Chat
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import McpServerId
from chatd.domain.mcp.oauth import OauthSetup, is_header_text, split_url
from chatd.domain.mcp.tools import ListedTool

McpTransport = Literal["streamable_http", "sse"]
McpAuth = Literal["none", "oauth2", "api_key", "custom_headers"]
McpAvailability = Literal["force_on", "default_on", "default_off"]


class McpServer(Struct, frozen=True, kw_only=True):
    """A configured server. `version` changes with every edit: sessions of an older version are
    dropped. `allow` and `deny` name tools as the server does; a non-empty `allow` counts alone."""

    id: McpServerId
    slug: str
    display_name: str
    url: str
    transport: McpTransport = "streamable_http"
    auth: McpAuth = "none"
    enabled: bool = True
    availability: McpAvailability = "default_off"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    model_intent: bool = False
    allow_in_plan_mode: bool = False
    version: int = 1


class McpAccess(Struct, frozen=True, kw_only=True):
    """One server as one user reaches it. `headers` carry the credential; `problem` says why there
    is none, if the server needs one. `credential_version` changes with the credential."""

    server: McpServer
    headers: Mapping[str, str] = {}
    problem: str = ""
    credential_version: str = ""


class McpDirectory(Protocol):
    async def servers(self, chat: Chat) -> Sequence[McpServer]:
        """Enabled servers that were chosen for this chat or are forced on. Cached: returns
        quickly."""
        ...

    async def access(self, server: McpServer, chat: Chat) -> McpAccess:
        """Refreshes a token that is about to expire, within a bounded time."""
        ...

    async def refused(self, server: McpServer, chat: Chat, access: McpAccess) -> McpAccess | None:
        """Called after the server refused `access` (401). One refresh; None if it did not help."""
        ...

    async def known_tools(self, server: McpServer, chat: Chat) -> tuple[ListedTool, ...]:
        """What the server listed last for the chat's owner, at any replica. Raises Unavailable."""
        ...

    async def keep_tools(
        self, server: McpServer, chat: Chat, tools: tuple[ListedTool, ...]
    ) -> None:
        """Raises Unavailable."""
        ...


# Which servers a chat uses. The server decides this, whatever a client sent.


def is_used(server: McpServer, chosen: Collection[McpServerId] | None) -> bool:
    """`chosen` is None if nobody chose for the chat."""
    if not server.enabled:
        return False
    if server.availability == "force_on":
        return True
    return server.availability == "default_on" if chosen is None else server.id in chosen


# Values of a user's connection to an MCP server, and of a test of a server.

CONNECT_LIFETIME: Final = timedelta(minutes=10)
"""How long the visit to the authorization server may take."""

ConnectionState = Literal["ready", "connected", "needs_connect", "failed"]


class StartedConnection(Struct, frozen=True, kw_only=True):
    """Where the browser goes, and the cookie's text."""

    authorization_url: str
    cookie: str


class ConnectAnswer(Struct, frozen=True, kw_only=True):
    """The parameters with which the authorization server sends the browser back."""

    code: str | None = None
    state: str | None = None
    iss: str | None = None
    error: str | None = None
    error_description: str | None = None


class Disconnected(Struct, frozen=True, kw_only=True):
    """`failure`: why the authorization server did not revoke the tokens."""

    revoked: bool
    failure: str = ""


class ServerTrial(Struct, frozen=True, kw_only=True):
    """`problem` is empty if the connection gave a list."""

    duration_ms: int
    problem: str = ""
    tools: tuple[ListedTool, ...] = ()


# Names of MCP tools as a model sees them.
#
# Providers refuse a name outside of `[A-Za-z0-9_-]` or longer than 64 characters, and one refused
# name fails the whole request. The name by which the server is called stays as it is.

MAX_MODEL_NAME_CHARS: Final = 64
NAME_SEPARATOR: Final = "__"
WORKSPACE_SLUG: Final = "workspace"
"""Begins the names of tools of all servers that workspaces declare. No configured server has it: a
repository chooses the names of its servers, and no rule for a configured one may count for them."""

_REFUSED_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS: Final = 8


class ServerToolKey(Struct, frozen=True, kw_only=True, order=True):
    """One tool of one server; `slug` is the server's name in the names of its tools."""

    slug: str
    server_id: str
    tool: str


def workspace_slug(server: str) -> str:
    """Of a server that a workspace declares."""
    return f"{WORKSPACE_SLUG}{NAME_SEPARATOR}{server}"


def model_name(slug: str, tool: str) -> str:
    """`slug__tool`. A name that is too long ends in a hash, so that it does not change when the
    server gets more tools."""
    whole = f"{slug}{NAME_SEPARATOR}{tool}"
    name = _REFUSED_CHARS.sub("_", whole)
    if len(name) <= MAX_MODEL_NAME_CHARS:
        return name
    digest = sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{name[: MAX_MODEL_NAME_CHARS - _HASH_CHARS - 1]}_{digest}"


def assign_names(keys: Iterable[ServerToolKey]) -> Sequence[tuple[str, ServerToolKey]]:
    """Distinct names, sorted by name, then by server. Of tools whose names collide the first keeps
    its name; the others get `_2`, `_3` and so on."""
    wanted = sorted(
        ((model_name(key.slug, key.tool), key) for key in set(keys)),
        key=lambda pair: (pair[0], pair[1].server_id, pair[1].tool, pair[1].slug),
    )
    taken = {name for name, _ in wanted}
    named: dict[str, ServerToolKey] = {}
    for name, key in wanted:
        free = name
        number = 2
        while free in named or (free != name and free in taken):
            suffix = f"_{number}"
            free = f"{name[: MAX_MODEL_NAME_CHARS - len(suffix)]}{suffix}"
            number += 1
        named[free] = key
    return sorted(named.items(), key=lambda pair: (pair[0], pair[1].server_id))


def is_allowed(tool: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    """By the server's own name. A non-empty allow list counts alone."""
    return tool in allow if allow else tool not in deny


# What an administrator configures of an MCP server beside the server itself: how chatd
# authenticates there. Secrets are apart, because they are sealed.

MAX_HEADERS: Final = 50
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_RESERVED_HEADERS: Final = frozenset(
    {
        *("host", "content-length", "content-type", "transfer-encoding", "connection", "accept"),
        *("mcp-session-id", "mcp-protocol-version", "last-event-id", "cookie"),
    }
)

McpSource = Literal["database", "settings"]


class McpCredentials(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The public part: names of headers, addresses of the authorization server, scopes."""

    api_key_header: str | None = None
    has_api_key: bool = False
    header_names: tuple[str, ...] = ()
    oauth: OauthSetup | None = None
    has_client_secret: bool = False
    scopes: str = ""


class McpSecrets(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is sealed. Hidden in repr."""

    api_key: str | None = None
    headers: Mapping[str, str] = {}
    client_secret: str | None = None

    def __repr__(self) -> str:
        return "McpSecrets(...)"


NO_SECRETS: Final = McpSecrets()


def check_slug(slug: str) -> None:
    """Raises InvalidInput."""
    if slug == WORKSPACE_SLUG:
        raise InvalidInput("slug", "names the servers of workspaces; choose another")


def check_server_url(url: str) -> str:
    """Raises InvalidInput. A query may be part of the address; a user or password may not."""
    if split_url(url) is None or not is_header_text(url):
        raise InvalidInput(
            "url", "must be an absolute http or https URL without user, password and fragment"
        )
    return url


def check_header(name: str, value: str, field: str) -> None:
    """Raises InvalidInput."""
    if _HEADER_NAME.fullmatch(name) is None:
        raise InvalidInput(field, "is not a valid name of a header")
    if name.lower() in _RESERVED_HEADERS:
        raise InvalidInput(field, f"the header {name} is set by chatd itself")
    if not value or not is_header_text(value) or value != value.strip():
        raise InvalidInput(field, f"the value of {name} must be printable ASCII text")


def check_credentials(auth: McpAuth, shown: McpCredentials, secrets: McpSecrets) -> None:
    """Whether the secrets fit the way to authenticate. Raises InvalidInput."""
    if auth == "api_key":
        if shown.api_key_header is None or secrets.api_key is None:
            raise InvalidInput("api_key", "is needed with api_key_header for this kind of auth")
        check_header(shown.api_key_header, secrets.api_key, "api_key_header")
    if auth == "custom_headers":
        if not secrets.headers:
            raise InvalidInput("headers", "at least one is needed for this kind of auth")
        for name, value in secrets.headers.items():
            check_header(name, value, "headers")
    if auth == "oauth2" and shown.oauth is not None:
        needs_secret = shown.oauth.token_auth != "none"
        if needs_secret and secrets.client_secret is None:
            raise InvalidInput("oauth.client_secret", "is needed for this token_auth")


def secret_headers(auth: McpAuth, shown: McpCredentials, secrets: McpSecrets) -> dict[str, str]:
    """The headers of a server that has one credential for all users."""
    if auth == "api_key" and shown.api_key_header is not None and secrets.api_key is not None:
        return {shown.api_key_header: secrets.api_key}
    return dict(secrets.headers) if auth == "custom_headers" else {}
