"""A random sequence of transitions of one chat, on the reference store.

Users and workers act in any order; refused transitions are skipped. A worker that owns the chat
does what `next_action` chooses, so a run also shows that every action can be committed.
"""

from random import Random

from chatd.domain.chat import user_transitions, worker_transitions
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import CreateChat, RecordRetry, Step
from chatd.domain.chat.messages import Draft, TokenUsage
from chatd.domain.chat.row import Chat, ChatError, Fence, RetryState
from chatd.domain.chat.states import Transition
from chatd.domain.chat_views.diff import ChatSnapshot
from chatd.domain.decisions import (
    PENDING_CALLS_MISMATCH_ERROR,
    AskHooks,
    Compact,
    Fail,
    Finish,
    Generate,
    RequireAction,
    RunTools,
    StartCommand,
    TurnRules,
    next_action,
)
from chatd.domain.errors import RequestError, StaleFence
from chatd.domain.ids import WorkerId
from tests.model.drafts import Drafts
from tests.model.random_transitions import TransitionInput, make_transition
from tests.model.reference_store import ChatRows, ReferenceStore, apply_change
from tests.support.factories import CHAT, OTHER_WORKER, OWNER, WORKER, call, draft, result, text
from tests.support.seeds import failing

RULES = TurnRules(
    max_steps=3,
    client_tools=frozenset({"ask_client"}),
    stop_after_tools=frozenset({"propose_plan"}),
    context_limit=100,
)
TOOLS = ("execute", "execute", "ask_client", "propose_plan")
TRANSITIONS = (
    *[Transition.SEND_QUEUE] * 2,
    Transition.SEND_STEER,
    Transition.SEND_INTERRUPT,
    Transition.SEND_ROLLBACK,
    Transition.SEND_REJECT,
    Transition.EDIT_MESSAGE,
    *[Transition.CHOOSE_VERSION] * 3,
    *[Transition.INTERRUPT] * 2,
    *[Transition.SUBMIT_TOOL_RESULTS] * 2,
    *[Transition.ANSWER_CALLS] * 2,
    Transition.REQUEST_COMPACTION,
    *[Transition.EDIT_QUEUED] * 4,
    *[Transition.MOVE_QUEUED] * 2,
    *[Transition.PROMOTE_QUEUED] * 2,
    *[Transition.DELETE_QUEUED] * 2,
    Transition.RELEASE,
    Transition.REAP,
    Transition.EXPIRE_INTERRUPT,
    Transition.EXPIRE_ACTION,
    Transition.WAKE,
    *[Transition.ACQUIRE] * 6,
)


