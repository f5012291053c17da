"""The last word of commands that have ended, on disk: it can still be had after a restart.

One small file per command, for an hour. Reading is as careful as with a stranger's file, since
commands of the workspace can write there.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable

from chatd.agent.jsonlog import Json, parse, read_regular, replace_file

MAX_AGE_S = 3600.0
MAX_FILES = 256
_MAX_FILE_BYTES = 1024 * 1024
_ID = re.compile(r"[0-9a-f]{8,64}")


class Finished:
    """Blocking calls: make them in a thread."""

    def __init__(
        self, run_dir: str, *, now: Callable[[], float] = time.time, max_files: int = MAX_FILES
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
            replace_file(path, data, sync=False)
            os.utime(path, (now, now))
            self._prune()
        except OSError:
            pass

    def load(self, process_id: str) -> Json | None:
        if not _ID.fullmatch(process_id):
            return None
        record = parse(read_regular(self._path(process_id), limit=_MAX_FILE_BYTES))
        saved_at = record.get("saved_at") if record else None
        if not isinstance(saved_at, (int, float)) or self._now() - saved_at > MAX_AGE_S:
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
            if index >= excess and self._now() - modified <= MAX_AGE_S:
                break
            try:
                os.unlink(path)
            except OSError:
                continue
