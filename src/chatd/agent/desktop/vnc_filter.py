"""What a viewer may send to the VNC server: its requests for images always, mouse, keyboard and
clipboard only while its person has taken over.

Knows the messages of RFB 3.8 by their length. A stream with any other message is ended, because
what follows it could not be told apart.
"""

from __future__ import annotations

import struct

from chatd.agent.errors import AgentError

MAX_VNC_INPUT_BYTES = 256 * 1024
MAX_CLIPBOARD_BYTES = 64 * 1024
MAX_ENCODINGS = 256

_HANDSHAKE = (12, 1, 1)
"""The version, the kind of security (none), and whether to share the desktop."""
_SET_PIXEL_FORMAT, _SET_ENCODINGS, _UPDATE_REQUEST = 0, 2, 3
_KEY, _POINTER, _CLIPBOARD = 4, 5, 6
_CONTINUOUS_UPDATES, _FENCE, _QEMU = 150, 248, 255
_FIXED = {_SET_PIXEL_FORMAT: 20, _UPDATE_REQUEST: 10, _KEY: 8, _POINTER: 6, _CONTINUOUS_UPDATES: 10}
_EXTENDED_BUTTONS = struct.pack(">i", -316)
"""An encoding that stands for pointer messages of another length: newer servers would take them."""
_RAW = struct.pack(">i", 0)
_ACTING = (_KEY, _POINTER, _CLIPBOARD, _QEMU)


class VncInputFilter:
    """The filter of one stream. Bytes may be cut anywhere."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._handshake = list(_HANDSHAKE)

    def feed(self, data: bytes, *, may_act: bool) -> tuple[bytes, bool]:
        """What may be passed on, and whether any of it acts. Raises AgentError."""
        self._waiting += data
        passed, has_acted = bytearray(), False
        while size := self._next_size():
            message = bytes(self._waiting[:size])
            del self._waiting[:size]
            is_greeting = bool(self._handshake)
            if is_greeting:
                del self._handshake[0]
            elif message[0] == _SET_ENCODINGS:
                message = _without_extended_buttons(message)
            acts = not is_greeting and message[0] in _ACTING
            if not acts or may_act:
                passed += message
                has_acted = has_acted or acts
        return bytes(passed), has_acted

    def _next_size(self) -> int:
        """The size of the next message; 0 if it is not complete."""
        waiting = self._waiting
        if not waiting:
            return 0
        if self._handshake:
            size = self._handshake[0]
        elif (kind := waiting[0]) in _FIXED:
            size = _FIXED[kind]
        elif kind == _SET_ENCODINGS:
            size = self._variable(4, ">xxH", 4, MAX_ENCODINGS)
        elif kind == _CLIPBOARD:
            size = self._variable(8, ">xxxxi", 1, MAX_CLIPBOARD_BYTES)
        elif kind == _FENCE:
            size = self._variable(9, ">8xB", 1, 64)
        elif kind == _QEMU:
            if len(waiting) > 1 and waiting[1] != 0:
                raise AgentError(400, "Only keys are taken of QEMU's messages.")
            size = 12
        else:
            raise AgentError(400, f"The VNC message {kind} is not known here.")
        return size if len(waiting) >= size else 0

    def _variable(self, head: int, form: str, unit: int, most: int) -> int:
        if len(self._waiting) < head:
            return head
        (count,) = struct.unpack_from(form, self._waiting)
        # The extended clipboard counts its bytes below zero.
        if abs(count) > most:
            raise AgentError(400, "A VNC message is too long.")
        return head + abs(count) * unit


def _without_extended_buttons(message: bytes) -> bytes:
    """Keeps the length: what is taken away becomes the encoding that every client has anyway."""
    encodings = [message[at : at + 4] for at in range(4, len(message), 4)]
    kept = (_RAW if each == _EXTENDED_BUTTONS else each for each in encodings)
    return message[:4] + b"".join(kept)
