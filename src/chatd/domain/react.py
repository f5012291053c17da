"""What a runner does when it hears that its chat's row has changed.

Owns the judgement only. A row may come late, twice or out of order, from a hint, a poll or
somebody's own commit; the versions in it say what it is worth.

A history changes under one owner and epoch by that owner's commits alone, so a runner would
meet its own commit here as news, whenever the row gets to it before the answer of its
statement. It therefore says when it starts to write (`committing`) and how that went (`after`,
`refused`); rows that come in between wait for the answer.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from chatd.domain.chat import Chat, Fence
from chatd.domain.ids import WorkerId
from chatd.domain.states import Status

Task = Literal["generate", "interrupt"]


class RunnerView(Struct, frozen=True, kw_only=True):
    """What a runner knows of its chat. `snapshot_version` is the watermark: older rows are
    no news."""

    snapshot_version: int
    epoch: int
    status: Status
    history_version: int
    attempt: int
    archived: bool
    writing: bool = False

    @staticmethod
    def of(chat: Chat) -> "RunnerView":
        return RunnerView(
            snapshot_version=chat.snapshot_version,
            epoch=chat.epoch,
            status=chat.status,
            history_version=chat.history_version,
            attempt=chat.attempt,
            archived=chat.archived,
        )

    def committing(self) -> "RunnerView":
        """A write of our own has been sent."""
        return msgspec.structs.replace(self, writing=True)

    def after(self, chat: Chat) -> "RunnerView":
        """Our write has landed and made the row this. (A row that was read later to find out
        may tell of more than our own doing: then `refused`, and let `react` see that row.) The
        epoch stays the one we serve, even if the write gave the chat away."""
        if chat.snapshot_version <= self.snapshot_version:
            return self.refused()
        return msgspec.structs.replace(RunnerView.of(chat), epoch=self.epoch)

    def refused(self) -> "RunnerView":
        """Our write has not landed, or nobody can say."""
        return msgspec.structs.replace(self, writing=False)


class Ignore(Struct, frozen=True, kw_only=True):
    """No news."""


class Wait(Struct, frozen=True, kw_only=True):
    """Keep the newest such row and ask again once our own write has been answered: it may be
    what the row tells of, and if it is not, the write is refused by itself."""


class Note(Struct, frozen=True, kw_only=True):
    """News, but the same work: go on, with this view."""

    view: RunnerView


class Leave(Struct, frozen=True, kw_only=True):
    """Not ours any more, or nothing left to do: stop and write nothing."""


class Restart(Struct, frozen=True, kw_only=True):
    """Stop what runs and start this task, under this fence, with this view."""

    task: Task
    fence: Fence
    view: RunnerView


Reaction = Ignore | Wait | Note | Leave | Restart


def react(local: RunnerView | None, row: Chat, me: WorkerId) -> Reaction:
    """`local` is None until the runner has seen its first row."""
    if local is not None and row.snapshot_version <= local.snapshot_version:
        return Ignore()
    if local is not None and local.writing:
        return Wait()
    if row.worker_id != me or (local is not None and row.epoch != local.epoch):
        return Leave()
    if local is not None and _same_work(local, row):
        return Note(view=RunnerView.of(row))
    return _start(row)


def _same_work(local: RunnerView, row: Chat) -> bool:
    known = (local.status, local.history_version, local.archived)
    return known == (row.status, row.history_version, row.archived)


def _start(row: Chat) -> Reaction:
    if row.archived:
        return Leave()
    match row.status:
        case "running":
            return Restart(task="generate", fence=Fence.of(row), view=RunnerView.of(row))
        case "interrupting":
            return Restart(task="interrupt", fence=Fence.of(row), view=RunnerView.of(row))
        case "waiting" | "requires_action" | "error":
            return Leave()
