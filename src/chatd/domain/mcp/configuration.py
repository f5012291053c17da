"""What an administrator configures of an MCP server beside the server itself: how chatd
authenticates there. Secrets are apart, because they are sealed."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.errors import InvalidInput
from chatd.domain.mcp.names import WORKSPACE_SLUG
from chatd.domain.mcp.oauth import OauthSetup, is_header_text
from chatd.domain.mcp.oauth_addresses import split_url
from chatd.domain.mcp.servers import McpAuth

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
