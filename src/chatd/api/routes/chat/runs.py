"""Routes of the record of attempts, and of the workers."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar, cast

from msgspec import Meta, Struct
from msgspec.structs import replace

from chatd.api.deps import ApiDeps
from chatd.api.operations import audit_read
from chatd.api.pages import ItemPosition, NumberPosition, Paging, cut_whole, page_reply
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.schemas.messages import from_rows
from chatd.domain.access.permissions import has_permission
from chatd.domain.chat.takeover import (
    WORKER_ID,
    DeathSign,
    NamedWorker,
    TakeoverPayload,
    takeover_payload,
    worker_name,
)
from chatd.domain.description import CREATED_AT, UPDATED_AT, describe
from chatd.domain.ids import MessageId, WorkerId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.store.chat import chats, runs
from chatd.store.chat.runs import Holder, RunRow, WorkerRow, group_by_turn

# Replies about attempts and workers. Docstrings here are part of the OpenAPI document.

AttemptOutcome = Literal[
    "running",
    "finished",
    "interrupted",
    "needs_action",
    "released",
    "suspended",
    "lost",
    "retry",
    "failed",
    "replaced",
    "archived",
    "unknown",
]
_OUTCOME = (
    "`running`: in progress. `finished`: the turn ended. `interrupted`: a user stopped it."
    " `needs_action`: the client must answer calls. `released`: the worker was stopped, as in a"
    " deploy, and gave the chat back. `suspended`: the turn waits for subagents, without a worker."
    " `lost`: the worker died. `retry`: a model call failed and is"
    " made again. `failed`: the turn ended in an error. `replaced`: a user edited or rolled back"
    " the message. `archived`: a user archived the chat. `unknown`: a server of an earlier release"
    " ended it."
)


class RunWorker(NamedWorker, frozen=True, kw_only=True):
    """A worker and its host."""

    host: Annotated[
        str,
        describe(
            "The name of its host; empty if it is not known, or if you may not read the"
            " configuration of the server.",
            "web-2",
        ),
    ]


class AttemptItem(Struct, frozen=True, kw_only=True):
    """The time that one worker had the chat for one turn."""

    number: Annotated[int, describe("Counts the attempts of the chat from 1.", 9)]
    worker: Annotated[RunWorker, describe("The worker that made the attempt.")]
    epoch: Annotated[int, describe("The chat's epoch: it counts changes of the owner.", 14)]
    started_at: Annotated[datetime, describe("When it began.", CREATED_AT)]
    ended_at: Annotated[datetime | None, describe("When it ended; null while it runs.", UPDATED_AT)]
    outcome: Annotated[AttemptOutcome, describe(_OUTCOME, "retry")]
    messages: Annotated[int, describe("How many messages it committed.", 3)]
    takeover: Annotated[
        TakeoverPayload | None,
        describe("How the chat came to this worker, if the worker before died."),
    ]
    error: Annotated[
        str | None,
        describe(
            "Why it failed, is made again or ended its turn early, for people.",
            "The provider is overloaded.",
        ),
    ]
    error_kind: Annotated[
        str | None, describe("The kind of error or the code of the notice.", "overloaded")
    ]
    provider: Annotated[str | None, describe("The provider that failed.", "anthropic")]
    status_code: Annotated[int | None, describe("The HTTP status that it replied.", 529)]
    retry_delay_ms: Annotated[
        int | None, describe("The delay before the next attempt, in milliseconds.", 8000)
    ]
    queue_held: Annotated[bool, Meta(description="A user stopped it and held the queue.")]
    kept_chars: Annotated[
        int, describe("Characters of the partial answer that an interrupt kept.", 812)
    ]
    noticed_by: Annotated[
        DeathSign | None, describe("How the death of the worker was noticed.", "lock_gone")
    ]
    missed_renewals: Annotated[
        int, describe("Renewals of its lease that did not come before that.", 2)
    ]
    last_seen_at: Annotated[
        datetime | None, describe("The last sign of life of a lost worker.", UPDATED_AT)
    ]
    noticed_by_worker: Annotated[NamedWorker | None, describe("The worker that noticed the death.")]
    open_calls: Annotated[
        tuple[str, ...],
        describe("The tools that a lost worker was running.", ["execute"]),
    ]


class TurnItem(Struct, frozen=True, kw_only=True):
    """A turn and its attempts."""

    turn: Annotated[int, describe("Counts the turns of the chat from 1.", 7)]
    message_id: Annotated[
        MessageId | None,
        describe("The message that began the turn; null for a compaction on request.", 12),
    ]
    started_at: Annotated[datetime, describe("When its first recorded attempt began.", CREATED_AT)]
    ended_at: Annotated[
        datetime | None, describe("When its last attempt ended; null while it runs.", UPDATED_AT)
    ]
    outcome: Annotated[AttemptOutcome, describe("How its last attempt ended.", "finished")]
    attempts: Annotated[tuple[AttemptItem, ...], describe("Its attempts, in the order of time.")]


class HolderItem(Struct, frozen=True, kw_only=True):
    """The worker that has a chat."""

    worker: Annotated[RunWorker, describe("The worker.")]
    renewed_ms_ago: Annotated[
        int | None, describe("Milliseconds since the worker renewed its lease.", 1200)
    ]


class LaneItem(RunWorker, frozen=True, kw_only=True):
    """A worker that is alive."""

    draining: Annotated[bool, Meta(description="It is being stopped and takes no chat.")]


class RunPage(ListPage[TurnItem], frozen=True, kw_only=True):
    """Turns, newest first, and who has the chat now."""

    holder: Annotated[
        HolderItem | None, describe("The worker that has the chat now; null if none has.")
    ]
    next_attempt_at: Annotated[
        datetime | None,
        describe("When a worker may take the chat, if it waits for one.", UPDATED_AT),
    ]
    workers: Annotated[
        tuple[LaneItem, ...], describe("The workers that are alive, in the order of their start.")
    ]


class WorkerItem(Struct, frozen=True, kw_only=True):
    """A worker: one process of the server that runs chats."""

    id: Annotated[WorkerId, describe("The worker's id.", WORKER_ID)]
    name: Annotated[str, describe("Its short name, made of the id.", "pumov")]
    host: Annotated[str, describe("The name of its host.", "web-2")]
    version: Annotated[str, describe("The version of chatd that it runs.", "0.9.0")]
    started_at: Annotated[datetime, describe("When it registered.", CREATED_AT)]
    renewed_at: Annotated[datetime, describe("When it last renewed its lease.", UPDATED_AT)]
    renewed_ms_ago: Annotated[int, describe("Milliseconds since then.", 600)]
    is_alive: Annotated[bool, Meta(description="Its lease has not expired.", examples=[True])]
    draining: Annotated[bool, Meta(description="It is being stopped and takes no chat.")]
    chats: Annotated[int, describe("How many chats it has now, subagents included.", 4)]
    slots: Annotated[int, describe("How many root chats it runs at once.", 50)]
    child_slots: Annotated[int, describe("How many subagents it runs at once.", 100)]


class WorkerPage(ListPage[WorkerItem], frozen=True, kw_only=True):
    """Workers, in the order of their start."""


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
        chat = require_chat(await deps.read(chats.get, actor, chat_id))
        await audit_read(deps, request.caller, chat)
        before = None if paging.position is None else paging.position.number
        found = await deps.read(runs.list_runs, actor, chat_id, before)
        holder = await deps.read(runs.get_holder, actor, chat_id)
        lanes = await deps.read(runs.list_lanes)
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
        found = await deps.read(runs.list_workers, actor)
        shown, cursor = cut_whole(paging, found, lambda row: row.worker_id)
        return page_reply(WorkerPage, map(_worker, shown), cursor)


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
    return from_rows(
        AttemptItem,
        run,
        detail,
        number=run.run_no,
        worker=_run_worker(run.worker_id, run.host),
        outcome="running" if run.is_running else ended,
        takeover=None if run.takeover is None else takeover_payload(run.takeover),
        retry_delay_ms=detail.delay_ms,
        noticed_by=detail.sign,
        missed_renewals=detail.missed,
        last_seen_at=_time(detail.seen_at_us),
        noticed_by_worker=None if detail.reaped_by is None else NamedWorker.of(detail.reaped_by),
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
    return from_rows(
        WorkerItem,
        row,
        id=row.worker_id,
        name=worker_name(row.worker_id),
        renewed_ms_ago=row.renewed_ms,
    )
