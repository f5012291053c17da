"""Routes that sum costs: of a user, of a chat's tree, and of all users, also as CSV."""

from collections.abc import AsyncGenerator, Sequence
from datetime import date, timedelta
from typing import Annotated, Final
from uuid import UUID

from msgspec import Meta, Struct

from chatd.aio import run_other_tasks
from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging
from chatd.api.request import ApiReply, ApiRequest, StreamedReply, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.domain.description import CHAT_ID, USER_ID, describe
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId, UserId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.text import csv_rows
from chatd.store.chat import chats
from chatd.store.model import costs, model_calls
from chatd.store.model.costs import (
    MAX_EXPORTED_ROWS,
    ROWS_PER_SLICE,
    CostSums,
    DayModelCost,
    DayRange,
    ExportedCost,
    ModelCost,
)

# Queries and replies about costs. Amounts are micros of a dollar; days are of UTC.

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


DEFAULT_DAYS: Final = 30
MAX_DAYS: Final = 3700
CSV_COLUMNS: Final = (
    *("day", "user_id", "username", "groups", "provider", "model", "calls", "unpriced_calls"),
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_creation_tokens"),
    "cost_micros",
)


class CostPosition(Struct, frozen=True, array_like=True):
    """The position in a list that is ordered by cost, then by id."""

    cost_micros: int
    id: UUID


class CostRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /cost/me/summary",
                permission="account.read",
                summary="Sum your own costs by model, day and chat",
                handle=self.get_my_costs,
                query=DayRangeQuery,
                replies={200: CostSummaryReply},
            ),
            ApiRoute(
                endpoint="GET /cost/{user_id}/summary",
                permission="account.read",
                summary="Sum the costs of a user by model, day and chat",
                handle=self.get_user_costs,
                query=DayRangeQuery,
                replies={200: CostSummaryReply},
            ),
            ApiRoute(
                endpoint="GET /cost/summary",
                permission="costs.read",
                summary="Sum the costs of all users by model and day",
                handle=self.get_all_costs,
                query=DayRangeQuery,
                replies={200: AllCostsReply},
            ),
            ApiRoute(
                endpoint="GET /cost/users",
                permission="costs.read",
                summary="List the costs of all users, the dearest first",
                handle=self.list_user_costs,
                query=UserCostQuery,
                replies={200: UserCostPage},
            ),
            ApiRoute(
                endpoint="GET /cost/export.csv",
                permission="costs.read",
                summary="Export costs by day, user and model as CSV",
                handle=self.export_costs,
                query=DayRangeQuery,
                replies={200: bytes},
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/cost",
                permission="chats.read",
                summary="Sum the costs of a chat's whole tree",
                handle=self.get_chat_cost,
                replies={200: ChatCostReply},
            ),
        )

    async def get_my_costs(self, request: ApiRequest) -> ApiReply:
        return await self._summarize(request, request.caller.user_id)

    async def get_user_costs(self, request: ApiRequest) -> ApiReply:
        return await self._summarize(request, request.user_id)

    async def _summarize(self, request: ApiRequest, user_id: UserId) -> ApiReply:
        deps, query = self._deps, request.query(DayRangeQuery)
        days = self._days(query.start_date, query.end_date)
        await deps.read(costs.require_readable, request.caller.actor, user_id)
        models = await deps.read(costs.by_model, user_id, days)
        by_day = await deps.read(costs.by_day, user_id, days)
        detail = await deps.read(costs.by_day_and_model, user_id, days)
        by_chat = await deps.read(costs.by_chat, user_id, days)
        return reply(
            CostSummaryReply(
                user_id=user_id,
                start_date=days.start,
                end_date=days.end,
                by_model=_by_model(models),
                by_day=tuple(CostByDay(day=one.day, **_totals(one)) for one in by_day),
                by_day_and_model=_by_day_and_model(detail),
                by_chat=tuple(
                    CostByChat(
                        root_chat_id=one.root_chat_id, chat_title=one.chat_title, **_totals(one)
                    )
                    for one in by_chat
                ),
                **_totals(*by_day),
            )
        )

    async def get_all_costs(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(DayRangeQuery)
        days, actor = self._days(query.start_date, query.end_date), request.caller.actor
        models = await deps.read(costs.all_by_model, actor, days)
        detail = await deps.read(costs.all_by_day_and_model, actor, days)
        return reply(
            AllCostsReply(
                start_date=days.start,
                end_date=days.end,
                by_model=_by_model(models),
                by_day_and_model=_by_day_and_model(detail),
                **_totals(*models),
            )
        )

    async def list_user_costs(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(UserCostQuery)
        days = self._days(query.start_date, query.end_date)
        paging = Paging(request, query, CostPosition)
        last = paging.position
        found = await deps.read(
            costs.by_user,
            request.caller.actor,
            days,
            name_contains=query.name,
            after=None if last is None else (last.cost_micros, UserId(last.id)),
            limit=paging.read_limit,
        )
        shown, cursor = paging.cut(found, lambda one: CostPosition(one.cost_micros, one.user_id))
        items = tuple(
            CostByUser(
                user_id=one.user_id,
                username=one.username,
                name=one.name,
                avatar_url=one.avatar_url,
                **_totals(one),
            )
            for one in shown
        )
        return reply(
            UserCostPage(
                items=items,
                has_more=cursor is not None,
                next_cursor=cursor,
                start_date=days.start,
                end_date=days.end,
            )
        )

    async def export_costs(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(DayRangeQuery)
        days, actor = self._days(query.start_date, query.end_date), request.caller.actor
        rows = await deps.read(costs.export, actor, days)
        if len(rows) > MAX_EXPORTED_ROWS:
            text = f"the export has more than {MAX_EXPORTED_ROWS:,} rows; ask for fewer days"
            raise InvalidInput("end_date", text)
        name = f"costs-{days.start}-{days.end}.csv"
        return StreamedReply(
            pieces=csv_pieces(rows),
            length=None,
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    async def get_chat_cost(self, request: ApiRequest) -> ApiReply:
        deps, chat_id = self._deps, request.chat_id
        found = await deps.read(chats.get, request.caller.actor, chat_id)
        chat = require_chat(found)
        total = await deps.read(model_calls.tree_cost, chat.root_chat_id)
        return reply(
            ChatCostReply(
                chat_id=chat.id,
                root_chat_id=chat.root_chat_id,
                total_cost_micros=total.cost_micros,
                call_count=total.calls,
                unpriced_call_count=total.unpriced_calls,
                estimated_call_count=total.estimated_calls,
                max_cost_micros=chat.max_cost_micros,
            )
        )

    def _days(self, start: date | None, end: date | None) -> DayRange:
        """Raises InvalidInput."""
        last = end or self._deps.env.clock.now().date() + timedelta(days=1)
        try:
            first = start or last - timedelta(days=DEFAULT_DAYS)
        except OverflowError:
            raise InvalidInput("end_date", "is too early") from None
        if first >= last:
            raise InvalidInput("end_date", "must be after start_date; it is not part of the range")
        if (last - first).days > MAX_DAYS:
            raise InvalidInput("start_date", f"the range must not exceed {MAX_DAYS} days")
        return DayRange(start=first, end=last)


def _by_model(models: Sequence[ModelCost]) -> tuple[CostByModel, ...]:
    return tuple(
        CostByModel(provider=one.provider, model=one.model, **_totals(one)) for one in models
    )


def _by_day_and_model(detail: Sequence[DayModelCost]) -> tuple[CostByDayAndModel, ...]:
    return tuple(
        CostByDayAndModel(day=one.day, provider=one.provider, model=one.model, **_totals(one))
        for one in detail
    )


def _totals(*sums: CostSums) -> dict[str, int]:
    """The fields of `CostTotals`."""
    return {
        "total_cost_micros": sum(one.cost_micros for one in sums),
        "call_count": sum(one.calls for one in sums),
        "unpriced_call_count": sum(one.unpriced_calls for one in sums),
        "total_input_tokens": sum(one.input_tokens for one in sums),
        "total_output_tokens": sum(one.output_tokens for one in sums),
        "total_cache_read_tokens": sum(one.cache_read_tokens for one in sums),
        "total_cache_creation_tokens": sum(one.cache_creation_tokens for one in sums),
    }


async def csv_pieces(rows: Sequence[ExportedCost]) -> AsyncGenerator[bytes]:
    """In slices: the rows of a year would hold the loop for a second."""
    for start in range(0, max(len(rows), 1), ROWS_PER_SLICE):
        shown = rows[start : start + ROWS_PER_SLICE]
        lines = [[str(getattr(row, name)) for name in CSV_COLUMNS] for row in shown]
        yield csv_rows(lines if start else [CSV_COLUMNS, *lines])
        await run_other_tasks()
