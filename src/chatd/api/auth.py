"""Who is calling: a bearer token, and the person it stands for.

There is one person so far, the administrator, whose token is given by the settings or made on
the first start and kept in the data directory. Owns that file. What a caller may do with a chat
or a workspace is said by `own` and `own_workspace`, and nowhere else.
"""

import hashlib
import hmac
import secrets
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.api.errors import Unauthorized
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError, NotFound
from chatd.domain.ids import UserId
from chatd.domain.workspace.rules import WorkspaceSnapshot
from chatd.secret_files import MAX_SECRET_BYTES, load_or_create

ADMIN: Final = UserId(UUID("c4a7d000-0000-4000-8000-000000000001"))
FILE: Final = "admin-token"

_BEARER: Final = "bearer "
_SHORTEST: Final = 16
"""Whoever can guess it can run commands here."""
_TOKEN_LETTERS: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)


class Caller(Struct, frozen=True, kw_only=True):
    user_id: UserId


class Tokens:
    """Knows tokens by their digest only, so that none can be read out of a dump of this."""

    def __init__(self, users: Mapping[str, UserId]) -> None:
        self._users = [(_digest(token), user) for token, user in users.items()]

    def caller(self, authorization: str | None) -> Caller:
        """By the value of an Authorization header. Raises Unauthorized."""
        if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
            raise Unauthorized("A bearer token is needed: Authorization: Bearer <token>.")
        given = _digest(authorization[len(_BEARER) :].strip())
        found: UserId | None = None
        for digest, user in self._users:
            # To the end, and each in the same time: a stranger learns nothing by the clock.
            if hmac.compare_digest(digest, given):
                found = user
        if found is None:
            raise Unauthorized("The token is not valid.")
        return Caller(user_id=found)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def own(caller: Caller, chat: Chat | None) -> Chat:
    """The chat, if it is there for this caller. One that is somebody else's is not."""
    if chat is None or chat.owner_id != caller.user_id:
        raise NotFound("There is no such chat.")
    return chat


def own_workspace(caller: Caller, seen: WorkspaceSnapshot | None) -> WorkspaceSnapshot:
    """The same for a workspace."""
    if seen is None or seen.workspace is None or seen.workspace.owner_id != caller.user_id:
        raise NotFound("There is no such workspace.")
    return seen


def admin_token(given: str | None, data_dir: Path) -> str:
    """The administrator's token: as given, else as kept in the data directory, where it is made
    if need be. Several processes that start at once agree on one."""
    if given is not None:
        return _checked(given, "CHATD_ADMIN_TOKEN", "Unset it, and one is made.")
    path = data_dir / FILE
    try:
        text = load_or_create(path, lambda: secrets.token_urlsafe(32))
    except OSError as error:
        raise ChatdError(f"cannot keep the token in {path}: {error.strerror}") from error
    return _checked(text, str(path), "Remove the file, and one is made.")


def _checked(token: str, what: str, remedy: str) -> str:
    """One that no header could carry would lock everybody out, a short one let everybody in."""
    fits = _SHORTEST <= len(token) < MAX_SECRET_BYTES and _TOKEN_LETTERS.issuperset(token)
    if not fits:
        letters = "letters, digits and punctuation, without spaces"
        raise ChatdError(
            f"{what} must have {_SHORTEST} to {MAX_SECRET_BYTES - 1} characters: {letters}."
            f" {remedy}"
        )
    return token
