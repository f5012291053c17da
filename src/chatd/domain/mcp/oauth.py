"""OAuth 2.1 as MCP servers use it: which addresses are asked, what of their answers is accepted.

The order is that of the MCP authorization specification: the server names its authorization server
(RFC 9728), that one describes itself (RFC 8414 or OpenID discovery) and registers chatd (RFC 7591).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.errors import Conflict
from chatd.domain.text import clip

# Addresses of OAuth: which may be asked, and where servers describe themselves.

_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[^/?#@:\s\[\]]+)(?P<port>:\d{1,5})?"
    r"(?P<path>/[^?#\s]*)?(?P<query>\?[^#\s]*)?",
    re.IGNORECASE,
)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_CHALLENGE: Final = re.compile(
    r'(?P<name>[a-z_]+)\s*=\s*(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s,]+))'
)


class OauthFailed(Conflict):
    """An authorization server does not answer as it must. The message says what to do."""

    code = "mcp_oauth_failed"


class GrantRefused(OauthFailed):
    """The authorization server refuses the grant for good: the user must connect again."""

    code = "mcp_grant_refused"


class UrlPieces(Struct, frozen=True, kw_only=True):
    """`origin` has no default port, and `path` no final slash."""

    origin: str
    host: str
    path: str
    query: str = ""


def split_url(url: str) -> UrlPieces | None:
    """None for a text that is not an absolute http or https URL, or has a user or a fragment."""
    found = _URL.fullmatch(url)
    if found is None:
        return None
    scheme, host = found["scheme"].lower(), found["host"].lower()
    port = found["port"] or ""
    shown = "" if port == _DEFAULT_PORTS[scheme] else port
    return UrlPieces(
        origin=f"{scheme}://{host}{shown}",
        host=host.strip("[]"),
        path=(found["path"] or "").rstrip("/"),
        query=found["query"] or "",
    )


def is_same_origin(one: str, other: str) -> bool:
    first, second = split_url(one), split_url(other)
    return first is not None and second is not None and first.origin == second.origin


def require_endpoint(url: str | None, what: str, private_hosts: Sequence[str] = ()) -> str:
    """An address that may be asked: encrypted, or on a host that the operator named. Raises
    OauthFailed."""
    pieces = None if url is None else split_url(url)
    if url is None or pieces is None:
        raise OauthFailed(f"The {what} of the authorization server is missing or no http address.")
    if not pieces.origin.startswith("https:") and pieces.host not in private_hosts:
        raise OauthFailed(
            f"The {what} of the authorization server is not encrypted: {pieces.origin}."
            " chatd asks https addresses, and others only on hosts of mcp.private_hosts."
        )
    return url


# Where servers describe themselves


def metadata_hint(challenge: str | None) -> tuple[str | None, str | None]:
    """The address of the resource's metadata and the scope, of a WWW-Authenticate header."""
    found: dict[str, str] = {}
    for match in _CHALLENGE.finditer(challenge or ""):
        found.setdefault(match["name"].lower(), match["quoted"] or match["plain"] or "")
    return found.get("resource_metadata") or None, found.get("scope") or None


def resource_metadata_urls(server_url: str, hint: str | None) -> tuple[str, ...]:
    """Where a server may describe itself as a protected resource. The hint of a refusal counts only
    if it stays at the server: another host's word about it is worth nothing."""
    pieces = split_url(server_url)
    if pieces is None:
        return ()
    root = f"{pieces.origin}/.well-known/oauth-protected-resource"
    hinted = (hint,) if hint is not None and is_same_origin(hint, server_url) else ()
    return tuple(dict.fromkeys((*hinted, f"{root}{pieces.path}", root)))


def issuer_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Where an authorization server describes itself, the more specific address first."""
    pieces = split_url(issuer)
    if pieces is None or pieces.query:
        return ()
    origin, path = pieces.origin, pieces.path
    urls = (
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    )
    return tuple(dict.fromkeys(urls))


def document_url(redirect_uri: str) -> str:
    """Where chatd describes itself to authorization servers that register nobody and read such
    descriptions; it is the client's id."""
    return f"{redirect_uri.rpartition('/')[0]}/client"


