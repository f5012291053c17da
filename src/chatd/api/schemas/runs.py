"""Replies about attempts and workers. Docstrings here are part of the OpenAPI document."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from chatd.domain.description import CREATED_AT, UPDATED_AT, describe
from chatd.domain.ids import MessageId, WorkerId
from chatd.domain.list_page import ListPage
from chatd.domain.takeover import WORKER_ID, DeathSign, NamedWorker, TakeoverPayload

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
