"""Terminals of a workspace: what a person types and what the shell prints."""

from collections.abc import AsyncGenerator
from typing import Final, Protocol

from msgspec import Struct

MAX_TERMINAL_SIDE: Final = 1000
MAX_INPUT_BYTES: Final = 64 * 1024
"""Of one request to the workspace agent."""


class TerminalSize(Struct, frozen=True, kw_only=True):
    cols: int
    rows: int


class TerminalOutput(Struct, frozen=True):
    """Bytes that the shell has printed."""

    data: bytes


class TerminalExited(Struct, frozen=True):
    """The shell has ended. -1: by a signal."""

    exit_code: int


class TerminalTaken(Struct, frozen=True):
    """Another viewer reads the terminal now."""


TerminalEvent = TerminalOutput | TerminalExited | TerminalTaken


class WorkspaceTerminal(Protocol):
    """An open terminal. Raises AgentRefused and AgentUnreachable."""

    @property
    def is_again(self) -> bool:
        """The terminal was there before: its last output comes first."""
        ...

    def follow(self) -> AsyncGenerator[TerminalEvent]: ...

    async def write(self, data: bytes) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...

    async def close(self) -> None:
        """End the shell."""
        ...
