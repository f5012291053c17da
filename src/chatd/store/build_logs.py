"""What builds have said. A line is written by whoever holds the build, and by nobody else."""

from collections.abc import Sequence
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.workspace import BuildId, BuildLog, LogLevel
from chatd.store.conn import Conn
from chatd.store.held_builds import Hold
from chatd.store.rows import plain

APPEND: Final[LiteralString] = """
    WITH mine AS MATERIALIZED (
        SELECT id FROM workspace_builds
        WHERE id = $1 AND worker_id = $2 AND attempt = $3)
    INSERT INTO workspace_build_logs (build_id, stage, level, output)
    SELECT mine.id, l.stage, l.level, l.output
    FROM mine, unnest($4::text[], $5::text[], $6::text[])
        WITH ORDINALITY AS l (stage, level, output, place)
    ORDER BY l.place"""

LOGS: Final[LiteralString] = """
    SELECT id, build_id, at, stage, level, output FROM workspace_build_logs
    WHERE build_id = $1 AND id > $2 ORDER BY id LIMIT $3"""


class Line(Struct, frozen=True, kw_only=True):
    stage: str
    level: LogLevel
    output: str


async def append(conn: Conn, hold: Hold, lines: Sequence[Line]) -> None:
    await conn.execute(
        APPEND,
        hold.id,
        hold.worker_id,
        hold.attempt,
        [plain(line.stage) for line in lines],
        [line.level for line in lines],
        [plain(line.output) for line in lines],
    )


async def logs(
    conn: Conn, build_id: BuildId, *, after: int = 0, most: int = 1000
) -> list[BuildLog]:
    return [BuildLog(**dict(row)) for row in await conn.fetch(LOGS, build_id, after, most)]
