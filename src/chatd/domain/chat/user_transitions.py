"""Transitions by users, also of queued messages: pure functions from a row and a command to a
change (None: no change), with the links to the files that a change's messages name.

`worker` is this replica's worker if it reserved a slot: it acquires the chat in the same write.
Changes of a chat tree come root first, then by id, which is the order of row locks.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from chatd.domain.chat.change import (
    Change,
    MovedQueuedMessage,
    require_allowed,
    require_mode_choice,
)
from chatd.domain.chat.commands import (
    SEND_TRANSITIONS,
    ArchiveIdleTree,
    ChooseVersion,
    CreateChat,
    EditMessage,
    EditQueued,
    InterruptTree,
    MoveQueued,
    RegenerateTurn,
    RequestCompaction,
    SendMessage,
    UpdateChat,
)
from chatd.domain.chat.messages import Message, QueuedMessage, UserInput, pending_calls
from chatd.domain.chat.parts import FilePart
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES, Chat, ChatError, StoredVersion
from chatd.domain.chat.states import ARCHIVED_STATES, BUSY_STATES, State, Transition
from chatd.domain.errors import (
    ChatBusy,
    Conflict,
    InvalidInput,
    InvariantBroken,
    NotFound,
    NothingToCompact,
    QueuedMessageGone,
    QueueFull,
    RequestError,
    TooManyFiles,
)
from chatd.domain.ids import ChatId, FileId, QueueId, WorkerId

# Transitions of queued messages. They read the whole queue at the row's version.


def sort_queue(queue: Sequence[QueuedMessage]) -> list[QueuedMessage]:
    return sorted(queue, key=lambda item: (not item.steer, item.position))


def edit_queued(chat: Chat, queue: Sequence[QueuedMessage], command: EditQueued) -> Change:
    """*1 -> same. Raises QueuedMessageGone if the message was promoted, with its old text. The
    author stays; so do model, effort and mode unless the edit sets them."""
    item = _queued_item(chat, queue, command.id, Transition.EDIT_QUEUED)
    require_allowed(chat, Transition.EDIT_QUEUED)
    require_mode_choice(chat, command.prompt.mode)
    prompt = msgspec.structs.replace(
        command.prompt,
        created_by=item.created_by,
        model_config_id=command.prompt.model_config_id or item.model_config_id,
        reasoning_effort=command.prompt.reasoning_effort or item.reasoning_effort,
        mode=command.prompt.mode or item.mode,
    )
    return Change.of(chat).edit_queued(item.id, prompt)


def move_queued(chat: Chat, queue: Sequence[QueuedMessage], command: MoveQueued) -> Change | None:
    """*1 -> same. Steering messages stay ahead of the others. None if the order does not change."""
    item = _queued_item(chat, queue, command.id, Transition.MOVE_QUEUED)
    require_allowed(chat, Transition.MOVE_QUEUED)
    peers = [other for other in sort_queue(queue) if other.steer == item.steer]
    rest = [other for other in peers if other.id != item.id]
    rest.insert(_index(chat, queue, rest, item, command.before), item)
    positions = sorted(other.position for other in peers)
    places = tuple(
        MovedQueuedMessage(id=other.id, position=position, steer=other.steer)
        for other, position in zip(rest, positions, strict=True)
        if other.position != position
    )
    if not places:
        return None
    return Change.of(chat).move_queued(places, steering=chat.steer_len)


def _index(
    chat: Chat,
    queue: Sequence[QueuedMessage],
    rest: Sequence[QueuedMessage],
    item: QueuedMessage,
    before: QueueId | None,
) -> int:
    if before is None:
        return len(rest)
    if before == item.id:
        raise InvalidInput("before", "a message cannot be put ahead of itself")
    target = _queued_item(chat, queue, before, Transition.MOVE_QUEUED)
    if target.steer != item.steer:
        raise InvalidInput("before", "steering messages always stand ahead of the others")
    return [other.id for other in rest].index(target.id)


def promote_queued(
    chat: Chat, queue: Sequence[QueuedMessage], item_id: QueueId, worker: WorkerId | None
) -> Change:
    """P1|E1|A1 -> R|P with the message in history. R1|I1, P1 with a step in progress -> I1: the
    partial answer is saved first."""
    found = next((item for item in queue if item.id == item_id), None)
    if found is None and chat.state not in ARCHIVED_STATES:
        raise NotFound("There is no such queued message.")
    state = require_allowed(chat, Transition.PROMOTE_QUEUED)
    assert found is not None  # the table allows no state with an empty queue
    steering = [item for item in sort_queue(queue) if item.steer and item.id != item_id]
    change = Change.of(chat)
    if chat.has_step_in_progress or state is State.I1:
        first = min(item.position for item in queue) - 1
        place = MovedQueuedMessage(id=item_id, position=first, steer=True)
        change = change.move_queued((place,), steering=len(steering) + 1).mark_touched()
        change = change.release_queue()
        return change.interrupt(worker) if chat.has_step_in_progress else change
    joining = (item_id, *(item.id for item in steering))
    return change.promote_named(joining, steering=0).run(worker)


def delete_queued(chat: Chat, queue: Sequence[QueuedMessage], item_id: QueueId) -> Change | None:
    """*1 -> *0|*1. None if the message is not queued."""
    require_allowed(chat, Transition.DELETE_QUEUED)
    found = next((item for item in queue if item.id == item_id), None)
    if found is None:
        return None
    return Change.of(chat).dequeue_message(item_id, steer=found.steer)


def _queued_item(
    chat: Chat, queue: Sequence[QueuedMessage], item_id: QueueId, transition: Transition
) -> QueuedMessage:
    for item in queue:
        if item.id == item_id:
            return item
    if chat.state in ARCHIVED_STATES:
        require_allowed(chat, transition)
    raise _missing_error(chat, item_id)


def _missing_error(chat: Chat, item_id: QueueId) -> RequestError:
    if 0 < item_id < chat.next_queue_id:
        return QueuedMessageGone("The message has already left the queue.")
    return NotFound("There is no such queued message.")


# The files that the messages of a change name. Each becomes a link, which keeps the file.

MAX_FILES_PER_CHAT: Final = 50
_NO_FILES: Final[frozenset[FileId]] = frozenset()


def named_files(change: Change) -> frozenset[FileId]:
    """The files that a change's user messages name. A promoted message named its own when
    queued."""
    contents = [one.draft.content for one in change.messages if one.draft.role == "user"]
    if change.enqueue or change.rewrite:
        contents += [one.prompt.content for one in (*change.enqueue, *change.rewrite)]
    if not contents:  # most changes, and every commit asks
        return _NO_FILES
    return frozenset(
        FileId(UUID(part.file_id))
        for content in contents
        for part in content
        if isinstance(part, FilePart) and part.file_id is not None
    )


def require_file_limit(change: Change, linked: frozenset[FileId] = frozenset()) -> Change:
    """`linked` are the files that the chat's messages have named so far. Raises TooManyFiles."""
    named = named_files(change)
    if named and len(named | linked) > MAX_FILES_PER_CHAT:
        raise TooManyFiles(MAX_FILES_PER_CHAT)
    return change


