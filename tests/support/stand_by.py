"""A standby of the database that lacks the last commits when it takes over.

It holds the rows of chats as last received and puts them back, so that the versions of lost commits
are used again for other changes.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chatd.store.database.conn import DatabaseSession
from tests.support.store import session_to

TABLES = ("chats", "chat_messages", "chat_queued_messages", "chat_requests")


class StandBy:
    def __init__(self, session: DatabaseSession) -> None:
        self._session = session

    async def hear(self) -> None:
        for table in TABLES:
            await self._session.script(
                f"CREATE TEMP TABLE s_{table} AS TABLE {table}", timeout_s=30
            )

    async def take_over(self) -> None:
        back = "".join(f"INSERT INTO {table} TABLE s_{table};" for table in TABLES)
        await self._session.script(f"BEGIN; DELETE FROM chats; {back} COMMIT;", timeout_s=30)


@asynccontextmanager
async def stand_by(dsn: str) -> AsyncGenerator[StandBy]:
    async with session_to(dsn) as session:
        standing = StandBy(session)
        await standing.hear()
        yield standing