class RandomChatRun:
    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self._drafts = Drafts(self._draw)
        self._names = 0
        self._world = ReferenceStore()
        command = CreateChat(
            id=CHAT,
            owner_id=OWNER,
            title="A walk",
            before=(draft("system", text("Be good."), visibility="model"),),
            prompt=self._drafts.prompt(),
        )
        self.rows = apply_change(self._world, user_transitions.create(command, self._free()))

    @property
    def chat(self) -> Chat:
        return self.rows.chat

    def step(self) -> Change:
        """One change by an allowed actor."""
        moves = (*[self._work] * 6, *[self._transition] * 5, self._archive)
        while True:
            try:
                change = self._draw.choice(moves)()
            except (RequestError, StaleFence):
                continue
            if change is not None:
                apply_change(self._world, change)
                return change

    def copy_rows(self) -> ChatRows:
        kept = ChatRows(self.chat)
        kept.messages, kept.queue = list(self.rows.messages), list(self.rows.queue)
        kept.versions = dict(self.rows.versions)
        return kept

    def restore(self, saved: ChatRows) -> None:
        """Set the rows back, as after a failover that lost the last changes."""
        self.rows.chat = saved.chat
        self.rows.messages, self.rows.queue = list(saved.messages), list(saved.queue)
        self.rows.versions = dict(saved.versions)

    def snapshot(self, since: int = 0, most: int = 1000) -> ChatSnapshot:
        """What a read of the rows that changed after version `since` returns."""
        changed = [
            row
            for row in self.rows.messages
            if row.revision > since and (since > 0 or not row.deleted)
        ]
        read_queue = since == 0 or self.chat.queue_version > since
        return ChatSnapshot(
            chat=self.chat,
            since=since,
            messages=tuple(changed[-most:]),
            queue=tuple(self.rows.queue) if read_queue else None,
            has_older=len(changed) > most,
        )

    def written(self) -> ChatSnapshot:
        """What the author of the last change knows without reading, but for the queue."""
        version = self.chat.snapshot_version
        touched = [row for row in self.rows.messages if row.revision == version]
        return ChatSnapshot(
            chat=self.chat,
            since=version - 1,
            messages=tuple(row for row in touched if not row.deleted),
            deleted=tuple(row.id for row in touched if row.deleted),
            queue=tuple(self.rows.queue) if self.chat.queue_version == version else None,
        )

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def _free(self) -> WorkerId | None:
        return self._draw.choice((WORKER, OTHER_WORKER, None))

    # Users and leases

    def _transition(self) -> Change | None:
        """A transition of a user, of the queue or of a lease."""
        worker = self._free() or WORKER
        fence = Fence(worker_id=worker, epoch=self.chat.epoch, status="running", history_version=0)
        moment = TransitionInput(
            rng=self._draw,
            drafts=self._drafts,
            rows=self.rows,
            fence=fence,
            worker=worker,
            dead=worker,
            free=self._free(),
        )
        return make_transition(self._draw.choice(TRANSITIONS), moment)

    def _archive(self) -> Change | None:
        if self.chat.archived:
            return user_transitions.unarchive(self.chat)
        return user_transitions.archive(self.chat) if self._draw.random() < 0.1 else None

    # Workers

    def _work(self) -> Change | None:
        fence = Fence.of(self.chat)
        if self.chat.status == "interrupting":
            return worker_transitions.finish_interrupt(self.chat, self._partial(fence))
        action = next_action(self.rows.messages, self.chat, RULES)
        match action:
            case Generate():
                return self._generate(fence)
            case RunTools(calls=calls):
                found = [
                    draft("tool", result(it.tool_call_id, it.tool_name, is_error=self._rarely()))
                    for it in calls
                ]
                return self._commit(fence, *found)
            case AskHooks() | StartCommand():
                raise AssertionError("there are no hooks and no commands of a person here")
            case RequireAction(waits=waits):
                step = Step(fence=fence, waits=waits)
                return worker_transitions.require_action(self.chat, step)
            case Compact(source=source):
                return self._compact(fence, asked_for=source == "manual")
            case Finish():
                return worker_transitions.finish_turn(self.chat, Step(fence=fence))
            case Fail(error=error):
                assert error is not PENDING_CALLS_MISMATCH_ERROR
                return worker_transitions.fail_turn(self.chat, failing(Step(fence=fence), error))

    def _generate(self, fence: Fence) -> Change:
        dice = self._draw.random()
        if dice < 0.1:
            error = ChatError(message=self._name())
            return worker_transitions.fail_turn(self.chat, failing(Step(fence=fence), error))
        if dice < 0.25:
            state = RetryState(attempt=1, delay_ms=1, error=self._name())
            return worker_transitions.record_retry(self.chat, RecordRetry(fence=fence, state=state))
        asked = [
            call(self._name(), self._draw.choice(TOOLS)) for _ in range(self._draw.randrange(3))
        ]
        usage = TokenUsage(input_tokens=self._draw.randrange(100))
        answer = draft("assistant", text(self._name()), *asked, usage=usage)
        if asked or self._draw.random() < 0.3:
            return self._commit(fence, answer)
        return worker_transitions.finish_turn(self.chat, Step(fence=fence, messages=(answer,)))

    def _compact(self, fence: Fence, *, asked_for: bool) -> Change:
        if not asked_for:
            return self._commit(fence, *self._summary())
        step = Step(fence=fence, messages=self._summary(), compacted=True)
        return worker_transitions.finish_turn(self.chat, step)

    def _commit(self, fence: Fence, *messages: Draft) -> Change:
        step = Step(
            fence=fence,
            messages=messages,
            client_tools=RULES.client_tools,
            keep_owner=not self._rarely(),
        )
        return worker_transitions.commit_step(self.chat, step)

    def _partial(self, fence: Fence) -> Step:
        """The partial answer before the interrupt; empty if calls were running."""
        if self.chat.pending_calls or self._rarely():
            return Step(fence=fence)
        said = draft("assistant", text(self._name()), call(self._name()))
        return Step(fence=fence, messages=(said,))

    def _summary(self) -> tuple[Draft, ...]:
        name, tool = self._name(), "chat_summarized"
        return (
            draft("user", text(name), visibility="model", compressed=True),
            draft("assistant", call(name, tool), visibility="user", compressed=True),
            draft("tool", result(name, tool), compressed=True),
        )

    def _rarely(self) -> bool:
        return self._draw.random() < 0.2
