"""Templates and their versions."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, LiteralString

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import (
    Actor,
    Permission,
    require_allowed,
    require_permission,
)
from chatd.domain.errors import Conflict
from chatd.domain.ids import UserId
from chatd.domain.workspace.entities import (
    Parameter,
    Template,
    TemplateId,
    TemplateVersion,
    VersionId,
)
from chatd.domain.workspace.template_definition import MAX_TEMPLATE_VERSIONS, MAX_TEMPLATES
from chatd.domain.workspace.templates import (
    TemplateUsage,
    TemplateUser,
    may_use_template,
    needs_own_runner,
)
from chatd.store.database.conn import (
    Conn,
    DatabaseSession,
    DuplicateRow,
    Row,
    json_text,
    named_statement,
    strip_unstorable,
)

_TEMPLATE: Final = msgspec.json.Decoder(Template)
_VERSION: Final = msgspec.json.Decoder(TemplateVersion)

# Of a preset the caller derives the ids from name and content, so that all replicas write the same
# rows. A deleted template stays deleted, unless it was deleted while its file did not have it.
# Times are those of the statement: a transaction that waited for the row's lock began earlier.
UPSERT: Final = named_statement("""
    WITH put AS (
        INSERT INTO templates AS t (id, name, display_name, description, icon, backend, origin,
            active_version_id, agents_allowed, default_ttl_s, activity_bump_s, max_ttl_s,
            require_active_version, users, groups)
        VALUES (:id, :name, :display_name, :description, :icon, :backend, :origin, :active_id,
            :agents_allowed, :default_ttl_s, :activity_bump_s, :max_ttl_s,
            :require_active_version, :users, :groups)
        ON CONFLICT (id) DO UPDATE SET
            name = excluded.name, display_name = excluded.display_name,
            description = excluded.description, icon = excluded.icon,
            backend = excluded.backend, active_version_id = excluded.active_version_id,
            agents_allowed = excluded.agents_allowed, deprecated = false, deleted = false,
            default_ttl_s = excluded.default_ttl_s, activity_bump_s = excluded.activity_bump_s,
            max_ttl_s = excluded.max_ttl_s,
            require_active_version = excluded.require_active_version,
            users = excluded.users, groups = excluded.groups, updated_at = clock_timestamp()
        WHERE NOT t.deleted OR t.deprecated
        RETURNING t.*),
    version AS (
        INSERT INTO template_versions (id, template_id, spec, readme, has_external_agent,
            created_at)
        SELECT :version_id, put.id, :spec, :readme, :has_external_agent, clock_timestamp() FROM put
        ON CONFLICT (id) DO NOTHING RETURNING id),
    parameters AS (
        INSERT INTO template_parameters (version_id, position, name, type, required, "default",
            mutable, ephemeral, display_name, description, form_type, options, regex,
            regex_error, min, max)
        SELECT version.id, p.* FROM version, json_to_recordset(:parameters) AS p (
            position smallint, name text, type text, required boolean, "default" text,
            mutable boolean, ephemeral boolean, display_name text, description text,
            form_type text, options json, regex text, regex_error text, min float8, max float8))
    SELECT row_to_json(put) AS template FROM put""")

# Templates that are no longer in their file. Their workspaces stay as they are.
DEPRECATE_MISSING: Final[LiteralString] = """
    UPDATE templates SET deprecated = true, updated_at = now()
    WHERE origin = $1 AND NOT deprecated AND NOT id = ANY ($2::uuid[])"""

GET: Final[LiteralString] = "SELECT row_to_json(t) FROM templates t WHERE t.id = $1"

LIST: Final[LiteralString] = """
    SELECT row_to_json(t) AS template FROM templates t WHERE NOT t.deleted ORDER BY t.name, t.id"""

VERSION: Final[LiteralString] = """
    SELECT row_to_json(v) FROM (
        SELECT v.*, (SELECT coalesce(json_agg(p ORDER BY p.position), '[]')
                     FROM template_parameters p WHERE p.version_id = v.id) AS parameters
        FROM template_versions v WHERE v.id = $1) v"""

LIST_USAGE: Final[LiteralString] = """
    SELECT template_id, count(*) FILTER (WHERE owner_id = $1 AND NOT deleted) AS active,
        count(*) FILTER (WHERE owner_id = $1 AND deleted) AS deleted,
        max(last_used_at) FILTER (WHERE owner_id = $1) AS last_used_at,
        count(DISTINCT owner_id) AS developers
    FROM workspaces WHERE last_used_at > now() - interval '60 days' GROUP BY template_id"""

USER: Final[LiteralString] = """
    SELECT u.role, u.username, u.email, ARRAY(
        SELECT g.name FROM group_members m JOIN groups g ON g.id = m.group_id
        WHERE m.user_id = u.id ORDER BY g.name) AS groups
    FROM users u WHERE u.id = $1 AND u.deleted_at IS NULL"""
HAS_WORKSPACE: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM workspaces
        WHERE owner_id = $1 AND template_id = $2 AND NOT deleted)"""

