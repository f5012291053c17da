"""The server name in the first bytes of a TLS connection, which are not encrypted."""

from typing import Final

MAX_HELLO_BYTES: Final = 16 * 1024 + 5
HANDSHAKE: Final = 22
CLIENT_HELLO: Final = 1
SERVER_NAME: Final = 0
HOST_NAME: Final = 0


class _Bytes:
    """Reads fields from the front. Raises IndexError at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise IndexError
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def field(self, size: int) -> "_Bytes":
        """A field that begins with its length, of `size` bytes."""
        return _Bytes(self.take(self.number(size)))


def read_server_name(data: bytes) -> str | None:
    """The name; empty if the hello has none. None if more bytes are needed. Raises ValueError if
    the bytes are not a TLS hello in one record."""
    if data[:1] != bytes((HANDSHAKE,)):
        raise ValueError("not TLS")
    try:
        record = _Bytes(data)
        record.take(3)
        size = record.number(2)
        body = record.take(size)
    except IndexError:
        if len(data) >= MAX_HELLO_BYTES:
            raise ValueError("the hello is too long") from None
        return None
    try:
        return _name_of_hello(body)
    except (IndexError, UnicodeDecodeError):
        # One that is cut into several records could hide its name.
        raise ValueError("the hello cannot be read") from None


def _name_of_hello(body: bytes) -> str:
    message = _Bytes(body)
    if message.number(1) != CLIENT_HELLO:
        raise ValueError("not a hello")
    hello = message.field(3)
    hello.take(2 + 32)
    for size in (1, 2, 1):  # session, cipher suites, compression
        hello.field(size)
    if not hello:
        return ""
    extensions = hello.field(2)
    while extensions:
        kind = extensions.number(2)
        content = extensions.field(2)
        if kind == SERVER_NAME:
            names = content.field(2)
            if names.number(1) != HOST_NAME:
                raise ValueError("an unknown kind of name")
            size = names.number(2)
            return names.take(size).decode("ascii")
    return ""
