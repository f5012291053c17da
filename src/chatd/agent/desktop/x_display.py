"""A connection to an X server, as far as a desktop needs it: pointer and keyboard events by the
XTEST extension, and images of the screen, scaled by the server with the RENDER extension.

Speaks the X protocol itself, so that a workspace needs an X server and nothing else. Every method
blocks until the server has done it: call them in a thread.
"""

from __future__ import annotations

import os
import socket
import struct
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

X_TIMEOUT_S = 5.0
"""An X server that does not answer for this long counts as dead."""
MAX_X_REPLY_BYTES = 256 << 20

_KEY_PRESS, _BUTTON_PRESS, _MOTION = 2, 4, 6
_SRC = 1
_Z_PIXMAP = 2
_INCLUDE_INFERIORS = (1 << 8, 1)
_NO_SYMBOL = 0


class DisplayLost(Exception):
    """The X server has ended, does not answer, or reported an error."""


@dataclass(frozen=True)
class ScreenRegion:
    """A rectangle of the screen, in its own pixels."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class KeyboardKey:
    """`level` 1 is the key with Shift."""

    keycode: int
    level: int


@dataclass(frozen=True)
class _Setup:
    """What the server tells of itself when a connection begins."""

    id_base: int
    keycodes: range
    root: int
    width: int
    height: int
    depth: int


class XDisplay:
    """One connection. Not for use by two threads at once."""

    def __init__(self, path: str, cookie: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(X_TIMEOUT_S)
        self._sequence = 0
        self._next_id = 0
        self.spare_keycodes: list[int] = []
        try:
            self._socket.connect(path)
            setup = self._set_up(cookie)
            self._root, self._depth, self._id_base = setup.root, setup.depth, setup.id_base
            self._keycodes = setup.keycodes
            self.width, self.height = setup.width, setup.height
            self._xtest = self._query_extension(b"XTEST")
            self._render = self._query_extension(b"RENDER")
            self._format = self._find_format()
        except (OSError, struct.error, IndexError) as error:
            self.close()
            raise DisplayLost(f"cannot connect to the X server: {error}") from error
        except DisplayLost:
            self.close()
            raise

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    # --- pointer and keyboard -------------------------------------------------------------------

    def pointer(self) -> tuple[int, int]:
        reply = self._ask(38, 0, struct.pack("<I", self._root))
        x, y = struct.unpack_from("<hh", reply, 16)
        return x, y

    def held_buttons(self) -> tuple[int, ...]:
        (mask,) = struct.unpack_from("<H", self._ask(38, 0, struct.pack("<I", self._root)), 24)
        return tuple(number for number in range(1, 6) if mask & (0x80 << number))

    def held_keycodes(self) -> tuple[int, ...]:
        reply = self._ask(44, 0, b"")
        return tuple(code for code in range(256) if reply[8 + code // 8] & (1 << code % 8))

    def move(self, x: int, y: int) -> None:
        self._fake(_MOTION, 0, x, y)
        self._sync()

    def press_button(self, number: int, *, is_down: bool) -> None:
        self._fake(_BUTTON_PRESS + (not is_down), number)
        self._sync()

    def press_key(self, keycode: int, *, is_down: bool) -> None:
        self._fake(_KEY_PRESS + (not is_down), keycode)
        self._sync()

    def type_keys(self, keys: Iterable[KeyboardKey], shift: int) -> None:
        """Press and release each key."""
        for key in keys:
            if key.level:
                self._fake(_KEY_PRESS, shift)
            self._fake(_KEY_PRESS, key.keycode)
            self._fake(_KEY_PRESS + 1, key.keycode)
            if key.level:
                self._fake(_KEY_PRESS + 1, shift)
        self._sync()

    def read_keyboard(self) -> dict[int, KeyboardKey]:
        """The key of each symbol. `spare_keycodes` are those without any."""
        first, count = self._keycodes.start, len(self._keycodes)
        reply = self._ask(101, 0, struct.pack("<BBH", first, count, 0))
        per_key = reply[1]
        symbols = struct.unpack_from(f"<{count * per_key}I", reply, 32)
        found: dict[int, KeyboardKey] = {}
        self.spare_keycodes = []
        for index, keycode in enumerate(self._keycodes):
            own = symbols[index * per_key : (index + 1) * per_key]
            if not any(own):
                self.spare_keycodes.append(keycode)
            for level, symbol in enumerate(own[:2]):
                if symbol != _NO_SYMBOL:
                    found.setdefault(symbol, KeyboardKey(keycode, level))
        return found

    def assign_key(self, keycode: int, symbol: int) -> None:
        """Give a spare key a symbol; 0 takes it away."""
        body = struct.pack("<BBHII", keycode, 2, 0, symbol, symbol)
        self._send(100, 1, body)
        self._sync()

    def has_window_manager(self) -> bool:
        """Whether one has announced itself, as they all do once they manage windows."""
        name = b"_NET_SUPPORTING_WM_CHECK"
        found = self._ask(16, 0, struct.pack("<HH", len(name), 0) + name)
        (atom,) = struct.unpack_from("<I", found, 8)
        reply = self._ask(20, 0, struct.pack("<IIIII", self._root, atom, 0, 0, 1))
        return struct.unpack_from("<I", reply, 8)[0] != 0

    # --- images ---------------------------------------------------------------------------------

    def capture(self, region: ScreenRegion, width: int, height: int) -> bytes:
        """The region scaled to this size: four bytes for each pixel (blue, green, red, unused)."""
        if (region.width, region.height) == (width, height):
            return self._get_image(self._root, region)
        # Bilinear filtering reads four pixels at most: a larger step would leave some out.
        steps = [(width, height)]
        while steps[0][0] * 2 < region.width and steps[0][1] * 2 < region.height:
            steps.insert(0, (steps[0][0] * 2, steps[0][1] * 2))
        source, origin, made = self._root, region, list[int]()
        try:
            for size in steps:
                target = self._new_id()
                self._send(53, self._depth, struct.pack("<IIHH", target, self._root, *size))
                made.append(target)
                self._scale(source, origin, target, size)
                source, origin = target, ScreenRegion(0, 0, *size)
            return self._get_image(source, origin)
        finally:
            for pixmap in made:
                self._send(54, 0, struct.pack("<I", pixmap))

    def _scale(self, source: int, region: ScreenRegion, target: int, size: tuple[int, int]) -> None:
        read, write = self._new_id(), self._new_id()
        mask, value = _INCLUDE_INFERIORS
        self._send_render(4, struct.pack("<IIIII", read, source, self._format, mask, value))
        self._send_render(4, struct.pack("<IIII", write, target, self._format, 0))
        one = 1 << 16
        across, down = region.width * one // size[0], region.height * one // size[1]
        matrix = (across, 0, region.x * one, 0, down, region.y * one, 0, 0, one)
        self._send_render(28, struct.pack("<I9i", read, *matrix))
        self._send_render(30, struct.pack("<IHH", read, 8, 0) + b"bilinear")
        numbers = (_SRC, read, 0, write, 0, 0, 0, 0, 0, 0, *size)
        self._send_render(8, struct.pack("<B3xIII6hHH", *numbers))
        self._send_render(7, struct.pack("<I", read))
        self._send_render(7, struct.pack("<I", write))

    def _get_image(self, drawable: int, region: ScreenRegion) -> bytes:
        place = (drawable, region.x, region.y, region.width, region.height, 0xFFFFFFFF)
        reply = self._ask(73, _Z_PIXMAP, struct.pack("<IhhHHI", *place))
        size = region.width * region.height * 4
        if len(reply) < 32 + size:
            raise DisplayLost("the X server does not use 32 bits for a pixel")
        return reply[32 : 32 + size]

    # --- the protocol ---------------------------------------------------------------------------

    def _set_up(self, cookie: bytes) -> _Setup:
        name = b"MIT-MAGIC-COOKIE-1"
        head = struct.pack("<BxHHHHxx", 0x6C, 11, 0, len(name), len(cookie))
        self._socket.sendall(head + _padded(name) + _padded(cookie))
        status, length = struct.unpack("<B5xH", self._read(8))
        body = self._read(length * 4)
        if status != 1:
            raise DisplayLost("the X server refused the connection")
        vendor_bytes, _, _, formats = struct.unpack_from("<HHBB", body, 16)
        at = 32 + vendor_bytes + -vendor_bytes % 4 + formats * 8
        width, height = struct.unpack_from("<HH", body, at + 20)
        return _Setup(
            id_base=struct.unpack_from("<I", body, 4)[0],
            keycodes=range(body[26], body[27] + 1),
            root=struct.unpack_from("<I", body, at)[0],
            width=width,
            height=height,
            depth=body[at + 38],
        )

    def _find_format(self) -> int:
        """The RENDER format of pixels with eight bits for each of red, green and blue."""
        self._ask(self._render, 0, struct.pack("<II", 0, 11))
        reply = self._ask(self._render, 1, b"")
        (count,) = struct.unpack_from("<I", reply, 8)
        for number in range(count):
            at = 32 + number * 28
            found, _, depth = struct.unpack_from("<IBB", reply, at)
            channels = struct.unpack_from("<8H", reply, at + 8)
            if depth == self._depth and channels == (16, 255, 8, 255, 0, 255, 0, 0):
                return found
        raise DisplayLost("the X server has no pixels of eight bits per colour")

    def _query_extension(self, name: bytes) -> int:
        reply = self._ask(98, 0, struct.pack("<HH", len(name), 0) + _padded(name))
        if not reply[8]:
            raise DisplayLost(f"the X server lacks the extension {name.decode()}")
        return reply[9]

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        root = self._root if kind == _MOTION else 0
        body = struct.pack("<BBxxII8xhh7xB", kind, detail, 0, root, x, y, 0)
        self._send(self._xtest, 2, body)

    def _send_render(self, minor: int, body: bytes) -> None:
        self._send(self._render, minor, body)

    def _new_id(self) -> int:
        """Ids are used again: all that has one is freed at once."""
        self._next_id = (self._next_id + 1) & 0xFFFF
        return self._id_base | self._next_id

    def _send(self, opcode: int, data: int, body: bytes) -> None:
        padded = _padded(body)
        self._sequence = (self._sequence + 1) & 0xFFFF
        try:
            words = 1 + len(padded) // 4
            self._socket.sendall(struct.pack("<BBH", opcode, data, words) + padded)
        except OSError as error:
            raise DisplayLost(f"the X server has gone: {error}") from error

    def _ask(self, opcode: int, data: int, body: bytes) -> bytes:
        self._send(opcode, data, body)
        while True:
            try:
                head = self._read(32)
            except OSError as error:
                raise DisplayLost(f"the X server does not answer: {error}") from error
            kind, sequence, length = struct.unpack_from("<BxHI", head)
            if kind == 0:
                raise DisplayLost(f"the X server refused a request (error {head[1]})")
            if kind not in (1, 35):
                continue  # an event
            if length * 4 > MAX_X_REPLY_BYTES:
                raise DisplayLost("the X server sent a reply that is too large")
            try:
                rest = self._read(length * 4)
            except OSError as error:
                raise DisplayLost(f"the X server does not answer: {error}") from error
            if kind == 1 and sequence == self._sequence:
                return head + rest

    def _sync(self) -> None:
        """All earlier requests have been done when the reply to this one is there."""
        self._ask(43, 0, b"")

    def _read(self, size: int) -> bytes:
        buffer = bytearray(size)
        view, read = memoryview(buffer), 0
        while read < size:
            count = self._socket.recv_into(view[read:])
            if not count:
                raise DisplayLost("the X server has ended")
            read += count
        return bytes(buffer)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


# Files of X

COOKIE_BYTES = 16
_FAMILY_WILD = 0xFFFF


def write_authority(path: str, display: int, cookie: bytes) -> None:
    """The file that programs read the cookie of a display from (`XAUTHORITY`)."""
    fields: Sequence[bytes] = (b"", str(display).encode(), b"MIT-MAGIC-COOKIE-1", cookie)
    entry = struct.pack(">H", _FAMILY_WILD)
    entry += b"".join(struct.pack(">H", len(field)) + field for field in fields)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(entry)


# PNG. Filtering the rows first would take seven times as long, for no fewer bytes (measured with
# windows of text).

_PNG_LEVEL = 4


def encode_png(pixels: bytes, width: int, height: int) -> bytes:
    """From what `XDisplay.capture` returns."""
    colours = bytearray(width * height * 3)
    for place in range(3):
        colours[place::3] = pixels[2 - place :: 4]
    row = width * 3
    lines = b"".join(b"\0" + colours[start : start + row] for start in range(0, len(colours), row))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines, _PNG_LEVEL)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)
