"""The bodies of requests to model APIs, compared as a prompt cache compares them."""

import re
from typing import Final

import msgspec
from msgspec import Struct

MARK: Final = re.compile(rb',?"cache_control":\{[^}]*\}')
CLOSING: Final = b'"}]'
MESSAGE_FIELDS: Final = ("messages", "input", "contents")
OWN_OF_A_REQUEST: Final = ("stream", "stream_options", *MESSAGE_FIELDS)


class SentRequest(Struct, frozen=True):
    """`head` is what providers put before the messages in their cache: system prompt and tools."""

    head: bytes
    messages: bytes

    @staticmethod
    def of(body: bytes) -> "SentRequest":
        fields = msgspec.json.decode(MARK.sub(b"", body), type=dict[str, msgspec.Raw])
        name = next(name for name in MESSAGE_FIELDS if name in fields)
        head = {key: value for key, value in fields.items() if key not in OWN_OF_A_REQUEST}
        return SentRequest(
            head=msgspec.json.encode(head), messages=bytes(fields[name]).rstrip(CLOSING)
        )

    def shared_bytes(self, later: "SentRequest") -> int:
        """How many bytes of this request the later one begins with."""
        if self.head != later.head:
            return 0
        pairs = zip(self.messages, later.messages, strict=False)
        same = next((n for n, (one, two) in enumerate(pairs) if one != two), None)
        if same is None:
            same = min(len(self.messages), len(later.messages))
        return len(self.head) + same

    @property
    def size(self) -> int:
        return len(self.head) + len(self.messages)
