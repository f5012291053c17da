"""The caller of a request, and the administrator's token.

`accounts.authenticator` finds the caller. The settings give the administrator's token, or the
first start creates it and stores it in the data directory.
"""

import secrets
import string
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.domain.access.accounts import CredentialKind
from chatd.domain.access.permissions import UserActor
from chatd.domain.errors import ChatdError
from chatd.domain.ids import CredentialId, UserId
from chatd.sealed_secrets import MAX_SECRET_BYTES, load_or_create

ADMIN_TOKEN_FILE: Final = "admin-token"

_MIN_TOKEN_CHARS: Final = 16
"""A guessed token lets its holder run commands in workspaces."""
_TOKEN_CHARS: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)


class ApiCaller(Struct, frozen=True, kw_only=True):
    """`credential_id` is None for the administrator's token and for a signed link. `kind` is that
    of the credential; that of a ticket is its parent's."""

    actor: UserActor
    credential_id: CredentialId | None = None
    expires_at: datetime | None = None
    kind: CredentialKind = "token"
    username: str = ""

    @property
    def user_id(self) -> UserId:
        return self.actor.user_id


def admin_token(given: str | None, data_dir: Path) -> str:
    """The token from the settings, else the one stored in the data directory, which is created
    if missing. Processes that start together agree on one token."""
    if given is not None:
        return _check_token(given, "CHATD_ADMIN_TOKEN", "Unset it to have one created.")
    path = data_dir / ADMIN_TOKEN_FILE
    try:
        text = load_or_create(path, lambda: secrets.token_urlsafe(32))
    except OSError as error:
        raise ChatdError(f"cannot store the token in {path}: {error.strerror}") from error
    return _check_token(text, str(path), "Remove the file to have one created.")


def _check_token(token: str, source: str, remedy: str) -> str:
    """A header could not carry some tokens, and short ones can be guessed."""
    if not (_MIN_TOKEN_CHARS <= len(token) < MAX_SECRET_BYTES and _TOKEN_CHARS.issuperset(token)):
        raise ChatdError(
            f"{source} must have {_MIN_TOKEN_CHARS} to {MAX_SECRET_BYTES - 1} characters: letters,"
            f" digits and punctuation, without spaces. {remedy}"
        )
    return token
