"""The database and the reference store side by side: every write is made on both and compared.

Writes are sequential here, so the reference predicts each outcome: a refusal, no change, or the
exact rows. Rows that a write does not concern must not change.
"""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import CreateChat, ReleaseChat, UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import TRANSITIONS, Transition
from chatd.domain.chat.transitions import LoadedChat, decide_tree
from chatd.domain.chat.user_transitions import create, sort_queue
from chatd.domain.chat.worker_transitions import acquire, release
from chatd.domain.errors import ChatdError, RequestError, StaleFence
from chatd.domain.ids import ChangeId, ChatId, WorkerId
from chatd.store.chat import workers
from chatd.store.chat.operation import AppliedChange, NoChange, OnApplied
from chatd.store.database.pool import Pool
from tests.model.invariants import ChangeChecker, check_spend, check_trees
from tests.model.reference_store import ReferenceStore, apply_change, apply_changes
from tests.support.change_log import ChangeLog
from tests.support.operations import archiving, create_chat, deciding_transactor, tree
from tests.support.random_operations import OperationPlan, RetriedOperation
from tests.support.stored import EVERYTHING, Stored, paid_micros, stored, stored_of, timeless

CHANGED_CHATS: Final[LiteralString] = f"""
    {EVERYTHING} AND NOT EXISTS (
        SELECT FROM unnest($2::uuid[], $3::bigint[]) AS known (id, version)
        WHERE known.id = c.id AND known.version = c.snapshot_version)"""


MAY_CHANGE_NOTHING: Final = frozenset(
    move for move in Transition if frozenset() in TRANSITIONS[move].values()
) | {Transition.MOVE_QUEUED, Transition.CHOOSE_VERSION}
"""Transitions that may change nothing."""


PASS_DELAYS = "UPDATE chats SET runnable_at = now() WHERE runnable_at > now()"
ANY_ISOLATED = workers.IsolatedVacancy(chats=1000)


class Refusal(Struct, frozen=True):
    kind: type[ChatdError]
    code: str


