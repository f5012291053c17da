"""Pictures of the chat on the whole terminal: screenshots of tools and image files.

A terminal that draws pictures does so by kitty's graphics protocol or by sixel; it is asked,
because no variable tells it for sure, and multiplexers answer for themselves. The app is suspended
meanwhile: pictures among lines of text would have to be redrawn with every scroll.
"""

import asyncio
import base64
import binascii
import os
import re
import select
import struct
import termios
import threading
import tty
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct
from textual.app import App, SuspendNotSupported

from chatd.domain.ids import FileId
from chatd.terminal.timeline.row import FilesRow, Row, ToolRow, UserRow
from chatd.terminal.timeline.tool_call import read_call, text_of

MAX_PICTURE_BYTES: Final = 8 * 1024 * 1024
MAX_PICTURE_PIXELS: Final = 4_000_000
"""A larger picture is not decoded for sixel."""
MAX_SIXEL_WIDTH: Final = 1000
PICTURE_QUERY_TIMEOUT_S: Final = 1.0
"""How long the terminal may take to say what it can draw; slow lines take long."""
MAX_PICTURE_VIEW_S: Final = 600.0
_QUERY_READS: Final = 20
_KITTY_CHUNK: Final = 4096
_PNG: Final = b"\x89PNG\r\n\x1a\n"
# A picture of one pixel that is not kept, the size of a cell, and what every terminal answers.
_QUERY: Final = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[16t\x1b[c"
_ATTRIBUTES: Final = re.compile(rb"\x1b\[\?([\d;]*)c")
_CELL: Final = re.compile(rb"\x1b\[6;(\d{1,4});(\d{1,4})t")

Graphics = Literal["kitty", "sixel", ""]


class Picture(Struct, frozen=True, kw_only=True):
    """Its content, or the file that has it."""

    data: bytes = b""
    file_id: FileId | None = None


class PictureTerminal(Struct, frozen=True, kw_only=True):
    """What a terminal can draw, and the pixels of one of its cells."""

    graphics: Graphics = ""
    cell: tuple[int, int] = (8, 16)


class PictureProblem(Exception):
    """Says why, for people."""


def picture_of(row: Row | None) -> Picture | None:
    """The newest picture of a row: the screenshot of a call, or an image file."""
    if isinstance(row, ToolRow):
        result = read_call(row.call).result
        if text_of(result, "mime_type").startswith("image/"):
            try:
                data = base64.b64decode(text_of(result, "data"), validate=True)
            except (binascii.Error, ValueError):
                return None
            return Picture(data=data) if data else None
    if isinstance(row, FilesRow | UserRow):
        for file in reversed(row.files):
            if file.media_type.startswith("image/") and file.file_id:
                return Picture(file_id=FileId(UUID(file.file_id)))
    return None


async def show_picture(app: App[None], data: bytes) -> None:
    """Show it until a key is pressed. Raises PictureProblem."""
    if len(data) > MAX_PICTURE_BYTES:
        raise PictureProblem(f"The picture has more than {MAX_PICTURE_BYTES >> 20} MiB.")
    ended = threading.Event()
    failed: BaseException | None = None
    try:
        with app.batch_update(), app.suspend():
            # An exception that left the block would leave the app suspended.
            try:
                await asyncio.to_thread(_show, data, ended)
            except BaseException as error:  # noqa: BLE001
                failed = error
            ended.set()
    except SuspendNotSupported:
        raise PictureProblem("This terminal cannot be lent to a picture.") from None
    if failed is not None:
        raise failed


def _show(data: bytes, ended: threading.Event) -> None:
    """Raises PictureProblem."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise PictureProblem(f"The terminal cannot be opened: {error.strerror}.") from None
    try:
        with _raw(fd):
            terminal = query_terminal(fd)
            columns, lines = os.get_terminal_size(fd)
            drawn = draw(data, terminal, columns, max(lines - 2, 1))
            _write(fd, b"\x1b[2J\x1b[H" + drawn + b"\r\nAny key: back")
            _wait_for_key(fd, ended)
            # Pictures of kitty are a layer of their own.
            _write(fd, b"\x1b_Ga=d\x1b\\\x1b[2J\x1b[H")
    except OSError as error:
        raise PictureProblem(f"The terminal failed: {error.strerror}.") from None
    finally:
        os.close(fd)


def draw(data: bytes, terminal: PictureTerminal, columns: int, lines: int) -> bytes:
    """The picture as large as it fits. Raises PictureProblem."""
    if not terminal.graphics:
        raise PictureProblem(
            "This terminal draws no pictures (neither kitty's graphics nor sixel)."
        )
    if not data.startswith(_PNG):
        raise PictureProblem("Only PNG pictures are drawn here.")
    if len(data) < 33:
        raise PictureProblem("The picture is cut off.")
    width, height = struct.unpack_from(">II", data, 16)
    if not 0 < width * height <= MAX_PICTURE_PIXELS:
        raise PictureProblem(f"The picture has more than {MAX_PICTURE_PIXELS:,} pixels.")
    across, down = terminal.cell
    most = (columns * across, lines * down)
    scale = min(most[0] / width, most[1] / height, 1.0)
    if terminal.graphics == "kitty":
        return kitty_bytes(data, max(int(width * scale / across), 1))
    scale = min(scale, MAX_SIXEL_WIDTH / width)
    pixels = decode_png(data)
    return sixel_bytes(pixels, width, height, max(int(width * scale), 1))


@contextmanager
def _raw(fd: int) -> Generator[None]:
    kept = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, kept)


def query_terminal(fd: int) -> PictureTerminal:
    """Ask the terminal behind a raw `fd`. One that does not answer in time draws nothing."""
    _write(fd, _QUERY)
    answer = b""
    for _ in range(_QUERY_READS):
        if select.select([fd], [], [], PICTURE_QUERY_TIMEOUT_S / _QUERY_READS)[0]:
            answer += os.read(fd, 1024)
        if _ATTRIBUTES.search(answer):
            break
    return read_answer(answer)


def read_answer(answer: bytes) -> PictureTerminal:
    attributes, cell = _ATTRIBUTES.search(answer), _CELL.search(answer)
    graphics: Graphics = ""
    if b"\x1b_Gi=31;OK" in answer:
        graphics = "kitty"
    elif attributes is not None and b"4" in attributes[1].split(b";")[1:]:
        graphics = "sixel"
    size = (0, 0) if cell is None else (int(cell[2]), int(cell[1]))
    return PictureTerminal(graphics=graphics, cell=size if min(size) > 0 else (8, 16))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _wait_for_key(fd: int, ended: threading.Event) -> None:
    for _ in range(int(MAX_PICTURE_VIEW_S / 0.5)):
        if ended.is_set():
            return
        if select.select([fd], [], [], 0.5)[0]:
            os.read(fd, 1024)
            return


# The two protocols


def kitty_bytes(png: bytes, columns: int) -> bytes:
    """The terminal decodes and scales it."""
    encoded = base64.b64encode(png)
    chunks = [encoded[at : at + _KITTY_CHUNK] for at in range(0, len(encoded), _KITTY_CHUNK)]
    drawn = bytearray()
    for number, chunk in enumerate(chunks):
        more = int(number + 1 < len(chunks))
        head = f"a=T,f=100,q=2,c={columns},m={more}" if number == 0 else f"m={more}"
        drawn += b"\x1b_G" + head.encode() + b";" + chunk + b"\x1b\\"
    return bytes(drawn)


def decode_png(data: bytes) -> bytes:
    """Three bytes for each pixel. Raises PictureProblem for kinds that no screenshot has."""
    width, height, depth, kind, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(kind, 0)
    if depth != 8 or not channels or interlaced:
        raise PictureProblem("This kind of PNG is not drawn by sixel.")
    at, packed = 8, bytearray()
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        packed += data[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += 12 + size
    row = width * channels
    try:
        flat = zlib.decompressobj().decompress(packed, (row + 1) * height)
    except zlib.error:
        flat = b""
    if len(flat) < (row + 1) * height:
        raise PictureProblem("The picture is cut off.")
    lines, before = bytearray(), bytes(row)
    for start in range(0, len(flat), row + 1):
        before = _unfiltered(flat[start], flat[start + 1 : start + 1 + row], before, channels)
        lines += before
    if channels == 3:
        return bytes(lines)
    colours = bytearray(width * height * 3)
    for place in range(3):
        colours[place::3] = lines[place if channels == 4 else 0 :: channels]
    return bytes(colours)


def _unfiltered(kind: int, line: bytes, above: bytes, step: int) -> bytes:
    if kind == 0:
        return line
    if kind == 2:
        return bytes((one + up) & 255 for one, up in zip(line, above, strict=True))
    found = bytearray(line)
    for at, one in enumerate(line):
        left = found[at - step] if at >= step else 0
        up, corner = above[at], above[at - step] if at >= step else 0
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + up) // 2
        else:
            guess = min((left, up, corner), key=lambda each: abs(left + up - corner - each))
        found[at] = (one + guess) & 255
    return bytes(found)


def sixel_bytes(pixels: bytes, width: int, height: int, across: int) -> bytes:
    """`across` pixels wide, in 216 colours: bands of six lines, one pass for each colour."""
    down = max(height * across // width, 1)
    columns = [x * width // across * 3 for x in range(across)]
    level = [(value * 5 + 127) // 255 for value in range(256)]
    colours: set[int] = set()
    lines: list[list[int]] = []
    for y in range(down):
        line = pixels[y * height // down * width * 3 : (y * height // down + 1) * width * 3]
        lines.append(
            [level[line[x]] * 36 + level[line[x + 1]] * 6 + level[line[x + 2]] for x in columns]
        )
        colours.update(lines[-1])
    drawn = [f'\x1bPq"1;1;{across};{down}']
    for colour in sorted(colours):
        parts = (colour // 36 * 20, colour // 6 % 6 * 20, colour % 6 * 20)
        drawn.append(f"#{colour};2;{parts[0]};{parts[1]};{parts[2]}")
    for top in range(0, down, 6):
        band = lines[top : top + 6]
        passes: dict[int, bytearray] = {}
        for bit, line in enumerate(band):
            for x, colour in enumerate(line):
                if colour not in passes:
                    passes[colour] = bytearray(across)
                passes[colour][x] |= 1 << bit
        drawn.append(
            "$".join(f"#{colour}{_run_lengths(bits)}" for colour, bits in sorted(passes.items()))
        )
        drawn.append("-")
    drawn.append("\x1b\\")
    return "".join(drawn).encode()


_RUN: Final = re.compile(rb"(.)\1*", re.DOTALL)


def _run_lengths(bits: bytearray) -> str:
    runs: list[str] = []
    for run in _RUN.finditer(bytes(bits)):
        sign, count = chr(63 + run[0][0]), len(run[0])
        runs.append(f"!{count}{sign}" if count > 3 else sign * count)
    return "".join(runs)
