"""Reads events of a stream. A newer server may send types that this client does not know."""

from collections.abc import Iterator, Sequence
from typing import Final, get_args

import msgspec
from msgspec import Raw, Struct

from chatd.domain.chat.events import Event


class _Tagged(Struct):
    type: str


_TYPES: Final = frozenset(kind.__struct_config__.tag for kind in get_args(Event))
_TAG: Final = msgspec.json.Decoder(_Tagged)
_EVENT: Final = msgspec.json.Decoder(Event)
_FRAME: Final = msgspec.json.Decoder(list[Raw])


def read_event(data: bytes) -> Event | None:
    """None if this client does not know the type."""
    return _EVENT.decode(data) if _TAG.decode(data).type in _TYPES else None


def read_frame(data: bytes | str) -> Iterator[Event]:
    """The events of a chat in a frame of the WebSocket."""
    raw: Sequence[Raw] = _FRAME.decode(data)
    for one in raw:
        if (event := read_event(bytes(one))) is not None:
            yield event
