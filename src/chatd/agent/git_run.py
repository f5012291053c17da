"""Running git, and only git, so that it can neither ask, wait, write nor say too much.

Owns the environment, the time and the amount. What to ask git for is decided next door.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

TIMEOUT_S = 10.0
_MAX_STDERR = 4096
_CHUNK = 1 << 16

# Nothing that a repository's configuration names is run: no hook, no monitor, no pager, no
# external diff. Locks are not taken, so that a person's own git never finds the index busy.
_SAFE = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.quotePath=false",
    "submodule.recurse=false",
    "color.ui=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_PAGER": "cat",
    "PAGER": "cat",
    "GIT_EDITOR": "true",
    "LC_ALL": "C",
}


class GitFailed(Exception):
    """Git has not said what was asked: it is missing, too slow, or has failed."""


class Answer(NamedTuple):
    """`cut`: there was more than was to be read, and git was ended for it."""

    code: int
    output: bytes
    cut: bool


class Git:
    """Asks git. Blocks, for a bounded time: call it in a thread."""

    def __init__(
        self,
        *,
        base: Mapping[str, str],
        timeout_s: float = TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`base` is the environment that git starts from; PATH and HOME matter."""
        self._env = {**base, **_ENVIRONMENT}
        self._timeout_s = timeout_s
        self._now = now

    def ask(
        self, root: str, *args: str, limit: int = _CHUNK, codes: Sequence[int] = (0,)
    ) -> Answer:
        """Raises GitFailed unless git ends with one of `codes` or says more than `limit`."""
        command = ["git", "-C", root]
        for setting in _SAFE:
            command += ["-c", setting]
        try:
            process = subprocess.Popen(
                [*command, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
                cwd="/",
                start_new_session=True,
                close_fds=True,
            )
        except (OSError, ValueError) as error:
            raise GitFailed(f"git cannot be started: {error}") from error
        try:
            output, said, cut = self._listen(process, limit)
        finally:
            _end(process)
        if not cut and process.returncode not in codes:
            raise GitFailed(said.decode("utf-8", "replace").strip() or "git has failed")
        return Answer(process.returncode, output, cut)

    def _listen(self, process: subprocess.Popen[bytes], limit: int) -> tuple[bytes, bytes, bool]:
        until = self._now() + self._timeout_s
        output, said = bytearray(), bytearray()
        with selectors.DefaultSelector() as selector:
            for stream, heard in ((process.stdout, output), (process.stderr, said)):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ, heard)
            while selector.get_map():
                left = until - self._now()
                if left <= 0:
                    raise GitFailed(f"git has not answered within {self._timeout_s:g} seconds")
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.data is output or len(said) < _MAX_STDERR:
                        key.data.extend(chunk)
                if len(output) > limit:
                    return bytes(output[:limit]), bytes(said), True
        self._wait(process, until)
        return bytes(output), bytes(said), False

    def _wait(self, process: subprocess.Popen[bytes], until: float) -> None:
        try:
            process.wait(max(until - self._now(), 0.1))
        except subprocess.TimeoutExpired:
            raise GitFailed(f"git has not ended within {self._timeout_s:g} seconds") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends whatever is left of it, and its children; a process that is ours is always buried."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
