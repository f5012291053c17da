"""What administrators do with runners and their tokens, what users do with their own runners, and
why builds wait.

Every write is one transaction with its audit entry and the notice by which the replica that holds
the runner's connection hears of it.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.domain.access.accounts import redacted_diff
from chatd.domain.access.permissions import Actor
from chatd.domain.access.secret_text import SECRET_BYTES, digest, runner_token_text
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.description import describe
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import Build, BuildId
from chatd.domain.workspace.runners import (
    MAX_POOL_CHARS,
    POOL_PATTERN,
    Runner,
    RunnerId,
    RunnerToken,
    RunnerTokenId,
    explain_wait,
    is_connected,
)
from chatd.services.models.provider_administration import check_storable
from chatd.store.account import audit
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.conn import Conn, DatabaseSession
from chatd.store.database.notifications import publish
from chatd.store.database.pool import Pool
from chatd.store.workspace import runners
from chatd.store.workspace.runners import NewRunnerToken, StoredRunner, WaitingBuild

MAX_NAMED_WORKSPACES: Final = 3
"""Of a runner that cannot be removed, so many workspaces are named."""

PoolName = Annotated[str, Meta(min_length=1, max_length=MAX_POOL_CHARS, pattern=POOL_PATTERN)]
RunnerName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\S")]


class UpdateRunnerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a runner; what is left out stays."""

    draining: Annotated[
        bool | UnsetType,
        describe("Whether it takes no new workspaces. Those that it has go on."),
    ] = UNSET
    name: Annotated[RunnerName | UnsetType, describe("Its name for people.", "build-1")] = UNSET


class NewRunnerTokenBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create."""

    pool: Annotated[
        PoolName,
        describe("The pool of the runners that connect with it. Templates name pools.", "build"),
    ]
    name: Annotated[
        RunnerName | None, describe("Its purpose. Without it: the pool's name.", "rack 3")
    ] = None
    expires_at: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        describe("When it expires. Null: never.", "2027-01-01T00:00:00Z"),
    ] = None


class RunnerAdministration:
    def __init__(self, pool: Pool, env: Env) -> None:
        self._pool = pool
        self._env = env

    async def update(
        self, by: ChangeAuthor, runner_id: RunnerId, body: UpdateRunnerBody
    ) -> StoredRunner:
        """Raises NotFound, InvalidInput."""
        draining = None if body.draining is UNSET else body.draining
        name = None if body.name is UNSET else check_storable("name", body.name.strip())
        async with self._pool.transaction() as session:
            before = await _lock(session, by.actor, runner_id)
            await runners.update(session, by.actor, runner_id, draining=draining, name=name)
            after = await _lock(session, by.actor, runner_id)
            diff = redacted_diff(_shown(before.runner), _shown(after.runner))
            if diff["after"]:
                detail = {"name": before.runner.name, **diff}
                await _record(session, by, "runner.update", runner_id, detail)
                await publish(session, ConfigChange(kind="runner", id=runner_id))
        return after

    async def remove(
        self, by: ChangeAuthor, runner_id: RunnerId, *, with_workspaces: bool = False
    ) -> None:
        """`with_workspaces`: its machine is gone for good, and so are they. Raises NotFound, and
        Conflict while it is connected, or has workspaces."""
        async with self._pool.transaction() as session:
            found = await _lock(session, by.actor, runner_id)
            name = found.runner.name
            if is_connected(found.runner, found.now):
                text = f"The runner {name} is connected. {_how_to_stop(found.runner)}"
                raise Conflict(text, code="runner_connected")
            is_gone = await runners.delete(
                session, by.actor, runner_id, with_workspaces=with_workspaces
            )
            if not is_gone:
                raise await self._has_workspaces(session, by.actor, found.runner)
            detail = {"name": name, "pool": found.runner.pool, "workspaces": found.workspaces}
            await _record(session, by, "runner.delete", runner_id, detail)
            await publish(session, ConfigChange(kind="runner", id=runner_id))

    async def _has_workspaces(
        self, session: DatabaseSession, actor: Actor, runner: Runner
    ) -> Conflict:
        some = await runners.list_workspaces(session, actor, runner.id, limit=MAX_NAMED_WORKSPACES)
        count = (await _lock(session, actor, runner.id)).workspaces
        names = ", ".join(f"{each.name} of {each.owner or each.owner_id}" for each in some)
        more = ", ..." if count > len(some) else ""
        noun = "workspace" if count == 1 else "workspaces"
        return Conflict(
            f"The runner {runner.name} has {count} {noun} ({names}{more})."
            " Start the runner again and delete them, then remove it. If its machine is gone for"
            " good, remove it with its workspaces: chatd admin runners remove --with-workspaces.",
            code="runner_has_workspaces",
        )

    async def create_token(
        self, by: ChangeAuthor, body: NewRunnerTokenBody
    ) -> tuple[RunnerToken, str]:
        """The token, and its text, which is stored nowhere. Raises InvalidInput, Conflict."""
        if body.expires_at is not None and body.expires_at <= self._env.clock.now():
            raise InvalidInput("expires_at", "must be in the future")
        token_id = RunnerTokenId(self._env.new_id())
        text = runner_token_text(token_id, secrets.token_bytes(SECRET_BYTES))
        new = NewRunnerToken(
            id=token_id,
            name=check_storable("name", (body.name or body.pool).strip()),
            pool=body.pool,
            hash=digest(text),
            expires_at=body.expires_at,
        )
        async with self._pool.transaction() as session:
            made = await runners.insert_token(session, by.actor, new)
            detail = {"name": made.name, "pool": made.pool, "expires_at": made.expires_at}
            await _record(session, by, "runner_token.create", token_id, detail)
        return made, text

    async def revoke_token(self, by: ChangeAuthor, token_id: RunnerTokenId) -> None:
        """The replicas that hold its runners' connections end them. Raises NotFound."""
        async with self._pool.transaction() as session:
            gone = await runners.revoke_token(session, by.actor, token_id)
            if gone is None:
                raise NotFound("There is no such token of runners.")
            detail = {"name": gone.name, "pool": gone.pool}
            await _record(session, by, "runner_token.revoke", token_id, detail)
            await publish(session, ConfigChange(kind="runner_token", id=str(token_id)))


