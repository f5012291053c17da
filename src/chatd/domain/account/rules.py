"""Rules of accounts: names, passwords, and the scopes that a token may have."""

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from chatd.domain.access import TOKEN_SCOPES, UserActor
from chatd.domain.errors import Forbidden, InvalidInput

MIN_PASSWORD_CHARS: Final = 12
MAX_PASSWORD_CHARS: Final = 256
"""A longer one would only cost time to hash."""
MAX_USERNAME_CHARS: Final = 64
MAX_EMAIL_CHARS: Final = 254

_USERNAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+-]*[A-Za-z0-9])?")
_EMAIL: Final = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+\.[^\s@<>,;.]+")
REDACTED: Final = "***"
_SECRET_NAMES: Final = ("password", "secret", "token", "api_key", "private", "headers")


def check_username(name: str) -> str:
    """Raises InvalidInput."""
    if len(name) > MAX_USERNAME_CHARS or not _USERNAME.fullmatch(name):
        raise InvalidInput(
            "username",
            f"must have 1 to {MAX_USERNAME_CHARS} letters, digits and . _ @ + - inside",
        )
    return name


def check_email(email: str) -> str:
    """Raises InvalidInput."""
    if len(email) > MAX_EMAIL_CHARS or not _EMAIL.fullmatch(email):
        raise InvalidInput("email", "must be an address such as ada@example.com")
    return email


def check_password(password: str, field: str = "password") -> str:
    """Raises InvalidInput. The text never contains the password."""
    if not MIN_PASSWORD_CHARS <= len(password) <= MAX_PASSWORD_CHARS:
        raise InvalidInput(
            field, f"must have {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters"
        )
    if "\0" in password:
        raise InvalidInput(field, "must not have a NUL character")
    if len(set(password)) == 1:
        raise InvalidInput(field, "must not be one character repeated")
    return password


def token_scopes(creator: UserActor, wanted: Collection[str] | None) -> tuple[str, ...] | None:
    """The scopes of a new token: those wanted, or the creator's own. None: no limit. Raises
    InvalidInput for an unknown scope, Forbidden for one that the creator lacks: `admin` is for
    administrators."""
    if wanted is None:
        return None if creator.scopes is None else _in_order(creator.scopes)
    for scope in wanted:
        if scope not in TOKEN_SCOPES:
            raise InvalidInput("scopes", f"there are {', '.join(TOKEN_SCOPES)}")
    if not wanted:
        raise InvalidInput("scopes", "must name at least one scope, or be left out")
    if "admin" in wanted and creator.role != "admin":
        raise Forbidden(
            "Only administrators create tokens with the scope admin.", code="missing_scope"
        )
    if creator.scopes is not None and not set(wanted) <= creator.scopes:
        raise Forbidden("A token cannot have a scope that its creator lacks.", code="missing_scope")
    return _in_order(wanted)


def token_expiry(creator: datetime | None, wanted: datetime | None) -> datetime | None:
    """When a new token expires: as wanted, or with the token that makes it. Raises InvalidInput
    if it would outlive that one."""
    if creator is None or (wanted is not None and wanted <= creator):
        return wanted
    if wanted is not None:
        end = f"{creator:%Y-%m-%dT%H:%M:%SZ}"
        raise InvalidInput("expires_at", f"must not be after {end}, the end of the creating token")
    return creator


def _in_order(scopes: Collection[str]) -> tuple[str, ...]:
    return tuple(scope for scope in TOKEN_SCOPES if scope in scopes)


def redacted_diff(
    before: Mapping[str, object] | None, after: Mapping[str, object] | None
) -> dict[str, dict[str, object]]:
    """What changed, for the audit log: the fields with another value, before and after. Of a field
    that may hold a secret only the fact that it changed is kept."""
    old, new = before or {}, after or {}
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    diff: dict[str, dict[str, object]] = {}
    if before is not None:
        diff["before"] = {name: _redacted(name, old[name]) for name in names if name in old}
    if after is not None:
        diff["after"] = {name: _redacted(name, new[name]) for name in names if name in new}
    return diff


def _redacted(name: str, value: object) -> object:
    is_secret = any(part in name.lower() for part in _SECRET_NAMES)
    return REDACTED if is_secret and value is not None and not isinstance(value, bool) else value
