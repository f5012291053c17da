"""The text of a message from the command line and from standard input."""

import os
import select
import sys
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.output import print_notice

MAX_INLINE_BYTES: Final = 32 * 1024
"""Longer input is sent as a file: a message has at most 256 KiB with everything in it."""
MAX_INPUT_BYTES: Final = 20 * 1024 * 1024
NOTICE_AFTER_S: Final = 3.0
_CHUNK_BYTES: Final = 64 * 1024


class Prompt(Struct, frozen=True, kw_only=True):
    """`attached` is input that is too long for the text."""

    text: str
    attached: bytes | None = None


def read_prompt(words: str, *, has_files: bool = False) -> Prompt:
    """The words, and below them what standard input has unless it is a terminal. Only a message
    with files needs no text."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        given = b""
    else:
        given = read_input(sys.stdin.fileno(), on_wait=_say_waiting)
    return join_prompt(words, given, has_files=has_files)


def join_prompt(words: str, given: bytes, *, has_files: bool = False) -> Prompt:
    """Raises UsageProblem."""
    if len(given) > MAX_INPUT_BYTES:
        raise UsageProblem(f"standard input has more than {MAX_INPUT_BYTES >> 20} MiB")
    try:
        text = given.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UsageProblem("standard input is not UTF-8 text; attach a file with -f") from None
    if not words.strip() and not text and not has_files:
        raise UsageProblem('there is no prompt: chatd run "What to do", or write it to the input')
    if len(text.encode()) > MAX_INLINE_BYTES:
        return Prompt(text=words.strip() or "See the attached file.", attached=given)
    return Prompt(text="\n\n".join(one for one in (words.strip(), text) if one))


def read_input(
    descriptor: int, on_wait: Callable[[], None], notice_after_s: float = NOTICE_AFTER_S
) -> bytes:
    """Until its end. `on_wait` is called once if nothing comes for a while: a program that starts
    this one may have left its own input open."""
    found = bytearray()
    has_said = False
    while len(found) <= MAX_INPUT_BYTES:
        ready = select.select([descriptor], [], [], None if has_said else notice_after_s)[0]
        if not ready:
            has_said = True
            on_wait()
            continue
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            break
        found += chunk
    return bytes(found)


def _say_waiting() -> None:
    print_notice("Waiting for the end of standard input (without any: < /dev/null).")
