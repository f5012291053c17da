"""The invariants that hold after every commit, over plain values.

A `ChangeChecker` gets every written change, from the pure model or from a database, and raises
AssertionError at the first violation. The numbers are those of the list of invariants in
docs/kernel.md. Checks are incremental: their cost depends on the change, not on the chat.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from chatd.domain.chat.call_waits import waiting_calls
from chatd.domain.chat.change import MAX_ORPHAN_COUNT, Change
from chatd.domain.chat.lease import MAX_LONE_DEATHS
from chatd.domain.chat.messages import (
    Message,
    QueuedMessage,
    UsageEntry,
    local_calls,
    local_results,
)
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES, NO_SETBACKS, Chat
from chatd.domain.chat.states import ARCHIVED_STATES, BUSY_STATES, State
from chatd.domain.chat.user_transitions import sort_queue
from chatd.domain.ids import ChatId, QueueId, ToolCallId, WorkerId


def check_row(chat: Chat) -> None:
    """1: the constraints of the table `chats`."""
    status, owned = chat.status, chat.worker_id is not None
    active = status in ("running", "interrupting")
    calls = len(chat.pending_calls)
    assert status != "waiting" or chat.queue_len == 0 or chat.archived, "queue behind an idle chat"
    assert not chat.archived or status in ("waiting", "error"), "archived, not idle"
    assert not owned or active, "owned, not active"
    assert (status == "error") == (chat.last_error is not None), "error without a reason"
    assert (status == "requires_action") == (chat.action_deadline is not None), "action deadline"
    assert status != "requires_action" or waiting_calls(chat), "waits for nothing"
    assert (status == "interrupting") == (chat.interrupt_deadline is not None), "stop deadline"
    assert (chat.runnable_at is not None) == (active and not owned), "runnable"
    assert status != "waiting" or calls == 0, "idle with pending calls"
    assert not owned or chat.attempt > 0, "owned, not at an attempt"
    assert chat.retry_state is None or active, "retry of a resting chat"
    assert not chat.compaction_requested or active, "compaction of a resting chat"
    assert chat.agent_wait is None or (chat.is_suspended and calls), "waits for subagents"
    assert not (chat.is_suspended and chat.steer_len), "waits although the user steers"
    assert not chat.queue_held or status == "interrupting", "queue held without an interrupt"
    assert 0 <= chat.steer_len <= chat.queue_len <= MAX_QUEUED_MESSAGES, "queue length"
    assert 0 <= chat.orphan_count <= MAX_ORPHAN_COUNT, "orphan count"
    lone_deaths = (chat.setbacks or NO_SETBACKS).lone_deaths
    assert 0 <= lone_deaths <= min(chat.orphan_count, MAX_LONE_DEATHS - 1), "lone deaths"
    newest = max(chat.history_version, chat.queue_version, chat.retry_version)
    assert newest <= chat.snapshot_version, "a part is newer than the whole"
    assert chat.pin_order == 0 or (chat.is_root and not chat.archived), "pin"
    assert chat.is_root == (chat.root_chat_id == chat.id), "root"


def check_queue(chat: Chat, queue: Sequence[QueuedMessage]) -> None:
    """2: the row counts what is in the queue."""
    assert chat.queue_len == len(queue), "queue_len"
    assert chat.steer_len == sum(item.steer for item in queue), "steer_len"
    assert len({item.position for item in queue}) == len(queue), "two at one position"
    assert all(item.id < chat.next_queue_id for item in queue), "queue id from the future"


def check_step(before: Chat | None, after: Chat) -> None:
    """7: versions, epoch and attempt only go forward, and by the right amount."""
    if before is None:
        assert after.snapshot_version == after.history_version == 1, "first version"
        return
    now = after.snapshot_version
    assert now == before.snapshot_version + 1, "snapshot_version"
    assert after.history_version in (before.history_version, now), "history_version"
    assert after.queue_version in (before.queue_version, now), "queue_version"
    retried = before.retry_state != after.retry_state
    assert after.retry_version == (now if retried else before.retry_version), "retry_version"
    assert after.next_message_id >= before.next_message_id, "message ids go back"
    assert after.next_queue_id >= before.next_queue_id, "queue ids go back"
    _check_ownership(before, after)


def _check_ownership(before: Chat, after: Chat) -> None:
    owned = after.worker_id is not None
    if before.worker_id != after.worker_id:
        assert after.epoch == before.epoch + 1, "a new owner, the same epoch"
    else:
        again = owned and after.epoch == before.epoch + 1
        assert again or after.epoch == before.epoch, "epoch"
    if after.history_version != before.history_version:
        assert after.attempt == int(owned), "attempts of a fresh history"
        assert after.orphan_count == 0, "crashes of a fresh history"
        assert after.setbacks is None, "setbacks of a fresh history"
    else:
        taken = owned and after.epoch != before.epoch and after.status == "running"
        taken = taken and not before.waits_for_retry
        assert before.attempt + taken <= after.attempt <= before.attempt + 1, "attempt"
        assert after.orphan_count in (before.orphan_count, before.orphan_count + 1), "orphans"


def check_alive(chat: Chat, workers: Collection[WorkerId]) -> None:
    """9: only an idle chat needs a user to continue. `workers` are alive or still to be reaped."""
    if chat.state not in BUSY_STATES:
        return
    cared_for = chat.worker_id in workers or chat.runnable_at is not None
    assert cared_for or chat.action_deadline is not None, (
        "no worker or deadline will continue this chat"
    )


def check_trees(chats: Mapping[ChatId, Chat]) -> None:
    """10: an archived root has no live members; archived chats have no owner."""
    for chat in chats.values():
        assert not chat.archived or chat.worker_id is None, "archived and owned"
        assert chat.archived or not chats[chat.root_chat_id].archived, (
            "live chat below an archived root"
        )


def check_spend(usage: Iterable[UsageEntry], paid_micros: int) -> None:
    """13: every paid model call is counted, also after its message was deleted."""
    assert sum(entry.cost_micros or 0 for entry in usage) == paid_micros, "spend"


class Transcript:
    """3, 5 and 6 for one chat: ids without gaps, calls paired with results, no message between.

    Takes messages in order of id; `open` are the pending calls after the last one.
    """

    def __init__(self) -> None:
        self.next_id = 1
        self.newest = 0
        self.last_live: Message | None = None
        self.open: dict[ToolCallId, str] = {}

    def feed(self, message: Message) -> None:
        assert message.id == self.next_id, f"message {message.id}, expected {self.next_id}"
        self.next_id += 1
        self.newest = max(self.newest, message.revision)
        if message.deleted:
            return
        self.last_live = message
        if message.role in ("user", "assistant"):
            assert not self.open, f"message {message.id} follows an open call"
        elif message.role == "tool":
            for result in local_results(message.content):
                assert result.tool_call_id in self.open, f"{result.tool_call_id} was not open"
                del self.open[result.tool_call_id]
        for call in local_calls(message.content):
            assert call.tool_call_id not in self.open, f"{call.tool_call_id} twice"
            self.open[call.tool_call_id] = call.tool_name

    def check(self, chat: Chat, *, marked: int = 0) -> None:
        """Also 4: history_version is that of the newest message, or of the last request to
        compact, at version `marked`."""
        assert chat.next_message_id == self.next_id, "next_message_id"
        assert chat.history_version == max(self.newest, marked), "history_version"
        listed = {call.id: call.name for call in chat.pending_calls}
        assert listed == self.open, f"open calls: listed {listed}, in history {self.open}"


def check_messages(chat: Chat, messages: Iterable[Message], *, marked: int = 0) -> None:
    """3 to 6, for a whole history."""
    transcript = Transcript()
    for message in messages:
        transcript.feed(message)
    transcript.check(chat, marked=marked)


class ChangeChecker:
    """Checks every written change of one chat against the stored rows."""

    def __init__(self) -> None:
        self.chat: Chat | None = None
        self.queue: list[QueuedMessage] = []
        self.marked = 0
        self._transcript = Transcript()
        self._ended: set[QueueId] = set()

    def check_change(
        self,
        change: Change,
        chat: Chat,
        messages: Sequence[Message],
        queue: Sequence[QueuedMessage],
    ) -> None:
        check_row(chat)
        check_step(self.chat, chat)
        assert chat.state is change.after.state, "another state than decided"
        if chat.compaction_requested and not (self.chat and self.chat.compaction_requested):
            self.marked = chat.snapshot_version
        self._read(chat, messages)
        self._follow_queue(change, chat, messages, queue)
        self.chat, self.queue = chat, list(queue)

    def _read(self, chat: Chat, messages: Sequence[Message]) -> None:
        if self.chat is not None and chat.history_version == self.chat.history_version:
            assert len(messages) == self._transcript.next_id - 1, "a message without a version"
            return
        last = self._transcript.last_live
        if last is not None and messages[last.id - 1].deleted:
            self._transcript = Transcript()
        for message in messages[self._transcript.next_id - 1 :]:
            self._transcript.feed(message)
        self._transcript.check(chat, marked=self.marked)
        started = chat.turn_message_id
        if started is not None and chat.state in BUSY_STATES:
            begun = messages[started - 1]
            assert begun.starts_turn, "the turn starts without a prompt"
            assert not begun.deleted, "the turn starts with a deleted message"

    def _follow_queue(
        self,
        change: Change,
        chat: Chat,
        messages: Sequence[Message],
        queue: Sequence[QueuedMessage],
    ) -> None:
        """11: a queued message ends once: promoted, deleted or cleared; the head goes first."""
        was = self.chat.queue_version if self.chat else 0
        if chat.queue_version == was:
            assert self.queue == list(queue), "the queue changed without a version"
            return
        check_queue(chat, queue)
        promoted = self._promoted(change, messages)
        gone = {item.id for item in self.queue} - {item.id for item in queue}
        ended = {item.id for item in promoted} | set(change.dequeue)
        if change.clear_queue:
            ended = {item.id for item in self.queue}
        assert gone == ended, f"left the queue: {gone}, accounted for: {ended}"
        assert not self._ended & {item.id for item in queue}, "came back to the queue"
        self._ended |= ended

    def _promoted(self, change: Change, messages: Sequence[Message]) -> list[QueuedMessage]:
        if not change.promote:
            return []
        by_id = {item.id: item for item in self.queue}
        if change.promote_ids:
            promoted = [by_id[item_id] for item_id in change.promote_ids]
        else:
            promoted = sort_queue(self.queue)[: change.promote]
        for item, message in zip(promoted, messages[-len(promoted) :], strict=True):
            sent = (message.role, message.content, message.created_by, message.model_config_id)
            meant = ("user", item.content, item.created_by, item.model_config_id)
            assert sent == meant, "promoted as something else"
            assert message.reasoning_effort == item.reasoning_effort, "promoted with less effort"
        return promoted


def at_rest(chat: Chat) -> bool:
    return chat.state in ARCHIVED_STATES or chat.state in (State.W, State.E0, State.E1)
