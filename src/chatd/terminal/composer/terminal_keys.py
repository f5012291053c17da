"""Keys that textual reads as others.

Alt-Enter comes from most terminals, and from tmux, as escape and carriage return. Textual makes a
plain Enter of it, which would send a message that is not finished.
"""

from enum import StrEnum
from typing import Any, Final, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

ALT_ENTER_SEQUENCES: Final = ("\x1b\r", "\x1b\n", "\x1b[27;3;13~", "\x1b[27;2;13~", "\x1b[27;5;13~")
"""The last three are xterm's modifyOtherKeys for Alt, Shift and Ctrl."""


class ComposerKey(StrEnum):
    ALT_ENTER = "alt+enter"


def read_alt_enter() -> None:
    """Let this process know the sequences. Twice is once."""
    table = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    for sequence in ALT_ENTER_SEQUENCES:
        table[sequence] = (ComposerKey.ALT_ENTER,)
