"""Live parts read back: what a worker that is gone had shown of its last step.

Owns turning the journal's rows, or a tape, into parts again. They are as viewers saw them:
without what clients may not see, and only up to the first hole.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from chatd.domain.chat import Episode
from chatd.domain.events import MessagePart
from chatd.domain.partial import LivePart
from chatd.parts.tail import WHOLE
from chatd.parts.tape import TRUNCATED
from chatd.store import journal
from chatd.store.conn import Conn

_DECODER: Final = msgspec.json.Decoder(MessagePart)


async def read_episode(conn: Conn, episode: Episode) -> tuple[LivePart, ...]:
    """In order. Nothing, if nothing was written or it was too long ago."""
    events: list[bytes] = []
    for row in await journal.tail(conn, [(episode, 0)], most=WHOLE):
        if row.first_seq > len(events) + 1:
            break
        if row.last_seq > len(events):
            events += row.parts.split(b"\n")[len(events) + 1 - row.first_seq :]
    return live_parts(events)


def live_parts(events: Iterable[bytes]) -> tuple[LivePart, ...]:
    """The mark that stands for the rest of a very long step is nothing that anybody said."""
    decoded = (_decoded(event) for event in events)
    return tuple(live for live in decoded if live is not None and live.part != TRUNCATED)


def _decoded(event: bytes) -> LivePart | None:
    """None for a kind of part that only a newer replica knows."""
    try:
        payload = _DECODER.decode(event).message_part
    except msgspec.DecodeError:
        return None
    return LivePart(role=payload.role, part=payload.part)
