"""What the Messages API needs back exactly as it sent it, kept with the part it belongs to.

Written by the decoder, read by the encoder, looked into by nobody else.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.domain.chat.parts import Json


class Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`block` is the type of the block where it cannot be told from the part."""

    signature: str | None = None
    redacted_thinking: str | None = None
    citations: list[Raw] | None = None
    block: str | None = None
    caller: Raw | UnsetType = UNSET


class _Envelope(Struct, frozen=True, kw_only=True, omit_defaults=True):
    anthropic: Kept | None = None


_DECODER: Final = msgspec.json.Decoder(_Envelope)
_ENCODER: Final = msgspec.json.Encoder()
NOTHING: Final = Kept()


def keep(kept: Kept) -> Raw:
    return Raw(_ENCODER.encode(_Envelope(anthropic=kept)))


def kept(metadata: Json) -> Kept:
    """Nothing, if it is another vendor's."""
    if metadata is UNSET:
        return NOTHING
    try:
        return _DECODER.decode(metadata).anthropic or NOTHING
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return NOTHING