READMES: Final[LiteralString] = (
    "SELECT id, readme FROM template_versions WHERE id = ANY ($1::uuid[])"
)


class TemplateNameTaken(DuplicateRow):
    """A template from another origin has this name."""

    code = "name_taken"


class TemplateUpsert(Struct, frozen=True, kw_only=True):
    """A template with a version, which is written unless it exists. Their times are not written;
    the database sets them."""

    template: Template
    version: TemplateVersion


async def upsert_template(conn: Conn, upsert: TemplateUpsert) -> Template | None:
    """None if the template was deleted. Raises TemplateNameTaken."""
    args = UPSERT.args(_values(upsert))
    try:
        found = await conn.fetchval(UPSERT.text, *args)
    except DuplicateRow:
        # A concurrent upsert of the same template may have won: then the second try finds it.
        try:
            found = await conn.fetchval(UPSERT.text, *args)
        except DuplicateRow as error:
            raise TemplateNameTaken(error.constraint) from error
    return None if found is None else _TEMPLATE.decode(found)


def _values(upsert: TemplateUpsert) -> dict[str, object]:
    template, version = upsert.template, upsert.version
    return {
        "id": template.id,
        "name": template.name,
        "display_name": strip_unstorable(template.display_name),
        "description": strip_unstorable(template.description),
        "icon": strip_unstorable(template.icon),
        "backend": template.backend,
        "origin": template.origin,
        "active_id": template.active_version_id,
        "version_id": version.id,
        "agents_allowed": template.agents_allowed,
        "default_ttl_s": template.default_ttl_s,
        "activity_bump_s": template.activity_bump_s,
        "max_ttl_s": template.max_ttl_s,
        "require_active_version": template.require_active_version,
        "users": [strip_unstorable(name) for name in template.users],
        "groups": [strip_unstorable(name) for name in template.groups],
        "spec": json_text(version.spec),
        "readme": strip_unstorable(version.readme),
        "has_external_agent": version.has_external_agent,
        "parameters": json_text(
            [_columns(at, parameter) for at, parameter in enumerate(version.parameters)]
        ),
    }


def _columns(position: int, parameter: Parameter) -> dict[str, object]:
    columns = {name: getattr(parameter, name) for name in Parameter.__struct_fields__}
    return {"position": position, **columns}


async def deprecate_missing(conn: Conn, origin: str, present: Sequence[TemplateId]) -> None:
    await conn.execute(DEPRECATE_MISSING, origin, list(present))


async def get(conn: Conn, template_id: TemplateId) -> Template | None:
    found = await conn.fetchval(GET, template_id)
    return None if found is None else _TEMPLATE.decode(found)


async def list_all(conn: Conn) -> list[Template]:
    """All templates that are not deleted, by name, regardless of the users that may use them."""
    return [_TEMPLATE.decode(row["template"]) for row in await conn.fetch(LIST)]


async def get_version(conn: Conn, version_id: VersionId) -> TemplateVersion | None:
    found = await conn.fetchval(VERSION, version_id)
    return None if found is None else _VERSION.decode(found)


async def list_usage(conn: Conn, actor: Actor, owner_id: UserId) -> dict[TemplateId, TemplateUsage]:
    """How this owner has used templates. Raises Forbidden if the actor may not read that owner's
    workspaces."""
    require_allowed(actor, "workspaces.read", owner_id)
    rows = await conn.fetch(LIST_USAGE, owner_id)
    return {
        TemplateId(row["template_id"]): TemplateUsage(
            active=row["active"],
            deleted=row["deleted"],
            last_used_at=row["last_used_at"],
            developers=row["developers"],
        )
        for row in rows
    }


