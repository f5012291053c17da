"""Making a caller's move: who may, by whom it is then run, and what exactly was written.

Owns that every move is tried under one change id and that a chat of somebody else is not there.
"""

from collections.abc import Callable
from contextlib import ExitStack

from msgspec import Struct

from chatd.aio.backoff import retry_unavailable
from chatd.api.auth import Caller, own
from chatd.api.doors import Doors
from chatd.domain.chat.change import Change, IdempotencyKey
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, MessageId, WorkerId
from chatd.store.chat.chats import LoadedChat
from chatd.store.chat.idempotency import RecordedRequest
from chatd.store.chat.transactor import AppliedChange, Operation, OperationOutcome

Decide = Callable[[LoadedChat, WorkerId | None], Change | None]


class Move(Struct, frozen=True, kw_only=True):
    """`runs`: the chat may have to be worked on afterwards."""

    caller: Caller
    chat_id: ChatId
    decide: Decide
    runs: bool = True
    with_queue: bool = False
    message_id: MessageId | None = None
    request: IdempotencyKey | None = None


class Made(Struct, frozen=True, kw_only=True):
    """`change` is the one that was written, and `loaded` what it was decided from. Both are
    None if nothing was, if an earlier request of the same key had done it (see `recorded`), or
    if so much has happened since that nobody can tell."""

    outcome: OperationOutcome
    change: Change | None = None
    loaded: LoadedChat | None = None

    @property
    def chat(self) -> Chat:
        return self.outcome.chat

    @property
    def recorded(self) -> RecordedRequest | None:
        return self.outcome.request if isinstance(self.outcome, AppliedChange) else None


async def make(doors: Doors, move: Move) -> Made:
    """Raises what the move's rules raise, NotFound, and Unavailable when the time is over."""
    with ExitStack() as held:
        tries = _Tries(move, doors, held)
        operation = Operation(
            chat_id=move.chat_id,
            change_id=doors.env.new_change_id(),
            decide=tries.decide,
            known=doors.known(move.chat_id),
            with_queue=move.with_queue,
            message_id=move.message_id,
            request=move.request,
        )
        outcome = await retry_unavailable(doors.env.clock, lambda: doors.transactor.run(operation))
        return tries.made(operation, outcome)


class _Tries:
    """Remembers each change that was tried, by the version it would make."""

    def __init__(self, move: Move, doors: Doors, held: ExitStack) -> None:
        self._move = move
        self._doors = doors
        self._held = held
        self._offered = False
        self._free: WorkerId | None = None
        self._tried: dict[int, tuple[Change, LoadedChat]] = {}

    def decide(self, loaded: LoadedChat) -> Change | None:
        own(self._move.caller, loaded.chat)
        change = self._move.decide(loaded, self._worker_for(loaded.chat))
        if change is not None:
            self._tried[change.after.snapshot_version] = (change, loaded)
        return change

    def _worker_for(self, chat: Chat) -> WorkerId | None:
        if self._move.runs and not self._offered:
            self._free = self._held.enter_context(self._doors.offer(root=chat.is_root))
            self._offered = True
        return self._free

    def made(self, operation: Operation, outcome: OperationOutcome) -> Made:
        if not isinstance(outcome, AppliedChange) or outcome.request is not None:
            return Made(outcome=outcome)
        chat = outcome.chat
        if operation.change_id not in chat.recent_changes:
            return Made(outcome=outcome)
        # Not the row's version: if the reply was lost, others may have written since.
        age = chat.recent_changes.index(operation.change_id)
        change, loaded = self._tried[chat.snapshot_version - age]
        return Made(outcome=outcome, change=change, loaded=loaded)
