"""`reduce(received, event)`: the state of a chat from the server's events.

Durable events come in groups that end with `version`. A group is collected and applied at once, so
that nobody sees half of a change: the committed answer comes in and its live parts go out in the
same state. A group of an older version changes nothing, unless it begins with `history_reset`.
The page has the same rules in `ui/src/chat-state`; both replay `tests/data/events`.
"""

from collections.abc import Iterable, Sequence
from functools import reduce as fold
from typing import Final

from msgspec.structs import replace

from chatd.client.live_answer import add_live_part
from chatd.client.state import LiveAnswer, LiveEpisode, OlderPage, ReceivedChat, ShownChat
from chatd.domain.chat.events import (
    ActionRequired,
    DurableEvent,
    ErrorEvent,
    Event,
    HistoryReset,
    MessageEvent,
    MessagePart,
    MessagesDeleted,
    PreviewReset,
    QueueUpdate,
    RetryEvent,
    StatusEvent,
    TakeoverEvent,
    VersionReached,
)
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId

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
    """With a page of messages below `before_id`, the oldest one that was shown when it was asked
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
            return replace(shown, status=payload.status, error=None, requested_calls=())
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