async def list_usable(conn: Conn, actor: Actor, user_id: UserId) -> list[Template]:
    """The templates that are not deleted and that this user may choose, by name. Raises Forbidden
    if the actor may not read that user's workspaces."""
    require_allowed(actor, "workspaces.read", user_id)
    found = [template for template in await list_all(conn) if not needs_own_runner(template)]
    if not any(template.users or template.groups for template in found):
        return found
    user = await _get_user(conn, user_id)
    return [template for template in found if may_use_template(template, user)]


async def is_usable(
    conn: Conn, actor: Actor, user_id: UserId, template: Template, permission: Permission
) -> bool:
    """Whether this user may use the template. `permission` is that of the request, on the user's
    workspaces. Raises Forbidden."""
    require_allowed(actor, permission, user_id)
    if not template.users and not template.groups:
        return True
    return may_use_template(template, await _get_user(conn, user_id))


async def _get_user(conn: Conn, user_id: UserId) -> TemplateUser | None:
    row = await conn.fetchrow(USER, user_id)
    return None if row is None else TemplateUser(**dict(row))


async def has_workspace(conn: Conn, actor: Actor, user_id: UserId, template_id: TemplateId) -> bool:
    """Whether the user has a workspace of the template. Raises Forbidden."""
    require_allowed(actor, "workspaces.read", user_id)
    return await conn.fetchval(HAS_WORKSPACE, user_id, template_id)


async def list_readmes(conn: Conn, versions: Sequence[VersionId]) -> dict[VersionId, str]:
    rows = await conn.fetch(READMES, list(versions))
    return {VersionId(row["id"]): row["readme"] for row in rows}


# What administrators see and change. A version is numbered by its place in the order of creation.

_CONFIGURED: Final[LiteralString] = """
    SELECT row_to_json(t) AS template, n.number, n.versions,
        coalesce(v.spec ->> 'pool', '') AS pool, coalesce(v.spec ->> 'image', '') AS image,
        coalesce(v.spec ->> 'network', 'none') AS network,
        coalesce((v.spec ->> 'desktop')::boolean, false) AS desktop,
        coalesce((v.spec ->> 'browser')::boolean, false) AS browser,
        (SELECT count(*) FROM workspaces w WHERE w.template_id = t.id AND NOT w.deleted)
            AS workspaces
    FROM templates t JOIN template_versions v ON v.id = t.active_version_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS versions, count(*) FILTER (
            WHERE (o.created_at, o.id) <= (v.created_at, v.id)) AS number
        FROM template_versions o WHERE o.template_id = t.id) n
    WHERE NOT t.deleted"""
LIST_CONFIGURED: Final[LiteralString] = f"{_CONFIGURED} ORDER BY t.name, t.id"
GET_CONFIGURED: Final[LiteralString] = f"{_CONFIGURED} AND t.id = $1"

FIND_TO_CHANGE: Final[LiteralString] = """
    SELECT row_to_json(t) FROM templates t WHERE t.id = $1 AND NOT t.deleted FOR UPDATE"""
COUNT_OWN: Final[LiteralString] = """
    SELECT count(*) FROM templates WHERE origin = 'user' AND NOT deleted"""
COUNT_VERSIONS: Final[LiteralString] = """
    SELECT count(*) FROM template_versions WHERE template_id = $1"""
COUNT_WORKSPACES: Final[LiteralString] = """
    SELECT count(*) FROM workspaces WHERE template_id = $1 AND NOT deleted"""
ACTIVATE: Final[LiteralString] = """
    UPDATE templates SET active_version_id = $2, updated_at = clock_timestamp() WHERE id = $1"""
DELETE: Final[LiteralString] = """
    UPDATE templates SET deleted = true, updated_at = clock_timestamp() WHERE id = $1"""
# A template that settings files had once does not keep its name.
RELEASE_NAME: Final[LiteralString] = """
    UPDATE templates SET deleted = true, updated_at = clock_timestamp()
    WHERE lower(name) = lower($1) AND origin = 'settings' AND deprecated AND NOT deleted"""

_NUMBERED: Final[LiteralString] = """
    SELECT v.id, v.created_at, row_number() OVER (ORDER BY v.created_at, v.id) AS number
    FROM template_versions v WHERE v.template_id = $1"""
