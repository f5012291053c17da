"""Rows of runners and their tokens, as a connection would have written them."""

from datetime import timedelta
from uuid import UUID

import msgspec

from chatd.domain.access.permissions import UserActor
from chatd.domain.ids import UserId
from chatd.domain.workspace.runners import (
    BackendOffer,
    Runner,
    RunnerId,
    RunnerToken,
    RunnerTokenId,
)
from chatd.store.database.conn import Conn, json_text
from chatd.store.database.pool import Pool
from chatd.store.workspace import runners
from tests.support.factories import AT, OWNER

ADMINISTRATOR = UserActor(user_id=OWNER, role="admin")


def token_id(number: int = 1) -> RunnerTokenId:
    return RunnerTokenId(UUID(int=0xD000 + number))


def new_runner_token(number: int = 1, **columns: object) -> runners.NewRunnerToken:
    new = runners.NewRunnerToken(
        id=token_id(number), name=f"token-{number}", pool="build", hash=number.to_bytes(32, "big")
    )
    return msgspec.structs.replace(new, **columns)


async def insert_runner_token(pool: Pool, number: int = 1, **columns: object) -> RunnerToken:
    async with pool.transaction() as session:
        return await runners.insert_token(
            session, ADMINISTRATOR, new_runner_token(number, **columns)
        )


def runner(runner_id: str = "runner-1", **columns: object) -> Runner:
    row = Runner(
        id=RunnerId(runner_id),
        name=runner_id,
        backends=(BackendOffer(kind="sandbox", isolation="bwrap"),),
        created_at=AT,
        seen_at=AT,
    )
    return msgspec.structs.replace(row, **columns)


async def insert_runner(
    conn: Conn,
    row: Runner,
    *,
    seen_ago: timedelta = timedelta(0),
    connected: bool = True,
) -> RunnerId:
    """Its times are the database's. Without an owner and a token it is that of a server."""
    builtin = row.owner_id is None and row.token_id is None
    await conn.execute(
        """INSERT INTO runners (id, name, pool, owner_id, token_id, builtin, version, labels,
               backends, capacity, running, os, arch, draining, orphans, connected_at,
               disconnected_at, seen_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::json, $10, $11, 'linux', 'x86_64', $12,
               $13, now() - interval '1 hour' - $14::interval,
               CASE WHEN NOT $15 THEN now() - $14::interval END, now() - $14::interval)""",
        *(row.id, row.name, row.pool, row.owner_id, row.token_id, builtin, row.version),
        *(list(row.labels), json_text(row.backends), row.capacity, row.running, row.draining),
        *(list(row.orphans), seen_ago, connected),
    )
    return row.id


def own_runner(runner_id: str, owner_id: UserId = OWNER, **columns: object) -> Runner:
    """One that a user has started for themselves."""
    return runner(runner_id, owner_id=owner_id, **columns)
