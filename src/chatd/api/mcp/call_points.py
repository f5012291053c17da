"""Where a client resumes a call after its stream was cut: the id of an event holds the whole call.

Nothing is stored, so any replica can continue the call, also after a restart. Only tools that
change nothing are resumed, and with the rights of the caller who asks for it: an id that somebody
made up is no more than a call of such a tool.
"""

import base64
import binascii
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from chatd.api.mcp.messages import INVALID_PARAMS, Json, ProtocolError, RequestId
from chatd.api.schemas.messages import MAX_INT64

MAX_EVENT_ID_CHARS: Final = 4096
"""A call with longer arguments cannot be resumed: servers and proxies limit headers."""


class CallPoint(Struct, frozen=True, kw_only=True, array_like=True):
    """A call in progress. `started_ms` is the wall time at which it began."""

    request_id: RequestId
    progress_token: RequestId | None
    tool: str
    arguments: Json
    started_ms: Annotated[int, Meta(ge=0, le=MAX_INT64)]
    version: str


_DECODER: Final = msgspec.json.Decoder(CallPoint)


def encode_point(point: CallPoint) -> str | None:
    """None for a call that cannot be resumed."""
    try:
        encoded = msgspec.json.encode(point)
    except RecursionError:
        return None
    text = base64.urlsafe_b64encode(encoded).decode().rstrip("=")
    return text if len(text) <= MAX_EVENT_ID_CHARS else None


def event_id(point: str, number: int) -> str:
    """Every event of a stream has its own."""
    return f"{point}.{number}"


def read_point(last_event_id: str) -> CallPoint:
    """Raises ProtocolError."""
    text = last_event_id.partition(".")[0]
    try:
        if len(last_event_id) > MAX_EVENT_ID_CHARS + 20:
            raise ValueError
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return _DECODER.decode(decoded)
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        raise ProtocolError(
            INVALID_PARAMS,
            "Last-Event-ID is not the id of an event of this server. Call the tool again.",
        ) from None
