"""Spend limits, as whoever sends something meets them: refused before anything is written.

They are checked again before every model call; here only so that a person hears of it at once.
What is queued already was let in and is not asked about again. Owns that a request which was
granted once is answered as it was, though the limit is reached by now.
"""

from chatd.aio.backoff import retry_unavailable
from chatd.api.auth import Caller
from chatd.api.doors import Doors
from chatd.api.moves import Decide
from chatd.domain.chat.change import Change, IdempotencyKey
from chatd.domain.chat.row import Chat
from chatd.domain.errors import UsageLimit
from chatd.domain.ids import ChatId, WorkerId
from chatd.store.chat import chats, idempotency
from chatd.store.chat.chats import LoadedChat


async def may_create(doors: Doors, chat: Chat, request: IdempotencyKey | None) -> None:
    """Raises UsageLimit. A key that is known has its answer already."""
    refusal = await _refusal(doors, chat)
    if refusal is None:
        return
    if request is not None:
        earlier = await retry_unavailable(
            doors.env.clock, lambda: idempotency.get(doors.pool, request)
        )
        if earlier is not None:
            return
    raise refusal


async def if_paid_for(doors: Doors, caller: Caller, chat_id: ChatId, decide: Decide) -> Decide:
    """The same decision, or one that always refuses. By way of the decision, because only if that
    refuses is an earlier request of the same key looked for."""
    if doors.budget is None:
        return decide
    chat = doors.known(chat_id)
    if chat is None:
        chat = await retry_unavailable(doors.env.clock, lambda: chats.get(doors.pool, chat_id))
    if chat is None or chat.owner_id != caller.user_id:
        return decide
    refusal = await _refusal(doors, chat)
    return decide if refusal is None else _refusing(refusal)


async def _refusal(doors: Doors, chat: Chat) -> UsageLimit | None:
    why = None if doors.budget is None else await doors.budget.check(chat)
    return None if why is None else UsageLimit(why.message)


def _refusing(refusal: UsageLimit) -> Decide:
    def refuse(_loaded: LoadedChat, _free: WorkerId | None) -> Change | None:
        raise refusal

    return refuse
