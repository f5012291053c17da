"""Addresses of OAuth: which may be asked, and where servers describe themselves."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.errors import Conflict

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
