"""Routes that read and change spend limits, and the status of the caller's own."""

from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.pages import NamePosition, Paging, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import MAX_INT64, from_rows
from chatd.domain.deployment.spend import LimitSource, Period
from chatd.domain.description import UPDATED_AT, USER_ID, describe
from chatd.domain.ids import GroupId, UserId
from chatd.domain.list_page import MAX_PAGE_SIZE, ListPage, ListQuery
from chatd.store.model import spend
from chatd.store.model.spend import GroupLimit, UserLimit

# Bodies and replies about spend limits.

GROUP_ID = "0193c5b2-77aa-7c10-8f21-3a4b5c6d7e8f"
PERIOD_START = "2026-11-01T00:00:00Z"
PERIOD_END = "2026-12-01T00:00:00Z"

Micros = Annotated[int, Meta(ge=1, le=MAX_INT64)]
LimitMicros = Annotated[
    Micros, describe("The most that may be spent in a period, in micros of a dollar.", 25_000_000)
]


class DefaultLimitBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limit of users who have no other."""

    spend_limit_micros: Annotated[
        Micros | None,
        describe(
            "The most that a user may spend in a period, in micros of a dollar; null for no"
            " default. Limits of users and groups hold nevertheless.",
            25_000_000,
        ),
    ]
    period: Annotated[
        Period,
        describe("The period of all limits: a UTC day, week from Monday, or month.", "month"),
    ] = "month"


class LimitBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit of a user or a group. The period is that of the default."""

    spend_limit_micros: LimitMicros


class UserLimitReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's own limit."""

    user_id: Annotated[UserId, describe("The user.", USER_ID)]
    username: Annotated[str, describe("The user's name for signing in.", "ada")]
    name: Annotated[str, describe("The user's full name.", "Ada Lovelace")]
    avatar_url: Annotated[
        str | None, describe("A picture of the user.", "https://example.com/ada.png")
    ] = None
    spend_limit_micros: LimitMicros


class GroupLimitReply(Struct, frozen=True, kw_only=True):
    """The limit of each member of a group. Of several groups the strictest one holds."""

    group_id: Annotated[GroupId, describe("The group.", GROUP_ID)]
    group_name: Annotated[str, describe("The group's name.", "research")]
    member_count: Annotated[int, describe("How many members it has.", 12)]
    spend_limit_micros: LimitMicros


class SpendLimitsReply(Struct, frozen=True, kw_only=True):
    """The default limit, and the first limits of users and groups."""

    spend_limit_micros: Annotated[
        int | None,
        describe("The default limit of a user in a period; null: no default.", 25_000_000),
    ]
    period: Annotated[Period, describe("The period of all limits.", "month")]
    source: Annotated[
        Literal["database", "settings"],
        describe(
            "Where the default comes from. That of the settings (`limits.spend_micros`) holds until"
            " one is set here, and cannot be changed here.",
            "database",
        ),
    ]
    updated_at: Annotated[
        datetime | None,
        describe("When the default was set; null for that of the settings.", UPDATED_AT),
    ]
    settings_spend_limit_micros: Annotated[
        int | None,
        describe("The default of the settings, which holds if none is set here.", 25_000_000),
    ]
    settings_period: Annotated[Period, describe("The period of that default.", "month")]
    unpriced_model_count: Annotated[
        int,
        describe("How many enabled models have no price: no limit stops their use.", 0),
    ]
    overrides: Annotated[
        tuple[UserLimitReply, ...], describe("Limits of users, by name; at most 200.")
    ]
    group_overrides: Annotated[
        tuple[GroupLimitReply, ...], describe("Limits of groups, by name; at most 200.")
    ]


class UserLimitPage(ListPage[UserLimitReply], frozen=True, kw_only=True):
    """A page of the users with a limit of their own."""


class GroupLimitPage(ListPage[GroupLimitReply], frozen=True, kw_only=True):
    """A page of the groups with a limit."""


