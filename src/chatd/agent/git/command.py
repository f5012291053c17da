"""Running git, and only git, so that it can neither ask, wait, write nor say too much.

Owns the environment, the time and the amount. What to ask git for is decided next door.

Files that git does not know yet, told as the patch that would add them.

Written here and not by one git for each file: a thousand new files are one loop.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from chatd.agent.errors import AgentError
from chatd.agent.files.paths import open_regular, read_at_most

GIT_TIMEOUT_S = 10.0
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


class GitError(Exception):
    """Git has not said what was asked: it is missing, too slow, or has failed."""


class GitOutput(NamedTuple):
    """`cut`: there was more than was to be read, and git was ended for it."""

    code: int
    output: bytes
    is_cut: bool


class GitCommand:
    """Asks git. Blocks, for a bounded time: call it in a thread."""

    def __init__(
        self,
        *,
        base: Mapping[str, str],
        timeout_s: float = GIT_TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`base` is the environment that git starts from; PATH and HOME matter."""
        self._env = {**base, **_ENVIRONMENT}
        self._timeout_s = timeout_s
        self._now = now

    def run_git(
        self, root: str, *args: str, limit: int = _CHUNK, codes: Sequence[int] = (0,)
    ) -> GitOutput:
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
            raise GitError(f"git cannot be started: {error}") from error
        try:
            output, said, cut = self._listen(process, limit)
        finally:
            _end(process)
        if not cut and process.returncode not in codes:
            raise GitError(said.decode("utf-8", "replace").strip() or "git has failed")
        return GitOutput(process.returncode, output, cut)

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
                    raise GitError(f"git has not answered within {self._timeout_s:g} seconds")
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
            raise GitError(f"git has not ended within {self._timeout_s:g} seconds") from None


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


_LOOKED_AT_FOR_NUL = 8000
_NEEDS_QUOTES = re.compile(r'[\x00-\x1f"\\\x7f]')
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class PatchTooLarge(Exception):
    """The patch would be over its limit."""


def patch_for(root: str, name: str, *, limit: int) -> str:
    """The patch that adds the file; empty for what cannot be read or is no file any more."""
    path = os.path.join(root, name)
    try:
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            return _patch(name, "120000", os.fsencode(os.readlink(path)))
        if not stat.S_ISREG(info.st_mode):
            return ""
        if info.st_size > limit:
            raise PatchTooLarge
        fd, info = open_regular(path)
    except (OSError, AgentError):
        return ""
    try:
        data = read_at_most(fd, limit + 1, path=path)
    except AgentError:
        return ""
    finally:
        os.close(fd)
    if len(data) > limit:
        raise PatchTooLarge
    return _patch(name, "100755" if info.st_mode & stat.S_IXUSR else "100644", data)


def _patch(name: str, mode: str, data: bytes) -> str:
    ours, theirs = quote_path(f"a/{name}"), quote_path(f"b/{name}")
    head = f"diff --git {ours} {theirs}\nnew file mode {mode}\n"
    if not data:
        return head
    if b"\0" in data[:_LOOKED_AT_FOR_NUL]:
        return f"{head}Binary files /dev/null and {theirs} differ\n"
    lines = data.decode("utf-8", "replace").split("\n")
    last = lines.pop()
    end = f"+{last}\n\\ No newline at end of file\n" if last else ""
    count = len(lines) + bool(last)
    span = "1" if count == 1 else f"1,{count}"
    added = "".join(f"+{line}\n" for line in lines)
    return f"{head}--- /dev/null\n+++ {theirs}\n@@ -0,0 +{span} @@\n{added}{end}"


def quote_path(name: str) -> str:
    """As git writes a name in a patch."""
    shown = os.fsencode(name).decode("utf-8", "replace")
    if not _NEEDS_QUOTES.search(shown):
        return shown
    escaped = _NEEDS_QUOTES.sub(
        lambda found: _ESCAPES.get(found[0]) or f"\\{ord(found[0]):03o}", shown
    )
    return f'"{escaped}"'
