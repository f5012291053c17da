"""The deployment that `chatd admin` works on: one that exists, named before anything is changed."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from chatd.cli.process import read_settings
from chatd.clock import SystemClock
from chatd.database import connect_config, has_database, open_database
from chatd.settings.schema import Settings, SettingsError, redact_url
from chatd.store import migrator
from chatd.store.pool import Pool, PoolConfig


def find_deployment(flags: dict[str, str | None], config: Path | None) -> Settings:
    """Says on standard error which one it is. Raises SettingsError if the data directory has none:
    a forgotten flag would create another deployment."""
    settings = read_settings(flags, config)
    if not has_database(settings):
        raise SettingsError(
            f"there is no deployment in {settings.data_dir}. Name the data directory of yours with"
            " --data-dir or CHATD_DATA_DIR, or its database with --database-url; chatd serve"
            " creates a deployment."
        )
    print(f"deployment: {settings.data_dir}, database {database_name(settings)}", file=sys.stderr)
    return settings


@asynccontextmanager
async def open_deployment(settings: Settings) -> AsyncGenerator[Pool]:
    """Its database, migrated. Raises SettingsError if chatd has never used the database."""
    async with open_database(settings, os.environ, SystemClock()) as server:
        if all(one.state == "pending" for one in await migrator.status(server.dsn)):
            raise SettingsError(
                f"{database_name(settings)} is no database of chatd: no migration was applied to"
                " it. Name the one of your deployment with --database-url or --data-dir; chatd"
                " serve creates a deployment."
            )
        await migrator.up(server.dsn)
        pool = Pool(PoolConfig(connect=connect_config(settings, server.dsn), max_size=2))
        try:
            yield pool
        finally:
            await pool.close()


def database_name(settings: Settings) -> str:
    url = settings.database.url
    return "embedded PostgreSQL" if url is None else redact_url(url)
