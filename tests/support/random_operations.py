"""Operations with their own change ids, retried until the outcome is known and then added to the
change log.

The texts of an operation come from its own random generator, so that every retry sends the same.
"""

from collections.abc import Callable
from random import Random
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.domain.chat.change import Change, IdempotencyKey
from chatd.domain.chat.commands import ChooseVersion, EditMessage
from chatd.domain.chat.messages import UserInput
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import Transition, TransitionSide
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.chat.user_transitions import choose_version, edit_message
from chatd.domain.ids import ChangeId, ChatId, MessageId, WorkerId
from chatd.store.chat.operation import AppliedChange, OperationOutcome
from chatd.store.chat.transactor import Transactor
from tests.model.drafts import Drafts
from tests.model.random_transitions import TransitionInput, make_transition
from tests.model.reference_store import ChatRows
from tests.support.change_log import ChangeLog
from tests.support.factories import prompt
from tests.support.operations import deciding, operation

SENDS: Final = (
    Transition.SEND_QUEUE,
    Transition.SEND_STEER,
    Transition.SEND_INTERRUPT,
    Transition.SEND_ROLLBACK,
    Transition.SEND_REJECT,
)
OTHER_USER_TRANSITIONS: Final = (
    Transition.EDIT_MESSAGE,
    Transition.CHOOSE_VERSION,
    Transition.INTERRUPT,
    Transition.SUBMIT_TOOL_RESULTS,
    Transition.ANSWER_CALLS,
    Transition.REQUEST_COMPACTION,
    Transition.EDIT_QUEUED,
    Transition.MOVE_QUEUED,
    Transition.PROMOTE_QUEUED,
    Transition.DELETE_QUEUED,
)
NAME_A_MESSAGE: Final = frozenset({Transition.EDIT_MESSAGE, Transition.CHOOSE_VERSION})
QUEUE_TRANSITIONS: Final = frozenset(
    {
        Transition.EDIT_QUEUED,
        Transition.MOVE_QUEUED,
        Transition.PROMOTE_QUEUED,
        Transition.DELETE_QUEUED,
    }
)
NO_FENCE: Final = Fence(
    worker_id=WorkerId(UUID(int=0)), epoch=-1, status="running", history_version=0
)


class _FixedDrafts(Drafts):
    """The same text at every retry, and tool call ids that no other operation uses."""

    def __init__(self, rng: Random, number: int) -> None:
        super().__init__(rng)
        self.saying = f"words {number}"
        self._called = number * 10

    def prompt(self) -> UserInput:
        return prompt(self.saying)


class OperationPlan(Struct, frozen=True, kw_only=True):
    """One operation to run. `fence` is what a worker believes it holds; `dead` the worker that
    it takes for dead; `free` the worker with a slot at the replica that is asked."""

    move: Transition
    chat_id: ChatId
    number: int
    free: WorkerId | None = None
    fence: Fence | None = None
    dead: WorkerId | None = None
    target: MessageId | None = None
    known: Chat | None = None
    request: IdempotencyKey | None = None

    @property
    def text(self) -> str:
        return f"words {self.number}"

    def decide(self, loaded: LoadedChat) -> Change | None:
        rng = Random(self.number)
        drafts = _FixedDrafts(rng, self.number)
        if self.move is Transition.EDIT_MESSAGE:
            command = EditMessage(message_id=MessageId(1), prompt=drafts.prompt())
            return edit_message(loaded.chat, loaded.target, command, self.free)
        if self.move is Transition.CHOOSE_VERSION:
            chosen = ChooseVersion(message_id=self.target or MessageId(1))
            return choose_version(loaded.chat, loaded.version, chosen)
        rows = ChatRows(loaded.chat)
        rows.queue = list(loaded.queue)
        fence = self.fence or NO_FENCE
        moment = TransitionInput(
            rng=rng,
            drafts=drafts,
            rows=rows,
            fence=fence,
            worker=fence.worker_id,
            dead=self.dead or NO_FENCE.worker_id,
            free=self.free,
        )
        return make_transition(self.move, moment)

    def check_fence(self, change: Change) -> None:
        """Assert that a worker wrote only while it held the chat."""
        row = change.before
        if row is None or self.move.side is TransitionSide.USER:
            return
        if self.move is Transition.REAP:
            assert row.worker_id == self.dead, "reaped another worker"
        if self.fence is None:
            return
        held, now = self.fence, (row.worker_id, row.epoch)
        assert now == (held.worker_id, held.epoch), "wrote to a chat of another worker"
        if self.move is not Transition.RELEASE:
            now = (row.status, row.history_version)
            assert now == (held.status, held.history_version), (
                "wrote to a chat with another version"
            )


class RetriedOperation:
    """One plan and its attempts. `run` may be called until it returns or is refused."""

    def __init__(self, plan: OperationPlan, change_log: ChangeLog) -> None:
        self.plan = plan
        self._change_log = change_log
        self._sent: list[Change] = []

    @property
    def change_id(self) -> ChangeId:
        return ChangeId(self.plan.number)

    async def run(self, transactor: Transactor) -> OperationOutcome:
        plan = self.plan
        command = deciding(
            self._recording(plan.decide),
            with_queue=plan.move in QUEUE_TRANSITIONS,
            message_id=plan.target,
            with_version=plan.move is Transition.CHOOSE_VERSION,
        )
        outcome = await transactor.run(
            operation(command, self.change_id, plan.chat_id, known=plan.known, request=plan.request)
        )
        if (
            isinstance(outcome, AppliedChange)
            and (change := self.applied_change(outcome)) is not None
        ):
            plan.check_fence(change)
            self._change_log.add(change, self.change_id)
        return outcome

    def applied_change(self, outcome: AppliedChange) -> Change | None:
        """The attempt that was applied; None if it was another operation's change."""
        if outcome.request is not None:
            version = outcome.request.version
        else:
            age = outcome.chat.recent_changes.index(self.change_id)
            version = outcome.chat.snapshot_version - age
        ours = (c for c in reversed(self._sent) if c.after.snapshot_version == version)
        return next(ours, None)

    def _recording(
        self, decide: Callable[[LoadedChat], Change | None]
    ) -> Callable[[LoadedChat], Change | None]:
        def noted(loaded: LoadedChat) -> Change | None:
            change = decide(loaded)
            if change is not None:
                self._sent.append(change)
            return change

        return noted
