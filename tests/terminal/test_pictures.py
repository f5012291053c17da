"""Pictures on the terminal: what a terminal answers, the bytes of both protocols, and the view on a
pseudo-terminal that answers like kitty, like one with sixel, and like one with neither."""

import base64
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import pytest
from textual.app import App

from chatd.agent.desktop.x_display import encode_png
from chatd.terminal.timeline import pictures
from chatd.terminal.timeline.pictures import (
    Graphics,
    PictureProblem,
    PictureTerminal,
    decode_png,
    draw,
    kitty_bytes,
    read_answer,
    sixel_bytes,
)

RED, GREEN, BLUE, BLACK = b"\xff\x00\x00", b"\x00\xff\x00", b"\x00\x00\xff", b"\x00\x00\x00"


def png(lines: list[list[bytes]], kinds: list[int] | None = None) -> bytes:
    """Filtered as the kinds say, line by line."""
    width, height = len(lines[0]), len(lines)
    flat, before = b"", bytes(width * 3)
    for at, colours in enumerate(lines):
        line = b"".join(colours)
        kind = 0 if kinds is None else kinds[at]
        left = bytes(3) + line[:-3]
        corner = bytes(3) + before[:-3]
        guesses = {
            0: bytes(width * 3),
            1: left,
            2: before,
            3: bytes((a + b) // 2 for a, b in zip(left, before, strict=True)),
            4: bytes(
                min((a, b, c), key=lambda one: abs(a + b - c - one))
                for a, b, c in zip(left, before, corner, strict=True)
            ),
        }
        flat += bytes([kind]) + bytes(
            (one - guess) & 255 for one, guess in zip(line, guesses[kind], strict=True)
        )
        before = line
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(flat)),
        (b"IEND", b""),
    )
    made = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        made += (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )
    return made


@pytest.mark.parametrize(
    ("answer", "graphics", "cell"),
    [
        (b"\x1b_Gi=31;OK\x1b\\\x1b[6;20;10t\x1b[?62;c", "kitty", (10, 20)),
        (b"\x1b[6;18;9t\x1b[?62;4;22c", "sixel", (9, 18)),
        (b"\x1b[?64;1;2;6;22c", "", (8, 16)),
        (b"\x1b[?4c", "", (8, 16)),
        (b"\x1b_Gi=31;ENOTSUPPORTED\x1b\\\x1b[?1;2c", "", (8, 16)),
        (b"\x1b[6;0;0t\x1b[?62;4c", "sixel", (8, 16)),
        (b"", "", (8, 16)),
    ],
)
def test_a_terminal_says_what_it_draws(answer: bytes, graphics: str, cell: tuple[int, int]) -> None:
    found = read_answer(answer)
    assert (found.graphics, found.cell) == (graphics, cell)


def test_kitty_gets_the_file_in_chunks() -> None:
    data = bytes(range(256)) * 20
    drawn = kitty_bytes(data, 40)
    assert drawn.startswith(b"\x1b_Ga=T,f=100,q=2,c=40,m=1;AAECAwQF")
    pieces = [piece.partition(b";")[2] for piece in drawn.split(b"\x1b\\") if piece]
    assert [len(piece) for piece in pieces] == [4096, 2732]
    assert base64.b64decode(b"".join(pieces)) == data
    assert drawn.count(b"m=0") == 1


def test_sixel_has_bands_of_six_lines_and_runs() -> None:
    pixels = (RED * 4 + GREEN) * 6 + BLUE * 5
    assert sixel_bytes(pixels, 5, 7, 5) == (
        b'\x1bPq"1;1;5;7#5;2;0;0;100#30;2;0;100;0#180;2;100;0;0#30!4?~$#180!4~?-#5!5@-\x1b\\'
    )


