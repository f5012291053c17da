"""The body of a large request, made, signed and sent without stopping other chats.

A thread makes it. One call of the JSON encoder keeps all threads waiting until it returns, so each
message is encoded on its own.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from chatd.domain.model.protocol import ModelRequest
from chatd.domain.prompt.overflow import is_prompt_larger

MAX_ENCODED_AT_ONCE_CHARS: Final = 256 * 1024
"""Of a prompt. A larger one is encoded in a thread."""

SENT_SLICE_BYTES: Final = 64 * 1024

T = TypeVar("T")
_ENCODER: Final = msgspec.json.Encoder()


def encode_list(items: Iterable[object], encoder: msgspec.json.Encoder = _ENCODER) -> Raw:
    """The same bytes as those of the list encoded at once."""
    pieces: list[bytes] = []
    for item in items:
        pieces += (b"," if pieces else b"[", encoder.encode(item))
    # Joined once, because a copy of a large body takes long too.
    return Raw(b"".join((*pieces, b"]"))) if pieces else Raw(b"[]")


async def encode_off_loop(request: ModelRequest, encode: Callable[[], T]) -> T:
    if is_prompt_larger(request.messages, MAX_ENCODED_AT_ONCE_CHARS):
        return await asyncio.to_thread(encode)
    return encode()


async def digest_off_loop(body: bytes, digest: Callable[[bytes], T]) -> T:
    """What is computed from all bytes of a body, such as a hash or a signature."""
    if len(body) > MAX_ENCODED_AT_ONCE_CHARS:
        return await asyncio.to_thread(lambda: digest(body))
    return digest(body)


async def body_slices(body: bytes) -> AsyncGenerator[memoryview]:
    """A large body for the HTTP client, which would copy it, or write it at once."""
    view = memoryview(body)
    for start in range(0, len(body), SENT_SLICE_BYTES):
        yield view[start : start + SENT_SLICE_BYTES]
