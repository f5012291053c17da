"""Callers of every kind, each with a token."""

import secrets
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from chatd.domain.access.accounts import CredentialKind
from chatd.domain.access.permissions import TOKEN_SCOPES
from chatd.domain.access.secret_text import SECRET_BYTES, digest, token_text
from chatd.domain.ids import CredentialId, UserId
from chatd.store.account import credentials
from chatd.store.account.credentials import NewCredential
from tests.api.permissions.table import PASSWORD
from tests.support.api.server import ADMINISTRATOR, ApiServer, Json
from tests.support.factories import HARNESS

_USERS: Final[Mapping[str, Json]] = {
    "owner": {"password": PASSWORD},
    "reader": {"password": PASSWORD},
    "stranger": {"password": PASSWORD},
    "suspended": {},
    "viewer": {"role": "viewer", "password": PASSWORD},
    "admin": {"role": "admin", "password": PASSWORD},
    "service": {"is_service": True},
}
UNKNOWN: Final = ("anonymous", "forged", "suspended")
"""Callers that no request knows."""


class Callers:
    """`tokens` by the caller's name; `owner with files` has this scope only, and `owner without
    files` all others."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._pool = server.replica.pool
        self.users: dict[str, UserId] = {}
        self.tokens: dict[str, str | None] = {"anonymous": None}

    async def enter(self) -> None:
        """Make all users and tokens, and use each token once: the first use is recorded."""
        forged = token_text(_new_id(), secrets.token_bytes(SECRET_BYTES))
        self.tokens["forged"] = forged
        for name, fields in _USERS.items():
            made = await self.administer("POST", "/users", {"username": f"the-{name}", **fields})
            self.users[name] = UserId(UUID(str(made["id"])))
            self.tokens[name] = await self._new_token(name)
        for name in ("owner", "admin"):
            for scope in TOKEN_SCOPES:
                others = [other for other in TOKEN_SCOPES if other != scope]
                self.tokens[f"{name} with {scope}"] = await self._new_token(name, [scope])
                self.tokens[f"{name} without {scope}"] = await self._new_token(name, others)
        path = f"/users/{self.users['suspended']}"
        await self.administer("PATCH", path, {"status": "suspended"})
        for token in self.tokens.values():
            await self._server.ask("GET", "/auth/me", token=token)

    async def administer(self, method: str, path: str, body: object = None) -> Json:
        return await self.ask(ADMINISTRATOR, method, path, body)

    async def ask(self, token: str | None, method: str, path: str, body: object = None) -> Json:
        """A request that must succeed."""
        done = await self._server.ask(method, path, body, token=token)
        assert done.status < 300, (method, path, done.content)
        return done.json if done.content else {}

    async def add_credential(
        self,
        user_id: UserId,
        kind: CredentialKind,
        text: str = "",
        scopes: list[str] | None = None,
    ) -> CredentialId:
        new = NewCredential(
            id=_new_id(),
            kind=kind,
            user_id=user_id,
            secret_sha256=digest(text or secrets.token_urlsafe()),
            name="a job",
            scopes=scopes,
            lifetime=credentials.SESSION_IDLE,
            ends_after=credentials.SESSION_LIFETIME if kind == "session" else None,
        )
        return (await credentials.insert(self._pool, HARNESS, new)).id

    async def _new_token(self, name: str, scopes: list[str] | None = None) -> str:
        text = token_text(_new_id(), secrets.token_bytes(SECRET_BYTES))
        await self.add_credential(self.users[name], "token", text, scopes)
        return text


def _new_id() -> CredentialId:
    return CredentialId(UUID(bytes=secrets.token_bytes(16)))
