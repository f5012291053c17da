"""A database whose clock a test sets forward and back.

The schema `public` gets a function `now()` and comes before `pg_catalog` in the search path, so
that every statement and every column default of chatd uses it. Install it before the migrations:
a column default keeps the function that it found.
"""

from typing import Final, LiteralString

from chatd.store.database.conn import ConnectConfig, connect

INSTALL: Final = """
    CREATE SCHEMA chaos;
    CREATE TABLE chaos.clock (ahead interval NOT NULL);
    INSERT INTO chaos.clock VALUES ('0');
    CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
        BEGIN RETURN pg_catalog.now() + (SELECT ahead FROM chaos.clock); END $$;
    DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog',
                       current_database());
    END $$"""

SET_AHEAD: Final[LiteralString] = (
    "UPDATE chaos.clock SET ahead = $1::float8 * pg_catalog.make_interval(secs => 1)"
)


class DatabaseClock:
    def __init__(self, dsn: str) -> None:
        self._config = ConnectConfig(dsn=dsn, application_name="clock", statement_timeout_s=30)

    async def install(self) -> None:
        session = await connect(self._config)
        try:
            await session.script(INSTALL, timeout_s=30)
        finally:
            await session.close(timeout_s=30)

    async def set_ahead(self, seconds: float) -> None:
        """From now on the database is this far ahead of real time; negative: behind."""
        session = await connect(self._config)
        try:
            await session.execute(SET_AHEAD, seconds)
        finally:
            await session.close(timeout_s=30)
