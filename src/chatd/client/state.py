"""What a client shows of a chat: committed messages, and beside them the live parts of the answer
that is being written. `reducer` makes it of the server's events."""

from msgspec import Struct

from chatd.domain.chat.events import DurableEvent, RequestedCall
from chatd.domain.chat.parts import KnownPart
from chatd.domain.chat.public_messages import PublicMessage, PublicQueuedMessage
from chatd.domain.chat.row import ChatError, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId
from chatd.domain.takeover import TakeoverPayload


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
    takeover: TakeoverPayload | None = None
    live: LiveAnswer | None = None


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