_UNSET_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Placeholder in a new row; the database sets the time by its own clock."""


def create(command: CreateChat, worker: WorkerId | None) -> Change:
    """- -> R0|P0. One write for the first message and all messages before it."""
    if not command.before and command.prompt is None:
        raise InvalidInput("content", "a chat needs at least one message")
    if pending_calls(command.before):
        raise InvalidInput("before", "a chat cannot begin with an unanswered tool call")
    chat = Chat(
        id=command.id,
        owner_id=command.owner_id,
        root_chat_id=command.root_chat_id or command.id,
        parent_chat_id=command.parent_chat_id,
        title=command.title,
        model_config_id=command.model_config_id,
        reasoning_effort=command.reasoning_effort,
        model_required=command.model_required,
        labels=command.labels,
        workspace_id=command.workspace_id,
        mode=command.mode,
        client_tools=command.client_tools,
        max_cost_micros=command.max_cost_micros,
        mcp_server_ids=command.mcp_server_ids,
        project_id=command.project_id,
        created_at=_UNSET_TIME,
        updated_at=_UNSET_TIME,
        status="running",
        snapshot_version=1,
        history_version=1,
    )
    change = Change(before=None, after=chat, parent_fence=command.parent_fence, rules=command.rules)
    for draft in command.before:
        change = change.append(draft)
    if command.prompt is not None:
        change = change.start_turn(command.prompt)
    return require_file_limit(change.run(worker))


def send_message(chat: Chat, command: SendMessage, worker: WorkerId | None) -> Change:
    """W|E0 -> R0|P0. E1 -> R1|P1. Busy: by `when_busy`; `reject` raises ChatBusy."""
    if command.when_busy == "reject" and chat.state in BUSY_STATES:
        raise ChatBusy("The chat is busy and the sender asked not to wait.")
    state = require_allowed(chat, SEND_TRANSITIONS[command.when_busy])
    require_mode_choice(chat, command.prompt.mode)
    change = Change.of(chat)
    if state in (State.W, State.E0):
        return change.start_turn(command.prompt).run(worker)
    if state is State.E1:
        return _send_after_error(change, command, worker)
    match command.when_busy:
        case "interrupt":
            return _send_interrupt(change, command.prompt, worker)
        case "rollback":
            return _send_rollback(change, command.prompt, worker)
        case "steer":
            return _send_steer(change, command.prompt, worker)
        case "queue" | "reject":
            return _enqueue(change, command.prompt)


def _enqueue(change: Change, prompt: UserInput, *, steer: bool = False) -> Change:
    if change.after.queue_len >= MAX_QUEUED_MESSAGES:
        raise QueueFull(MAX_QUEUED_MESSAGES)
    return change.release_queue().enqueue_message(prompt, steer=steer)


def _send_after_error(change: Change, command: SendMessage, worker: WorkerId | None) -> Change:
    """The oldest queued message is sent first; a steering message waits for older ones only."""
    steer = command.when_busy == "steer"
    if steer and change.after.steer_len == 0:
        return change.start_turn(command.prompt).run(worker)
    # No check for a full queue: the head leaves it in the same change.
    return change.promote_head().enqueue_message(command.prompt, steer=steer).run(worker)


def _send_interrupt(change: Change, prompt: UserInput, worker: WorkerId | None) -> Change:
    """The message comes before those that wait in the queue, except those that steer."""
    if change.after.has_step_in_progress:
        return _enqueue(change, prompt, steer=True).interrupt(worker)
    if change.after.state in (State.I0, State.I1):
        return _enqueue(change, prompt, steer=True)
    if change.after.steer_len == 0:
        return change.start_turn(prompt).run(worker)
    return change.promote_head().enqueue_message(prompt, steer=True).run(worker)


def _send_rollback(change: Change, prompt: UserInput, worker: WorkerId | None) -> Change:
    """Delete the turn's user message and all after it; keep the queue."""
    first_id = change.after.turn_message_id
    if first_id is not None:
        change = change.delete_messages_from(first_id)
    return change.start_turn(prompt).run(worker)


