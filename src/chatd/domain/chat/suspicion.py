"""Which deaths of workers are blamed on which chat.

Every chat that ran when its worker died is a suspect; `orphan_count` counts these deaths since the
chat's history last changed. After the first the chat is retaken at once. From the second on it is
isolated: it is retaken after a delay, by a worker that has run for a while if there is one, and a
worker takes one isolated chat at a time. Only then does a further death tell something about the
chat: the others of that worker are no suspects.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.backoff import doubled_s, spread
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.ids import ChatId

DEATHS_TO_ISOLATE: Final = 2
MAX_LONE_DEATHS: Final = 3
"""So many deaths with the chat as the only suspect, without progress, put the chat into error."""
STABLE_WORKER_S: Final = 10.0
"""A worker that dies sooner after its start may die of something else, with any chat."""
STABLE_MARGIN_S: Final = 5.0
"""A worker takes an isolated chat so much later than it counts as stable: the age of a worker that
dies at once ends at its last heartbeat."""
ISOLATION_S: Final = 30.0
"""A worker that has run an isolated chat for this long takes the next one too."""
FIRST_SUSPECT_DELAY_S: Final = 1.0
MAX_SUSPECT_DELAY_S: Final = 60.0

WORKER_CRASHED_ERROR: Final = ChatError(
    kind="crashed",
    message=f"The server's process ended unexpectedly {MAX_LONE_DEATHS} times in a row while it"
    " worked on this chat, so chatd has stopped trying. Send a message to try again. If the process"
    " ends again, edit your last message or start a new chat, and ask the operator: the server's"
    " log says what ended the process.",
)


class IsolatedRun(Struct, frozen=True, kw_only=True):
    """An isolated chat that a worker ran, and for how long as far as its heartbeats tell."""

    chat_id: ChatId
    ran_s: float


def find_suspects(runs: Sequence[IsolatedRun]) -> frozenset[ChatId]:
    """Of the isolated chats of a dead worker: those that it had not run for ISOLATION_S yet. The
    others have stood the test, unless all have."""
    lately = [run for run in runs if run.ran_s < ISOLATION_S]
    return frozenset(run.chat_id for run in lately or runs)


class WorkerDeath(Struct, frozen=True, kw_only=True):
    """What the reaper knows of a worker that has lost its lease. `suspects` are those of its
    isolated chats that may have caused it. `lock_held`: the process still holds its session lock,
    so that it did not die: it stalled, or cannot reach the database. `watched`: the reaper saw the
    worker renew its lease, and the database has answered every heartbeat of the reaper since.
    `before_reaper`: the reaper started after the last renewal. `draining`: the worker had been told
    to stop."""

    uptime_s: float
    suspects: frozenset[ChatId]
    lock_held: bool
    watched: bool = False
    before_reaper: bool = False
    draining: bool = False


def is_stable(uptime_s: float) -> bool:
    """Whether a worker that dies now would tell something about the isolated chat that it took."""
    return uptime_s >= STABLE_WORKER_S + STABLE_MARGIN_S


def is_isolated(chat: Chat) -> bool:
    return chat.orphan_count >= DEATHS_TO_ISOLATE and chat.status == "running"


def is_evidence(death: WorkerDeath) -> bool:
    """Whether the death tells against the only suspect of that worker.

    After a freeze or an outage of the database, workers that were slow to come back look dead to
    those that were quick. So a reaper that lived through it must have seen the worker alive after
    it. One that started later has seen no outage either: a single server that its platform starts
    again is the only one to judge its last life, and only by a lock that is gone.

    A stall counts like a death: a chat whose work stalls its worker would take one replica after
    another from all other chats, without any process ever dying. A worker that drains longer than
    its platform lets it is killed by the platform, and not by a chat.
    """
    if len(death.suspects) != 1 or death.uptime_s < STABLE_WORKER_S or death.draining:
        return False
    return death.watched or (death.before_reaper and not death.lock_held)


def suspect_delay_s(deaths: int, jitter: float = 0.0) -> float:
    """Before the chat is retaken: 0, 1, 2, 4 ... 60 seconds after the first, second, third
    death."""
    if deaths < DEATHS_TO_ISOLATE:
        return 0.0
    times = deaths - DEATHS_TO_ISOLATE + 1
    delay_s = doubled_s(times, first_s=FIRST_SUSPECT_DELAY_S, max_s=MAX_SUSPECT_DELAY_S)
    return spread(delay_s, jitter)
