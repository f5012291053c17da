"""Bodies and replies about spend limits."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from chatd.api.schemas.values import MAX_INT64
from chatd.domain.description import UPDATED_AT, USER_ID, describe
from chatd.domain.ids import GroupId, UserId
from chatd.domain.list_page import ListPage
from chatd.domain.spend import LimitSource, Period

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
