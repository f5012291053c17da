"""Routes of the audit log: in pages, and as CSV."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Final

from msgspec import convert

from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging, page_reply
from chatd.api.request import ApiReply, ApiRequest, StreamedReply
from chatd.api.route import ApiRoute
from chatd.api.schemas.accounts import AuditEntryReply, AuditExportQuery, AuditPage, AuditQuery
from chatd.domain.access.accounts import AuditEntry
from chatd.domain.access.audit_text import (
    OBJECT_TYPES,
    actor_text,
    csv_entries,
    csv_header,
    object_text,
    summary,
)
from chatd.domain.access.permissions import Actor
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import UserId
from chatd.store.account import audit
from chatd.store.account.audit import MAX_EXPORTED, AuditFilter, AuditPosition

_FILTERS: Final = (
    "Filters can be combined. Names are those of today; of what is deleted the last known one, or"
    " its type and id."
)


class AuditRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /audit",
                permission="config.read",
                summary="List what was done to accounts and settings, newest first",
                description=_FILTERS,
                handle=self.list_entries,
                query=AuditQuery,
                replies={200: AuditPage},
            ),
            ApiRoute(
                endpoint="GET /audit/export.csv",
                permission="config.read",
                summary="Export entries of the audit log as CSV",
                description=(
                    f"{_FILTERS} At most {MAX_EXPORTED:,} entries; if more fit, the request is"
                    " refused. The export is an entry of the log itself. A cell that a spreadsheet"
                    " could take for a formula begins with an apostrophe."
                ),
                handle=self.export_entries,
                query=AuditExportQuery,
                replies={200: bytes},
                reply_types=("text/csv",),
            ),
        )

    async def list_entries(self, request: ApiRequest) -> ApiReply:
        query = request.query(AuditQuery)
        wanted = _filter(query)
        paging = Paging(request, query, AuditPosition)
        actor, before = request.caller.actor, paging.position
        found = await self._deps.read(
            audit.list_page, actor, wanted, before=before, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda entry: AuditPosition(entry.at, entry.id))
        return page_reply(AuditPage, map(_reply, shown), cursor)

    async def export_entries(self, request: ApiRequest) -> ApiReply:
        wanted = _filter(request.query(AuditExportQuery))
        deps, actor = self._deps, request.caller.actor
        ip = deps.accounts.site.address(request.scope)
        # Not retried: an export whose reply was lost would be recorded twice.
        start = await audit.begin_export(deps.pool, actor, wanted, ip=ip)
        return StreamedReply(
            pieces=self._csv(actor, wanted, start),
            length=None,
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="audit-{start.at.date()}.csv"'},
        )

    async def _csv(
        self, actor: Actor, wanted: AuditFilter, start: AuditPosition
    ) -> AsyncGenerator[bytes]:
        yield csv_header()
        async for batch in audit.read_export(self._deps.pool, actor, wanted, start):
            yield csv_entries(batch)


def _filter(query: AuditQuery | AuditExportQuery) -> AuditFilter:
    """Raises InvalidInput."""
    if query.object_id is not None and query.object_type is None:
        raise InvalidInput("object_id", "goes together with object_type")
    if query.object_type is not None and query.object_type not in OBJECT_TYPES:
        known = ", ".join(OBJECT_TYPES)
        raise InvalidInput("object_type", f"is not a type of objects; there are {known}")
    if query.since is not None and query.until is not None and query.since >= query.until:
        raise InvalidInput("until", "must be after since")
    return AuditFilter(
        actor_id=None if query.actor_id is None else UserId(query.actor_id),
        object_type=query.object_type,
        object_id=query.object_id,
        since=_in_utc("since", query.since),
        until=_in_utc("until", query.until),
        text=query.q,
    )


def _in_utc(field: str, at: datetime | None) -> datetime | None:
    try:
        return None if at is None else at.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(field, "is not between the years 1 and 9999 in UTC") from None


def _reply(entry: AuditEntry) -> AuditEntryReply:
    words = {
        "actor_name": actor_text(entry),
        "object_text": object_text(entry),
        "summary": summary(entry),
    }
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return convert({**fields, **words}, AuditEntryReply)
