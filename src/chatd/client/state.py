"""`reduce(received, event)`: what a client shows of a chat, from the server's events.

That is the committed messages, and the live parts of the answer that is being written. Durable
events come in groups that end with `version`. A group is collected and applied at once, so that
nobody sees half of a change: the committed answer comes in and its live parts go out in the same
state. A group of an older version changes nothing, unless it begins with `history_reset`. The page
has the same rules in `ui/src/chat-state`; both replay `tests/data/events`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce as fold
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import PublicMessage, PublicQueuedMessage
from chatd.domain.chat.parts import KnownPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.row import ChatError, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat.takeover import TakeoverPayload
from chatd.domain.chat_views.events import (
    ActionRequired,
    DurableEvent,
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
    WaitingCall,
)
from chatd.domain.ids import ChatId


class LiveEpisode(Struct, frozen=True, kw_only=True):
    """Names the live parts of one attempt at one answer."""

    history_version: int
    attempt: int


class LiveAnswer(Struct, frozen=True, kw_only=True):
    """The parts of an answer before its commit, joined; `seq` is the number of the last one."""

    episode: LiveEpisode
    seq: int
    parts: tuple[KnownPart, ...]


class ShownChat(Struct, frozen=True, kw_only=True):
    """`is_loaded` is false until the first whole group has arrived. `live` is None while no answer
    is being written; it is never there together with its committed message."""

    chat_id: ChatId
    is_loaded: bool = False
    version: int = 0
    cursor: str = ""
    status: PublicStatus = "waiting"
    messages: tuple[PublicMessage, ...] = ()
    has_older: bool = False
    queue: tuple[PublicQueuedMessage, ...] = ()
    retry: RetryState | None = None
    error: ChatError | None = None
    requested_calls: tuple[RequestedCall, ...] = ()
    waiting_calls: tuple[WaitingCall, ...] = ()
    takeover: TakeoverPayload | None = None
    live: LiveAnswer | None = None

    @property
    def waits_for(self) -> str:
        """Why its calls cannot go on now; empty: they do."""
        return next((call.waits_for for call in self.waiting_calls), "")


class ReceivedChat(Struct, frozen=True, kw_only=True):
    """What a client has received. Only `shown` is for the screen; `group` waits for its version.
    `rewritten_at` is the last version that deleted messages: a page of older messages that was read
    before it may contain them."""

    shown: ShownChat
    group: tuple[DurableEvent, ...] = ()
    episode: LiveEpisode | None = None
    rewritten_at: int = 0


class OlderPage(Struct, frozen=True, kw_only=True):
    """Messages below one that is shown, as they were at `version`."""

    messages: tuple[PublicMessage, ...]
    has_more: bool
    version: int


# Live parts join into the parts that they become

Parts = tuple[KnownPart, ...]


def add_live_part(live: LiveAnswer | None, payload: PartPayload) -> LiveAnswer | None:
    """The answer with one more part. One that it has is ignored: after a reconnect the server sends
    all parts of the episode again. So is one after a gap, which the server never makes. The first
    part of another attempt replaces the answer."""
    episode = LiveEpisode(history_version=payload.history_version, attempt=payload.attempt)
    known = live if live is not None and live.episode == episode else None
    if payload.seq != (0 if known is None else known.seq) + 1:
        return live
    parts = _join(() if known is None else known.parts, payload.part)
    return LiveAnswer(episode=episode, seq=payload.seq, parts=parts)


def _join(parts: Parts, part: KnownPart) -> Parts:
    last = parts[-1] if parts else None
    match part:
        case TextPart() if isinstance(last, TextPart):
            return (*parts[:-1], replace(last, text=last.text + part.text))
        case ReasoningPart() if isinstance(last, ReasoningPart):
            return (*parts[:-1], replace(last, text=last.text + part.text))
        case ToolCallPart():
            return _join_call(parts, part)
        case ToolResultPart():
            return _join_result(parts, part)
        case _:
            return (*parts, part)


def _join_call(parts: Parts, part: ToolCallPart) -> Parts:
    """Arguments are collected in `args_delta`. The complete call takes their place."""
    index = _find(
        parts, lambda one: isinstance(one, ToolCallPart) and one.tool_call_id == part.tool_call_id
    )
    known = parts[index] if index is not None else None
    if index is None or not isinstance(known, ToolCallPart):
        return (*parts, part)
    if known.args_delta is None:
        return parts
    if part.args_delta is not None:
        part = replace(known, args_delta=known.args_delta + part.args_delta, args=UNSET)
    return (*parts[:index], part, *parts[index + 1 :])


def _join_result(parts: Parts, part: ToolResultPart) -> Parts:
    index = _find(
        parts, lambda one: isinstance(one, ToolResultPart) and one.tool_call_id == part.tool_call_id
    )
    known = parts[index] if index is not None else None
    if index is None or not isinstance(known, ToolResultPart):
        return (*parts, part)
    if known.result_delta is None:
        return parts
    if part.result_delta is not None:
        part = replace(known, result_delta=known.result_delta + part.result_delta)
    return (*parts[:index], part, *parts[index + 1 :])


def _find(parts: Parts, fits: Callable[[KnownPart], bool]) -> int | None:
    return next((index for index, part in enumerate(parts) if fits(part)), None)


# The reducer

_LIVE: Final[frozenset[PublicStatus]] = frozenset({"pending", "running", "interrupting"})


def start(chat_id: ChatId) -> ReceivedChat:
    return ReceivedChat(shown=ShownChat(chat_id=chat_id))


def reduce(received: ReceivedChat, event: Event) -> ReceivedChat:
    if event.chat_id != received.shown.chat_id:
        return received
    match event:
        case MessagePart():
            return _with_part(received, event)
        case VersionReached():
            return _with_group(received, event)
        case _:
            return replace(received, group=(*received.group, event))


def reduce_all(received: ReceivedChat, events: Iterable[Event]) -> ReceivedChat:
    return fold(reduce, events, received)


def drop_partial_group(received: ReceivedChat) -> ReceivedChat:
    """The connection was lost: the group comes again, after the last cursor."""
    return replace(received, group=())


def add_older_page(received: ReceivedChat, before_id: int, page: OlderPage) -> ReceivedChat | None:
    """Add a page of messages below `before_id`, the oldest one that was shown when it was asked
    for. None if the page is outdated and must be read again."""
    shown = received.shown
    is_oldest = bool(shown.messages) and shown.messages[0].id == before_id
    if page.version < received.rewritten_at or not is_oldest:
        return None
    older = sorted((one for one in page.messages if one.id < before_id), key=lambda one: one.id)
    messages = (*older, *shown.messages)
    return replace(received, shown=replace(shown, messages=messages, has_older=page.has_more))


def _with_part(received: ReceivedChat, event: MessagePart) -> ReceivedChat:
    shown, payload = received.shown, event.message_part
    episode = LiveEpisode(history_version=payload.history_version, attempt=payload.attempt)
    if episode != received.episode or shown.status not in _LIVE:
        return received
    return replace(received, shown=replace(shown, live=add_live_part(shown.live, payload)))


def _with_group(received: ReceivedChat, end: VersionReached) -> ReceivedChat:
    events, was = received.group, received.shown
    is_reset = any(isinstance(event, HistoryReset) for event in events)
    if not is_reset and was.is_loaded and end.version < was.version:
        return replace(received, group=())
    before = ShownChat(chat_id=was.chat_id, live=was.live) if is_reset else was
    after = _apply(before, events)
    episode = _episode_after(received.episode, events)
    live = before.live
    keeps_live = (
        live is not None and after.status in _LIVE and _is_shown_until(live, episode, after)
    )
    shown = replace(
        after,
        is_loaded=True,
        version=end.version,
        cursor=end.cursor,
        has_older=end.has_older if is_reset or not was.is_loaded else was.has_older,
        live=live if keeps_live else None,
    )
    is_rewritten = is_reset or any(isinstance(event, MessagesDeleted) for event in events)
    rewritten_at = end.version if is_rewritten else received.rewritten_at
    return ReceivedChat(shown=shown, episode=episode, rewritten_at=rewritten_at)


def _is_shown_until(live: LiveAnswer, episode: LiveEpisode | None, chat: ShownChat) -> bool:
    """The next attempt at the same answer replaces the preview with its first part, which is often
    the same text: another worker goes on with it. A failed answer is dropped at once."""
    if episode is None or live.episode == episode:
        return live.episode == episode
    is_same_answer = live.episode.history_version == episode.history_version
    return is_same_answer and live.episode.attempt < episode.attempt and chat.retry is None


def _apply(shown: ShownChat, events: Sequence[DurableEvent]) -> ShownChat:
    changed = [event.message for event in events if isinstance(event, MessageEvent)]
    deleted = {gone for event in events if isinstance(event, MessagesDeleted) for gone in event.ids}
    kept = [message for message in shown.messages if message.id not in deleted]
    messages = _upsert(kept, changed, has_older=shown.has_older)
    return fold(_with_detail, events, replace(shown, messages=messages))


def _upsert(
    messages: Sequence[PublicMessage], changed: Sequence[PublicMessage], *, has_older: bool
) -> tuple[PublicMessage, ...]:
    """A message below the oldest one is left out while older ones exist: it comes with its page,
    and would leave a gap before that."""
    oldest = messages[0].id if has_older and messages else 0
    by_id = {message.id: message for message in messages}
    by_id |= {message.id: message for message in changed if message.id >= oldest}
    return tuple(by_id[key] for key in sorted(by_id))


def _with_detail(shown: ShownChat, event: DurableEvent) -> ShownChat:
    match event:
        case StatusEvent(status=payload):
            return replace(
                shown,
                status=payload.status,
                waiting_calls=payload.waiting_calls,
                error=None,
                requested_calls=(),
            )
        case QueueUpdate(queued_messages=queue):
            return replace(shown, queue=queue)
        case RetryEvent(retry=retry):
            return replace(shown, retry=retry)
        case ErrorEvent(error=error):
            return replace(shown, error=error)
        case ActionRequired(action_required=payload):
            return replace(shown, requested_calls=payload.tool_calls)
        case TakeoverEvent(takeover=takeover):
            return replace(shown, takeover=takeover)
        case _:
            return shown


def _episode_after(known: LiveEpisode | None, events: Sequence[DurableEvent]) -> LiveEpisode | None:
    for event in reversed(events):
        if isinstance(event, PreviewReset):
            return LiveEpisode(history_version=event.history_version, attempt=event.attempt)
    return known
