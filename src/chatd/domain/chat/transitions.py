"""The table from commands to transition functions, and `decide`, which applies it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, assert_never

from msgspec import Struct

from chatd.domain.chat.answer_transitions import answer_calls, submit_tool_results
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import (
    AnswerCalls,
    ArchiveIdleTree,
    ChatCommand,
    ChooseVersion,
    CommitStep,
    DeleteQueued,
    DeleteTree,
    EditMessage,
    EditQueued,
    ExpireDeadline,
    FailTurn,
    FinishInterrupt,
    FinishTurn,
    InterruptChat,
    InterruptTree,
    MoveQueued,
    NoteCallWaits,
    PromoteQueued,
    ReapChat,
    RecordRetry,
    RegenerateTurn,
    ReleaseChat,
    RequestCompaction,
    RequireAnswers,
    ResumeQueue,
    SendMessage,
    SubmitToolResults,
    SuspendTurn,
    TreeCommand,
    UpdateChat,
    WakeTurn,
)
from chatd.domain.chat.messages import Message, QueuedMessage
from chatd.domain.chat.row import Chat, StoredVersion
from chatd.domain.chat.user_transitions import (
    archive_idle,
    choose_version,
    delete_queued,
    delete_tree,
    edit_message,
    edit_queued,
    interrupt,
    interrupt_and_hold,
    interrupt_tree,
    move_queued,
    promote_queued,
    regenerate_turn,
    request_compaction,
    require_file_limit,
    resume_queue,
    send_message,
    update_chat,
)
from chatd.domain.chat.worker_transitions import (
    commit_step,
    expire_deadline,
    fail_turn,
    finish_interrupt,
    finish_turn,
    note_waits,
    reap,
    record_retry,
    release,
    require_action,
    suspend,
    wake,
)
from chatd.domain.ids import ChatId, FileId, WorkerId

C = TypeVar("C")


class LoadedChat(Struct, frozen=True, kw_only=True):
    """A row with what its command's transition reads: the queue, the message that an edit
    replaces, the version of a message that is chosen, or the files that the chat's messages name.
    All are of one version."""

    chat: Chat
    queue: tuple[QueuedMessage, ...] = ()
    target: Message | None = None
    version: StoredVersion | None = None
    files: frozenset[FileId] = frozenset()


class ReservedSlots(Struct, frozen=True, kw_only=True):
    """This replica's worker, for each kind of chat for which it reserved a slot."""

    root: WorkerId | None = None
    child: WorkerId | None = None

    def worker_for(self, chat: Chat) -> WorkerId | None:
        return self.root if chat.is_root else self.child


NO_SLOTS: Final = ReservedSlots()


TransitionFunction = Callable[[LoadedChat, Any, WorkerId | None], Change | None]
"""The second parameter is the command type of its entry in the table."""


def _by_row(transition: Callable[[Chat, C], Change | None]) -> TransitionFunction:
    return lambda loaded, command, _worker: transition(loaded.chat, command)


def _by_worker(transition: Callable[[Chat, C, WorkerId | None], Change]) -> TransitionFunction:
    return lambda loaded, command, worker: transition(loaded.chat, command, worker)


def _by_queue(
    transition: Callable[[Chat, Sequence[QueuedMessage], C], Change | None],
) -> TransitionFunction:
    return lambda loaded, command, _worker: transition(loaded.chat, loaded.queue, command)


def _by_loaded(
    transition: Callable[[LoadedChat, C, WorkerId | None], Change | None],
) -> TransitionFunction:
    return transition


def _edit_message(loaded: LoadedChat, command: EditMessage, worker: WorkerId | None) -> Change:
    return edit_message(loaded.chat, loaded.target, command, worker)


def _regenerate(loaded: LoadedChat, command: RegenerateTurn, worker: WorkerId | None) -> Change:
    return regenerate_turn(loaded.chat, loaded.target, command, worker)


def _choose(loaded: LoadedChat, command: ChooseVersion, _: WorkerId | None) -> Change | None:
    return choose_version(loaded.chat, loaded.version, command)


def _interrupt(
    loaded: LoadedChat, command: InterruptChat, worker: WorkerId | None
) -> Change | None:
    if command.hold_queue:
        return interrupt_and_hold(loaded.chat, worker)
    return interrupt(loaded.chat, worker)


def _resume(loaded: LoadedChat, _: ResumeQueue, worker: WorkerId | None) -> Change | None:
    return resume_queue(loaded.chat, worker)


def _wake(loaded: LoadedChat, _: WakeTurn, worker: WorkerId | None) -> Change:
    return wake(loaded.chat, worker)


def _promote(loaded: LoadedChat, command: PromoteQueued, worker: WorkerId | None) -> Change:
    return promote_queued(loaded.chat, loaded.queue, command.id, worker)


def _delete(loaded: LoadedChat, command: DeleteQueued, _: WorkerId | None) -> Change | None:
    return delete_queued(loaded.chat, loaded.queue, command.id)


TRANSITION_BY_COMMAND: Final[Mapping[type[ChatCommand], TransitionFunction]] = {
    SendMessage: _by_worker(send_message),
    EditMessage: _by_loaded(_edit_message),
    RegenerateTurn: _by_loaded(_regenerate),
    ChooseVersion: _by_loaded(_choose),
    InterruptChat: _by_loaded(_interrupt),
    ResumeQueue: _by_loaded(_resume),
    SubmitToolResults: _by_worker(submit_tool_results),
    AnswerCalls: _by_worker(answer_calls),
    RequestCompaction: _by_worker(request_compaction),
    EditQueued: _by_queue(edit_queued),
    MoveQueued: _by_queue(move_queued),
    PromoteQueued: _by_loaded(_promote),
    DeleteQueued: _by_loaded(_delete),
    CommitStep: _by_row(commit_step),
    FinishTurn: _by_row(finish_turn),
    RequireAnswers: _by_row(require_action),
    FinishInterrupt: _by_row(finish_interrupt),
    FailTurn: _by_row(fail_turn),
    SuspendTurn: _by_row(suspend),
    WakeTurn: _by_loaded(_wake),
    RecordRetry: _by_row(record_retry),
    NoteCallWaits: _by_row(note_waits),
    ReleaseChat: _by_row(release),
    ReapChat: _by_row(reap),
    ExpireDeadline: _by_row(expire_deadline),
}


def decide(loaded: LoadedChat, command: ChatCommand, slots: ReservedSlots) -> Change | None:
    """The change of a command; None if it is allowed and changes nothing. Raises RequestError for
    a user's command, StaleFence for a worker's."""
    transition = TRANSITION_BY_COMMAND[type(command)]
    change = transition(loaded, command, slots.worker_for(loaded.chat))
    return None if change is None else require_file_limit(change, loaded.files)


def decide_tree(
    members: Sequence[Chat], target: ChatId, command: TreeCommand
) -> tuple[Change, ...]:
    """The changes of a command on `target`, which may include its chat tree."""
    match command:
        case UpdateChat():
            return update_chat(members, target, command)
        case ArchiveIdleTree():
            return archive_idle(members, target, command)
        case InterruptTree():
            return interrupt_tree(members, target, command)
        case DeleteTree():
            return delete_tree(members, target)
        case _:
            assert_never(command)
