"""What goes over the WebSocket: objects from the client, arrays of events from the server."""

import logging
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.client.event_reader import read_event
from chatd.client.resources import NEVER, Chat
from chatd.domain.chat.events import Event
from chatd.domain.ids import ChatId
from chatd.log_event import LogEvent

log = logging.getLogger(__name__)

LIST_TOPIC: Final = "chats"
_CHAT_PREFIX: Final = "chat:"


def chat_topic(chat_id: ChatId) -> str:
    return f"{_CHAT_PREFIX}{chat_id}"


def chat_of(topic: str) -> ChatId | None:
    """None for the list, and for what is no topic of this client."""
    try:
        return ChatId(UUID(topic.removeprefix(_CHAT_PREFIX)))
    except ValueError:
        return None


class _Frame(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Subscribe(_Frame, frozen=True, kw_only=True, tag="subscribe"):
    topic: str
    after: str | None = None


class Unsubscribe(_Frame, frozen=True, kw_only=True, tag="unsubscribe"):
    topic: str


class Ping(_Frame, frozen=True, kw_only=True, tag="ping"):
    pass


class Subscribed(_Frame, frozen=True, kw_only=True, tag="subscribed"):
    topic: str


class Unsubscribed(_Frame, frozen=True, kw_only=True, tag="unsubscribed"):
    """With a code: the server ended it."""

    topic: str
    code: str | None = None


class Refused(_Frame, frozen=True, kw_only=True, tag="refused"):
    code: str
    message: str = ""
    topic: str | None = None


# Events of the list of chats


class ListReady(_Frame, frozen=True, kw_only=True, tag="ready"):
    """Changes are told from now on: read the list. Again after changes may have been lost."""


class ChatChanged(_Frame, frozen=True, kw_only=True, tag="chat"):
    """Insert the chat or replace it; remove one whose `kind` is `deleted`."""

    kind: str
    chat: Chat


class ChatRemoved(_Frame, frozen=True, kw_only=True, tag="removed"):
    """The root chat of another user is no longer shared: remove it, with its subagents."""

    chat_id: ChatId


class SpendWarning(_Frame, frozen=True, kw_only=True, tag="spend_warning"):
    """The user has spent a large share of a limit."""

    percent: int = 0
    spent_micros: int = 0
    limit_micros: int = 0
    resets_at: datetime = NEVER


ListEvent = ListReady | ChatChanged | ChatRemoved | SpendWarning
TopicEvent = Subscribed | Unsubscribed | Refused
Received = TopicEvent | ListEvent | Event


class _Tagged(Struct):
    type: str = ""


_OWN: Final = msgspec.json.Decoder(TopicEvent | ListEvent)
_OWN_TYPES: Final = frozenset(
    {"subscribed", "unsubscribed", "refused", "ready", "chat", "removed", "spend_warning"}
)
_TAG: Final = msgspec.json.Decoder(_Tagged)
_ARRAY: Final = msgspec.json.Decoder(list[Raw])


def read_received(data: str | bytes) -> list[Received]:
    """What a frame contains, without what this client does not know. Raises msgspec.MsgspecError
    for what is no frame of a chatd server."""
    found = [_read_one(bytes(one)) for one in _ARRAY.decode(data)]
    return [one for one in found if one is not None]


def _read_one(data: bytes) -> Received | None:
    kind = _TAG.decode(data).type
    try:
        return _OWN.decode(data) if kind in _OWN_TYPES else read_event(data)
    except msgspec.ValidationError as error:
        # A server of another version. To end the connection would only bring it again.
        fields = {"type": kind, "error": error}
        log.warning(LogEvent(event="client_event_skipped", fields=fields))
        return None