LIST_VERSIONS: Final[LiteralString] = f"""
    WITH used AS (
        SELECT b.template_version_id AS id, count(*) AS workspaces
        FROM workspaces w
        JOIN workspace_builds b ON b.workspace_id = w.id AND b.build_number = w.latest_build
        WHERE w.template_id = $1 AND NOT w.deleted GROUP BY b.template_version_id)
    SELECT n.id, n.number, n.created_at, coalesce(u.workspaces, 0) AS workspaces
    FROM ({_NUMBERED}) n LEFT JOIN used u ON u.id = n.id
    WHERE n.number < $2 ORDER BY n.number DESC LIMIT $3"""
VERSION_NUMBER: Final[LiteralString] = f"SELECT n.number FROM ({_NUMBERED}) n WHERE n.id = $2"


class ConfiguredTemplate(Struct, frozen=True, kw_only=True):
    """A template, with the number and some of the content of its active version."""

    template: Template
    number: int
    versions: int
    workspaces: int
    pool: str
    image: str
    network: str
    desktop: bool
    browser: bool


class VersionLine(Struct, frozen=True, kw_only=True):
    """A version in a list. `workspaces` is how many workspaces were last built with it."""

    id: VersionId
    number: int
    created_at: datetime
    workspaces: int


def _configured(row: Row) -> ConfiguredTemplate:
    columns: dict[str, Any] = dict(row)
    columns["template"] = _TEMPLATE.decode(row["template"])
    return ConfiguredTemplate(**columns)


async def list_configured(conn: Conn, actor: Actor) -> list[ConfiguredTemplate]:
    """The templates that are not deleted, by name."""
    require_permission(actor, "config.read")
    return [_configured(row) for row in await conn.fetch(LIST_CONFIGURED)]


async def get_configured(
    conn: Conn, actor: Actor, template_id: TemplateId
) -> ConfiguredTemplate | None:
    require_permission(actor, "config.read")
    row = await conn.fetchrow(GET_CONFIGURED, template_id)
    return None if row is None else _configured(row)


async def list_versions(
    conn: Conn, actor: Actor, template_id: TemplateId, *, before: int, limit: int
) -> list[VersionLine]:
    """The newest first, with numbers below `before`."""
    require_permission(actor, "config.read")
    rows = await conn.fetch(LIST_VERSIONS, template_id, before, limit)
    return [VersionLine(**dict(row)) for row in rows]


async def version_number(
    conn: Conn, actor: Actor, template_id: TemplateId, version_id: VersionId
) -> int | None:
    """None if this template has no such version."""
    require_permission(actor, "config.read")
    return await conn.fetchval(VERSION_NUMBER, template_id, version_id)


async def find_to_change(
    session: DatabaseSession, actor: Actor, template_id: TemplateId
) -> Template | None:
    """Lock the row. None for a deleted template."""
    require_permission(actor, "config.write")
    found = await session.fetchval(FIND_TO_CHANGE, template_id)
    return None if found is None else _TEMPLATE.decode(found)


async def write_template(session: DatabaseSession, actor: Actor, upsert: TemplateUpsert) -> None:
    """Insert a template, or change one of which the caller holds the lock. Raises Conflict for a
    taken name and for a limit."""
    require_permission(actor, "config.write")
    template = upsert.template
    await session.execute(RELEASE_NAME, template.name)
    try:
        await session.fetchval(UPSERT.text, *UPSERT.args(_values(upsert)))
    except DuplicateRow:
        text = f"There is a template {template.name}. Choose another name."
        raise Conflict(text, code="name_taken") from None
    if await session.fetchval(COUNT_OWN) > MAX_TEMPLATES:
        text = f"There are {MAX_TEMPLATES} templates. Delete one first."
        raise Conflict(text, code="too_many_templates")
    if await session.fetchval(COUNT_VERSIONS, template.id) > MAX_TEMPLATE_VERSIONS:
        text = f"The template has {MAX_TEMPLATE_VERSIONS} versions. Duplicate it and go on there."
        raise Conflict(text, code="too_many_template_versions")


async def count_workspaces(session: DatabaseSession, template_id: TemplateId) -> int:
    return await session.fetchval(COUNT_WORKSPACES, template_id)


async def activate_version(
    session: DatabaseSession, actor: Actor, template_id: TemplateId, version_id: VersionId
) -> None:
    """The caller holds the row's lock, and has read the version."""
    require_permission(actor, "config.write")
    await session.execute(ACTIVATE, template_id, version_id)


async def delete_template(session: DatabaseSession, actor: Actor, template_id: TemplateId) -> None:
    """Delete it. Its workspaces continue with the versions that they have."""
    require_permission(actor, "config.write")
    await session.execute(DELETE, template_id)
