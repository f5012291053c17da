"""Reads events of a stream. A newer server may send types that this client does not know.

An event of an unknown type is left out. A part of an unknown type stays in its place, as an
`UnknownPart` with the JSON that came.
"""

from typing import Final, TypeVar, cast, get_args

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.domain.chat.events import Event, MessageEvent, MessagePart, QueueUpdate
from chatd.domain.chat.parts import KnownPart, UnknownPart
from chatd.domain.chat.public_messages import PublicMessage, PublicQueuedMessage

M = TypeVar("M", PublicMessage, PublicQueuedMessage)


class _Tagged(Struct):
    type: str


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
