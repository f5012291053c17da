"""What people do in the database's model: write, ask again, archive, look."""

from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import TRANSITIONS, Transition
from chatd.domain.ids import ChangeId, MessageId, RequestId
from tests.model.simulation import Simulation
from tests.support.errands import OTHER_USER_MOVES, SENDS, Errand, Plan
from tests.support.viewer import fresh, resume

_MOST_CHATS: Final = 7


class UserActions:
    def __init__(self, stage: Simulation) -> None:
        self._stage = stage
        self._rng = stage.rng

    async def move(self) -> None:
        stage, chat = self._stage, self._stage.any_chat()
        move = self._wish(chat)
        target = MessageId(self._rng.randint(0, chat.next_message_id))
        stage.choose_replica()
        plan = Plan(
            move=move,
            chat_id=chat.id,
            number=stage.number(),
            free=stage.serving.free if stage.serving else None,
            target=target if move is Transition.EDIT_MESSAGE else None,
            known=stage.perhaps_old_row(chat.id),
        )
        if self._rng.random() < 0.25:
            plan = replace(plan, request=_key(plan, chat))
        stage.reply_lost = self._rng.random() < 0.08
        await stage.do(plan)

    def _wish(self, chat: Chat) -> Transition:
        moves = SENDS if self._rng.random() < 0.5 else OTHER_USER_MOVES
        sensible = [move for move in moves if chat.state in TRANSITIONS[move]]
        return self._rng.choice(sensible if sensible and self._rng.random() < 0.8 else moves)

    async def repeat_request(self) -> None:
        """Somebody did not hear how it went: under the same id, or by his key."""
        stage = self._stage
        written = self._rng.choice(stage.written)
        stage.choose_replica()
        if self._rng.random() < 0.5 and await stage.repeat_write(written):
            return
        plan = written.errand.plan
        if plan.request is not None:
            plan = replace(plan, number=stage.number(), known=None)
            await stage.store.repeat(Errand(plan, stage.store.ledger))
            stage.note(f"by key #{plan.number}")

    async def archive_or_unarchive(self) -> None:
        """Archived chats do not stay so for long: nothing happens to them."""
        stage = self._stage
        shelved = [chat for chat in stage.store.chats.values() if chat.archived]
        chat = self._rng.choice(shelved) if shelved else stage.any_chat()
        archived = not chat.archived
        if self._rng.random() < 0.1:
            archived = True
        stage.choose_replica()
        number = ChangeId(stage.number())
        written = await stage.store.archive(chat, number, archived=archived)
        stage.note(f"{'archive' if archived else 'unarchive'} {len(written)}")

    async def start_subagent(self) -> None:
        chats = self._stage.store.chats.values()
        roots = [chat for chat in chats if chat.is_root and not chat.archived]
        if roots and len(chats) < _MOST_CHATS:
            root = self._rng.choice(roots)
            await self._stage.create(root.owner_id, root.id)

    async def view_chat(self) -> None:
        """A viewer who was away for a while, or whom nobody told, or who is new."""
        pool, chat = self._stage.store.pool, self._stage.any_chat()
        views = self._stage.views[chat.id]
        before = self._rng.choice(views)
        most = self._rng.choice((1000, 1000, 3))
        now = await resume(pool, chat.id, before, most=most)
        assert now == await fresh(pool, chat.id), f"resumed from {before.version}"
        views.append(now)


def _key(plan: Plan, chat: Chat) -> IdempotencyKey:
    return IdempotencyKey(
        scope=chat.owner_id,
        id=RequestId(UUID(int=plan.number)),
        op=plan.move,
        fingerprint=plan.saying,
    )
