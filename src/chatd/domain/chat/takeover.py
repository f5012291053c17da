"""The death of a chat's owner, and the worker that took the chat over.

The reaper stores how it noticed the death (`LostOwner`) with the chat; the statement that gives the
chat its next owner makes a `Takeover` of it.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.description import describe
from chatd.domain.ids import MessageId, WorkerId

DeathSign = Literal["lock_gone", "lease_stale", "runner_crashed"]
"""How a death was noticed: the worker's session lock was gone and its renewals had stopped; its
renewals had stopped for longer than a lease; only the chat's task ended, and the worker lives."""

WORKER_ID: Final = "b2f0c1d4-5e6f-4a7b-8c9d-0e1f2a3b4c5d"
_CONSONANTS: Final = "bdfghjklmnprstvz"
_VOWELS: Final = "aiou"


def worker_name(worker_id: WorkerId) -> str:
    """A short name that people can read out, derived from the id: the same in every process and
    log."""
    bits = int.from_bytes(worker_id.bytes[:2])
    letters = (
        _CONSONANTS[bits >> 12],
        _VOWELS[bits >> 10 & 3],
        _CONSONANTS[bits >> 6 & 15],
        _VOWELS[bits >> 4 & 3],
        _CONSONANTS[bits & 15],
    )
    return "".join(letters)


class NamedWorker(Struct, frozen=True, kw_only=True):
    """A worker: one process of the server."""

    id: Annotated[WorkerId, describe("The worker's id.", WORKER_ID)]
    name: Annotated[str, describe("Its short name, made of the id.", "pumov")]

    @staticmethod
    def of(worker_id: WorkerId) -> "NamedWorker":
        return NamedWorker(id=worker_id, name=worker_name(worker_id))


class DeathNotice(Struct, frozen=True, kw_only=True):
    """What the reaper knows about the death of a worker. `seen_at_us` is its last renewal by the
    database's clock; `missed` counts the renewals that did not come since. `watched`: the reaper
    saw it renew, and the database has answered the reaper ever since."""

    sign: DeathSign
    seen_at_us: int | None = None
    missed: int = 0
    watched: bool = False


class LostOwner(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The death of the owner, as stored in the row until the next worker has the chat. `open_calls`
    counts the tool calls without a result, which the next worker asks for again under their ids.
    `repeats_answer`: no call was open, so the model is asked again for the answer in progress."""

    lost_worker_id: WorkerId
    sign: DeathSign
    seen_at_us: int | None = None
    missed: int = 0
    reaped_by: WorkerId | None = None
    message_id: MessageId
    open_calls: int = 0
    repeats_answer: bool = False


class Takeover(LostOwner, frozen=True, kw_only=True, omit_defaults=True):
    """The row's last takeover. `version` is that of the change that gave the chat its owner;
    `after_ms` is the time since the last sign of life of the lost worker."""

    worker_id: WorkerId
    version: int
    after_ms: int | None = None

    @staticmethod
    def of(lost: LostOwner, worker: WorkerId, version: int) -> "Takeover":
        """The database adds `after_ms` by its own clock."""
        return Takeover(**msgspec.structs.asdict(lost), worker_id=worker, version=version)


class TakeoverPayload(Struct, frozen=True, kw_only=True):
    """A worker took the chat over from a worker that died. No tool ran twice."""

    worker: Annotated[NamedWorker, describe("The worker that has the chat since.")]
    lost_worker: Annotated[NamedWorker, describe("The worker that died.")]
    after_ms: Annotated[
        int | None,
        describe(
            "Milliseconds between the last sign of life of the lost worker and the takeover. Null"
            " if the worker lives and only its task for this chat crashed.",
            2100,
        ),
    ]
    noticed_by: Annotated[
        DeathSign,
        describe(
            "`lock_gone`: the session lock was gone and renewals stopped. `lease_stale`: renewals"
            " stopped for longer than a lease. `runner_crashed`: the chat's task ended.",
            "lock_gone",
        ),
    ]
    missed_renewals: Annotated[
        int, describe("Renewals of the lease that did not come before the death was noticed.", 2)
    ]
    message_id: Annotated[
        MessageId, describe("The last message before the takeover: its place in the history.", 12)
    ]
    resumed_calls: Annotated[
        int,
        describe(
            "Tool calls that were open. The new worker asks for each again under its id: a command"
            " that still runs is re-attached, and none runs twice.",
            1,
        ),
    ]
    repeats_answer: Annotated[
        bool, describe("The model was asked again for the answer that was in progress.")
    ]
    version: Annotated[int, describe("The chat's version since the takeover.", 12)]


def takeover_payload(takeover: Takeover) -> TakeoverPayload:
    return TakeoverPayload(
        worker=NamedWorker.of(takeover.worker_id),
        lost_worker=NamedWorker.of(takeover.lost_worker_id),
        after_ms=takeover.after_ms,
        noticed_by=takeover.sign,
        missed_renewals=takeover.missed,
        message_id=takeover.message_id,
        resumed_calls=takeover.open_calls,
        repeats_answer=takeover.repeats_answer,
        version=takeover.version,
    )
