"""`chatd migrate up|status|check`."""

import os

from chatd.database import open_database
from chatd.settings.tree import Settings
from chatd.store import migrator


async def up(settings: Settings) -> None:
    async with open_database(settings, os.environ) as server:
        applied = await migrator.up(server.dsn)
    for name in applied:
        print(f"applied {name}")
    if not applied:
        print("up to date")


async def status(settings: Settings) -> None:
    async with open_database(settings, os.environ) as server:
        lines = await migrator.status(server.dsn)
    for line in lines:
        when = "" if line.applied_at is None else f"  {line.applied_at:%Y-%m-%d %H:%M:%S} UTC"
        print(f"{line.version:04d}  {line.state:<8}{when}  {line.name}")


async def check(settings: Settings) -> bool:
    """Whether the database is up to date with this code."""
    async with open_database(settings, os.environ) as server:
        plan = await migrator.check(server.dsn)
    for migration in plan.pending:
        print(f"pending {migration.file}")
    if plan.ahead:
        print(f"ahead of this version by {len(plan.ahead)}")
    if not plan.behind:
        print("up to date")
    return not plan.behind
