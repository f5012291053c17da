"""The database and the pure model side by side: each write is made on both and compared.

Writes come one at a time here, so the model knows beforehand how each must end: what is refused
and how, what changes nothing, and what every row looks like afterwards. Whatever a write was not
about must not have changed at all.
"""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import CreateChat, ReleaseChat, UpdateChat
from chatd.domain.chat.queue_transitions import in_order
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import TRANSITIONS, Transition
from chatd.domain.chat.transitions import LoadedChat, decide_tree
from chatd.domain.chat.user_transitions import create
from chatd.domain.chat.worker_transitions import acquire, release
from chatd.domain.errors import ChatdError, RequestError, StaleFence
from chatd.domain.ids import ChangeId, ChatId, WorkerId
from chatd.store.chat import workers
from chatd.store.chat.transactor import AppliedChange, NoChange, OnApplied
from chatd.store.pool import Pool
from tests.model.invariants import ChangeChecker, check_spend, check_trees
from tests.model.reference_store import ReferenceStore, apply_change, apply_changes
from tests.support.errands import Errand, Plan
from tests.support.ledger import Ledger
from tests.support.operations import archiving, create_chat, deciding_transactor, tree
from tests.support.stored import EVERYTHING, Stored, paid_micros, stored, stored_of, timeless

CHANGED_CHATS: Final[LiteralString] = f"""
    {EVERYTHING} AND NOT EXISTS (
        SELECT FROM unnest($2::uuid[], $3::bigint[]) AS known (id, version)
        WHERE known.id = c.id AND known.version = c.snapshot_version)"""


MAY_CHANGE_NOTHING: Final = frozenset(
    move for move in Transition if frozenset() in TRANSITIONS[move].values()
) | {Transition.MOVE_QUEUED}
"""Moves for which there may be nothing to do."""


class Refusal(Struct, frozen=True):
    kind: type[ChatdError]
    code: str


class CheckedStore:
    def __init__(self, pool: Pool, tell: OnApplied) -> None:
        self.pool = pool
        self.transactor = deciding_transactor(pool, tell)
        self.reference = ReferenceStore()
        self.ledger = Ledger()
        self._watches: dict[ChatId, ChangeChecker] = {}

    @property
    def chats(self) -> dict[ChatId, Chat]:
        return {chat_id: rows.chat for chat_id, rows in self.reference.chats.items()}

    # Writes

    async def do(self, errand: Errand) -> AppliedChange | None:
        """None if it was refused or changed nothing, as it had to be."""
        meant = self._meant(errand.plan)
        try:
            outcome = await errand.run(self.transactor)
        except (RequestError, StaleFence) as error:
            refused = Refusal(type(error), error.code)
            assert refused == meant
            await self.verify()
            return None
        if isinstance(outcome, NoChange):
            assert meant is None, f"nothing to do, expected {meant}"
            await self.verify()
            return None
        assert not outcome.replayed, "taken for a repetition"
        change = errand.made(outcome)
        assert change is not None
        assert isinstance(meant, Change), f"written, expected {meant}"
        assert timeless(change.after, (), ()) == timeless(meant.after, (), ()), "decided otherwise"
        await self.verify(change)
        return outcome

    def _meant(self, plan: Plan) -> Change | Refusal | None:
        rows = self.reference.chats[plan.chat_id]
        target = None
        if plan.target is not None and 0 < plan.target <= len(rows.messages):
            target = rows.messages[plan.target - 1]
        loaded = LoadedChat(chat=rows.chat, queue=tuple(in_order(rows.queue)), target=target)
        try:
            change = plan.decide(loaded)
        except (RequestError, StaleFence) as error:
            return Refusal(type(error), error.code)
        state = rows.chat.state
        assert state in TRANSITIONS[plan.move], f"{plan.move} is not listed for {state}"
        if change is not None:
            assert change.after.state in TRANSITIONS[plan.move][state], f"{plan.move} from {state}"
        return change

    async def repeat(self, errand: Errand) -> None:
        """What was written already is found, or there is nothing to do for it any more. Either
        way nothing more is written."""
        outcome = await errand.run(self.transactor)
        if isinstance(outcome, AppliedChange):
            assert outcome.replayed, "written twice"
        else:
            assert errand.plan.move in MAY_CHANGE_NOTHING, "said, and not found again"
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
            meant = decide_tree(members, chat.id, UpdateChat(archived=archived))
        except RequestError as error:
            meant = Refusal(type(error), error.code)
        try:
            outcome = await self.transactor.run(archiving(chat.id, change_id, archived=archived))
        except RequestError as error:
            refused = Refusal(type(error), error.code)
            assert refused == meant
            await self.verify()
            return []
        assert isinstance(meant, tuple)
        await self.verify(*meant)
        return tree(outcome) if isinstance(outcome, AppliedChange) else []

    async def acquire(self, worker_id: WorkerId, *, roots: int, children: int) -> list[Chat]:
        wanting = [chat for chat in self.chats.values() if chat.runnable_at is not None]
        rows = await workers.acquire(self.pool, worker_id, roots=roots, children=children)
        rows.sort(key=lambda row: row.id)  # they come in any order, and a seed must replay
        taken = {row.id for row in rows}
        for slots, is_root in ((roots, True), (children, False)):
            pool = [chat for chat in wanting if chat.is_root == is_root]
            got = [chat for chat in pool if chat.id in taken]
            assert len(got) == min(slots, len(pool)), "slots stay empty while chats wait"
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
        """These changes were written, and nothing else."""
        known = self.chats
        versions = [chat.snapshot_version for chat in known.values()]
        found = stored_of(await self.pool.fetch(CHANGED_CHATS, None, list(known), versions))
        assert found.keys() == {change.after.id for change in changes}, "changed behind our back"
        new = [change for change in changes if change.before is None]
        for change in new:
            apply_change(self.reference, change)
            self._watches[change.after.id] = ChangeChecker()
        apply_changes(self.reference, [change for change in changes if change.before is not None])
        for change in changes:
            self._compare(found[change.after.id])
            now = found[change.after.id]
            self._watches[change.after.id].check_change(change, now.chat, now.messages, now.queue)
        if changes:
            check_trees(self.chats)

    async def verify_all(self) -> None:
        """Also what has no version, and what was paid."""
        everything = await stored(self.pool)
        assert everything.keys() == self.reference.chats.keys()
        for found in everything.values():
            self._compare(found)
        check_spend(self.reference.usage, await paid_micros(self.pool))

    def _compare(self, found: Stored) -> None:
        rows = self.reference.chats[found.chat.id]
        meant = timeless(rows.chat, rows.messages, rows.queue)
        now = found.timeless()
        assert now.chat == meant.chat, "the row is not as meant"
        assert now.messages == meant.messages, "the messages are not as meant"
        assert now.queue == meant.queue, "the queue is not as meant"
