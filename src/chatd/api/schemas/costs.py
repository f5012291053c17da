"""Queries and replies about costs. Amounts are micros of a dollar; days are of UTC."""

from datetime import date
from typing import Annotated, Final

from msgspec import Meta, Struct

from chatd.domain.description import CHAT_ID, USER_ID, describe
from chatd.domain.ids import ChatId, UserId
from chatd.domain.list_page import ListPage, ListQuery

StartDate = Annotated[date, describe("The first day.", "2026-11-01")]
EndDate = Annotated[date, describe("The day after the last one.", "2026-12-01")]
_FIRST: Final = "The first day. Default: 30 days before the end."
_LAST: Final = "The day after the last one. Default: tomorrow, so that today is included."


class DayRangeQuery(Struct, frozen=True, kw_only=True):
    """The days from `start_date` up to `end_date`, which is not part of it."""

    start_date: Annotated[date | None, describe(_FIRST, "2026-11-01")] = None
    end_date: Annotated[date | None, describe(_LAST, "2026-12-01")] = None


class UserCostQuery(ListQuery, frozen=True, kw_only=True):
    """The days as in the summary. `name`: a part of the user's names."""

    start_date: Annotated[date | None, describe(_FIRST, "2026-11-01")] = None
    end_date: Annotated[date | None, describe(_LAST, "2026-12-01")] = None
    name: Annotated[
        str,
        Meta(max_length=200),
        describe("Only users with this text in their username or full name.", "ada"),
    ] = ""


class CostTotals(Struct, frozen=True, kw_only=True):
    """Calls, tokens and cost."""

    total_cost_micros: Annotated[int, describe("The cost of all priced calls.", 20_400_000)]
    call_count: Annotated[int, describe("How many model calls were made.", 412)]
    unpriced_call_count: Annotated[int, describe("Calls of which no price is known.", 0)]
    total_input_tokens: Annotated[int, describe("Input tokens without cached ones.", 1_204_000)]
    total_output_tokens: Annotated[int, describe("Output tokens with reasoning.", 88_000)]
    total_cache_read_tokens: Annotated[int, describe("Tokens read from a cache.", 640_000)]
    total_cache_creation_tokens: Annotated[int, describe("Tokens written to a cache.", 31_000)]


class CostByModel(CostTotals, frozen=True, kw_only=True):
    """Of one model."""

    provider: Annotated[str, describe("The provider's name.", "anthropic")]
    model: Annotated[str, describe("The provider's name of the model.", "claude-sonnet-4-5")]


class CostByDay(CostTotals, frozen=True, kw_only=True):
    """Of one day."""

    day: Annotated[date, describe("The day.", "2026-11-16")]


class CostByDayAndModel(CostTotals, frozen=True, kw_only=True):
    """Of one model on one day."""

    day: Annotated[date, describe("The day.", "2026-11-16")]
    provider: Annotated[str, describe("The provider's name.", "anthropic")]
    model: Annotated[str, describe("The provider's name of the model.", "claude-sonnet-4-5")]


class CostByChat(CostTotals, frozen=True, kw_only=True):
    """Of a chat with its subagents."""

    root_chat_id: Annotated[ChatId, describe("The chat at the root.", CHAT_ID)]
    chat_title: Annotated[
        str | None, describe("Its title; null if it was deleted.", "Fix the failing test")
    ]


class CostSummaryReply(CostTotals, frozen=True, kw_only=True):
    """The costs of a user."""

    user_id: Annotated[UserId, describe("The user.", USER_ID)]
    start_date: StartDate
    end_date: EndDate
    by_model: Annotated[tuple[CostByModel, ...], describe("By model, the dearest first.")]
    by_day: Annotated[tuple[CostByDay, ...], describe("By day, without days that have no calls.")]
    by_day_and_model: Annotated[
        tuple[CostByDayAndModel, ...],
        describe("By day and model, the newest day first; at most 5,000 of them."),
    ]
    by_chat: Annotated[
        tuple[CostByChat, ...],
        describe(
            "The 200 dearest chats with their subagents. Chats whose usage retention has deleted"
            " are only in the other sums."
        ),
    ]


class AllCostsReply(CostTotals, frozen=True, kw_only=True):
    """The costs of all users."""

    start_date: StartDate
    end_date: EndDate
    by_model: Annotated[tuple[CostByModel, ...], describe("By model, the dearest first.")]
    by_day_and_model: Annotated[
        tuple[CostByDayAndModel, ...],
        describe("By day and model, the newest day first; at most 5,000 of them."),
    ]


class CostByUser(CostTotals, frozen=True, kw_only=True, omit_defaults=True):
    """Of one user."""

    user_id: Annotated[UserId, describe("The user.", USER_ID)]
    username: Annotated[str, describe("The user's name for signing in.", "ada")]
    name: Annotated[str, describe("The user's full name.", "Ada Lovelace")]
    avatar_url: Annotated[
        str | None, describe("A picture of the user.", "https://example.com/ada.png")
    ] = None


class UserCostPage(ListPage[CostByUser], frozen=True, kw_only=True):
    """A page of the users with costs, the dearest first."""

    start_date: StartDate
    end_date: EndDate


class ChatCostReply(Struct, frozen=True, kw_only=True):
    """The cost of a chat's whole tree."""

    chat_id: Annotated[ChatId, describe("The chat that was asked for.", CHAT_ID)]
    root_chat_id: Annotated[ChatId, describe("The root of its tree.", CHAT_ID)]
    total_cost_micros: Annotated[int, describe("The cost of all priced calls.", 120_000)]
    call_count: Annotated[int, describe("How many model calls were made.", 9)]
    unpriced_call_count: Annotated[int, describe("Calls of which no price is known.", 0)]
    estimated_call_count: Annotated[
        int, describe("Calls of which the provider did not tell all usage.", 1)
    ]
    max_cost_micros: Annotated[int | None, describe("The budget of the tree; null: none.", 500_000)]