def _send_steer(change: Change, prompt: UserInput, worker: WorkerId | None) -> Change:
    """In P no model call runs, so the message joins history for the next call, unless a tool
    result or an older steering message must come first. A turn that waits for subagents goes on:
    its calls then do not wait, and the message follows their results."""
    chat = change.after
    if chat.is_suspended:
        return _enqueue(change, prompt, steer=True).run(worker)
    is_between_steps = chat.state in (State.P0, State.P1) and not chat.pending_calls
    if is_between_steps and chat.steer_len == 0:
        return change.steer(prompt).run(worker)
    return _enqueue(change, prompt, steer=True)


def edit_message(
    chat: Chat, target: Message | None, command: EditMessage, worker: WorkerId | None
) -> Change:
    """Any unarchived -> R0|P0. Replaces a user message and deletes all after it, queue included.
    `target` is the message as stored, or None if the chat has none with that id."""
    require_allowed(chat, Transition.EDIT_MESSAGE)
    require_mode_choice(chat, command.prompt.mode)
    if target is None or target.deleted or target.visibility == "model":
        raise NotFound("There is no such message in this chat.")
    if not target.starts_turn:
        raise InvalidInput("message_id", "only a user message can be edited")
    prompt = msgspec.structs.replace(
        command.prompt,
        model_config_id=command.prompt.model_config_id or target.model_config_id,
        reasoning_effort=command.prompt.reasoning_effort or target.reasoning_effort,
    )
    change = Change.of(chat).delete_messages_from(target.id).clear_queue_messages()
    return change.start_turn(prompt).run(worker)


