"""Routes that rate answers, list the ratings of a chat, and export those of all users."""

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.pages import NumberPosition, Paging, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, StreamedReply, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat_views.ratings import (
    GivenRating,
    Rating,
    RatingRecord,
    RatingValue,
    csv_header,
    csv_records,
    position_of,
)
from chatd.domain.description import CREATED_AT, describe
from chatd.domain.list_page import ListPage, ListQuery
from chatd.store.chat import chats, ratings
from chatd.store.chat.ratings import MAX_EXPORTED, RatingFilter, RatingPosition

_EXPORT_BATCH: Final = 1000
_WHEN = Annotated[datetime, Meta(tz=True)]


class RatingPage(ListPage[Rating], frozen=True, kw_only=True):
    """Ratings of a chat, by message."""


class RatingRecordPage(ListPage[RatingRecord], frozen=True, kw_only=True):
    """Ratings of all users, newest first."""


class RatingExportQuery(Struct, frozen=True, kw_only=True):
    """Which ratings."""

    since: Annotated[_WHEN | None, describe("Changed at this time or later.", CREATED_AT)] = None
    value: Annotated[RatingValue | None, describe("Only these thumbs.", "down")] = None


class RatingsQuery(ListQuery, frozen=True, kw_only=True):
    """Which ratings."""

    since: Annotated[_WHEN | None, describe("Changed at this time or later.", CREATED_AT)] = None
    value: Annotated[RatingValue | None, describe("Only these thumbs.", "down")] = None


_RATE: Final = BodySpec(GivenRating)


class RatingRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/chats/{chat_id}/messages/{message_id}/rating"
        return (
            ApiRoute(
                endpoint=f"PUT {one}",
                permission="chats.write",
                summary="Rate an answer, with a comment if you like; again: replaces the rating",
                description="Only the owner of a chat rates its answers.",
                handle=self.rate_answer,
                body_spec=_RATE,
                replies={200: Rating},
                errors=("not_an_answer",),
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="chats.write",
                summary="Remove the rating of an answer",
                handle=self.remove_rating,
                replies={204: None},
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/ratings",
                permission="versions.read",
                summary="List the ratings of a chat's answers",
                description="Also of versions that are not shown. Readers of a share see none.",
                handle=self.list_ratings,
                query=ListQuery,
                replies={200: RatingPage},
            ),
            ApiRoute(
                endpoint="GET /ratings",
                permission="config.read",
                summary="List the ratings of all users, newest first",
                handle=self.list_all_ratings,
                query=RatingsQuery,
                replies={200: RatingRecordPage},
            ),
            ApiRoute(
                endpoint="GET /ratings/export.csv",
                permission="config.read",
                summary="Export the ratings of all users as CSV",
                description=(
                    f"The newest {MAX_EXPORTED:,} at most. The audit log records it. A cell that a"
                    " spreadsheet could take for a formula begins with an apostrophe."
                ),
                handle=self.export_ratings,
                query=RatingExportQuery,
                replies={200: bytes},
                reply_types=("text/csv",),
            ),
        )

    async def rate_answer(self, request: ApiRequest) -> ApiReply:
        deps, actor, body = self._deps, request.caller.actor, await request.body(_RATE)
        made = await deps.retry(
            lambda: ratings.save(
                deps.pool,
                actor,
                request.chat_id,
                request.message_id,
                value=body.value,
                comment=body.comment,
            )
        )
        deps.env.emit("answer_rated", chat_id=request.chat_id, value=made.value)
        return reply(made)

    async def remove_rating(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        await deps.retry(
            lambda: ratings.delete(deps.pool, actor, request.chat_id, request.message_id)
        )
        return NO_CONTENT

    async def list_ratings(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        paging = Paging(request, request.query(ListQuery), NumberPosition)
        require_chat(await deps.read(chats.get_for_command, actor, chat_id, "versions.read"))
        after = 0 if paging.position is None else paging.position.number
        found = await deps.read(
            ratings.list_page, actor, chat_id, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda rating: NumberPosition(rating.message_id))
        return page_reply(RatingPage, shown, cursor)

    async def list_all_ratings(self, request: ApiRequest) -> ApiReply:
        query = request.query(RatingsQuery)
        paging = Paging(request, query, RatingPosition)
        found = await self._deps.read(
            ratings.list_all,
            request.caller.actor,
            RatingFilter(since=query.since, value=query.value),
            before=paging.position,
            limit=paging.read_limit,
        )
        shown, cursor = paging.cut(found, lambda one: RatingPosition(*position_of(one)))
        return page_reply(RatingRecordPage, shown, cursor)

    async def export_ratings(self, request: ApiRequest) -> ApiReply:
        deps, actor, query = self._deps, request.caller.actor, request.query(RatingExportQuery)
        wanted = RatingFilter(since=query.since, value=query.value)
        ip = deps.accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            await ratings.record_export(session, actor, wanted, ip=ip)
        return StreamedReply(
            pieces=self._csv(actor, wanted),
            length=None,
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": 'attachment; filename="ratings.csv"'},
        )

    async def _csv(self, actor: UserActor, wanted: RatingFilter) -> AsyncGenerator[bytes]:
        yield csv_header()
        before: RatingPosition | None = None
        for _ in range(MAX_EXPORTED // _EXPORT_BATCH):
            batch = await self._deps.read(
                ratings.list_all, actor, wanted, before=before, limit=_EXPORT_BATCH
            )
            if batch:
                yield csv_records(batch)
            if len(batch) < _EXPORT_BATCH:
                return
            before = RatingPosition(*position_of(batch[-1]))