REFRESH_AHEAD_S: Final = 10.0
"""A token is refreshed if it expires within this time."""
MAX_FAILURE_CHARS: Final = 400
"""Of the reason that is stored when a user must connect again."""
PERMANENT_ERRORS: Final = frozenset({"invalid_grant", "bad_refresh_token"})
MAX_TOKEN_CHARS: Final = 16_384
MAX_LIFETIME_S: Final = 10 * 366 * 86_400.0
"""A token that lasts longer counts as one that does not expire."""
CLIENT_NAME: Final = "chatd"

TokenAuth = Literal["none", "client_secret_basic", "client_secret_post"]


# What servers say of themselves


class ResourceMetadata(Struct, frozen=True, kw_only=True):
    """RFC 9728: the part that is used."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] = ()


def require_own_resource(found: ResourceMetadata, server_url: str) -> str:
    """The name of the resource, for which tokens are asked. It must be the configured server or
    contain it: a token for another service must not be sent to this one. Raises OauthFailed."""
    named, own = split_url(found.resource), split_url(server_url)
    if named is not None and own is not None and named.origin == own.origin:
        is_inside = own.path == named.path or own.path.startswith(f"{named.path}/")
    else:
        is_inside = False
    if is_inside:
        return found.resource
    raise OauthFailed(
        f"The MCP server describes another resource ({clip(found.resource, 200)}) than the address"
        " that is configured. Correct the address."
    )


class IssuerMetadata(Struct, frozen=True, kw_only=True):
    """RFC 8414: the part that is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    code_challenge_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool = False
    client_id_metadata_document_supported: bool = False


def require_issuer(
    found: IssuerMetadata, issuer: str, private_hosts: Sequence[str]
) -> IssuerMetadata:
    """Raises OauthFailed. The endpoints may be of other hosts than the issuer, as with large
    vendors; each is asked only if its address is public or named by the operator."""
    if found.issuer.rstrip("/") != issuer.rstrip("/"):
        raise OauthFailed(
            f"The authorization server {clip(issuer, 200)} names another issuer:"
            f" {clip(found.issuer, 200)}."
        )
    methods = found.code_challenge_methods_supported
    if methods is not None and "S256" not in methods:
        raise OauthFailed("The authorization server does not support PKCE with S256.")
    require_endpoint(found.authorization_endpoint, "authorization endpoint", private_hosts)
    require_endpoint(found.token_endpoint, "token endpoint", private_hosts)
    if found.registration_endpoint is not None:
        require_endpoint(found.registration_endpoint, "registration endpoint", private_hosts)
    if found.revocation_endpoint is not None:
        require_endpoint(found.revocation_endpoint, "revocation endpoint", private_hosts)
    return found


# The client


class OauthClient(Struct, frozen=True, kw_only=True):
    """chatd as a client of one authorization server, without its secret. `checks_issuer`: the
    server promises to name itself when it sends the browser back."""

    client_id: str
    authorization_endpoint: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    token_auth: TokenAuth = "none"
    resource: str
    scopes: str = ""
    issuer: str | None = None
    checks_issuer: bool = False


class OauthSetup(Struct, frozen=True, kw_only=True):
    """A client that an administrator registered by hand."""

    client_id: str
    authorization_url: str
    token_url: str
    revocation_url: str | None = None
    token_auth: TokenAuth = "none"

    def client(self, resource: str, scopes: str) -> OauthClient:
        return OauthClient(
            client_id=self.client_id,
            authorization_endpoint=self.authorization_url,
            token_endpoint=self.token_url,
            revocation_endpoint=self.revocation_url,
            token_auth=self.token_auth,
            resource=resource,
            scopes=scopes,
        )


class RegistrationReply(Struct, frozen=True, kw_only=True):
    """RFC 7591: the part that is used."""

    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


def registration_request(
    found: IssuerMetadata, redirect_uri: str, scopes: str
) -> Mapping[str, object]:
    """A public client if the server takes one: PKCE protects the code."""
    supported = found.token_endpoint_auth_methods_supported
    order: tuple[TokenAuth, ...] = ("none", "client_secret_basic", "client_secret_post")
    method = next((one for one in order if one in supported), "none")
    pieces = split_url(redirect_uri)
    is_local = pieces is not None and pieces.host in ("localhost", "127.0.0.1", "::1")
    asked: dict[str, object] = {
        "client_name": CLIENT_NAME,
        # Servers refuse plain http for other kinds of clients, and allow it on loopback for these.
        "application_type": "native" if is_local else "web",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }
    return {**asked, "scope": scopes} if scopes else asked