def regenerate_turn(
    chat: Chat, target: Message | None, command: RegenerateTurn, worker: WorkerId | None
) -> Change:
    """As `edit_message`, with the same content."""
    prompt = UserInput(
        content=() if target is None else target.content,
        created_by=command.created_by,
        model_config_id=command.model_config_id,
        reasoning_effort=command.reasoning_effort,
    )
    edit = EditMessage(message_id=command.message_id, prompt=prompt)
    return edit_message(chat, target, edit, worker)


def choose_version(
    chat: Chat, version: StoredVersion | None, command: ChooseVersion
) -> Change | None:
    """W|E0 -> W, or E0 if the line had failed. E1 -> same. None if the version is shown already."""
    state = require_allowed(chat, Transition.CHOOSE_VERSION)
    if version is None or not version.is_whole:
        raise NotFound(f"There is no version {command.message_id} of a message in this chat.")
    if version.shown_id == version.message_id:
        return None
    if version.shown_id is None or version.hidden is None:
        raise Conflict(
            "The version belongs to another version of an earlier message. Choose that one first.",
            code="version_not_reachable",
        )
    change = Change.of(chat).restore_version(version, version.shown_id)
    if state is State.E1:
        return change.mark_touched()
    return change.wait() if version.end.error is None else change.fail(version.end.error)


def interrupt(chat: Chat, worker: WorkerId | None) -> Change | None:
    """R, P with a step in progress -> I. P0|A0|E0 -> W. P1|A1 -> R|P with the head promoted.
    W|E1|I: None."""
    state = require_allowed(chat, Transition.INTERRUPT)
    change = Change.of(chat)
    if chat.has_step_in_progress:
        return change.interrupt(worker)
    match state:
        case State.P0:
            return change.answer_pending_calls().note_stop().wait()
        case State.A0 | State.E0:
            return change.answer_pending_calls().wait()
        case State.P1 | State.A1:
            return change.promote_head().run(worker)
        case _:
            return None


def interrupt_and_hold(chat: Chat, worker: WorkerId | None) -> Change | None:
    """As `interrupt`, but the queue does not start: P1|A1 -> E1, and I1 ends in E1."""
    state = require_allowed(chat, Transition.INTERRUPT_AND_HOLD)
    change = Change.of(chat)
    if chat.has_step_in_progress:
        return change.interrupt(worker, hold=True)
    match state:
        case State.P0:
            return change.answer_pending_calls().note_stop().wait()
        case State.A0 | State.E0:
            return change.answer_pending_calls().wait()
        case State.P1 | State.A1:
            return change.answer_pending_calls().stop_with_held_queue()
        case State.I1:
            return None if chat.queue_held else change.hold_queue()
        case _:
            return None


def resume_queue(chat: Chat, worker: WorkerId | None) -> Change | None:
    """E1 -> R|P with the head of the queue promoted. I1: refused. Else None: nothing is held."""
    state = require_allowed(chat, Transition.RESUME_QUEUE)
    return Change.of(chat).promote_head().run(worker) if state is State.E1 else None


def request_compaction(chat: Chat, command: RequestCompaction, worker: WorkerId | None) -> Change:
    """W|E0 -> R0|P0. E1 -> R1|P1. Sets a flag; the chat task compacts before anything else."""
    require_allowed(chat, Transition.REQUEST_COMPACTION)
    if not command.compactable:
        raise NothingToCompact("There is no answer since the last summary.")
    return Change.of(chat).request_compaction().run(worker)


def archive(chat: Chat) -> Change:
    """Any unarchived -> X. Fences the owner and answers pending calls."""
    require_allowed(chat, Transition.ARCHIVE)
    change = Change.of(chat)
    if chat.state in BUSY_STATES:
        change = change.answer_pending_calls()
    return change.archive().mark_touched()


def unarchive(chat: Chat) -> Change:
    """XW0 -> W. XE -> E. XW1 -> E1: the error explains why queued messages do not run."""
    require_allowed(chat, Transition.UNARCHIVE)
    change = Change.of(chat)
    if chat.state is State.XW1:
        change = change.fail(
            ChatError(
                kind="archived",
                message="The chat was archived while messages were waiting."
                " Send a message or promote one to continue.",
            )
        )
    return change.unarchive()


