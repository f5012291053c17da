"""One command of this boot as a value: what was asked, what came of it, who waits for it.

Owns the shapes that a caller sees. Starting, ending and forgetting commands is done in
`processes`.

The last word of commands that have ended, on disk: it can still be had after a restart.

One small file per command, for an hour. Reading is as careful as with a stranger's file, since
commands of the workspace can write there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from chatd.agent.json_log import Json, parse_line, read_file_bytes, write_atomic
from chatd.agent.processes.child import ChildProcess
from chatd.agent.processes.output_buffer import OutputBuffer

MAX_COMMAND_CHARS = 1000

Waiters = set["asyncio.Future[None]"]


@dataclass(frozen=True)
class CommandSpec:
    """What was asked for. `family`: the chats that are told when it has ended."""

    command: str
    chat_id: str | None
    workdir: str | None
    env: Mapping[str, str]
    background: bool
    family: tuple[str, ...]


@dataclass
class CommandEntry:
    """One command. `saved`: its last word is on disk, so memory may forget it."""

    id: str
    number: int
    order: CommandSpec
    workdir: str
    started_at: float
    buffer: OutputBuffer = field(default_factory=OutputBuffer)
    child: ChildProcess | None = None
    exit_code: int | None = None
    ended_at: float | None = None
    saved: bool = False
    until_end: Waiters = field(default_factory=Waiters)
    until_news: Waiters = field(default_factory=Waiters)

    @property
    def running(self) -> bool:
        return self.ended_at is None

    def visible_to(self, chat_id: str | None) -> bool:
        """A request that names no chat sees everything."""
        return chat_id is None or self.order.chat_id == chat_id

    def printed(self, data: bytes) -> None:
        self.buffer.write(data)
        wake(self.until_news)

    def end(self, exit_code: int, ended_at: float) -> None:
        self.exit_code = exit_code
        self.ended_at = ended_at
        wake(self.until_end)
        wake(self.until_news)

    def listed(self) -> Json:
        return {
            "id": self.id,
            "command": _shown(self.order.command),
            "workdir": self.workdir,
            "background": self.order.background,
            "running": self.running,
            "exit_code": self.exit_code,
            "started_at_unix": int(self.started_at),
            "exited_at_unix": None if self.ended_at is None else int(self.ended_at),
        }

    def output(self, after: int = 0) -> Json:
        view = self.buffer.read_after(after, final=not self.running)
        return {
            "output": view.text,
            "running": self.running,
            "exit_code": self.exit_code,
            "truncated": asdict(view.truncated) if view.truncated else None,
            "cursor": view.cursor,
        }

    def saved_result(self) -> Json:
        """What `finished` keeps."""
        return {"chat_id": self.order.chat_id, **self.output()}


def output_from_saved(record: Json, after: int) -> Json:
    """The output again, from what was kept. If a cursor cannot be found in it, all of it."""
    fields = ("output", "running", "exit_code", "truncated", "cursor")
    output = {name: record.get(name) for name in fields}
    text, cursor = output["output"], output["cursor"]
    if not isinstance(text, str) or not isinstance(cursor, int):
        return output
    data = text.encode("utf-8", "replace")
    if after >= cursor:
        output["output"] = ""
    elif len(data) == cursor:
        output["output"] = data[after:].decode("utf-8", "replace")
    return output


def _shown(command: str) -> str:
    """Some write whole files in a command; a list of them need not repeat those."""
    return command if len(command) <= MAX_COMMAND_CHARS else f"{command[:MAX_COMMAND_CHARS]} [...]"


def wake(waiters: Waiters) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def wait(waiters: Waiters, timeout_s: float) -> None:
    """Until woken or for so long, whichever is first."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.add(waiter)
    try:
        await asyncio.wait([waiter], timeout=timeout_s)
    finally:
        waiters.discard(waiter)


SAVED_RESULT_TTL_S = 3600.0
MAX_SAVED_RESULTS = 256
_MAX_FILE_BYTES = 1024 * 1024
_ID = re.compile(r"[0-9a-f]{8,64}")


class SavedResults:
    """Blocking calls: make them in a thread."""

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
        """Best effort: on a full disk the answer is in memory only."""
        now = self._now()
        data = json.dumps({**record, "saved_at": now}).encode()
        path = self._path(process_id)
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            write_atomic(path, data, sync=False)
            os.utime(path, (now, now))
            self._prune()
        except OSError:
            pass

    def load(self, process_id: str) -> Json | None:
        if not _ID.fullmatch(process_id):
            return None
        record = parse_line(read_file_bytes(self._path(process_id), limit=_MAX_FILE_BYTES))
        saved_at = record.get("saved_at") if record else None
        if not isinstance(saved_at, (int, float)) or self._now() - saved_at > SAVED_RESULT_TTL_S:
            return None
        return record

    def _path(self, process_id: str) -> str:
        return os.path.join(self._directory, f"{process_id}.json")

    def _prune(self) -> None:
        ages: list[tuple[float, str]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                try:
                    ages.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
                except OSError:
                    continue
        ages.sort()
        excess = len(ages) - self._max_files
        for index, (modified, path) in enumerate(ages):
            if index >= excess and self._now() - modified <= SAVED_RESULT_TTL_S:
                break
            try:
                os.unlink(path)
            except OSError:
                continue
