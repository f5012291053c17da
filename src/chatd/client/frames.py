"""What goes over the WebSocket: objects from the client, arrays of events from the server.

A newer server may send what this client does not know. An event of an unknown type is left out. A
part of an unknown type stays in its place, as an `UnknownPart` with the JSON that came.
"""

import logging
from datetime import datetime
from typing import Final, TypeVar, cast, get_args
from uuid import UUID

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.client.resources import NEVER, Chat
from chatd.domain.chat.messages import PublicMessage, PublicQueuedMessage
from chatd.domain.chat.parts import KnownPart, UnknownPart
from chatd.domain.chat_views.events import Event, MessageEvent, MessagePart, QueueUpdate
from chatd.domain.ids import ChatId
from chatd.log_event import LogEvent

M = TypeVar("M", PublicMessage, PublicQueuedMessage)


class _Tagged(Struct):
    type: str = ""


_TYPES: Final = frozenset(kind.__struct_config__.tag for kind in get_args(Event))
_PARTS: Final = frozenset(kind.__struct_config__.tag for kind in get_args(KnownPart))
_TAG: Final = msgspec.json.Decoder(_Tagged)
_EVENT: Final = msgspec.json.Decoder(Event)
_MESSAGE: Final = msgspec.json.Decoder(PublicMessage)


def read_event(data: bytes) -> Event | None:
    """None if this client does not know the type."""
    if _TAG.decode(data).type not in _TYPES:
        return None
    try:
        return _EVENT.decode(data)
    except msgspec.ValidationError:
        return _read_with_unknown(data)


def read_message(data: bytes) -> PublicMessage:
    """A message of a page. Raises msgspec.ValidationError."""
    try:
        return _MESSAGE.decode(data)
    except msgspec.ValidationError:
        message = msgspec.json.decode(data, type=Json)
        taken = _take_unknown(message)
        return _with_unknown(_MESSAGE.decode(msgspec.json.encode(message)), taken)


Json = dict[str, object]


def _read_with_unknown(data: bytes) -> Event:
    """Decodes the event without the parts that are not known, and puts them back. Raises
    msgspec.ValidationError if that was not the reason."""
    event = msgspec.json.decode(data, type=Json)
    if (payload := _object(event, "message_part")) is not None:
        part = payload.get("part")
        payload["part"] = {"type": "text", "text": ""}
        decoded = cast("MessagePart", _convert(event))
        unknown = _unknown(part)
        if unknown is None:
            raise msgspec.ValidationError("the live part is not valid")
        return replace(decoded, message_part=replace(decoded.message_part, part=unknown))
    if (message := _object(event, "message")) is not None:
        taken = _take_unknown(message)
        decoded = cast("MessageEvent", _convert(event))
        return replace(decoded, message=_with_unknown(decoded.message, taken))
    queued = msgspec.convert(event.get("queued_messages", []), list[Json])
    lists = [_take_unknown(one) for one in queued]
    event = event | ({"queued_messages": queued} if queued else {})
    decoded = cast("QueueUpdate", _convert(event))
    pairs = zip(decoded.queued_messages, lists, strict=True) if lists else ()
    messages = tuple(_with_unknown(one, taken) for one, taken in pairs)
    return replace(decoded, queued_messages=messages) if lists else decoded


def _object(event: Json, name: str) -> Json | None:
    found = event.get(name)
    return cast("Json", found) if isinstance(found, dict) else None


def _convert(event: Json) -> Event:
    return _EVENT.decode(msgspec.json.encode(event))


def _unknown(part: object) -> UnknownPart | None:
    known = isinstance(part, dict) and cast("Json", part).get("type") in _PARTS
    return None if known else UnknownPart(raw=Raw(msgspec.json.encode(part)))


def _take_unknown(message: Json) -> dict[int, UnknownPart]:
    """Removes the unknown parts from the message's JSON; by their places."""
    parts = message.get("content")
    if not isinstance(parts, list):
        raise msgspec.ValidationError("a message has no list of parts")
    parts = cast("list[object]", parts)
    found = {at: one for at, part in enumerate(parts) if (one := _unknown(part)) is not None}
    message["content"] = [part for at, part in enumerate(parts) if at not in found]
    return found


def _with_unknown(message: M, taken: dict[int, UnknownPart]) -> M:
    content: list[KnownPart | UnknownPart] = list(message.content)
    for at in sorted(taken):
        content.insert(at, taken[at])
    return replace(message, content=tuple(content))


log = logging.getLogger(__name__)

LIST_TOPIC: Final = "chats"
_CHAT_PREFIX: Final = "chat:"


def chat_topic(chat_id: ChatId) -> str:
    return f"{_CHAT_PREFIX}{chat_id}"


def chat_of(topic: str) -> ChatId | None:
    """None for the list, and for topics that this client does not know."""
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
    """`code` is set if the server ended the subscription."""

    topic: str
    code: str | None = None


class Refused(_Frame, frozen=True, kw_only=True, tag="refused"):
    code: str
    message: str = ""
    topic: str | None = None


# Events of the list of chats


class ListReady(_Frame, frozen=True, kw_only=True, tag="ready"):
    """Changes are sent from now on: read the list. Sent again after changes may have been lost."""


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


_OWN: Final = msgspec.json.Decoder(TopicEvent | ListEvent)
_OWN_TYPES: Final = frozenset(
    {"subscribed", "unsubscribed", "refused", "ready", "chat", "removed", "spend_warning"}
)
_ARRAY: Final = msgspec.json.Decoder(list[Raw])


def read_received(data: str | bytes) -> list[Received]:
    """What a frame contains, without what this client does not know. Raises msgspec.MsgspecError
    for anything that is not a frame of a chatd server."""
    found = [_read_one(bytes(one)) for one in _ARRAY.decode(data)]
    return [one for one in found if one is not None]


def _read_one(data: bytes) -> Received | None:
    kind = _TAG.decode(data).type
    try:
        return _OWN.decode(data) if kind in _OWN_TYPES else read_event(data)
    except msgspec.ValidationError as error:
        # A server of another version. Ending the connection would only bring it back.
        fields = {"type": kind, "error": error}
        log.warning(LogEvent(event="client_event_skipped", fields=fields))
        return None
