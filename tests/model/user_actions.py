"""The actions of users in the simulation: send, repeat, archive, view."""

from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import TRANSITIONS, Transition
from chatd.domain.ids import ChangeId, MessageId, RequestId
from tests.model.simulation import Simulation
from tests.support.client_state import read_state, resume_state
from tests.support.random_operations import (
    NAME_A_MESSAGE,
    OTHER_USER_TRANSITIONS,
    SENDS,
    OperationPlan,
    RetriedOperation,
)

_MAX_CHATS: Final = 7


class UserActions:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._rng = simulation.rng

    async def move(self) -> None:
        simulation, chat = self._simulation, self._simulation.any_chat()
        move = self._choose_transition(chat)
        target = MessageId(self._rng.randint(0, chat.next_message_id))
        simulation.choose_replica()
        plan = OperationPlan(
            move=move,
            chat_id=chat.id,
            number=simulation.number(),
            free=simulation.serving.free if simulation.serving else None,
            target=target if move in NAME_A_MESSAGE else None,
            known=simulation.perhaps_old_row(chat.id),
        )
        if self._rng.random() < 0.25:
            plan = replace(plan, request=_key(plan, chat))
        simulation.reply_lost = self._rng.random() < 0.08
        await simulation.do(plan)

    def _choose_transition(self, chat: Chat) -> Transition:
        moves = SENDS if self._rng.random() < 0.5 else OTHER_USER_TRANSITIONS
        sensible = [move for move in moves if chat.state in TRANSITIONS[move]]
        return self._rng.choice(sensible if sensible and self._rng.random() < 0.8 else moves)

    async def repeat_request(self) -> None:
        """A client without a reply repeats the write, by change id or by idempotency key."""
        simulation = self._simulation
        written = self._rng.choice(simulation.written)
        simulation.choose_replica()
        if self._rng.random() < 0.5 and await simulation.repeat_write(written):
            return
        plan = written.operation.plan
        if plan.request is not None:
            plan = replace(plan, number=simulation.number(), known=None)
            await simulation.store.repeat(RetriedOperation(plan, simulation.store.change_log))
            simulation.note(f"by key #{plan.number}")

    async def archive_or_unarchive(self) -> None:
        """Archived chats are soon unarchived: nothing happens to them meanwhile."""
        simulation = self._simulation
        archived_chats = [chat for chat in simulation.store.chats.values() if chat.archived]
        chat = self._rng.choice(archived_chats) if archived_chats else simulation.any_chat()
        archived = not chat.archived
        if self._rng.random() < 0.1:
            archived = True
        simulation.choose_replica()
        number = ChangeId(simulation.number())
        written = await simulation.store.archive(chat, number, archived=archived)
        simulation.note(f"{'archive' if archived else 'unarchive'} {len(written)}")

    async def start_subagent(self) -> None:
        chats = self._simulation.store.chats.values()
        roots = [chat for chat in chats if chat.is_root and not chat.archived]
        if roots and len(chats) < _MAX_CHATS:
            root = self._rng.choice(roots)
            await self._simulation.create(root.owner_id, root.id)

    async def view_chat(self) -> None:
        """A viewer that was away, missed events, or is new."""
        pool, chat = self._simulation.store.pool, self._simulation.any_chat()
        views = self._simulation.views[chat.id]
        before = self._rng.choice(views)
        most = self._rng.choice((1000, 1000, 3))
        now = await resume_state(pool, chat.id, before, most=most)
        fresh = await read_state(pool, chat.id)
        assert now.without_deadlines() == fresh.without_deadlines(), (
            f"resumed from {before.version}"
        )
        views.append(now)


def _key(plan: OperationPlan, chat: Chat) -> IdempotencyKey:
    return IdempotencyKey(
        scope=chat.owner_id,
        id=RequestId(UUID(int=plan.number)),
        op=plan.move,
        fingerprint=plan.text,
    )