def update_chat(members: Sequence[Chat], target: ChatId, command: UpdateChat) -> tuple[Change, ...]:
    """The transitions of an update. Setting a value that the chat already has is allowed."""
    chat = _member_with_id(members, target)
    _check_pin(chat, command)
    require_mode_choice(chat, command.mode)
    if command.project_id is not msgspec.UNSET and not chat.is_root:
        text = "A subagent is in the project of its root chat. Move that one."
        raise Conflict(text, code="not_a_root_chat")
    if command.archived is None or command.archived == chat.archived:
        return ()
    decide = archive_tree if command.archived else unarchive_tree
    return decide(members, target)


def _check_pin(chat: Chat, command: UpdateChat) -> None:
    if not command.pin_order:
        return
    if not chat.is_root:
        raise InvalidInput("pin_order", "only a root chat can be pinned")
    if chat.archived if command.archived is None else command.archived:
        raise InvalidInput("pin_order", "an archived chat cannot be pinned")


def archive_idle(
    members: Sequence[Chat], target: ChatId, command: ArchiveIdleTree
) -> tuple[Change, ...]:
    """No change if the root is archived or pinned, or a chat is busy or was touched since."""
    root = _member_with_id(members, target)
    is_idle = all(
        member.status in ("waiting", "error") and member.updated_at < command.idle_since
        for member in members
    )
    if root.archived or root.pin_order or not is_idle:
        return ()
    return archive_tree(members, target)


def archive_tree(members: Sequence[Chat], target: ChatId) -> tuple[Change, ...]:
    """Archive a root chat with its unarchived subagents, or a subagent alone."""
    addressed = _member_with_id(members, target)
    first = archive(addressed)
    others = [member for member in _subagents_of(members, addressed) if not member.archived]
    return (first, *(archive(member) for member in others))


def interrupt_tree(
    members: Sequence[Chat], target: ChatId, command: InterruptTree
) -> tuple[Change, ...]:
    """Interrupt the addressed chat as `interrupt` does, and its subagents that are busy. A subagent
    with a queue keeps it held: its parent is stopped, so that no other message may start it."""
    addressed = _member_with_id(members, target)
    stop = interrupt_and_hold if command.hold_queue else interrupt
    busy = [one for one in _subagents_of(members, addressed) if one.state in BUSY_STATES]
    changes = (stop(addressed, None), *(interrupt_and_hold(one, None) for one in busy))
    return tuple(change for change in changes if change is not None)


def delete_tree(members: Sequence[Chat], target: ChatId) -> tuple[Change, ...]:
    """Archive what is not archived, and give every other chat a new version, by which its viewers
    and other replicas learn of the deletion. No change if the tree is deleted already."""
    root = _member_with_id(members, target)
    if not root.is_root:
        raise Conflict(
            "Only a root chat can be deleted. Archive the subagent, or delete its root chat.",
            code="not_a_root_chat",
        )
    return tuple(
        Change.of(member).mark_touched() if member.archived else archive(member)
        for member in (root, *_subagents_of(members, root))
        if member.deleted_at is None
    )


def unarchive_tree(members: Sequence[Chat], target: ChatId) -> tuple[Change, ...]:
    """Unarchive a root chat with its archived subagents, or a subagent alone. Raises Conflict if
    the subagent's root or parent is archived."""
    addressed = _member_with_id(members, target)
    first = unarchive(addressed)
    if any(_member_with_id(members, above).archived for above in _ancestor_ids(addressed)):
        raise Conflict(
            "Cannot unarchive the chat: the chat it belongs to is archived.",
            code="parent_archived",
        )
    others = [member for member in _subagents_of(members, addressed) if member.archived]
    return (first, *(unarchive(member) for member in others))


def _member_with_id(members: Sequence[Chat], chat_id: ChatId) -> Chat:
    for member in members:
        if member.id == chat_id:
            return member
    raise NotFound("There is no such chat.")


def _subagents_of(members: Sequence[Chat], root: Chat) -> list[Chat]:
    if not root.is_root:
        return []
    unrelated = [member.id for member in members if member.root_chat_id != root.id]
    if unrelated:
        raise InvariantBroken(f"Chats {unrelated} are not of the chat tree of {root.id}.")
    return sorted(
        (member for member in members if member.id != root.id), key=lambda member: member.id
    )


def _ancestor_ids(chat: Chat) -> list[ChatId]:
    return [
        above for above in {chat.root_chat_id, chat.parent_chat_id} if above not in (None, chat.id)
    ]