class CheckedStore:
    def __init__(self, pool: Pool, tell: OnApplied) -> None:
        self.pool = pool
        self.transactor = deciding_transactor(pool, tell)
        self.reference = ReferenceStore()
        self.change_log = ChangeLog()
        self._checkers: dict[ChatId, ChangeChecker] = {}

    @property
    def chats(self) -> dict[ChatId, Chat]:
        return {chat_id: rows.chat for chat_id, rows in self.reference.chats.items()}

    # Writes

    async def do(self, operation: RetriedOperation) -> AppliedChange | None:
        """None if it was refused or changed nothing, as predicted."""
        expected = self._expected(operation.plan)
        try:
            outcome = await operation.run(self.transactor)
        except (RequestError, StaleFence) as error:
            refused = Refusal(type(error), error.code)
            assert refused == expected
            await self.verify()
            return None
        if isinstance(outcome, NoChange):
            assert expected is None, f"nothing to do, expected {expected}"
            await self.verify()
            return None
        assert not outcome.replayed, "counted as a repeat"
        change = operation.applied_change(outcome)
        assert change is not None
        assert isinstance(expected, Change), f"written, expected {expected}"
        assert timeless(change.after, (), ()) == timeless(expected.after, (), ()), (
            "decided differently"
        )
        await self.verify(change)
        return outcome

    def _expected(self, plan: OperationPlan) -> Change | Refusal | None:
        rows = self.reference.chats[plan.chat_id]
        target = None
        if plan.target is not None and 0 < plan.target <= len(rows.messages):
            target = rows.messages[plan.target - 1]
        loaded = LoadedChat(
            chat=rows.chat,
            queue=tuple(sort_queue(rows.queue)),
            target=target,
            version=rows.version(plan.target),
        )
        try:
            change = plan.decide(loaded)
        except (RequestError, StaleFence) as error:
            return Refusal(type(error), error.code)
        state = rows.chat.state
        assert state in TRANSITIONS[plan.move], f"{plan.move} is not listed for {state}"
        if change is not None:
            assert change.after.state in TRANSITIONS[plan.move][state], f"{plan.move} from {state}"
        return change

    async def repeat(self, operation: RetriedOperation) -> None:
        """What was written already is found, or there is nothing to do for it any more. Either
        way nothing more is written."""
        outcome = await operation.run(self.transactor)
        if isinstance(outcome, AppliedChange):
            assert outcome.replayed, "written twice"
        else:
            assert operation.plan.move in MAY_CHANGE_NOTHING, "the written change was not found"
        await self.verify()

    async def create(
        self, command: CreateChat, free: WorkerId | None, change_id: ChangeId
    ) -> AppliedChange:
        applied = await create_chat(self.transactor, command, change_id, free=free)
        await self.verify(create(command, free))
        return applied

    async def archive(
        self, chat: Chat, change_id: ChangeId, *, archived: bool
    ) -> list[AppliedChange]:
        """Empty if it was refused or there was nothing to do, as it had to be."""
        members = self.reference.tree(chat.root_chat_id)
        try:
            expected = decide_tree(members, chat.id, UpdateChat(archived=archived))
        except RequestError as error:
            expected = Refusal(type(error), error.code)
        try:
            outcome = await self.transactor.run(archiving(chat.id, change_id, archived=archived))
        except RequestError as error:
            refused = Refusal(type(error), error.code)
            assert refused == expected
            await self.verify()
            return []
        assert isinstance(expected, tuple)
        await self.verify(*expected)
        return tree(outcome) if isinstance(outcome, AppliedChange) else []

    async def acquire(self, worker_id: WorkerId, *, roots: int, children: int) -> list[Chat]:
        wanting = [chat for chat in self.chats.values() if chat.runnable_at is not None]
        await self.pool.execute(PASS_DELAYS)
        rows = await workers.acquire(
            self.pool, worker_id, roots=roots, children=children, isolated=ANY_ISOLATED
        )
        rows.sort(key=lambda row: row.id)  # any order; a seed must replay
        taken = {row.id for row in rows}
        for slots, is_root in ((roots, True), (children, False)):
            pool = [chat for chat in wanting if chat.is_root == is_root]
            got = [chat for chat in pool if chat.id in taken]
            assert len(got) == min(slots, len(pool)), "free slots while chats are runnable"
            left = {chat.status for chat in pool if chat.id not in taken}
            stops_left = "interrupting" in left
            assert not stops_left or all(chat.status == "interrupting" for chat in got)
        await self.verify(*(acquire(self.chats[row.id], worker_id) for row in rows))
        return rows

    async def release(self, worker_id: WorkerId, only: list[ChatId] | None) -> list[Chat]:
        mine = [chat for chat in self.chats.values() if chat.worker_id == worker_id]
        rows = await workers.release(self.pool, worker_id, only)
        wanted = {chat.id for chat in mine if only is None or chat.id in only}
        assert {row.id for row in rows} == wanted
        await self.verify(
            *(
                release(self.chats[row.id], ReleaseChat(worker_id=worker_id, epoch=row.epoch - 1))
                for row in rows
            )
        )
        return rows

    # Comparison

    async def verify(self, *changes: Change) -> None:
        """Check that these changes were written, and nothing else."""
        known = self.chats
        versions = [chat.snapshot_version for chat in known.values()]
        found = stored_of(await self.pool.fetch(CHANGED_CHATS, None, list(known), versions))
        assert found.keys() == {change.after.id for change in changes}, "other chats changed"
        new = [change for change in changes if change.before is None]
        for change in new:
            apply_change(self.reference, change)
            self._checkers[change.after.id] = ChangeChecker()
        apply_changes(self.reference, [change for change in changes if change.before is not None])
        for change in changes:
            self._compare(found[change.after.id])
            now = found[change.after.id]
            self._checkers[change.after.id].check_change(change, now.chat, now.messages, now.queue)
        if changes:
            check_trees(self.chats)

    async def verify_all(self) -> None:
        """Also columns without a version, and the spend."""
        everything = await stored(self.pool)
        assert everything.keys() == self.reference.chats.keys()
        for found in everything.values():
            self._compare(found)
        check_spend(self.reference.usage, await paid_micros(self.pool))

    def _compare(self, found: Stored) -> None:
        rows = self.reference.chats[found.chat.id]
        expected = timeless(rows.chat, rows.messages, rows.queue)
        now = found.timeless()
        assert now.chat == expected.chat, "the row differs"
        assert now.messages == expected.messages, "the messages differ"
        assert now.queue == expected.queue, "the queue differs"
