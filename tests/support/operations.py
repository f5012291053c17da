"""Operations ready to run, and commands that carry a decision of the test."""

from collections.abc import Callable
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.chat.change import Change, IdempotencyKey
from chatd.domain.chat.commands import (
    ChatCommand,
    ChooseVersion,
    Command,
    CreateChat,
    EditMessage,
    InterruptChat,
    PromoteQueued,
    SendMessage,
    UpdateChat,
)
from chatd.domain.chat.row import Chat
from chatd.domain.chat.transitions import LoadedChat, ReservedSlots, decide
from chatd.domain.ids import ChangeId, ChatId, MessageId, QueueId, UserId, WorkerId
from chatd.store.chat.operation import AppliedChange, OnApplied, Operation
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from tests.support.factories import CHAT, HARNESS, OWNER, WORKER, member, prompt

Decision = Callable[[LoadedChat], Change | None]


def new_chat(number: int, parent: ChatId | None = None) -> CreateChat:
    """A new chat with this number as its id."""
    return CreateChat(
        id=ChatId(UUID(int=number)),
        owner_id=OWNER,
        title="A chat",
        prompt=prompt(f"hello {number}"),
        parent_chat_id=parent,
        root_chat_id=parent,
    )


def operation(
    command: Command,
    change_id: ChangeId,
    chat_id: ChatId = CHAT,
    *,
    actor: UserId | None = None,
    free: WorkerId | None = None,
    request: IdempotencyKey | None = None,
    known: Chat | None = None,
) -> Operation:
    """`free` is the worker that has a slot for the chat. No actor: any chat."""
    return Operation(
        chat_id=chat_id,
        command=command,
        actor=HARNESS if actor is None else member(actor),
        change_id=change_id,
        slots=ReservedSlots(root=free, child=free),
        request=request,
        known=known,
    )


def sending(words: str, change_id: ChangeId, chat_id: ChatId = CHAT) -> Operation:
    return operation(SendMessage(prompt=prompt(words)), change_id, chat_id, actor=OWNER)


def archiving(chat_id: ChatId, change_id: ChangeId, *, archived: bool = True) -> Operation:
    return operation(UpdateChat(archived=archived), change_id, chat_id)


async def create_chat(
    transactor: Transactor,
    command: CreateChat,
    change_id: ChangeId,
    *,
    free: WorkerId | None = WORKER,
    request: IdempotencyKey | None = None,
) -> AppliedChange:
    """By default acquired by the worker of the replica that creates it."""
    outcome = await transactor.run(
        operation(
            command, change_id, command.id, actor=command.owner_id, free=free, request=request
        )
    )
    assert isinstance(outcome, AppliedChange)
    return outcome


def tree(outcome: object) -> list[AppliedChange]:
    """All chats that an operation changed, in order."""
    assert isinstance(outcome, AppliedChange)
    return [outcome, *outcome.others]


def by_earlier_run(applied: AppliedChange, **columns: object) -> AppliedChange:
    """The same outcome as another run of the operation finds it, which did not send the change."""
    seen = replace(applied, replayed=True, change=None, loaded=None, layers=None, **columns)
    return replace(seen, others=tuple(by_earlier_run(other) for other in applied.others))


# A command that carries the test's own decision, for a transactor of `deciding_transactor`.


class Decided(InterruptChat, frozen=True, kw_only=True):
    decide: Decision


class DecidedOnQueue(PromoteQueued, frozen=True, kw_only=True):
    decide: Decision


class DecidedOnMessage(EditMessage, frozen=True, kw_only=True):
    decide: Decision


class DecidedOnVersion(ChooseVersion, frozen=True, kw_only=True):
    decide: Decision


def deciding(
    make: Decision,
    *,
    with_queue: bool = False,
    message_id: MessageId | None = None,
    with_version: bool = False,
) -> ChatCommand:
    if message_id is not None and with_version:
        return DecidedOnVersion(message_id=message_id, decide=make)
    if message_id is not None:
        return DecidedOnMessage(message_id=message_id, prompt=prompt(""), decide=make)
    if with_queue:
        return DecidedOnQueue(id=QueueId(0), decide=make)
    return Decided(decide=make)


def decide_in_test(loaded: LoadedChat, command: ChatCommand, slots: ReservedSlots) -> Change | None:
    if isinstance(command, Decided | DecidedOnQueue | DecidedOnMessage | DecidedOnVersion):
        return command.decide(loaded)
    return decide(loaded, command, slots)


def deciding_transactor(pool: Pool, tell: OnApplied) -> Transactor:
    return Transactor(pool, tell, decide_in_test)


def ignore_applied(applied: AppliedChange) -> None:
    """For tests that do not observe applied changes."""
