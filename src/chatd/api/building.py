"""Deciding on a build that a person asks for, and asking for it.

Owns which wishes are refused and in which words; what follows from the rows is
`workspace_rules`' to say. Nothing is waited for: whoever asked follows the build.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.aio.backoff import retry_unavailable
from chatd.api import checks
from chatd.api.auth import own_workspace
from chatd.api.call import Call
from chatd.api.doors import Doors, Rooms
from chatd.api.errors import Invalid, Validation
from chatd.api.workspace_wire import NewBuildBody
from chatd.domain.errors import Conflict, InvalidInput, RequestReused
from chatd.domain.workspace.entities import Build, BuildId, FieldProblem, VersionId
from chatd.domain.workspace.rules import (
    AwaitBuild,
    InsertBuild,
    NoWorkspace,
    WorkspaceSnapshot,
    next_for_start,
    next_for_stop,
    start_version,
)
from chatd.domain.workspace.templates import resolve_parameters
from chatd.store.workspace import builds, templates, workspaces
from chatd.store.workspace.builds import NewBuild

TRIES: Final = 5


class Asked(Struct, frozen=True, kw_only=True):
    """`again`: an earlier request has asked for it."""

    build: Build
    again: bool


def rooms_of(doors: Doors) -> Rooms:
    if doors.rooms is None:
        text = "Workspaces are switched off in the settings of this server."
        raise Conflict(text, code="workspaces_off")
    return doors.rooms


def unfit(problems: Sequence[FieldProblem]) -> Invalid:
    return Invalid(
        "The parameters do not fit.",
        [Validation(field=f"parameters.{each.field}", detail=each.detail) for each in problems],
    )


async def ask_for_build(
    doors: Doors, call: Call, wanted: NewBuildBody, *, joins: bool = False
) -> tuple[Build, bool]:
    """The build, and whether an earlier request has asked for it. With `joins` a build of that
    kind that is under way will do. Raises Conflict, InvalidInput, NotFound."""
    rooms = rooms_of(doors)
    # The first try's id is every try's: one whose reply was lost is found by it.
    build_id = BuildId(doors.env.new_id())
    key = call.made_by("build") or f"api:{build_id}"
    asking = _Asking(doors, call, wanted, key=key, build_id=build_id, joins=joins)
    asked = await retry_unavailable(doors.env.clock, asking.run)
    rooms.wake()
    return asked.build, asked.again and asked.build.id != build_id


class _Asking:
    def __init__(
        self,
        doors: Doors,
        call: Call,
        wanted: NewBuildBody,
        *,
        key: str,
        build_id: BuildId,
        joins: bool,
    ) -> None:
        self._conn = doors.pool
        self._call = call
        self._wanted = wanted
        self._key = key
        self._build_id = build_id
        self._joins = joins

    async def run(self) -> Asked:
        for _ in range(TRIES):
            seen = await workspaces.load_snapshot(self._conn, self._call.workspace_id)
            own_workspace(self._call.caller, seen)
            assert seen is not None
            if (earlier := await builds.find_by_request_key(self._conn, self._key)) is not None:
                return Asked(build=self._same(earlier), again=True)
            after = self._after(seen)
            if isinstance(after, Build):
                return Asked(build=after, again=True)
            new = await self._new(seen, after)
            if (build := await builds.insert(self._conn, new)) is not None:
                return Asked(build=self._same(build), again=build.id != self._build_id)
        raise Conflict("Others are building this workspace just now.", code="build_active")

    def _same(self, build: Build) -> Build:
        """A key that comes again must come with the same wish."""
        wanted, given = self._wanted, self._wanted.parameters
        same = (
            build.workspace_id == self._call.workspace_id
            and build.transition == wanted.transition
            and all(build.params.get(name) == value for name, value in given.items())
        )
        if not same:
            raise RequestReused("This idempotency key was used for another build.")
        return build

    def _after(self, seen: WorkspaceSnapshot) -> int | Build:
        """The number of the build that this one follows, or one that will do."""
        last = seen.build
        wanted = self._wanted.transition
        if self._joins and last is not None and last.active and last.transition == wanted:
            return last
        # A workspace is deleted in whatever state it is, as one is stopped that may still run.
        step = next_for_start(seen) if wanted == "start" else next_for_stop(seen)
        match step:
            case InsertBuild(after=after):
                return after
            case AwaitBuild():
                raise Conflict("A build of this workspace is under way.", code="build_active")
            case NoWorkspace():
                raise Conflict("The workspace is deleted.", code="workspace_deleted")
            case _ if wanted == "delete" and last is not None:
                return last.build_number
            case _:
                state = "runs already" if wanted == "start" else "is stopped already"
                raise Conflict(f"The workspace {state}.", code="nothing_to_do")

    async def _new(self, seen: WorkspaceSnapshot, after: int) -> NewBuild:
        assert seen.workspace is not None
        last = seen.build
        assert last is not None  # a workspace is made together with its first build
        new = NewBuild(
            id=self._build_id,
            workspace_id=seen.workspace.id,
            after=after,
            transition=self._wanted.transition,
            version_id=last.template_version_id,
            initiator_id=self._call.caller.user_id,
            params=last.params,
            made_by=self._key,
        )
        if self._wanted.transition == "start":
            version_id, values = await self._start(seen, last)
            return replace(new, version_id=version_id, params=values)
        if self._wanted.parameters:
            raise InvalidInput("parameters", "only a start takes them")
        return new

    async def _start(
        self, seen: WorkspaceSnapshot, last: Build
    ) -> tuple[VersionId, Mapping[str, str]]:
        assert seen.workspace is not None
        template = await templates.get(self._conn, seen.workspace.template_id)
        version = None
        if template is not None:
            version_id, _ = start_version(template, last)
            version = await templates.get_version(self._conn, version_id)
        if version is None:
            raise Conflict("The workspace's template is gone.", code="template_gone")
        given = checks.parameters(self._wanted.parameters)
        values = resolve_parameters(version.parameters, given, last.params)
        if values.problems:
            raise unfit(values.problems)
        return version.id, values.values
