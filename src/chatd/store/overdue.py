"""Workspaces past their deadline, and builds that a server asks for by itself."""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.workspace import Build, BuildId, VersionId
from chatd.store import builds
from chatd.store.conn import Conn

# Deadlines are on builds that have succeeded and were followed by none that has. A stop that
# failed leaves the deadline where it is, and is asked for again after a while: the longer it has
# been of no use, the longer a while. Nobody will ever stop what was on a host that is lost.
FIND: Final[LiteralString] = """
    SELECT w.id AS workspace_id, w.owner_id, w.latest_build, b.id AS build_id,
        b.template_version_id AS version_id
    FROM workspace_builds b JOIN workspaces w ON w.id = b.workspace_id
    JOIN workspace_builds l ON l.workspace_id = w.id AND l.build_number = w.latest_build
    WHERE b.deadline < now() AND NOT w.deleted AND l.completed_at IS NOT NULL
      AND (l.id = b.id OR l.completed_at
           < now() - greatest($1::float8 * interval '1 s', (now() - b.deadline) / 4))
    ORDER BY b.deadline, b.id LIMIT $2"""


class Overdue(Struct, frozen=True, kw_only=True):
    workspace_id: WorkspaceId
    owner_id: UserId
    latest_build: int
    build_id: BuildId
    """The start whose deadline has passed."""
    version_id: VersionId


async def find(conn: Conn, *, retry_s: float, most: int) -> list[Overdue]:
    return [Overdue(**dict(row)) for row in await conn.fetch(FIND, retry_s, most)]


async def stop(conn: Conn, late: Overdue, build_id: BuildId) -> Build | None:
    """None if somebody else has asked for a build meanwhile."""
    new = builds.NewBuild(
        id=build_id,
        workspace_id=late.workspace_id,
        after=late.latest_build,
        transition="stop",
        version_id=late.version_id,
        initiator_id=late.owner_id,
        reason="autostop",
    )
    return await builds.insert(conn, new)
