"""Routes of runners, of their tokens, and of the builds that wait for a runner.

Users see the runners that they have started for themselves, and their own builds; administrators
see all.
"""

from datetime import datetime
from importlib import metadata
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, structs

from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging, TimePosition, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import PREFIX, ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.domain.access.secret_text import runner_token_label
from chatd.domain.description import (
    BUILD_ID,
    CREATED_AT,
    RUNNER_ID,
    RUNNER_TOKEN_ID,
    UPDATED_AT,
    USER_ID,
    WORKSPACE_ID,
    describe,
)
from chatd.domain.errors import NotFound
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.list_page import MAX_PAGE_SIZE, ListPage, ListQuery
from chatd.domain.workspace.entities import BuildId, BuildStatus, BuildTransition
from chatd.domain.workspace.runners import (
    BackendOffer,
    RunnerId,
    RunnerToken,
    RunnerTokenId,
    explain_version_gap,
    is_connected,
)
from chatd.services.workspaces.runner_administration import (
    NewRunnerTokenBody,
    UpdateRunnerBody,
    explain_waiting,
)
from chatd.store.database.pool import Pool
from chatd.store.workspace import runners
from chatd.store.workspace.runners import (
    RunnerWorkspace,
    StoredRunner,
    StoredRunnerToken,
    WaitingBuild,
)

_UPDATE: Final = BodySpec(UpdateRunnerBody)
_NEW_TOKEN: Final = BodySpec(NewRunnerTokenBody)
_AT_ONCE: Final = "A connected runner that fits takes it next."

RunnerWorkspaceStatus = Literal["starting", "running", "stopping", "stopped", "deleting", "failed"]


class RunnerReply(Struct, frozen=True, kw_only=True):
    """A runner: a process that offers workspaces of a machine or a cluster."""

    id: Annotated[RunnerId, describe("The runner's id.", RUNNER_ID)]
    name: Annotated[str, describe("Its name.", "build-1")]
    pool: Annotated[str, describe("Its pool; empty for the runners inside servers.", "build")]
    labels: Annotated[tuple[str, ...], describe("What templates may ask for.", ["gpu"])]
    backends: Annotated[tuple[BackendOffer, ...], describe("How it makes workspaces.")]
    capacity: Annotated[
        int, describe("How many workspaces may run there at once; 0: without limit.", 8)
    ]
    running: Annotated[int, describe("How many run there, as it said last.", 3)]
    workspace_count: Annotated[int, describe("How many it has, stopped ones too.", 5)]
    version: Annotated[str, describe("Its version of chatd.", "0.1.0")]
    os: Annotated[str, describe("Its operating system.", "linux")]
    arch: Annotated[str, describe("Its processor.", "x86_64")]
    connected: Annotated[bool, describe("Whether a server has heard of it in the last 30 seconds.")]
    connected_at: Annotated[
        datetime | None,
        describe("When its present or last connection began; null: never.", CREATED_AT),
    ]
    seen_at: Annotated[datetime, describe("When a server last heard of it.", UPDATED_AT)]
    draining: Annotated[bool, describe("Whether it takes no new workspaces.")]
    builtin: Annotated[bool, describe("Whether it is inside a server.")]
    owner_id: Annotated[
        UserId | None, describe("The user who started it for themselves; null: for all.", USER_ID)
    ]
    owner: Annotated[str | None, describe("That user's name.", "ada")]
    token_id: Annotated[
        RunnerTokenId | None, describe("The token that it connects with.", RUNNER_TOKEN_ID)
    ]
    token: Annotated[str | None, describe("That token's name.", "rack 3")]
    orphans: Annotated[
        tuple[str, ...],
        describe("Workspaces that it has and the database does not know. They are kept.", ["w-1"]),
    ]
    version_gap: Annotated[
        str | None,
        describe(
            "Why its version does not work with this server's; null: it does.",
            "This runner is version 0.1.0 and the server 0.3.0: ...",
        ),
    ]


class RunnerPage(ListPage[RunnerReply], frozen=True, kw_only=True):
    """A page of runners."""


