"""The query and the frames of a terminal's WebSocket."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from chatd.domain.description import describe
from chatd.domain.workspace.terminals import MAX_INPUT_BYTES, MAX_TERMINAL_SIDE

_TERMINAL_ID = "0193c5a9-4b1e-7d3a-9c55-1e2f3a4b5c6d"

Side = Annotated[int, Meta(ge=1, le=MAX_TERMINAL_SIDE)]


class TerminalQuery(Struct, frozen=True, kw_only=True):
    terminal: Annotated[
        UUID, describe("The terminal: a new id, or that of one to see again.", _TERMINAL_ID)
    ]
    cols: Annotated[Side, describe("Characters in a line.", 80)] = 80
    rows: Annotated[Side, describe("Lines.", 24)] = 24


class _Tagged(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class TerminalInput(_Tagged, frozen=True, kw_only=True, tag="input"):
    """Type text into the terminal."""

    data: Annotated[
        str, Meta(max_length=MAX_INPUT_BYTES), describe("The text, with its line ends.", "ls\r")
    ]


class TerminalResize(_Tagged, frozen=True, kw_only=True, tag="resize"):
    """Give the terminal another size."""

    cols: Annotated[Side, describe("Characters in a line.", 120)]
    rows: Annotated[Side, describe("Lines.", 40)]


class TerminalClose(_Tagged, frozen=True, kw_only=True, tag="close"):
    """End the shell. A closed connection alone leaves it running."""


class TerminalPing(_Tagged, frozen=True, kw_only=True, tag="ping"):
    """Ask for a `pong`."""


class TerminalReady(_Tagged, frozen=True, kw_only=True, tag="ready"):
    """The shell runs; its output follows as binary frames."""

    again: Annotated[bool, describe("The terminal was there: its last output comes first.")] = False


class TerminalExit(_Tagged, frozen=True, kw_only=True, tag="exit"):
    """The shell has ended."""

    exit_code: Annotated[int, describe("Its exit code; -1: a signal ended it.", 0)]


class TerminalRefused(_Tagged, frozen=True, kw_only=True, tag="refused"):
    """A frame was refused, or the terminal could not be opened."""

    code: Annotated[str, describe("Why, for programs.", "no_agent")]
    message: Annotated[str, describe("Why, for people.", "The chat's workspace does not run.")]


class TerminalPong(_Tagged, frozen=True, kw_only=True, tag="pong"):
    """The answer to `ping`."""


TerminalClientFrame = TerminalInput | TerminalResize | TerminalClose | TerminalPing
TerminalServerFrame = TerminalReady | TerminalExit | TerminalRefused | TerminalPong
