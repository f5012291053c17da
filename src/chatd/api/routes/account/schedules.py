"""Routes that create, list, change and run schedules of the caller."""

from datetime import datetime
from typing import Final, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import UnsetType
from msgspec.structs import replace

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.administration.models import check_effort, find_model_or_default
from chatd.api.schemas.account.schedules import (
    NewScheduleBody,
    SchedulePage,
    SchedulePatch,
    ScheduleReply,
)
from chatd.domain.access import Permission
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.list_page import ListQuery
from chatd.domain.schedules import Schedule, parse_cron
from chatd.store import schedules
from chatd.store.workspace import bindings

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
                errors=("too_many_schedules", "no_model", "effort_not_supported"),
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
        now = await deps.retry(lambda: schedules.read_time(deps.pool))
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
        pool, actor = self._deps.pool, request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.retry(lambda: schedules.list_own(pool, actor))
        shown, cursor = cut_whole(paging, found, lambda schedule: schedule.id)
        items = tuple(_schedule_reply(schedule) for schedule in shown)
        return reply(SchedulePage(items=items, has_more=cursor is not None, next_cursor=cursor))

    async def get_schedule(self, request: ApiRequest) -> ApiReply:
        return reply(_schedule_reply(await self._get(request)))

    async def change_schedule(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_PATCH)
        old = await self._get(request, "chats.create")
        now = await deps.retry(lambda: schedules.read_time(deps.pool))
        changed = replace(
            old,
            name=_given(body.name, old.name),
            cron=_given(body.cron, old.cron),
            timezone=_given(body.timezone, old.timezone),
            prompt=_given(body.prompt, old.prompt),
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

    async def _get(self, request: ApiRequest, permission: Permission = "account.read") -> Schedule:
        pool, actor = self._deps.pool, request.caller.actor
        found = await self._deps.retry(
            lambda: schedules.get(pool, actor, request.schedule_id, permission)
        )
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
    return ScheduleReply(
        id=schedule.id,
        name=schedule.name,
        cron=schedule.cron,
        timezone=schedule.timezone,
        prompt=schedule.prompt,
        model_config_id=schedule.model_config_id,
        reasoning_effort=schedule.reasoning_effort,
        labels=dict(schedule.labels),
        workspace_id=schedule.workspace_id,
        enabled=schedule.enabled,
        next_run_at=schedule.next_at,
        last_run_at=schedule.last_at,
        last_chat_id=schedule.last_chat_id,
        last_error=schedule.last_error,
        created_at=schedule.created_at,
        updated_at=schedule.updated_at,
    )