class GivenWarning(Struct, frozen=True, kw_only=True):
    """A warning that you got in this period."""

    percent: Annotated[int, describe("The share of the limit that was spent.", 80)]
    at: Annotated[datetime, describe("When it was given.", UPDATED_AT)]


class SpendStatusReply(Struct, frozen=True, kw_only=True):
    """What you have spent in this period, and your limit."""

    is_limited: Annotated[bool, describe("Whether you have a limit.")]
    period: Annotated[Period, describe("The period.", "month")]
    spend_limit_micros: Annotated[int | None, describe("Your limit; null: none.", 25_000_000)]
    source: Annotated[
        LimitSource | None, describe("Where your limit comes from; null: none.", "group")
    ]
    current_spend_micros: Annotated[
        int, describe("What is recorded in this period, in micros of a dollar.", 20_400_000)
    ]
    reserved_micros: Annotated[
        int, describe("What your running model calls have reserved.", 120_000)
    ]
    period_start: Annotated[datetime, describe("When the period began.", PERIOD_START)]
    period_end: Annotated[datetime, describe("When the limit is reset.", PERIOD_END)]
    warnings: Annotated[
        tuple[GivenWarning, ...],
        describe("The warnings of this period: one at 80 and one at 100 percent."),
    ]


_DEFAULT: Final = BodySpec(DefaultLimitBody)
_LIMIT: Final = BodySpec(LimitBody)


class SpendLimitRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /usage-limits",
                permission="config.read",
                summary="Get the default spend limit and the limits of users and groups",
                handle=self.get_spend_limits,
                replies={200: SpendLimitsReply},
            ),
            ApiRoute(
                endpoint="PUT /usage-limits",
                permission="config.write",
                summary="Set the default spend limit and the period of all limits",
                handle=self.set_default_limit,
                body_spec=_DEFAULT,
                replies={200: SpendLimitsReply},
            ),
            ApiRoute(
                endpoint="DELETE /usage-limits",
                permission="config.write",
                summary="Delete the default spend limit: that of the settings holds again",
                handle=self.delete_default_limit,
                replies={204: None},
            ),
            ApiRoute(
                endpoint="GET /usage-limits/status",
                permission="account.read",
                summary="Get what you have spent in this period, and your limit",
                handle=self.get_spend_status,
                replies={200: SpendStatusReply},
            ),
            *self._user_routes(),
            *self._group_routes(),
        )

    def _user_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /usage-limits/overrides",
                permission="config.read",
                summary="List the users with a spend limit of their own, by name",
                handle=self.list_user_limits,
                query=ListQuery,
                replies={200: UserLimitPage},
            ),
            ApiRoute(
                endpoint="PUT /usage-limits/overrides/{user_id}",
                permission="config.write",
                summary="Set the spend limit of a user",
                handle=self.set_user_limit,
                body_spec=_LIMIT,
                replies={200: UserLimitReply},
            ),
            ApiRoute(
                endpoint="DELETE /usage-limits/overrides/{user_id}",
                permission="config.write",
                summary="Delete the spend limit of a user: that of the groups or the default holds",
                handle=self.delete_user_limit,
                replies={204: None},
            ),
        )

    def _group_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /usage-limits/group-overrides",
                permission="config.read",
                summary="List the groups with a spend limit, by name",
                handle=self.list_group_limits,
                query=ListQuery,
                replies={200: GroupLimitPage},
            ),
            ApiRoute(
                endpoint="PUT /usage-limits/group-overrides/{group_id}",
                permission="config.write",
                summary="Set the spend limit of each member of a group",
                handle=self.set_group_limit,
                body_spec=_LIMIT,
                replies={200: GroupLimitReply},
            ),
            ApiRoute(
                endpoint="DELETE /usage-limits/group-overrides/{group_id}",
                permission="config.write",
                summary="Delete the spend limit of a group",
                handle=self.delete_group_limit,
                replies={204: None},
            ),
        )

    # The default

    async def get_spend_limits(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        pool, settings = deps.pool, deps.default_limit
        stored = await deps.read(spend.get_default, actor)
        users = await spend.list_users(pool, actor, limit=MAX_PAGE_SIZE)
        groups = await spend.list_groups(pool, actor, limit=MAX_PAGE_SIZE)
        models = [model for model in await deps.models.all() if model.enabled]
        unpriced = [model for model in models if not await deps.models.is_priced(model)]
        return reply(
            SpendLimitsReply(
                spend_limit_micros=settings.micros if stored is None else stored.micros,
                period=settings.period if stored is None else stored.period,
                source="settings" if stored is None else "database",
                updated_at=None if stored is None else stored.updated_at,
                settings_spend_limit_micros=settings.micros,
                settings_period=settings.period,
                unpriced_model_count=len(unpriced),
                overrides=tuple(map(_user_reply, users)),
                group_overrides=tuple(map(_group_reply, groups)),
            )
        )

    async def set_default_limit(self, request: ApiRequest) -> ApiReply:
        actor, body = request.caller.actor, await request.body(_DEFAULT)
        async with self._deps.pool.transaction() as session:
            await spend.set_default(session, actor, body.spend_limit_micros, body.period)
        return await self.get_spend_limits(request)

    async def delete_default_limit(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await spend.delete_default(session, request.caller.actor)
        return NO_CONTENT

    async def get_spend_status(self, request: ApiRequest) -> ApiReply:
        deps, user_id = self._deps, request.caller.user_id
        found = await deps.read(spend.read_spending, user_id, deps.default_limit)
        given = await spend.list_warnings(deps.pool, user_id, found.period_start)
        limit = found.user
        return reply(
            SpendStatusReply(
                is_limited=limit is not None,
                period=found.period,
                spend_limit_micros=None if limit is None else limit.limit_micros,
                source=None if limit is None or limit.source == "chat" else limit.source,
                current_spend_micros=found.spent_micros,
                reserved_micros=found.reserved_micros,
                period_start=found.period_start,
                period_end=found.resets_at,
                warnings=tuple(GivenWarning(percent=one.percent, at=one.at) for one in given),
            )
        )

    # Users

    async def list_user_limits(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), NamePosition)
        after = "" if paging.position is None else paging.position.name
        found = await self._deps.read(
            spend.list_users, request.caller.actor, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda one: NamePosition(one.username))
        return page_reply(UserLimitPage, map(_user_reply, shown), cursor)

    async def set_user_limit(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_LIMIT)
        async with self._deps.pool.transaction() as session:
            limit = await spend.set_user(
                session, request.caller.actor, request.user_id, body.spend_limit_micros
            )
        return reply(_user_reply(limit))

    async def delete_user_limit(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await spend.delete_user(session, request.caller.actor, request.user_id)
        return NO_CONTENT

    # Groups

    async def list_group_limits(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), NamePosition)
        after = "" if paging.position is None else paging.position.name
        found = await self._deps.read(
            spend.list_groups, request.caller.actor, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda one: NamePosition(one.group_name))
        return page_reply(GroupLimitPage, map(_group_reply, shown), cursor)

    async def set_group_limit(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_LIMIT)
        async with self._deps.pool.transaction() as session:
            limit = await spend.set_group(
                session, request.caller.actor, request.group_id, body.spend_limit_micros
            )
        return reply(_group_reply(limit))

    async def delete_group_limit(self, request: ApiRequest) -> ApiReply:
        async with self._deps.pool.transaction() as session:
            await spend.delete_group(session, request.caller.actor, request.group_id)
        return NO_CONTENT


def _user_reply(limit: UserLimit) -> UserLimitReply:
    return from_rows(UserLimitReply, limit, spend_limit_micros=limit.micros)


def _group_reply(limit: GroupLimit) -> GroupLimitReply:
    return from_rows(GroupLimitReply, limit, spend_limit_micros=limit.micros)