def registered_client(
    found: IssuerMetadata, reply: RegistrationReply, resource: str, scopes: str
) -> OauthClient:
    """Raises OauthFailed for a way to authenticate that chatd does not know."""
    given = reply.token_endpoint_auth_method
    method: TokenAuth
    match given or ("client_secret_basic" if reply.client_secret else "none"):
        case "none":
            method = "none"
        case "client_secret_basic":
            method = "client_secret_basic"
        case "client_secret_post":
            method = "client_secret_post"
        case other:
            raise OauthFailed(
                f"The authorization server wants chatd to authenticate by {clip(other, 50)}, which"
                " it does not support."
            )
    return OauthClient(
        client_id=reply.client_id,
        authorization_endpoint=found.authorization_endpoint,
        token_endpoint=found.token_endpoint,
        revocation_endpoint=found.revocation_endpoint,
        token_auth=method,
        resource=resource,
        scopes=scopes,
        issuer=found.issuer,
        checks_issuer=found.authorization_response_iss_parameter_supported,
    )


def published_client(
    found: IssuerMetadata, redirect_uri: str, resource: str, scopes: str
) -> OauthClient:
    reply = RegistrationReply(
        client_id=document_url(redirect_uri), token_endpoint_auth_method="none"
    )
    return registered_client(found, reply, resource, scopes)


def choose_scopes(
    configured: str, challenged: str | None, resource: Sequence[str], issuer: Sequence[str]
) -> str:
    """What an administrator set, else what the refusal named, else what the resource knows. A
    refresh token is asked for where the server says how."""
    if configured:
        return configured
    chosen = challenged or " ".join(resource)
    if chosen and "offline_access" in issuer and "offline_access" not in chosen.split():
        return f"{chosen} offline_access"
    return chosen


# Answers


def require_same_issuer(client: OauthClient, named: str | None) -> None:
    """RFC 9207: who sent the browser back. Raises OauthFailed."""
    if named is None and not client.checks_issuer:
        return
    if client.issuer is None or named is None or named.rstrip("/") != client.issuer.rstrip("/"):
        if client.issuer is None and named is not None:
            return  # set up by hand: the issuer is not known
        raise OauthFailed("The answer comes from another authorization server. Connect again.")


class TokenReply(Struct, frozen=True, kw_only=True):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float | None = None
    refresh_token: str | None = None

    @property
    def lifetime_s(self) -> float | None:
        """None: it does not expire, as far as is known."""
        if self.expires_in is None or not self.expires_in <= MAX_LIFETIME_S:
            return None
        return max(self.expires_in, 0.0)

    def __repr__(self) -> str:
        return f"TokenReply(expires_in={self.expires_in})"


class TokenError(Struct, frozen=True, kw_only=True):
    error: str = ""
    error_description: str = ""


def find_token_fault(reply: TokenReply) -> str | None:
    tokens = (reply.access_token, reply.token_type, reply.refresh_token or "")
    if not reply.access_token:
        return "it has no access token"
    if any(len(one) > MAX_TOKEN_CHARS or not is_header_text(one) for one in tokens):
        return "a token cannot be sent in a header"
    return None


def is_header_text(text: str) -> bool:
    return text.isascii() and text.isprintable()


def refusal_reason(error: TokenError, status: int, secrets: Sequence[str] = ()) -> str:
    """For people, of bounded length. A server may repeat what it was sent: `secrets` are hidden."""
    said = " ".join(part for part in (error.error, error.error_description) if part)
    for secret in secrets:
        said = said.replace(secret, "***")
    text = said or f"status {status}"
    return clip(f"The authorization server refused: {text}", MAX_FAILURE_CHARS)


def authorization_header(token_type: str, access_token: str) -> str:
    kind = "Bearer" if token_type.lower() in ("", "bearer") else token_type
    return f"{kind} {access_token}"