def test_a_png_with_every_filter_is_decoded() -> None:
    lines = [[RED, GREEN, BLUE, BLACK], [GREEN, GREEN, RED, BLUE]] * 3
    flat = b"".join(b"".join(line) for line in lines)
    assert decode_png(png(lines, [0, 1, 2, 3, 4, 4])) == flat


def test_a_screenshot_of_a_workspace_is_drawn_by_both() -> None:
    shot = encode_png(b"\x00\x00\xff\x00" * (64 * 32), 64, 32)
    kitty = draw(shot, PictureTerminal(graphics="kitty", cell=(8, 16)), 80, 24)
    assert b"c=8,m=0" in kitty
    small = draw(shot, PictureTerminal(graphics="sixel", cell=(8, 16)), 4, 24)
    assert small.startswith(b'\x1bPq"1;1;32;16#180;2;100;0;0#180!32~-')


@pytest.mark.parametrize(
    ("data", "graphics", "words"),
    [
        (png([[RED]]), "", "draws no pictures"),
        (b"\xff\xd8\xff\xe0", "kitty", "Only PNG"),
        (png([[RED]])[:20], "kitty", "cut off"),
        (png([[RED]])[:44], "sixel", "cut off"),
        (
            b"\x89PNG\r\n\x1a\n" + bytes(8) + struct.pack(">II", 9999, 9999) + bytes(20),
            "sixel",
            "more than",
        ),
    ],
)
def test_what_cannot_be_drawn_is_told(data: bytes, graphics: Graphics, words: str) -> None:
    with pytest.raises(PictureProblem, match=words):
        draw(data, PictureTerminal(graphics=graphics), 80, 24)


VIEW = """
import sys, threading
from chatd.terminal.timeline.pictures import PictureProblem, _show
try:
    _show(open(sys.argv[1], "rb").read(), threading.Event())
    print("shown")
except PictureProblem as problem:
    print(problem)
"""


@pytest.mark.parametrize(
    ("answer", "drawn", "last"),
    [
        (b"\x1b_Gi=31;OK\x1b\\\x1b[?62;c", b"\x1b_Ga=T,f=100,q=2,c=1,m=0;", b"shown"),
        (b"\x1b[?62;4c", b'\x1bPq"1;1;4;', b"shown"),
        (b"\x1b[?1;2c", b"", b"draws no pictures"),
    ],
    ids=["kitty", "sixel", "neither"],
)
def test_the_view_asks_the_terminal_draws_and_waits_for_a_key(
    answer: bytes, drawn: bytes, last: bytes, tmp_path: object
) -> None:
    """A process with a terminal of its own, which this test plays."""
    file = os.path.join(str(tmp_path), "shot.png")
    with open(file, "wb") as target:
        target.write(encode_png(b"\x00\xff\x00\x00" * 16, 4, 4))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    child = subprocess.Popen(
        ["setsid", "--ctty", "--wait", sys.executable, "-c", VIEW, file],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        _read_until(ours, b"\x1b[c")
        os.write(ours, answer)
        if drawn:
            assert drawn in _read_until(ours, b"Any key")
            os.write(ours, b"q")
        assert last in _read_until(ours, last)
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def _read_until(fd: int, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        ready, _, _ = select.select([fd], [], [], 30)
        assert ready, found
        found += os.read(fd, 65536)
    return found


class SuspendedApp:
    """Suspends as textual does: what is raised inside leaves it suspended."""

    def __init__(self) -> None:
        self.is_suspended = False

    @contextmanager
    def batch_update(self) -> Generator[None]:
        yield

    @contextmanager
    def suspend(self) -> Generator[None]:
        self.is_suspended = True
        yield
        self.is_suspended = False


async def test_an_app_comes_back_from_a_picture_that_cannot_be_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise PictureProblem("It draws nothing.")

    monkeypatch.setattr(pictures, "_show", fail)
    app = SuspendedApp()
    with pytest.raises(PictureProblem, match="draws nothing"):
        await pictures.show_picture(cast("App[None]", app), b"")
    assert not app.is_suspended
