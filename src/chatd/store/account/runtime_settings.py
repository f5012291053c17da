"""Settings documents of the deployment and of users.

A document without a row has version 0 and the defaults. Unknown fields of a stored document, which
a newer replica wrote, are ignored.
"""

from typing import Final, LiteralString, TypeVar

import msgspec
from msgspec import Struct

from chatd.domain.access.accounts import redacted_diff
from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.runtime_settings import DeploymentSettings, UserSettings, shown_fields
from chatd.domain.errors import Conflict, Forbidden
from chatd.domain.ids import UserId
from chatd.store.account import audit
from chatd.store.database import notifications
from chatd.store.database.conn import Conn, DatabaseSession, Row, json_text

D = TypeVar("D", DeploymentSettings, UserSettings)

DEPLOYMENT: Final = "deployment"
"""The id of a change of the deployment's settings; changes of a user's have the user's id."""

GET_DEPLOYMENT: Final[LiteralString] = "SELECT version, document FROM deployment_settings"
GET_USER: Final[LiteralString] = "SELECT version, document FROM user_settings WHERE user_id = $1"

# Only if the version is still the one that the change was made from.
SAVE_DEPLOYMENT: Final[LiteralString] = """
    INSERT INTO deployment_settings AS s (version, document, updated_by)
    SELECT $1::bigint + 1, $2::json, $3::uuid
    WHERE $1 = 0 OR EXISTS (SELECT FROM deployment_settings)
    ON CONFLICT (one) DO UPDATE
    SET version = s.version + 1, document = excluded.document, updated_at = now(),
        updated_by = excluded.updated_by
    WHERE s.version = $1
    RETURNING version"""
SAVE_USER: Final[LiteralString] = """
    INSERT INTO user_settings AS s (user_id, version, document)
    SELECT $3::uuid, $1::bigint + 1, $2::json
    WHERE $1 = 0 OR EXISTS (SELECT FROM user_settings WHERE user_id = $3)
    ON CONFLICT (user_id) DO UPDATE
    SET version = s.version + 1, document = excluded.document, updated_at = now()
    WHERE s.version = $1
    RETURNING version"""

_DEPLOYMENT: Final = msgspec.json.Decoder(DeploymentSettings)
_USER: Final = msgspec.json.Decoder(UserSettings)


class StoredDeployment(Struct, frozen=True, kw_only=True):
    version: int = 0
    document: DeploymentSettings = DeploymentSettings()


class StoredUser(Struct, frozen=True, kw_only=True):
    version: int = 0
    document: UserSettings = UserSettings()


async def get_deployment(conn: Conn, actor: Actor) -> StoredDeployment:
    require_permission(actor, "config.read")
    row = await conn.fetchrow(GET_DEPLOYMENT)
    if row is None:
        return StoredDeployment()
    return StoredDeployment(version=row["version"], document=_DEPLOYMENT.decode(row["document"]))


async def save_deployment(
    session: DatabaseSession,
    actor: UserActor,
    document: DeploymentSettings,
    *,
    before: StoredDeployment,
    ip: str | None = None,
) -> int:
    """The new version. Raises Conflict if `before` is not the current state."""
    require_permission(actor, "config.write")
    args = (before.version, json_text(document), actor.user_id)
    version = _saved(await session.fetchrow(SAVE_DEPLOYMENT, *args))
    await audit.record(
        session,
        actor,
        action="settings.update",
        object_type="settings",
        object_id=DEPLOYMENT,
        ip=ip,
        detail=redacted_diff(shown_fields(before.document), shown_fields(document)),
    )
    await notifications.publish(session, ConfigChange(kind="settings", id=DEPLOYMENT))
    return version


async def get_user(conn: Conn, actor: Actor, user_id: UserId) -> StoredUser:
    """A worker reads the settings of the owners of its chats; a user reads only its own."""
    if isinstance(actor, UserActor):
        _require_self(actor, user_id, writes=False)
    row = await conn.fetchrow(GET_USER, user_id)
    if row is None:
        return StoredUser()
    return StoredUser(version=row["version"], document=_USER.decode(row["document"]))


async def save_user(
    session: DatabaseSession, actor: UserActor, document: UserSettings, *, version: int
) -> int:
    """Save the actor's own settings. Raises Conflict if `version` is not the current one."""
    _require_self(actor, actor.user_id, writes=True)
    row = await session.fetchrow(SAVE_USER, version, json_text(document), actor.user_id)
    await notifications.publish(session, ConfigChange(kind="settings", id=str(actor.user_id)))
    return _saved(row)


def _require_self(actor: UserActor, user_id: UserId, *, writes: bool) -> None:
    require_permission(actor, "account.write" if writes else "account.read")
    if actor.user_id != user_id:
        raise Forbidden("These are the settings of another user.")


def _saved(row: Row | None) -> int:
    if row is None:
        raise Conflict(
            "The settings have changed meanwhile. Read them again and repeat the change.",
            code="version_conflict",
        )
    return int(row["version"])
