"""The times of a lease, which workers a worker may reap, and which deaths are blamed on which chat.

All times come from this process's monotonic clock: a worker is dead if its renewals were seen to
stop. Times in the database are not compared, because its clock may jump.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.backoff import doubled_s, spread
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.chat.takeover import DeathNotice
from chatd.domain.ids import ChatId, WorkerId

LEASE_TTL_S: Final = 30.0
"""Without a heartbeat for this long a worker has lost its chats. Only while the database is down
does a worker keep them so long: no other worker can judge it then, and an answer in progress
survives a restart of the database."""
NO_NEW_WORK_AFTER_S: Final = 20.0
"""While the database is down a worker acquires nothing after this long without a heartbeat."""
UNANSWERED_TTL_S: Final = 9.0
"""As LEASE_TTL_S, for a worker that was suspended or gets no answer: the database may be answering
other workers."""
UNANSWERED_NO_NEW_WORK_S: Final = 6.0
MIN_HEARTBEATS_TO_REAP: Final = 3
"""Successful heartbeats in a row before a worker may reap."""
OWN_HEARTBEATS_TO_REAP_LOCKS_S: Final = 2.0
"""A worker reaps by a lost session lock after its own heartbeats have succeeded for this long."""
OWN_HEARTBEATS_TO_REAP_LEASES_S: Final = 15.0
"""A worker reaps by an expired lease after its own heartbeats have succeeded for this long: longer
than another worker needs to find a database that has come back."""
MAX_MISSED_HEARTBEATS: Final = 2
"""More intervals without success end an unbroken run of heartbeats."""

LOCK_GONE_AFTER_S: Final = 0.75
"""A worker without its session lock is dead after its renewals have stopped for this long. A live
worker that has lost its listener renews three times in that time."""
SILENT_AFTER_S: Final = 11.0
"""Any worker is dead after its renewals have stopped for this long, though it holds its lock: it is
frozen or cut off, and has given up its chats by UNANSWERED_TTL_S."""
MIN_SIGHTS_WITHOUT_LOCK: Final = 3
"""Heartbeats in a row that must find a lock gone: a reconnecting listener briefly has none."""

ReapScope = Literal["none", "locks", "leases"]


class HeartbeatHistory(Struct, frozen=True, kw_only=True):
    """The latest unbroken run of successful heartbeats."""

    interval_s: float
    count: int = 0
    first_at: float = 0.0
    last_at: float = 0.0

    def succeeded(self, now: float) -> "HeartbeatHistory":
        if self.is_broken(now):
            return replace(self, count=1, first_at=now, last_at=now)
        return replace(self, count=self.count + 1, last_at=now)

    def failed(self) -> "HeartbeatHistory":
        return HeartbeatHistory(interval_s=self.interval_s)

    def is_broken(self, now: float) -> bool:
        """No heartbeat has succeeded yet, or the process was suspended for several intervals."""
        return self.count == 0 or now - self.last_at > MAX_MISSED_HEARTBEATS * self.interval_s


def may_reap(history: HeartbeatHistory, now: float) -> ReapScope:
    """Which dead workers this worker may reap.

    After a database outage every lease looks expired and every lock free until the other workers
    reconnect. So reap only after the database has answered for as long as they need: a moment to
    take their locks again, some heartbeats to renew their leases.
    """
    if history.is_broken(now) or history.count < MIN_HEARTBEATS_TO_REAP:
        return "none"
    answered_s = history.last_at - history.first_at
    if answered_s >= OWN_HEARTBEATS_TO_REAP_LEASES_S:
        return "leases"
    return "locks" if answered_s >= OWN_HEARTBEATS_TO_REAP_LOCKS_S else "none"


class SeenWorker(Struct, frozen=True, kw_only=True):
    """Another worker as a heartbeat finds it. `renewal` changes whenever the worker renews its
    lease; it is None for an owner of chats that is not registered."""

    worker_id: WorkerId
    renewal: int | None
    has_lock: bool


class WorkerObservation(Struct, frozen=True, kw_only=True):
    """How long another worker has been seen with the same renewal: from the reply that first showed
    it to the request that last did, so never longer than it really stayed unchanged. `has_renewed`:
    another renewal was seen before."""

    seen: SeenWorker
    first_at: float
    last_at: float
    sights_without_lock: int
    has_renewed: bool = False

    @property
    def unchanged_s(self) -> float:
        return self.last_at - self.first_at

    def is_dead(self, scope: ReapScope) -> bool:
        if scope == "leases" and self.unchanged_s >= SILENT_AFTER_S:
            return True
        if self.sights_without_lock < MIN_SIGHTS_WITHOUT_LOCK:
            return False
        # An unregistered owner may be about to register again.
        is_judged_by_lock = scope == "leases" or (
            scope == "locks" and self.seen.renewal is not None
        )
        return is_judged_by_lock and self.unchanged_s >= LOCK_GONE_AFTER_S

    def death_notice(self, interval_s: float) -> DeathNotice:
        """`interval_s`: how often a worker renews its lease."""
        by_lock = self.sights_without_lock >= MIN_SIGHTS_WITHOUT_LOCK
        return DeathNotice(
            sign="lock_gone" if by_lock else "lease_stale",
            seen_at_us=self.seen.renewal,
            missed=int(self.unchanged_s / interval_s),
            watched=self.has_renewed,
        )


class WorkerObservations(Struct, frozen=True, kw_only=True):
    """What an unbroken run of heartbeats has shown of the other workers. A worker that was itself
    suspended or without the database has observed nothing in that time and starts over."""

    history: HeartbeatHistory
    workers: Mapping[WorkerId, WorkerObservation] = {}

    def succeeded(
        self, found: Iterable[SeenWorker], *, sent_at: float, now: float
    ) -> "WorkerObservations":
        begun = self.failed() if self.history.is_broken(now) else self
        observed = (
            _observe(begun.workers.get(seen.worker_id), seen, sent_at=sent_at, now=now)
            for seen in found
        )
        return WorkerObservations(
            history=self.history.succeeded(now),
            workers={one.seen.worker_id: one for one in observed},
        )

    def failed(self) -> "WorkerObservations":
        return WorkerObservations(history=self.history.failed())

    def dead(self, now: float) -> tuple[SeenWorker, ...]:
        scope = may_reap(self.history, now)
        return tuple(one.seen for one in self.workers.values() if one.is_dead(scope))

    def death_notices(self, dead: Collection[WorkerId]) -> Mapping[WorkerId, DeathNotice]:
        return {
            id_: one.death_notice(self.history.interval_s)
            for id_, one in self.workers.items()
            if id_ in dead
        }

    def has_suspects(self, judged: Collection[SeenWorker]) -> bool:
        """Whether a worker without its lock is still to be judged."""
        known = {seen.worker_id for seen in judged}
        return any(one.sights_without_lock for id_, one in self.workers.items() if id_ not in known)


def _observe(
    known: WorkerObservation | None, seen: SeenWorker, *, sent_at: float, now: float
) -> WorkerObservation:
    sights = 0 if seen.has_lock else 1 + (known.sights_without_lock if known else 0)
    if known is None or known.seen.renewal != seen.renewal:
        return WorkerObservation(
            seen=seen,
            first_at=now,
            last_at=now,
            sights_without_lock=sights,
            has_renewed=known is not None,
        )
    return replace(known, seen=seen, last_at=sent_at, sights_without_lock=sights)


LeaseHealth = Literal["ok", "no_new_work", "cancel_runs"]


def lease_ttl_s(*, is_database_down: bool) -> float:
    return LEASE_TTL_S if is_database_down else UNANSWERED_TTL_S


def lease_health(last_success: float, now: float, *, is_database_down: bool) -> LeaseHealth:
    """What the age of a lease allows. An ageing lease starts no work that could outlive it; after
    an expired one, another worker may own the chats. `is_database_down`: the database refused the
    latest heartbeat, so it accepts none from other workers either."""
    age_s = now - last_success
    if age_s >= lease_ttl_s(is_database_down=is_database_down):
        return "cancel_runs"
    ageing_s = NO_NEW_WORK_AFTER_S if is_database_down else UNANSWERED_NO_NEW_WORK_S
    return "no_new_work" if age_s >= ageing_s else "ok"


# Which deaths of workers are blamed on which chat.
#
# Every chat that ran when its worker died is a suspect; `orphan_count` counts these deaths since
# the chat's history last changed. After the first the chat is retaken at once. From the second on
# it is isolated: it is retaken after a delay, by a worker that has run for a while if there is one,
# and a worker takes one isolated chat at a time. Only then is a further death evidence about the
# chat: the worker's other chats are not suspects.

DEATHS_TO_ISOLATE: Final = 2
MAX_LONE_DEATHS: Final = 3
"""This many deaths with the chat as the only suspect, without progress, put it into error."""
STABLE_WORKER_S: Final = 10.0
"""A worker that dies sooner after its start may have another cause, whichever chats it runs."""
STABLE_MARGIN_S: Final = 5.0
"""A worker takes an isolated chat this long after it counts as stable: the recorded age of a worker
that dies at once ends at its last heartbeat."""
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
    """An isolated chat that a worker ran, and for how long by its heartbeats."""

    chat_id: ChatId
    ran_s: float


def find_suspects(runs: Sequence[IsolatedRun]) -> frozenset[ChatId]:
    """The isolated chats that a dead worker had run for less than ISOLATION_S. If it had run all of
    them longer, all are suspects."""
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
    """Whether a worker's death at this age is evidence about the isolated chat that it took."""
    return uptime_s >= STABLE_WORKER_S + STABLE_MARGIN_S


def is_isolated(chat: Chat) -> bool:
    return chat.orphan_count >= DEATHS_TO_ISOLATE and chat.status == "running"


def is_evidence(death: WorkerDeath) -> bool:
    """Whether the death is evidence against that worker's only suspect.

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
    """The delay before the chat is retaken: 0, 1, 2, 4 ... 60 seconds after the first, second,
    third death."""
    if deaths < DEATHS_TO_ISOLATE:
        return 0.0
    times = deaths - DEATHS_TO_ISOLATE + 1
    delay_s = doubled_s(times, first_s=FIRST_SUSPECT_DELAY_S, max_s=MAX_SUSPECT_DELAY_S)
    return spread(delay_s, jitter)
