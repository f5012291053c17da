"""One command as a value, and the saved results of ended commands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from chatd.agent.durable_files import Json, parse_line, read_file_bytes, write_atomic
from chatd.agent.processes.process_child import ChildProcess, signal_name
from chatd.agent.processes.process_output import OutputBuffer, OutputFile

MAX_COMMAND_CHARS = 1000
SAVED_RESULT_TTL_S = 3600.0
MAX_SAVED_RESULTS = 256
_MAX_RESULT_FILE_BYTES = 1024 * 1024
_PROCESS_ID = re.compile(r"[0-9a-f]{8,64}")

Waiters = set["asyncio.Future[None]"]


@dataclass(frozen=True)
class CommandSpec:
    """A requested command. `chats` are the chat and its ancestors, for the `on_end` callback."""

    command: str
    chat_id: str | None
    workdir: str | None
    env: Mapping[str, str]
    background: bool
    chats: tuple[str, ...]


@dataclass
class CommandEntry:
    """A started command. Once it `is_saved`, it may be dropped from memory."""

    id: str
    number: int
    spec: CommandSpec
    workdir: str
    started_at: float
    file: OutputFile
    buffer: OutputBuffer = field(default_factory=OutputBuffer)
    child: ChildProcess | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended_at: float | None = None
    is_saved: bool = False
    filing: asyncio.Task[None] | None = None
    end_waiters: Waiters = field(default_factory=Waiters)
    output_waiters: Waiters = field(default_factory=Waiters)

    @property
    def is_running(self) -> bool:
        return self.ended_at is None

    def is_visible_to(self, chat_id: str | None) -> bool:
        """A request without a chat sees every command."""
        return chat_id is None or self.spec.chat_id == chat_id

    def on_output(self, data: bytes) -> None:
        self.buffer.write(data)
        self.file.feed(data)
        wake(self.output_waiters)

    def on_end(self, exit_code: int, ended_at: float) -> None:
        self.exit_code = max(exit_code, -1)
        self.signal = signal_name(exit_code)
        self.ended_at = ended_at
        wake(self.end_waiters)
        wake(self.output_waiters)

    def summary(self) -> Json:
        return {
            "id": self.id,
            "command": _clip_command(self.spec.command),
            "workdir": self.workdir,
            "background": self.spec.background,
            "running": self.is_running,
            "exit_code": self.exit_code,
            **self._ended_by(),
            "started_at_unix": int(self.started_at),
            "exited_at_unix": None if self.ended_at is None else int(self.ended_at),
        }

    def output(self, after: int = 0) -> Json:
        view = self.buffer.read_after(after, final=not self.is_running)
        return {
            "output": view.text,
            "running": self.is_running,
            "exit_code": self.exit_code,
            **self._ended_by(),
            "truncated": asdict(view.truncated) if view.truncated else None,
            "cursor": view.cursor,
            **({} if self.file.path is None else {"file": self.file.path}),
        }

    def _ended_by(self) -> Json:
        return {} if self.signal is None else {"signal": self.signal}

    def saved_result(self) -> Json:
        return {"chat_id": self.spec.chat_id, **self.output()}


def output_from_saved(record: Json, after: int) -> Json:
    """The output after a cursor; the whole output if it was truncated and has no such position."""
    fields = ("output", "running", "exit_code", "truncated", "cursor")
    output = {name: record.get(name) for name in fields}
    output |= {name: record[name] for name in ("signal", "file") if record.get(name)}
    text, cursor = output["output"], output["cursor"]
    if not isinstance(text, str) or not isinstance(cursor, int):
        return output
    data = text.encode("utf-8", "replace")
    if after >= cursor:
        output["output"] = ""
    elif len(data) == cursor:
        output["output"] = data[after:].decode("utf-8", "replace")
    return output


def _clip_command(command: str) -> str:
    """A command may contain a whole file; a list shows its beginning only."""
    if len(command) <= MAX_COMMAND_CHARS:
        return command
    return f"{command[:MAX_COMMAND_CHARS]} [...]"


def wake(waiters: Waiters) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def wait(waiters: Waiters, timeout_s: float) -> None:
    """Wait until woken or until the timeout."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.add(waiter)
    try:
        await asyncio.wait([waiter], timeout=timeout_s)
    finally:
        waiters.discard(waiter)


class SavedResults:
    """The results of ended commands on disk, for reading after a restart. Blocks: use a thread.

    Commands of the workspace can write to these files, so they are read with care.
    """

    def __init__(
        self,
        run_dir: str,
        *,
        now: Callable[[], float] = time.time,
        max_files: int = MAX_SAVED_RESULTS,
    ) -> None:
        self._directory = os.path.join(run_dir, "finished")
        self._now = now
        self._max_files = max_files

    def save(self, process_id: str, record: Json) -> None:
        """Best effort: on a full disk the result stays in memory only."""
        now = self._now()
        data = json.dumps({**record, "saved_at": now}).encode()
        path = self._path(process_id)
        with suppress(OSError):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            write_atomic(path, data, sync=False)
            os.utime(path, (now, now))
            self._prune()

    def load(self, process_id: str) -> Json | None:
        if not _PROCESS_ID.fullmatch(process_id):
            return None
        record = parse_line(read_file_bytes(self._path(process_id), limit=_MAX_RESULT_FILE_BYTES))
        saved_at = record.get("saved_at") if record else None
        if not isinstance(saved_at, (int, float)) or self._now() - saved_at > SAVED_RESULT_TTL_S:
            return None
        return record

    def _path(self, process_id: str) -> str:
        return os.path.join(self._directory, f"{process_id}.json")

    def _prune(self) -> None:
        files: list[tuple[float, str]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    files.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
        files.sort()
        excess = len(files) - self._max_files
        for index, (modified, path) in enumerate(files):
            if index >= excess and self._now() - modified <= SAVED_RESULT_TTL_S:
                break
            with suppress(OSError):
                os.unlink(path)