class RunnerWorkspaceReply(Struct, frozen=True, kw_only=True):
    """A workspace that a runner has."""

    id: Annotated[WorkspaceId, describe("The workspace's id.", WORKSPACE_ID)]
    name: Annotated[str, describe("Its name.", "my-app")]
    owner_id: Annotated[UserId, describe("The user it belongs to.", USER_ID)]
    owner: Annotated[str | None, describe("That user's name; null if deleted.", "ada")]
    status: Annotated[RunnerWorkspaceStatus, describe("By its latest build.", "running")]
    last_used_at: Annotated[datetime, describe("When a tool last acted in it.", UPDATED_AT)]


class WaitingBuildReply(Struct, frozen=True, kw_only=True):
    """A build that no runner has taken yet."""

    id: Annotated[BuildId, describe("The build's id.", BUILD_ID)]
    workspace_id: Annotated[WorkspaceId, describe("Its workspace.", WORKSPACE_ID)]
    workspace: Annotated[str, describe("The workspace's name.", "my-app")]
    owner_id: Annotated[UserId, describe("The user it belongs to.", USER_ID)]
    owner: Annotated[str | None, describe("That user's name; null if deleted.", "ada")]
    template: Annotated[str, describe("The name of its template.", "python")]
    transition: Annotated[BuildTransition, describe("What it does.", "start")]
    created_at: Annotated[datetime, describe("Since when it waits.", CREATED_AT)]
    backend: Annotated[str, describe("The backend that it needs.", "container")]
    pool: Annotated[str, describe("The pool that it needs; empty: the servers' own.", "build")]
    labels: Annotated[tuple[str, ...], describe("The labels that it needs.", ["gpu"])]
    runner_id: Annotated[
        str | None, describe("The runner that has the workspace; null: none yet.", RUNNER_ID)
    ]
    reason: Annotated[
        str,
        describe("Why it waits.", "Every connected runner of the pool build that fits is full."),
    ]


class WaitingBuildPage(ListPage[WaitingBuildReply], frozen=True, kw_only=True):
    """A page of builds that wait, the oldest first."""


class RunnerDetailReply(RunnerReply, frozen=True, kw_only=True):
    """A runner with what it has and what waits for it."""

    workspaces: Annotated[
        tuple[RunnerWorkspaceReply, ...], describe("The last used first; at most 200.")
    ]
    waiting_builds: Annotated[
        tuple[WaitingBuildReply, ...], describe("Of its workspaces, the oldest first; at most 200.")
    ]


class RunnerTokenReply(Struct, frozen=True, kw_only=True):
    """A token of runners, without its secret."""

    id: Annotated[RunnerTokenId, describe("Its id.", RUNNER_TOKEN_ID)]
    name: Annotated[str, describe("Its purpose.", "rack 3")]
    prefix: Annotated[
        str, describe("How the token begins, to find it in a file.", "chatd_runner_0193c5b31b7c")
    ]
    pool: Annotated[str, describe("The pool of its runners.", "build")]
    created_by: Annotated[UserId, describe("The user who created it.", USER_ID)]
    creator: Annotated[str | None, describe("That user's name; null if deleted.", "ada")]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    expires_at: Annotated[
        datetime | None, describe("When it expires; null: never.", "2027-01-01T00:00:00Z")
    ]
    expired: Annotated[bool, describe("Whether it has expired.")]
    last_used_at: Annotated[
        datetime | None, describe("When a runner last connected with it; null: never.", UPDATED_AT)
    ]
    runners: Annotated[int, describe("How many runners have connected with it.", 2)]


class RunnerTokenPage(ListPage[RunnerTokenReply], frozen=True, kw_only=True):
    """A page of tokens of runners."""


class CreatedRunnerTokenReply(RunnerTokenReply, frozen=True, kw_only=True):
    """A new token of runners. Its secret is shown only here."""

    token: Annotated[
        str,
        describe(
            "The token. Keep it now: it cannot be read again.",
            "chatd_runner_0193c5b31b7c_sT4x0mP1eS3cretOfATokenThatIsShownOnlyOnceX",
        ),
    ]


