"""Routes of the record of attempts, and of the workers."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar, cast

from msgspec.structs import replace

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, NumberPosition, Paging, cut_whole
from chatd.api.read_audit import audit_read
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.schemas.runs import (
    AttemptItem,
    AttemptOutcome,
    HolderItem,
    LaneItem,
    RunPage,
    RunWorker,
    TurnItem,
    WorkerItem,
    WorkerPage,
)
from chatd.domain.access import has_permission
from chatd.domain.ids import WorkerId
from chatd.domain.list_page import ListQuery
from chatd.domain.takeover import NamedWorker, takeover_payload, worker_name
from chatd.store.chat import chats, runs
from chatd.store.chat.runs import Holder, RunRow, WorkerRow, group_by_turn

R = TypeVar("R", RunRow, WorkerRow)


class RunRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/runs",
                permission="chats.read",
                summary="List the turns of a chat with their attempts, and the worker that has it",
                handle=self.list_runs,
                query=ListQuery,
                replies={200: RunPage},
            ),
            ApiRoute(
                endpoint="GET /workers",
                permission="config.read",
                summary="List the workers of the deployment",
                handle=self.list_workers,
                query=ListQuery,
                replies={200: WorkerPage},
            ),
        )

    async def list_runs(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        paging = Paging(request, request.query(ListQuery), NumberPosition)
        chat = require_chat(await deps.retry(lambda: chats.get(deps.pool, actor, chat_id)))
        await audit_read(deps, request.caller, chat)
        before = None if paging.position is None else paging.position.number
        found = await deps.retry(lambda: runs.list_runs(deps.pool, actor, chat_id, before))
        holder = await deps.retry(lambda: runs.get_holder(deps.pool, actor, chat_id))
        lanes = await deps.retry(lambda: runs.list_lanes(deps.pool))
        if not has_permission(actor, "config.read"):
            found, lanes = _without_hosts(found), _without_hosts(lanes)
            holder = None if holder is None else replace(holder, host="")
        turns, cursor = paging.cut(
            group_by_turn(found), lambda turn: NumberPosition(turn[0].turn_no)
        )
        return reply(
            RunPage(
                items=tuple(map(_turn, turns)),
                has_more=cursor is not None,
                next_cursor=cursor,
                holder=None if holder is None else _holder(holder),
                next_attempt_at=None if holder is None else holder.next_at,
                workers=tuple(_lane(lane) for lane in lanes if lane.is_alive),
            )
        )

    async def list_workers(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await deps.retry(lambda: runs.list_workers(deps.pool, actor))
        shown, cursor = cut_whole(paging, found, lambda row: row.worker_id)
        items = tuple(map(_worker, shown))
        return reply(WorkerPage(items=items, has_more=cursor is not None, next_cursor=cursor))


def _without_hosts(rows: Sequence[R]) -> list[R]:
    """Names of hosts are for those who may read the configuration."""
    return [replace(row, host="") for row in rows]


def _turn(turn: list[RunRow]) -> TurnItem:
    attempts = tuple(map(_attempt, turn))
    return TurnItem(
        turn=turn[0].turn_no,
        message_id=turn[0].turn_message_id,
        started_at=turn[0].started_at,
        ended_at=turn[-1].ended_at,
        outcome=attempts[-1].outcome,
        attempts=attempts,
    )


def _attempt(run: RunRow) -> AttemptItem:
    detail = run.detail
    ended = cast("AttemptOutcome", run.outcome or "unknown")
    return AttemptItem(
        number=run.run_no,
        worker=_run_worker(run.worker_id, run.host),
        epoch=run.epoch,
        started_at=run.started_at,
        ended_at=run.ended_at,
        outcome="running" if run.is_running else ended,
        messages=run.messages,
        takeover=None if run.takeover is None else takeover_payload(run.takeover),
        error=detail.error,
        error_kind=detail.error_kind,
        provider=detail.provider,
        status_code=detail.status_code,
        retry_delay_ms=detail.delay_ms,
        queue_held=detail.queue_held,
        kept_chars=detail.kept_chars,
        noticed_by=detail.sign,
        missed_renewals=detail.missed,
        last_seen_at=_time(detail.seen_at_us),
        noticed_by_worker=None if detail.reaped_by is None else NamedWorker.of(detail.reaped_by),
        open_calls=detail.open_calls,
    )


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)


def _run_worker(worker_id: WorkerId, host: str) -> RunWorker:
    return RunWorker(id=worker_id, name=worker_name(worker_id), host=host)


def _holder(holder: Holder) -> HolderItem | None:
    if holder.worker_id is None:
        return None
    return HolderItem(
        worker=_run_worker(holder.worker_id, holder.host), renewed_ms_ago=holder.renewed_ms
    )


def _lane(row: WorkerRow) -> LaneItem:
    return LaneItem(
        id=row.worker_id, name=worker_name(row.worker_id), host=row.host, draining=row.draining
    )


def _worker(row: WorkerRow) -> WorkerItem:
    return WorkerItem(
        id=row.worker_id,
        name=worker_name(row.worker_id),
        host=row.host,
        version=row.version,
        started_at=row.started_at,
        renewed_at=row.renewed_at,
        renewed_ms_ago=row.renewed_ms,
        is_alive=row.is_alive,
        draining=row.draining,
        chats=row.chats,
        slots=row.slots,
        child_slots=row.child_slots,
    )
