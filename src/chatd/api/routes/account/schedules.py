"""Routes that create, list, change and run schedules of the caller."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.administration.models import check_effort, find_model_or_default
from chatd.api.schemas.messages import ModelSelection, from_rows
from chatd.domain.access.permissions import Permission
from chatd.domain.deployment.schedules import MAX_CRON_CHARS, Schedule, parse_cron
from chatd.domain.description import (
    CHAT_ID,
    CREATED_AT,
    MODEL_ID,
    PROJECT_ID,
    UPDATED_AT,
    WORKSPACE_ID,
    describe,
)
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ids import ProjectId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.store import projects
from chatd.store.deployment import schedules
from chatd.store.workspace import bindings

# Bodies and replies about schedules. Docstrings here are part of the OpenAPI document.

_ID = "8e2f1d7a-0c3b-4b5d-9e6f-7a8b9c0d1e2f"
_NAME = "Nightly dependency check"
_PROMPT = "Update the dependencies, run the tests, and report what changed."

Name = Annotated[str, Meta(min_length=1, max_length=200)]
CronText = Annotated[str, Meta(min_length=1, max_length=MAX_CRON_CHARS)]
Zone = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+\-/]+$")]
Prompt = Annotated[str, Meta(min_length=1, max_length=100_000)]

_CRON_TEXT = (
    "When it runs: minute, hour, day of month, month, day of week, as in cron; or `@hourly`,"
    " `@daily`, `@weekly`, `@monthly`, `@yearly`."
)

_PROJECT_TEXT = (
    "The project of each chat: you are its owner or a writer of it. Its members read the chats."
    " Without a model, the default model of the project answers. Null: none."
)


class NewScheduleBody(ModelSelection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule to create: each run starts a chat with its prompt."""

    name: Annotated[Name, describe("Its name, and the title of its chats.", _NAME)]
    cron: Annotated[CronText, describe(_CRON_TEXT, "30 2 * * mon-fri")]
    timezone: Annotated[Zone, describe("The time zone of `cron`.", "Europe/Berlin")] = "UTC"
    prompt: Annotated[Prompt, describe("The first message of each chat.", _PROMPT)]
    labels: Annotated[Mapping[str, str], describe("Labels of each chat.", {"team": "infra"})] = {}
    workspace_id: Annotated[UUID | None, describe("The workspace of each chat.", WORKSPACE_ID)] = (
        None
    )
    project_id: Annotated[UUID | None, describe(_PROJECT_TEXT, PROJECT_ID)] = None
    enabled: Annotated[
        bool, Meta(description="False: it does not run by itself.", examples=[True])
    ] = True


class SchedulePatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a schedule. Fields that are not named stay."""

    name: Annotated[Name | UnsetType, describe("Its name.", _NAME)] = UNSET
    cron: Annotated[CronText | UnsetType, describe(_CRON_TEXT, "@daily")] = UNSET
    timezone: Annotated[Zone | UnsetType, describe("The time zone of `cron`.", "UTC")] = UNSET
    prompt: Annotated[Prompt | UnsetType, describe("The first message.", _PROMPT)] = UNSET
    project_id: Annotated[UUID | UnsetType | None, describe(_PROJECT_TEXT, PROJECT_ID)] = UNSET
    enabled: Annotated[
        bool | UnsetType, Meta(description="False: it does not run by itself.", examples=[True])
    ] = UNSET


class ScheduleReply(Struct, frozen=True, kw_only=True):
    """A schedule of yours."""

    id: Annotated[UUID, describe("The schedule's id.", _ID)]
    name: Annotated[str, describe("Its name, and the title of its chats.", _NAME)]
    cron: Annotated[str, describe(_CRON_TEXT, "30 2 * * mon-fri")]
    timezone: Annotated[str, describe("The time zone of `cron`.", "Europe/Berlin")]
    prompt: Annotated[str, describe("The first message of each chat.", _PROMPT)]
    model_config_id: Annotated[UUID | None, describe("The model of each chat.", MODEL_ID)]
    reasoning_effort: Annotated[str | None, describe("How much the model thinks.", "medium")]
    labels: Annotated[dict[str, str], describe("Labels of each chat.", {"team": "infra"})]
    workspace_id: Annotated[UUID | None, describe("The workspace of each chat.", WORKSPACE_ID)]
    project_id: Annotated[UUID | None, describe(_PROJECT_TEXT, PROJECT_ID)]
    enabled: Annotated[bool, Meta(description="Whether it runs by itself.", examples=[True])]
    next_run_at: Annotated[
        datetime | None, describe("When it runs next. Null: it does not.", UPDATED_AT)
    ]
    last_run_at: Annotated[datetime | None, describe("The due time of the last run.", CREATED_AT)]
    last_chat_id: Annotated[UUID | None, describe("The chat of the last run.", CHAT_ID)]
    last_error: Annotated[
        str | None, describe("Why the last run started no chat, if it did not.", None)
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class SchedulePage(ListPage[ScheduleReply], frozen=True, kw_only=True):
    """Your schedules."""


T = TypeVar("T")

_MISSING_TEXT: Final = "There is no such schedule."
_CREATE: Final = BodySpec(NewScheduleBody)
_PATCH: Final = BodySpec(SchedulePatch)


class ScheduleRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/schedules/{schedule_id}"
        return (
            ApiRoute(
                endpoint="POST /schedules",
                permission="chats.create",
                summary="Create a schedule: a chat that starts by itself, again and again",
                handle=self.create_schedule,
                body_spec=_CREATE,
                replies={201: ScheduleReply},
                errors=("not_found", "too_many_schedules", "no_model", "effort_not_supported"),
            ),
            ApiRoute(
                endpoint="GET /schedules",
                permission="account.read",
                summary="List your schedules",
                handle=self.list_schedules,
                query=ListQuery,
                replies={200: SchedulePage},
            ),
            ApiRoute(
                endpoint=f"GET {one}",
                permission="account.read",
                summary="Get a schedule",
                handle=self.get_schedule,
                replies={200: ScheduleReply},
            ),
            ApiRoute(
                endpoint=f"PATCH {one}",
                permission="chats.create",
                summary="Change a schedule, disable it, or enable it again",
                handle=self.change_schedule,
                body_spec=_PATCH,
                replies={200: ScheduleReply},
                errors=("conflict",),
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="chats.create",
                summary="Delete a schedule; its chats stay",
                handle=self.delete_schedule,
                replies={204: None},
            ),
            ApiRoute(
                endpoint=f"POST {one}/run",
                permission="chats.create",
                summary="Run a schedule now, and then again as it says; enables it",
                handle=self.run_schedule,
                replies={202: ScheduleReply},
            ),
        )

    async def create_schedule(self, request: ApiRequest) -> ApiReply:
        deps, actor, body = self._deps, request.caller.actor, await request.body(_CREATE)
        now = await deps.read(schedules.read_time)
        workspace_id = validation.clean_workspace_id(body.workspace_id)
        if workspace_id is not None:
            await bindings.require_usable_workspace(deps.pool, actor, workspace_id, actor.user_id)
        has_model = body.model is not None or body.model_config_id is not None
        model_id = await find_model_or_default(deps.models, body) if has_model else None
        await check_effort(deps.models, model_id, body.reasoning_effort)
        due = _next_run(body.cron, body.timezone, now)
        schedule = Schedule(
            id=deps.env.new_id(),
            owner_id=actor.user_id,
            name=body.name,
            cron=body.cron,
            timezone=body.timezone,
            prompt=body.prompt,
            model_config_id=model_id,
            reasoning_effort=body.reasoning_effort,
            labels=validation.check_labels(body.labels),
            workspace_id=workspace_id,
            project_id=await self._project_id(request, body.project_id),
            enabled=body.enabled,
            next_at=due if body.enabled else None,
            last_at=None,
            last_chat_id=None,
            last_error=None,
            created_at=now,
            updated_at=now,
        )
        made = await schedules.insert(deps.pool, actor, schedule)
        headers = {"location": f"/api/v1/schedules/{made.id}"}
        return reply(_schedule_reply(made), 201, headers)

    async def list_schedules(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(schedules.list_own, actor)
        shown, cursor = cut_whole(paging, found, lambda schedule: schedule.id)
        return page_reply(SchedulePage, (_schedule_reply(schedule) for schedule in shown), cursor)

    async def get_schedule(self, request: ApiRequest) -> ApiReply:
        return reply(_schedule_reply(await self._get(request)))

    async def change_schedule(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_PATCH)
        old = await self._get(request, "chats.create")
        now = await deps.read(schedules.read_time)
        project_id = old.project_id
        if not isinstance(body.project_id, UnsetType):
            project_id = await self._project_id(request, body.project_id)
        changed = replace(
            old,
            name=_given(body.name, old.name),
            cron=_given(body.cron, old.cron),
            timezone=_given(body.timezone, old.timezone),
            prompt=_given(body.prompt, old.prompt),
            project_id=project_id,
            enabled=_given(body.enabled, old.enabled),
        )
        due = _next_run(changed.cron, changed.timezone, now)
        changed = replace(changed, next_at=due if changed.enabled else None)
        saved = await schedules.update(deps.pool, request.caller.actor, changed)
        if saved is None:
            raise Conflict("The schedule has changed meanwhile. Read it again and repeat this.")
        return reply(_schedule_reply(saved))

    async def delete_schedule(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        if not await schedules.delete(self._deps.pool, actor, request.schedule_id):
            raise NotFound(_MISSING_TEXT)
        return NO_CONTENT

    async def run_schedule(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        found = await schedules.set_due(self._deps.pool, actor, request.schedule_id)
        if found is None:
            raise NotFound(_MISSING_TEXT)
        return reply(_schedule_reply(found), 202)

    async def _project_id(self, request: ApiRequest, given: UUID | None) -> ProjectId | None:
        """Raises NotFound, and Forbidden for a reader of the project."""
        if given is None:
            return None
        actor, project_id = request.caller.actor, ProjectId(given)
        return (await self._deps.read(projects.require, actor, project_id, "edit")).id

    async def _get(self, request: ApiRequest, permission: Permission = "account.read") -> Schedule:
        actor = request.caller.actor
        found = await self._deps.read(schedules.get, actor, request.schedule_id, permission)
        if found is None:
            raise NotFound(_MISSING_TEXT)
        return found


def _given(value: T | UnsetType, otherwise: T) -> T:
    return otherwise if isinstance(value, UnsetType) else value


def _next_run(cron: str, timezone: str, now: datetime) -> datetime:
    """Raises InvalidInput, also for an expression that is never due."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        text = "is not a known time zone; use a name such as Europe/Berlin or UTC"
        raise InvalidInput("timezone", text) from None
    due = parse_cron(cron).next_after(now, zone)
    if due is None:
        raise InvalidInput("cron", "names a day that does not come, such as February 30")
    return due


def _schedule_reply(schedule: Schedule) -> ScheduleReply:
    return from_rows(
        ScheduleReply,
        schedule,
        labels=dict(schedule.labels),
        next_run_at=schedule.next_at,
        last_run_at=schedule.last_at,
    )