def _how_to_stop(runner: Runner) -> str:
    if runner.builtin:
        return "Stop its server first."
    return "Drain it, stop chatd runner on its machine, then remove it."


def _shown(runner: Runner) -> Mapping[str, object]:
    return {"draining": runner.draining, "name": runner.name}


async def _lock(session: DatabaseSession, actor: Actor, runner_id: RunnerId) -> StoredRunner:
    found = await runners.lock(session, actor, runner_id)
    if found is None:
        raise NotFound("There is no such runner.")
    return found


async def _record(
    session: DatabaseSession,
    by: ChangeAuthor,
    action: str,
    object_id: object,
    detail: Mapping[str, object],
) -> None:
    await audit.record(
        session,
        by.actor,
        action=action,
        object_type=action.partition(".")[0],
        object_id=object_id,
        ip=by.ip,
        detail=detail,
    )


# Why builds wait


async def explain_waiting(conn: Conn, waiting: Sequence[WaitingBuild]) -> Mapping[BuildId, str]:
    """Why each of them waits; empty if a runner can take it at once."""
    if not waiting:
        return {}
    found, now = await runners.list_waited_for(conn, waiting)
    return {each.id: explain_wait(each.needs, each.runner_id, found, now) for each in waiting}


async def explain_builds(
    conn: Conn, actor: Actor, builds: Iterable[Build | None]
) -> Mapping[BuildId, str]:
    """Of those among them that are pending. Reads nothing if there is none."""
    pending = [each.id for each in builds if each is not None and each.status == "pending"]
    if not pending:
        return {}
    waiting = await runners.list_waiting(conn, actor, builds=pending, limit=len(pending))
    return await explain_waiting(conn, waiting)
