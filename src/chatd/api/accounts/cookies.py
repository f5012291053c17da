"""The cookie of a session: its name, its attributes, and how it is read."""

from datetime import timedelta
from typing import Final

from chatd.api.request import Scope, header
from chatd.domain.account.secret_text import is_opaque_secret
from chatd.store.account.credentials import SESSION_LIFETIME

SECURE_COOKIE: Final = "__Host-chatd_session"
"""Browsers accept this prefix only from https, for this host alone."""
PLAIN_COOKIE: Final = "chatd_session"
MAX_COOKIE_CHARS: Final = 16_384


def session_secret(scope: Scope, *, secure: bool) -> str | None:
    """The secret of the session, if the request has one of the right form."""
    found = read_cookie(scope, SECURE_COOKIE if secure else PLAIN_COOKIE)
    return found if found is not None and is_opaque_secret(found) else None


def read_cookie(scope: Scope, name: str) -> str | None:
    for key, value in scope["headers"]:
        if key == b"cookie" and len(value) <= MAX_COOKIE_CHARS:
            for pair in bytes(value).decode("latin-1").split(";"):
                found, _, text = pair.strip().partition("=")
                if found == name:
                    return text
    return None


def session_cookie(secret: str, *, secure: bool) -> str:
    """The server decides when the session expires; the cookie lasts as long as a session can."""
    name = SECURE_COOKIE if secure else PLAIN_COOKIE
    return set_cookie(name, secret, SESSION_LIFETIME, secure=secure)


def cleared_cookie(*, secure: bool) -> str:
    return set_cookie(SECURE_COOKIE if secure else PLAIN_COOKIE, "", timedelta(0), secure=secure)


def set_cookie(name: str, value: str, lifetime: timedelta, *, secure: bool) -> str:
    age = int(lifetime.total_seconds())
    only_https = "; Secure" if secure else ""
    return f"{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{only_https}"


def user_agent(scope: Scope) -> str | None:
    """For the list of sessions."""
    text = header(scope, b"user-agent")
    return None if text is None else text[:200]
