"""Operations as callers make them: each with its own change id, to be tried until it is known
how it went, and entered in the ledger when it has been acknowledged.

What is said in one is drawn from a generator of its own, so that every try says the same.
"""

from collections.abc import Callable
from random import Random
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.domain.change import Change, Request
from chatd.domain.chat import Chat, Fence
from chatd.domain.commands import EditMessage
from chatd.domain.ids import ChangeId, ChatId, MessageId, WorkerId
from chatd.domain.messages import Prompt
from chatd.domain.states import Actor, Move
from chatd.domain.user_moves import edit_message
from chatd.store.chats import Loaded
from chatd.store.transact import Applied, Operation, Outcome, Transactor
from tests.model.drafts import Drafts
from tests.model.moves import Moment, make_move
from tests.model.world import Rows
from tests.support.factories import prompt
from tests.support.ledger import Ledger

SENDS: Final = (
    Move.SEND_QUEUE,
    Move.SEND_STEER,
    Move.SEND_INTERRUPT,
    Move.SEND_ROLLBACK,
    Move.SEND_REJECT,
)
OTHER_USER_MOVES: Final = (
    Move.EDIT_MESSAGE,
    Move.INTERRUPT,
    Move.SUBMIT_TOOL_RESULTS,
    Move.REQUEST_COMPACTION,
    Move.EDIT_QUEUED,
    Move.MOVE_QUEUED,
    Move.PROMOTE_QUEUED,
    Move.DELETE_QUEUED,
)
QUEUE_MOVES: Final = frozenset(
    {Move.EDIT_QUEUED, Move.MOVE_QUEUED, Move.PROMOTE_QUEUED, Move.DELETE_QUEUED}
)
NOBODY: Final = Fence(
    worker_id=WorkerId(UUID(int=0)), epoch=-1, status="running", history_version=0
)


class _OneSaying(Drafts):
    """Says the same at every try, and calls tools by ids that nobody else uses."""

    def __init__(self, rng: Random, number: int) -> None:
        super().__init__(rng)
        self.saying = f"words {number}"
        self._called = number * 10

    def prompt(self) -> Prompt:
        return prompt(self.saying)


class Plan(Struct, frozen=True, kw_only=True):
    """What somebody means to do. `fence` is what a worker believes it holds; `dead` the worker
    it takes for dead; `free` the worker with a slot at the replica that was asked."""

    move: Move
    chat_id: ChatId
    number: int
    free: WorkerId | None = None
    fence: Fence | None = None
    dead: WorkerId | None = None
    target: MessageId | None = None
    known: Chat | None = None
    request: Request | None = None

    @property
    def saying(self) -> str:
        return f"words {self.number}"

    def decide(self, loaded: Loaded) -> Change | None:
        rng = Random(self.number)
        drafts = _OneSaying(rng, self.number)
        if self.move is Move.EDIT_MESSAGE:
            command = EditMessage(target=loaded.target, prompt=drafts.prompt())
            return edit_message(loaded.chat, command, self.free)
        rows = Rows(loaded.chat)
        rows.queue = list(loaded.queue)
        fence = self.fence or NOBODY
        moment = Moment(
            rng=rng,
            drafts=drafts,
            rows=rows,
            fence=fence,
            worker=fence.worker_id,
            dead=self.dead or NOBODY.worker_id,
            free=self.free,
        )
        return make_move(self.move, moment)

    def check_right_to(self, change: Change) -> None:
        """One writer: what a worker wrote, it wrote while it held the chat."""
        row = change.before
        if row is None or self.move.actor is Actor.USER:
            return
        if self.move is Move.REAP:
            assert row.worker_id == self.dead, "buried somebody else"
        if self.fence is None:
            return
        held, now = self.fence, (row.worker_id, row.epoch)
        assert now == (held.worker_id, held.epoch), "wrote to a chat of another"
        if self.move is not Move.RELEASE:
            now = (row.status, row.history_version)
            assert now == (held.status, held.history_version), "wrote to a chat that moved on"


class Errand:
    """One plan on its way. `run` may be called until it returns or is refused."""

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        self.plan = plan
        self._ledger = ledger
        self._sent: list[Change] = []

    @property
    def change_id(self) -> ChangeId:
        return ChangeId(self.plan.number)

    async def run(self, transactor: Transactor) -> Outcome:
        plan = self.plan
        operation = Operation(
            chat_id=plan.chat_id,
            change_id=self.change_id,
            decide=self._noting(plan.decide),
            known=plan.known,
            with_queue=plan.move in QUEUE_MOVES,
            message_id=plan.target,
            request=plan.request,
        )
        outcome = await transactor.run(operation)
        if isinstance(outcome, Applied) and (change := self.made(outcome)) is not None:
            plan.check_right_to(change)
            self._ledger.wrote(change, self.change_id)
        return outcome

    def made(self, outcome: Applied) -> Change | None:
        """Which of our tries it was that has been applied; None if it was somebody else's."""
        if outcome.request is not None:
            version = outcome.request.version
        else:
            age = outcome.chat.recent_changes.index(self.change_id)
            version = outcome.chat.snapshot_version - age
        ours = (c for c in reversed(self._sent) if c.after.snapshot_version == version)
        return next(ours, None)

    def _noting(
        self, decide: Callable[[Loaded], Change | None]
    ) -> Callable[[Loaded], Change | None]:
        def noted(loaded: Loaded) -> Change | None:
            change = decide(loaded)
            if change is not None:
                self._sent.append(change)
            return change

        return noted
