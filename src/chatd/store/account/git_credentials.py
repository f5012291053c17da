"""Tokens of users for git hosts, sealed. A user has one per host."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import UserActor, require_permission
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.ids import UserId
from chatd.domain.workspace.pull_requests import GitHostKind
from chatd.store.account import audit
from chatd.store.database.conn import Conn, DatabaseSession
from chatd.store.database.notifications import publish
from chatd.store.database.sealed_columns import SealedColumn

TOKEN: Final = SealedColumn(table="git_credentials", column="sealed_token")
MAX_GIT_CREDENTIALS_PER_USER: Final = 20

_COLUMNS: Final[LiteralString] = """
    id, host, kind, api_url, in_workspaces, sealed_token, created_at, updated_at"""
LOCK_USER: Final[LiteralString] = """
    SELECT id FROM users WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE"""
COUNT_OTHERS: Final[LiteralString] = """
    SELECT count(*) FROM git_credentials WHERE owner_id = $1 AND host <> $2"""
# The token is bound to the row's id, so a new token takes the place of the whole row.
REPLACE: Final[LiteralString] = "DELETE FROM git_credentials WHERE owner_id = $1 AND host = $2"
INSERT: Final[LiteralString] = f"""
    INSERT INTO git_credentials (id, owner_id, host, kind, api_url, sealed_token,
        in_workspaces)
    VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING {_COLUMNS}"""
LIST: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM git_credentials WHERE owner_id = $1 ORDER BY host LIMIT 100"""
FIND: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM git_credentials WHERE owner_id = $1 AND host = $2"""
DELETE: Final[LiteralString] = """
    DELETE FROM git_credentials WHERE id = $1 AND owner_id = $2 RETURNING host"""


class GitCredential(Struct, frozen=True, kw_only=True):
    """`sealed_token` is never shown. `in_workspaces`: git in the user's workspaces uses it, by a
    proxy."""

    id: UUID
    host: str
    kind: GitHostKind
    api_url: str
    in_workspaces: bool
    sealed_token: str
    created_at: datetime
    updated_at: datetime


class NewGitCredential(Struct, frozen=True, kw_only=True):
    id: UUID
    host: str
    kind: GitHostKind
    api_url: str
    sealed_token: str
    in_workspaces: bool = False


async def save(
    session: DatabaseSession, actor: UserActor, new: NewGitCredential, *, ip: str | None = None
) -> GitCredential:
    """It replaces the user's former one for this host. The audit log has all but the token. Raises
    Conflict, NotFound."""
    require_permission(actor, "account.write")
    if await session.fetchval(LOCK_USER, actor.user_id) is None:
        raise NotFound("There is no such user.")
    others: int = await session.fetchval(COUNT_OTHERS, actor.user_id, new.host)
    if others >= MAX_GIT_CREDENTIALS_PER_USER:
        text = f"You have tokens for {others} git hosts. Delete one first."
        raise Conflict(text, code="too_many_git_credentials")
    await session.execute(REPLACE, actor.user_id, new.host)
    row = await session.fetchrow(
        INSERT,
        new.id,
        actor.user_id,
        new.host,
        new.kind,
        new.api_url,
        new.sealed_token,
        new.in_workspaces,
    )
    assert row is not None
    detail = {
        "host": new.host,
        "kind": new.kind,
        "api_url": new.api_url,
        "in_workspaces": new.in_workspaces,
    }
    await audit.record(
        session,
        actor,
        action="git_credential.save",
        object_type="git_credential",
        object_id=new.id,
        ip=ip,
        detail=detail,
    )
    await publish(session, ConfigChange(kind="host_credential", id=str(new.id)))
    return GitCredential(**dict(row))


async def list_own(conn: Conn, actor: UserActor) -> Sequence[GitCredential]:
    require_permission(actor, "account.read")
    return [GitCredential(**dict(row)) for row in await conn.fetch(LIST, actor.user_id)]


async def find(conn: Conn, owner: UserId, host: str) -> GitCredential | None:
    """For the worker, which makes requests to the host about a chat of this owner."""
    row = await conn.fetchrow(FIND, owner, host)
    return None if row is None else GitCredential(**dict(row))


async def delete(
    session: DatabaseSession, actor: UserActor, credential_id: UUID, *, ip: str | None = None
) -> None:
    """Raises NotFound."""
    require_permission(actor, "account.write")
    host = await session.fetchval(DELETE, credential_id, actor.user_id)
    if host is None:
        raise NotFound("There is no such credential.")
    await audit.record(
        session,
        actor,
        action="git_credential.delete",
        object_type="git_credential",
        object_id=credential_id,
        ip=ip,
        detail={"host": host},
    )
    await publish(session, ConfigChange(kind="host_credential", id=str(credential_id)))
