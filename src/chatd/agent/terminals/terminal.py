"""One terminal: its shell, the last of its output, and the one viewer that it may have."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from chatd.agent.errors import AgentError
from chatd.agent.processes.child import ChildProcess
from chatd.agent.processes.command import Waiters, wait, wake
from chatd.agent.terminals.output_ring import OutputRing
from chatd.agent.terminals.shell import (
    TerminalShell,
    TerminalSize,
    hang_up,
    set_size,
    signal_session,
)

SCROLLBACK_BYTES = 256 * 1024
MAX_UNREAD_BYTES = 128 * 1024
"""A shell whose viewer has not read so much must wait."""
MAX_CHUNK_BYTES = 32 * 1024
READ_BUDGET_BYTES = 64 * 1024
READ_PAUSE_S = 0.01
"""At most the budget is read, then nothing for the pause: endless output must not take the agent's
whole time."""
KEEPALIVE_INTERVAL_S = 15.0
MAX_PENDING_INPUT_BYTES = 256 * 1024
INPUT_TIMEOUT_S = 10.0
HANGUP_GRACE_S = 2.0
_INTERRUPTS = (b"\x03", b"\x1c")

Event = dict[str, object]


class Terminal:
    """Create it inside the event loop. `on_end` is called once, when the shell has ended."""

    def __init__(
        self,
        shell: TerminalShell,
        *,
        chat_id: str,
        size: TerminalSize,
        on_end: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.chat_id = chat_id
        self.exit_code: int | None = None
        self.unused_since = now()
        self._shell = shell
        self._size = size
        self._on_end = on_end
        self._now = now
        self._ring = OutputRing(SCROLLBACK_BYTES)
        self._viewer: object | None = None
        self._seen = 0
        self._waiters: Waiters = Waiters()
        self._input = bytearray()
        self._input_waiters: Waiters = Waiters()
        self._budget = READ_BUDGET_BYTES
        self._is_paused = False
        self._resume: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._child = ChildProcess(
            shell.spawned, grace_s=0, on_output=self._on_output, on_end=self._on_exit
        )

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    @property
    def is_viewed(self) -> bool:
        return self._viewer is not None

    @property
    def unread_bytes(self) -> int:
        """What the viewer has not been sent."""
        return self._ring.end - self._seen

    # --- output -----------------------------------------------------------------------------

    async def follow(self) -> AsyncGenerator[Event, None]:
        """The kept output, then what follows. Ends with the shell, or when another viewer comes."""
        viewer = self._viewer = object()
        wake(self._waiters)
        self._seen = position = self._ring.replay_start()
        try:
            while True:
                data = self._ring.read(position, MAX_CHUNK_BYTES)
                if self._viewer is not viewer:
                    yield {"type": "taken"}
                    return
                if data:
                    position = max(position, self._ring.start) + len(data)
                    yield {"type": "output", "data": base64.b64encode(data).decode()}
                    if self._viewer is viewer:
                        self._seen = position
                        self._set_reading()
                elif not self.is_running:
                    yield {"type": "exit", "exit_code": self.exit_code}
                    return
                elif not await self._wait_for_output(position):
                    yield {"type": "alive"}
        finally:
            if self._viewer is viewer:
                self._viewer = None
                self.unused_since = self._now()
                self._set_reading()

    async def _wait_for_output(self, position: int) -> bool:
        """False if there was nothing for the interval of keep-alive events."""
        await wait(self._waiters, KEEPALIVE_INTERVAL_S)
        return self._ring.end > position or not self.is_running

    def _on_output(self, data: bytes) -> None:
        self._ring.write(data)
        self._budget -= len(data)
        wake(self._waiters)
        self._set_reading()

    def _set_reading(self) -> None:
        """Read from the shell only while the viewer keeps up and the budget is not used up."""
        if not self.is_running:
            return
        lags = self._viewer is not None and self.unread_bytes >= MAX_UNREAD_BYTES
        if self._budget <= 0 and self._resume is None:
            self._resume = self._loop.call_later(READ_PAUSE_S, self._refill)
        should_pause = lags or self._budget <= 0
        if should_pause and not self._is_paused:
            self._child.pause()
        elif self._is_paused and not should_pause:
            self._child.resume()
        self._is_paused = should_pause

    def _refill(self) -> None:
        self._resume = None
        self._budget = READ_BUDGET_BYTES
        self._set_reading()

    # --- input ------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Waits until the shell's terminal has taken the input. Raises AgentError if it does not:
        the rest is dropped."""
        self._require_running()
        if any(sign in data for sign in _INTERRUPTS):
            self._drop_input()  # what a program did not read is not for the next one
        if len(self._input) + len(data) > MAX_PENDING_INPUT_BYTES:
            raise _unread_error()
        self.unused_since = self._now()
        was_empty = not self._input
        self._input += data
        if was_empty:
            self._write_some()
        until = self._loop.time() + INPUT_TIMEOUT_S
        while self._input:
            left = until - self._loop.time()
            if left <= 0:
                self._drop_input()
                raise _unread_error()
            await wait(self._input_waiters, left)

    def _write_some(self) -> None:
        fd = self._shell.write_fd
        try:
            written = os.write(fd, self._input[:4096])
        except BlockingIOError:
            written = 0
        except OSError:
            self._drop_input()
            return
        del self._input[:written]
        if self._input:
            self._loop.add_writer(fd, self._write_some)
        else:
            self._drop_input()

    def _drop_input(self) -> None:
        self._loop.remove_writer(self._shell.write_fd)
        self._input.clear()
        wake(self._input_waiters)

    def resize(self, size: TerminalSize) -> None:
        self._require_running()
        if size != self._size:
            set_size(self._shell.write_fd, size)
            self._size = size

    def _require_running(self) -> None:
        if not self.is_running:
            raise AgentError(409, "The shell of this terminal has ended.", code="terminal_ended")

    # --- end --------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """As if the terminal were unplugged; processes that ignore that are killed."""
        if self.is_running:
            hang_up(self._child.pid)
            self._loop.call_later(HANGUP_GRACE_S, self._kill)

    def kill(self) -> None:
        if self.is_running:
            signal_session(self._child.pid, signal.SIGKILL)
            self._child.kill_now()

    async def wait_ended(self) -> None:
        while self.is_running:
            await wait(self._waiters, HANGUP_GRACE_S)

    def _kill(self) -> None:
        # The shell may be gone and a job of it not: the session's id is taken while it lives.
        with suppress(ProcessLookupError):
            signal_session(self._child.pid, signal.SIGKILL)

    def _on_exit(self, exit_code: int) -> None:
        if self._resume is not None:
            self._resume.cancel()
        self._drop_input()
        self.exit_code = max(exit_code, -1)
        self.unused_since = self._now()
        self._shell.close()
        wake(self._waiters)
        self._on_end()


def _unread_error() -> AgentError:
    text = "The program in the terminal does not read its input. Interrupt it, then try again."
    return AgentError(503, text, code="input_unread")
