"""The state that a client builds from the events of a chat's stream.

Every real client (page, terminal, library) must agree with this one. `apply` is written from the
protocol, `of` from the rows: the stream promises that both give the same. `read_state` and
`resume_state` do for a database what the stream does for a client.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.call_waits import call_deadlines, wait_of, waiting_calls
from chatd.domain.chat.messages import (
    PublicMessage,
    PublicQueuedMessage,
    public_message,
    public_queued,
)
from chatd.domain.chat.row import ChatError, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat.takeover import TakeoverPayload, takeover_payload
from chatd.domain.chat_views.diff import ChatSnapshot, ViewerPosition, diff, needs_full_read
from chatd.domain.chat_views.events import (
    ActionRequired,
    ErrorEvent,
    Event,
    HistoryReset,
    MessageEvent,
    MessagePart,
    MessagesDeleted,
    PartPayload,
    PreviewReset,
    QueueUpdate,
    RequestedCall,
    RetryEvent,
    StatusEvent,
    TakeoverEvent,
    VersionReached,
)
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat import chats
from chatd.store.database.conn import Conn
from tests.support.factories import HARNESS
from tests.support.outcomes import present


class ClientState(Struct, frozen=True, kw_only=True):
    """`version` is what the client resumes from; `preview` are live parts not yet committed."""

    version: int = 0
    has_older: bool = False
    status: PublicStatus | None = None
    messages: Mapping[MessageId, PublicMessage] = {}
    queue: tuple[PublicQueuedMessage, ...] = ()
    retry: RetryState | None = None
    error: ChatError | None = None
    asked: tuple[RequestedCall, ...] = ()
    takeover: TakeoverPayload | None = None
    episode: tuple[int, int] | None = None
    preview: tuple[PartPayload, ...] = ()

    def apply(self, events: Iterable[Event]) -> "ClientState":
        state = self
        for event in events:
            state = state._apply_one(event)
        return state

    def _apply_one(self, event: Event) -> "ClientState":  # noqa: C901
        match event:
            case StatusEvent(status=payload):
                return replace(self, status=payload.status, error=None, asked=())
            case MessageEvent(message=message):
                return replace(self, messages={**self.messages, message.id: message})
            case MessagesDeleted(ids=ids):
                kept = {key: row for key, row in self.messages.items() if key not in ids}
                return replace(self, messages=kept)
            case HistoryReset():
                return ClientState()
            case PreviewReset(history_version=history, attempt=attempt):
                return replace(self, episode=(history, attempt), preview=())
            case MessagePart(message_part=part):
                return self._with_part(part)
            case QueueUpdate(queued_messages=queue):
                return replace(self, queue=queue)
            case RetryEvent(retry=retry):
                return replace(self, retry=retry)
            case ErrorEvent(error=error):
                return replace(self, error=error)
            case ActionRequired(action_required=payload):
                return replace(self, asked=payload.tool_calls)
            case TakeoverEvent(takeover=takeover):
                return replace(self, takeover=takeover)
            case VersionReached(version=version, has_older=older):
                return replace(self, version=version, has_older=self.has_older or older)

    def _with_part(self, part: PartPayload) -> "ClientState":
        assert (part.history_version, part.attempt) == self.episode, "a part of another episode"
        assert part.seq == len(self.preview) + 1, "a part is missing or came twice"
        return replace(self, preview=(*self.preview, part))

    def settled(self) -> "ClientState":
        """Without the preview, which the stream may lose."""
        return replace(self, preview=())

    def without_deadlines(self) -> "ClientState":
        """For tests that move deadlines in the database, which makes no new version."""
        return replace(self, asked=tuple(replace(call, deadline=None) for call in self.asked))

    @staticmethod
    def of(full: ChatSnapshot) -> "ClientState":
        """What a client that reads everything now would show."""
        chat = full.chat
        assert full.since == 0
        rows = [public_message(chat.id, row) for row in full.messages if not row.deleted]
        queue = sorted(full.queue or (), key=lambda item: (not item.steer, item.position))
        deadlines = call_deadlines(chat)
        return ClientState(
            version=chat.snapshot_version,
            has_older=full.has_older,
            status=chat.public_status,
            messages={row.id: row for row in rows if row is not None},
            queue=tuple(public_queued(chat.id, item) for item in queue),
            retry=chat.retry_state,
            error=chat.last_error if chat.public_status == "error" else None,
            asked=tuple(
                RequestedCall(
                    tool_call_id=call.id,
                    tool_name=call.name,
                    kind=kind,
                    deadline=deadlines[call.id],
                    can_always=call.always and kind == "approval",
                    reason=call.reason,
                    args=call.args,
                )
                for call in waiting_calls(chat)
                if (kind := wait_of(call)) is not None
            ),
            takeover=None if chat.takeover is None else takeover_payload(chat.takeover),
            episode=(chat.history_version, chat.attempt),
        )


async def read_snapshot(
    conn: Conn, chat_id: ChatId, version: int, *, most: int = 1000
) -> ChatSnapshot:
    seen = present(await chats.load_changes_since(conn, HARNESS, chat_id, version, limit=most))
    return ChatSnapshot(
        chat=seen.chat,
        since=version,
        messages=seen.messages,
        queue=seen.queue,
        has_older=seen.truncated,
    )


async def read_state(conn: Conn, chat_id: ChatId) -> ClientState:
    return ClientState.of(await read_snapshot(conn, chat_id, 0))


async def resume_state(
    conn: Conn, chat_id: ChatId, state: ClientState, *, most: int = 1000
) -> ClientState:
    """The state of a client that resumes. With more than `most` changed messages it reads
    everything again."""
    if state.version == 0:
        return state.apply(diff(None, await read_snapshot(conn, chat_id, 0))).settled()
    changes = await read_snapshot(conn, chat_id, state.version, most=most)
    if needs_full_read(state.version, changes):
        changes = await read_snapshot(conn, chat_id, 0)
    return state.apply(diff(ViewerPosition(version=state.version), changes)).settled()
