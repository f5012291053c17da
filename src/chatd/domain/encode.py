"""Events as bytes: encoded once, on one line, for every viewer and for the journal.

Owns that an event has no line break in it. Arguments of a tool call are kept as the model
wrote them, and a model may well write its JSON on several lines; inside JSON such a break is
no more than a space, but to an event stream and to the journal it would be the end.
"""

from typing import Final

import msgspec

from chatd.domain.events import DurableEvent, MessagePart, PartPayload
from chatd.domain.parts import Opaque, decode_parts, encode_parts

_ENCODER: Final = msgspec.json.Encoder()


def encode_value(value: msgspec.Struct) -> bytes:
    line = _ENCODER.encode(value)
    if b"\n" in line or b"\r" in line:
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    return line


def encode_event(event: DurableEvent) -> bytes:
    return encode_value(event)


def encode_part(event: MessagePart) -> bytes | None:
    """Live parts come as they were said, perhaps with half a character at the end. None for
    what cannot be mended: a preview may lack it."""
    try:
        return encode_value(event)
    except UnicodeEncodeError:
        (part,) = decode_parts(encode_parts([event.message_part.part]))
        if isinstance(part, Opaque):
            return None
        payload: PartPayload = msgspec.structs.replace(event.message_part, part=part)
        return encode_value(msgspec.structs.replace(event, message_part=payload))
