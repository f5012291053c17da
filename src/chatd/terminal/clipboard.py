"""The clipboard of the machine that the terminal runs on: a picture, or its text.

A terminal hands over text only, and no escape sequence brings a picture, so a program of the
desktop is asked: `wl-paste`, `xclip`, or what macOS has. Over SSH that is the other machine, which
has none.
"""

import asyncio
import re
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

CLIPBOARD_TIMEOUT_S: Final = 5.0
"""A program that asks the owner of the clipboard may wait for one that hangs."""
MAX_CLIPBOARD_BYTES: Final = 40 * 1024 * 1024
"""Limit for a picture, or for its hexadecimal digits."""
MAX_TEXT_BYTES: Final = 16_000_000

_PNG: Final = "image/png"
_HEXADECIMAL: Final = re.compile(rb"\xc2\xabdata PNGf([0-9A-F]+)\xc2\xbb")
_PICTURE_SCRIPT: Final = "get the clipboard as «class PNGf»"
_NUMBER: Final = re.compile(r"\[Picture (\d+)\]")


class ClipboardFailed(Exception):
    """Says why, for people."""


class ClipboardProgram(Struct, frozen=True):
    """Each writes to its output; nothing if the clipboard has none."""

    picture: tuple[str, ...]
    text: tuple[str, ...]


class Clipboard(Struct, frozen=True):
    """What it has: one of both, or nothing."""

    picture: bytes = b""
    text: str = ""


def picture_word(text: str) -> str:
    """Stands in the draft for the next picture; removing it removes the picture."""
    taken = (int(match.group(1)) for match in _NUMBER.finditer(text))
    return f"[Picture {1 + max(taken, default=0)}]"


def find_programs(
    environ: Mapping[str, str], platform: str = sys.platform
) -> Iterator[ClipboardProgram]:
    """The installed programs that have a desktop to ask, the likeliest first."""
    has_wayland, has_x = bool(environ.get("WAYLAND_DISPLAY")), bool(environ.get("DISPLAY"))
    if has_wayland and (path := _find("wl-paste", environ)):
        yield ClipboardProgram(
            (path, "--no-newline", "--type", _PNG), (path, "--no-newline", "--type", "text")
        )
    if has_x and (path := _find("xclip", environ)):
        asked = (path, "-selection", "clipboard", "-o")
        yield ClipboardProgram((*asked, "-t", _PNG), asked)
    if platform == "darwin" and (text := _find("pbpaste", environ)):
        if path := _find("pngpaste", environ):
            yield ClipboardProgram((path, "-"), (text,))
        elif path := _find("osascript", environ):
            yield ClipboardProgram((path, "-e", _PICTURE_SCRIPT), (text,))


async def read_clipboard(environ: Mapping[str, str], platform: str = sys.platform) -> Clipboard:
    """Raises ClipboardFailed."""
    programs = list(find_programs(environ, platform))
    if not programs:
        raise ClipboardFailed(_missing_text(environ))
    for program in programs:
        picture = await _run(program.picture, environ)
        if (encoded := _HEXADECIMAL.search(picture)) is not None:
            picture = bytes.fromhex(encoded.group(1).decode())
        if picture:
            return Clipboard(picture=picture)
        if text := await _run(program.text, environ):
            return Clipboard(text=text[:MAX_TEXT_BYTES].decode(errors="replace"))
    return Clipboard()


def _find(name: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=environ.get("PATH", ""))


def _missing_text(environ: Mapping[str, str]) -> str:
    if environ.get("SSH_CONNECTION"):
        return (
            "The clipboard is on the other side of SSH, and no picture comes through a terminal:"
            " copy the file here, then @path."
        )
    if environ.get("WAYLAND_DISPLAY"):
        return "No program reads the clipboard: install wl-clipboard. @path attaches a file."
    if environ.get("DISPLAY"):
        return "No program reads the clipboard: install xclip. @path attaches a file."
    return "There is no desktop here, so no clipboard with pictures. @path attaches a file."


async def _run(command: tuple[str, ...], environ: Mapping[str, str]) -> bytes:
    """Its output; empty if it failed, which is how they say that there is nothing of the kind.
    Raises ClipboardFailed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=environ
        )
    except OSError as error:
        raise ClipboardFailed(f"{command[0]} did not start: {error.strerror or error}.") from None
    assert process.stdout is not None
    output = bytearray()
    try:
        async with asyncio.timeout(CLIPBOARD_TIMEOUT_S):
            while piece := await process.stdout.read(256 * 1024):
                output += piece
                if len(output) > MAX_CLIPBOARD_BYTES:
                    raise ClipboardFailed("The clipboard has more than a message can take.")
            code = await process.wait()
    except TimeoutError:
        raise ClipboardFailed(
            f"The clipboard did not answer within {CLIPBOARD_TIMEOUT_S:.0f} seconds."
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return bytes(output) if code == 0 else b""