class RunnerPosition(Struct, frozen=True, array_like=True):
    """The position in the list of runners."""

    pool: Annotated[str, Meta(max_length=200)]
    name: Annotated[str, Meta(max_length=200)]
    id: Annotated[str, Meta(max_length=200)]


class RemoveRunnerQuery(Struct, frozen=True, kw_only=True):
    with_workspaces: Annotated[
        bool,
        describe("The machine is gone for good: its workspaces count as deleted."),
    ] = False


class RunnerRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._version = metadata.version("chatd")

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /runners",
                permission="workspaces.read",
                summary="List runners, by pool and name",
                description="Administrators and viewers see all, others those that they have"
                " started for themselves.",
                handle=self.list_runners,
                query=ListQuery,
                replies={200: RunnerPage},
            ),
            ApiRoute(
                endpoint="GET /runners/{runner_id}",
                permission="workspaces.read",
                summary="Get a runner, its workspaces, and the builds that wait for it",
                handle=self.get_runner,
                replies={200: RunnerDetailReply},
            ),
            ApiRoute(
                endpoint="PATCH /runners/{runner_id}",
                permission="runners.write",
                summary="Drain, resume or rename a runner",
                description="A drained runner takes no new workspaces. Those that it has go on,"
                " and can be stopped and started there.",
                handle=self.update_runner,
                body_spec=_UPDATE,
                replies={200: RunnerReply},
            ),
            ApiRoute(
                endpoint="DELETE /runners/{runner_id}",
                permission="runners.write",
                summary="Remove a runner that is gone and has no workspaces",
                description="Refused while it is connected, and while it has workspaces. A runner"
                " that connects again afterwards is listed again.",
                handle=self.remove_runner,
                query=RemoveRunnerQuery,
                replies={204: None},
                errors=("runner_connected", "runner_has_workspaces"),
            ),
            ApiRoute(
                endpoint="GET /runner-tokens",
                permission="config.read",
                summary="List the tokens of runners that are not revoked, newest first",
                handle=self.list_runner_tokens,
                query=ListQuery,
                replies={200: RunnerTokenPage},
            ),
            ApiRoute(
                endpoint="POST /runner-tokens",
                permission="config.write",
                summary="Create a token of runners; only this reply shows it",
                description="Start a runner with it: `chatd runner start --server URL --token-file"
                " FILE`. Several runners may use one token.",
                handle=self.create_runner_token,
                body_spec=_NEW_TOKEN,
                replies={201: CreatedRunnerTokenReply},
                errors=("too_many_runner_tokens",),
            ),
            ApiRoute(
                endpoint="DELETE /runner-tokens/{runner_token_id}",
                permission="config.write",
                summary="Revoke a token of runners; its runners are disconnected",
                description="Their workspaces go on, and are reached again when the runner connects"
                " with another token.",
                handle=self.revoke_runner_token,
                replies={204: None},
            ),
            ApiRoute(
                endpoint="GET /builds/waiting",
                permission="workspaces.read",
                summary="List the builds that no runner has taken, and why, oldest first",
                description="Administrators and viewers see all, others those of their own"
                " workspaces.",
                handle=self.list_waiting_builds,
                query=ListQuery,
                replies={200: WaitingBuildPage},
            ),
        )

    async def list_runners(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), RunnerPosition)
        last, actor = paging.position, request.caller.actor
        after = None if last is None else (last.pool, last.name, last.id)
        found = await self._deps.read(
            runners.list_page, actor, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, _position)
        return page_reply(RunnerPage, map(self._reply, shown), cursor)

    async def get_runner(self, request: ApiRequest) -> ApiReply:
        return reply(await self._deps.read(self._load, request))

    async def _load(self, pool: Pool, request: ApiRequest) -> RunnerDetailReply:
        actor, runner_id = request.caller.actor, request.runner_id
        found = await runners.get(pool, actor, runner_id)
        if found is None:
            raise NotFound("There is no such runner.")
        has = await runners.list_workspaces(pool, actor, runner_id, limit=MAX_PAGE_SIZE)
        waiting = await runners.list_waiting(pool, actor, runner_id=runner_id, limit=MAX_PAGE_SIZE)
        reasons = await explain_waiting(pool, waiting)
        return RunnerDetailReply(
            **structs.asdict(self._reply(found)),
            workspaces=tuple(map(_workspace_reply, has)),
            waiting_builds=tuple(_waiting_reply(each, reasons[each.id]) for each in waiting),
        )

    async def update_runner(self, request: ApiRequest) -> ApiReply:
        body, by = await request.body(_UPDATE), self._deps.author(request)
        return reply(self._reply(await self._deps.runners.update(by, request.runner_id, body)))

    async def remove_runner(self, request: ApiRequest) -> ApiReply:
        query = request.query(RemoveRunnerQuery)
        await self._deps.runners.remove(
            self._deps.author(request), request.runner_id, with_workspaces=query.with_workspaces
        )
        return NO_CONTENT

    async def list_runner_tokens(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), TimePosition)
        last, actor = paging.position, request.caller.actor
        after = None if last is None else (last.at, RunnerTokenId(last.id))
        found = await self._deps.read(
            runners.list_tokens, actor, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(
            found, lambda one: TimePosition(one.token.created_at, one.token.id)
        )
        return page_reply(RunnerTokenPage, map(_token_reply, shown), cursor)

    async def create_runner_token(self, request: ApiRequest) -> ApiReply:
        body, by = await request.body(_NEW_TOKEN), self._deps.author(request)
        made, text = await self._deps.runners.create_token(by, body)
        headers = {"location": f"{PREFIX}/runner-tokens/{made.id}"}
        return reply(_created_reply(made, request.caller.username, text), 201, headers)

    async def revoke_runner_token(self, request: ApiRequest) -> ApiReply:
        by = self._deps.author(request)
        await self._deps.runners.revoke_token(by, request.runner_token_id)
        return NO_CONTENT

    async def list_waiting_builds(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), TimePosition)
        last, actor = paging.position, request.caller.actor
        after = None if last is None else (last.at, BuildId(last.id))
        found = await self._deps.read(
            runners.list_waiting, actor, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda one: TimePosition(one.created_at, one.id))
        reasons = await self._deps.read(explain_waiting, shown)
        items = (_waiting_reply(each, reasons[each.id]) for each in shown)
        return page_reply(WaitingBuildPage, items, cursor)

    def _reply(self, found: StoredRunner) -> RunnerReply:
        runner = found.runner
        return from_rows(
            RunnerReply,
            runner,
            found,
            connected=is_connected(runner, found.now),
            workspace_count=found.workspaces,
            version_gap=explain_version_gap(runner.version, self._version),
        )


