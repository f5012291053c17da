"""Refusing moves the table does not list."""

from chatd.domain.chat import Chat
from chatd.domain.errors import StaleFence, TransitionNotAllowed
from chatd.domain.states import ARCHIVED, TABLE, Actor, Move, State


def require(chat: Chat, move: Move) -> State:
    """A person is told why; a worker, whose chat someone else has moved, leaves quietly."""
    state = chat.state
    if state in TABLE[move]:
        return state
    if move.actor is Actor.WORKER:
        raise StaleFence(f"Chat {chat.id} is in state {state}: {move} does not apply.")
    raise TransitionNotAllowed(move, state, archived=state in ARCHIVED)
