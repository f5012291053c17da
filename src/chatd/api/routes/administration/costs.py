"""Routes that sum costs: of a user, of a chat's tree, and of all users, also as CSV."""

from collections.abc import AsyncGenerator, Sequence
from datetime import date, timedelta
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.aio import run_other_tasks
from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging
from chatd.api.request import ApiReply, ApiRequest, StreamedReply, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.schemas.costs import (
    AllCostsReply,
    ChatCostReply,
    CostByChat,
    CostByDay,
    CostByDayAndModel,
    CostByModel,
    CostByUser,
    CostSummaryReply,
    DayRangeQuery,
    UserCostPage,
    UserCostQuery,
)
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import UserId
from chatd.domain.text import csv_rows
from chatd.store import costs
from chatd.store.chat import chats, usage
from chatd.store.costs import (
    MAX_EXPORTED_ROWS,
    ROWS_PER_SLICE,
    CostSums,
    DayModelCost,
    DayRange,
    ExportedCost,
    ModelCost,
)

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
        days, pool = self._days(query.start_date, query.end_date), deps.pool
        actor = request.caller.actor
        await deps.retry(lambda: costs.require_readable(pool, actor, user_id))
        models = await deps.retry(lambda: costs.by_model(pool, user_id, days))
        by_day = await deps.retry(lambda: costs.by_day(pool, user_id, days))
        detail = await deps.retry(lambda: costs.by_day_and_model(pool, user_id, days))
        by_chat = await deps.retry(lambda: costs.by_chat(pool, user_id, days))
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
        models = await deps.retry(lambda: costs.all_by_model(deps.pool, actor, days))
        detail = await deps.retry(lambda: costs.all_by_day_and_model(deps.pool, actor, days))
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
        found = await deps.retry(
            lambda: costs.by_user(
                deps.pool,
                request.caller.actor,
                days,
                name_contains=query.name,
                after=None if last is None else (last.cost_micros, UserId(last.id)),
                limit=paging.read_limit,
            )
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
        rows = await deps.retry(lambda: costs.export(deps.pool, actor, days))
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
        found = await deps.retry(lambda: chats.get(deps.pool, request.caller.actor, chat_id))
        chat = require_chat(found)
        total = await deps.retry(lambda: usage.tree_cost(deps.pool, chat.root_chat_id))
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
