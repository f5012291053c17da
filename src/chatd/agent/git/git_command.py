"""Run git without prompts, locks, hooks or configured programs, in bounded time and output.

Also builds the patches of untracked files, because one git process per file would be too slow.
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
from chatd.agent.files.file_paths import open_regular, read_at_most

GIT_TIMEOUT_S = 10.0
_MAX_STDERR_BYTES = 4096
_CHUNK_BYTES = 1 << 16

# No program that a repository's configuration names is run: no hook, monitor, pager, external diff
# or filter. In a submodule git would ignore these settings, so it does not look into it. No lock is
# taken, so that a user's own git never finds the index locked.
_SAFE_SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.quotePath=false",
    "submodule.recurse=false",
    "diff.submodule=short",
    "color.ui=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
_SAFE_VARIABLES = {
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
# As git does, a NUL in the first bytes marks a file as binary.
_BINARY_CHECK_BYTES = 8000
_NEEDS_QUOTES = re.compile(r'[\x00-\x1f"\\\x7f]')
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class GitError(Exception):
    """Git is missing, too slow, or has failed."""


class PatchTooLarge(Exception):
    """The patch is over its limit."""


class GitOutput(NamedTuple):
    """`is_cut`: git was killed because it printed more than the limit."""

    code: int
    output: bytes
    is_cut: bool


class GitCommand:
    """Runs git and blocks until it has ended or the timeout is over: call it in a thread."""

    def __init__(
        self,
        *,
        base: Mapping[str, str],
        timeout_s: float = GIT_TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`base` is git's environment, with at least PATH and HOME."""
        self._env = {**base, **_SAFE_VARIABLES}
        self._timeout_s = timeout_s
        self._now = now

    def run_git(
        self,
        root: str,
        *args: str,
        limit: int = _CHUNK_BYTES,
        codes: Sequence[int] = (0,),
        settings: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> GitOutput:
        """Raises GitError unless git exits with one of `codes` or prints more than `limit`."""
        command = ["git", "-C", root]
        for setting in (*_SAFE_SETTINGS, *settings):
            command += ["-c", setting]
        try:
            process = subprocess.Popen(
                [*command, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._env, **(env or {})},
                cwd="/",
                start_new_session=True,
                close_fds=True,
            )
        except (OSError, ValueError) as error:
            raise GitError(f"git cannot be started: {error}") from error
        try:
            output, errors, is_cut = self._read(process, limit)
        finally:
            _kill(process)
        if not is_cut and process.returncode not in codes:
            raise GitError(errors.decode("utf-8", "replace").strip() or "git has failed")
        return GitOutput(process.returncode, output, is_cut)

    def settings_without_filters(self, root: str) -> list[str]:
        """Settings that switch off the filters which the repository and the user configure: git
        would run them to compare files."""
        listed = self.run_git(
            root, "config", "-z", "--name-only", "--get-regexp", r"^filter\.", codes=(0, 1)
        )
        keys = os.fsdecode(listed.output).split("\0")
        drivers = sorted({key.rpartition(".")[0] for key in keys if key})
        if listed.is_cut or any("=" in driver for driver in drivers):
            raise GitError("a configured filter cannot be switched off")
        values = ("clean=", "smudge=", "process=", "required=false")
        return [f"{driver}.{value}" for driver in drivers for value in values]

    def _read(self, process: subprocess.Popen[bytes], limit: int) -> tuple[bytes, bytes, bool]:
        deadline = self._now() + self._timeout_s
        output, errors = bytearray(), bytearray()
        with selectors.DefaultSelector() as selector:
            for stream, buffer in ((process.stdout, output), (process.stderr, errors)):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ, buffer)
            while selector.get_map():
                left = deadline - self._now()
                if left <= 0:
                    raise GitError(f"git has not answered within {self._timeout_s:g} seconds")
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.data is output or len(errors) < _MAX_STDERR_BYTES:
                        key.data.extend(chunk)
                if len(output) > limit:
                    return bytes(output[:limit]), bytes(errors), True
        try:
            process.wait(max(deadline - self._now(), 0.1))
        except subprocess.TimeoutExpired:
            raise GitError(f"git has not ended within {self._timeout_s:g} seconds") from None
        return bytes(output), bytes(errors), False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill git and its children if they still run, reap git, and close its pipes."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def build_new_file_patch(root: str, name: str, *, limit: int) -> str:
    """The patch that adds an untracked file; empty if it cannot be read. Raises PatchTooLarge."""
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
        try:
            data = read_at_most(fd, limit + 1, path=path)
        finally:
            os.close(fd)
    except (OSError, AgentError):
        return ""
    if len(data) > limit:
        raise PatchTooLarge
    return _patch(name, "100755" if info.st_mode & stat.S_IXUSR else "100644", data)


def _patch(name: str, mode: str, data: bytes) -> str:
    old_name, new_name = quote_path(f"a/{name}"), quote_path(f"b/{name}")
    head = f"diff --git {old_name} {new_name}\nnew file mode {mode}\n"
    if not data:
        return head
    if b"\0" in data[:_BINARY_CHECK_BYTES]:
        return f"{head}Binary files /dev/null and {new_name} differ\n"
    lines = data.decode("utf-8", "replace").split("\n")
    last = lines.pop()
    end = f"+{last}\n\\ No newline at end of file\n" if last else ""
    count = len(lines) + bool(last)
    span = "1" if count == 1 else f"1,{count}"
    added = "".join(f"+{line}\n" for line in lines)
    return f"{head}--- /dev/null\n+++ {new_name}\n@@ -0,0 +{span} @@\n{added}{end}"


def quote_path(name: str) -> str:
    """The name as git writes it in a patch."""
    text = os.fsencode(name).decode("utf-8", "replace")
    if not _NEEDS_QUOTES.search(text):
        return text
    escaped = _NEEDS_QUOTES.sub(
        lambda found: _ESCAPES.get(found[0]) or f"\\{ord(found[0]):03o}", text
    )
    return f'"{escaped}"'