def _position(found: StoredRunner) -> RunnerPosition:
    return RunnerPosition(found.runner.pool, found.runner.name, found.runner.id)


def workspace_status(transition: BuildTransition, status: BuildStatus) -> RunnerWorkspaceStatus:
    """By the latest build of the workspace."""
    if status in ("failed", "canceled"):
        return "failed"
    is_done = status == "succeeded"
    match transition:
        case "start":
            return "running" if is_done else "starting"
        case "stop":
            return "stopped" if is_done else "stopping"
        case "delete":
            return "deleting"


def _workspace_reply(found: RunnerWorkspace) -> RunnerWorkspaceReply:
    status = workspace_status(found.transition, found.status)
    return from_rows(RunnerWorkspaceReply, found, status=status)


def _waiting_reply(found: WaitingBuild, reason: str) -> WaitingBuildReply:
    return from_rows(WaitingBuildReply, found, found.needs, reason=reason or _AT_ONCE)


def _token_reply(found: StoredRunnerToken) -> RunnerTokenReply:
    token = found.token
    expired = token.expires_at is not None and token.expires_at <= found.now
    return from_rows(
        RunnerTokenReply, token, found, prefix=runner_token_label(token.id), expired=expired
    )


def _created_reply(made: RunnerToken, creator: str, text: str) -> CreatedRunnerTokenReply:
    return from_rows(
        CreatedRunnerTokenReply,
        made,
        prefix=runner_token_label(made.id),
        creator=creator,
        expired=False,
        runners=0,
        token=text,
    )
