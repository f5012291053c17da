"""Recordings of the desktop: one MP4 for each chat that asked for one, made by ffmpeg.

Best effort: nothing else waits for a recording or fails with it. While it runs the file consists of
fragments, so that what was recorded before a crash can be played. When the X server is started
again the recording goes on in another file, and the files are joined at the end. It ends by itself
at a length and a size, so that no recording is left running.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from chatd.agent.errors import AgentError

RECORDER = "ffmpeg"
MAX_RECORDING_S = 600
MAX_RECORDING_BYTES = 12 << 20
MAX_POSTER_BYTES = 2 << 20
MAX_RECORDINGS = 4
"""Limit for recordings at once."""
RECORDING_RATE = 4
"""Frames per second."""
MAX_RECORDING_PARTS = 8
"""A recording is not continued once the desktop has ended this often."""
RECORDING_BEGIN_TIMEOUT_S = 2.0
"""How long an action waits for the first picture. ffmpeg takes 0.3 s on an idle machine."""
RECORDING_STOP_TIMEOUT_S = 10.0
RECORDING_CONVERT_TIMEOUT_S = 30.0
RECORDING_KEPT_S = 3600.0
"""Finished recordings this old are removed when the next one begins."""
_MIN_FILE_BYTES = 1000
_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")
_NOTE = re.compile(r"recording-([0-9A-Za-z_-]{1,64})\.note")
# As small as a vendor's picture, with even sides as the codec needs them.
_SCALE = "scale='min(1280,iw)':-2:flags=fast_bilinear,format=yuv420p"


@dataclass(frozen=True)
class RecordedFiles:
    video: str
    poster: str
    """Empty if there is none."""


class DesktopRecorder:
    """Its methods block: call them in a thread, one at a time. `directory` belongs to this account
    alone."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, size: tuple[int, int], env: Mapping[str, str]) -> str:
        """Why nothing is recorded; empty if it is. A recording that runs goes on."""
        if shutil.which(RECORDER, path=env.get("PATH")) is None:
            return f"The workspace has no {RECORDER}."
        self._reap()
        if name in self._running:
            return ""
        if len(self._running) >= MAX_RECORDINGS:
            return f"{MAX_RECORDINGS} recordings run already."
        self._remove_old()
        note = self._read_note(name)
        if note is None or note[1] < time.time() - MAX_RECORDING_S:
            self._remove(name)  # otherwise it was not stopped and continues
        return self._record(name, size, env)

    def resume(self, size: tuple[int, int], env: Mapping[str, str]) -> None:
        """Continue the recordings that were not stopped on a new X server, after theirs has
        ended."""
        for name in self._list_noted():
            self._end(name)  # it may not have noticed yet
            if len(self._running) < MAX_RECORDINGS:
                self._record(name, size, env)

    def _record(self, name: str, size: tuple[int, int], env: Mapping[str, str]) -> str:
        """Why nothing is recorded; empty if it is."""
        note, parts = self._read_note(name), self._list_parts(name)
        if self._find_left(name):
            return ""
        began = note[1] if note else time.time()
        left_s = int(began + MAX_RECORDING_S - time.time())
        left_bytes = MAX_RECORDING_BYTES - sum(map(_size, parts))
        if left_s < 1 or left_bytes < _MIN_FILE_BYTES or len(parts) >= MAX_RECORDING_PARTS:
            return "The recording has its full length."
        part = self._path(name, f"part{len(parts) + 1}.mp4")
        words = [
            RECORDER, "-nostdin", "-loglevel", "error", "-y",
            "-f", "x11grab", "-framerate", str(RECORDING_RATE),
            "-video_size", f"{size[0]}x{size[1]}", "-i", env["DISPLAY"],
            "-vf", _SCALE, "-c:v", "libx264", "-preset", "ultrafast", "-crf", "30",
            "-threads", "1", "-g", str(RECORDING_RATE * 2),
            "-movflags", "+frag_keyframe+empty_moov+default_base_moof",
            "-flush_packets", "1",
            "-t", str(left_s), "-fs", str(left_bytes),
            part,
        ]  # fmt: skip
        self._running[name] = child = self._spawn(words, env)
        with open(self._path(name, "note"), "w", encoding="ascii") as noted:
            noted.write(f"{child.pid} {began:.0f}")
        # Otherwise the first action is not on the video. The first picture is written at once.
        until = time.monotonic() + RECORDING_BEGIN_TIMEOUT_S
        while not _size(part) and child.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        return ""

    def stop(self, name: str, env: Mapping[str, str]) -> RecordedFiles | None:
        """None if there is no recording that can be played. The same again for one that ended."""
        self._end(name)
        video, poster = self._path(name, "mp4"), self._path(name, "jpg")
        if parts := self._list_parts(name):
            if self._join(name, parts, video, env):
                # Near its end: the first picture is often an empty desktop.
                shot = ["-frames:v", "1", "-q:v", "5", "-f", "mjpeg", poster]
                late = ["-sseof", "-1", "-i", video, *shot]
                if not self._convert(late, env):
                    self._convert(["-i", video, *shot], env)
            for part in parts:
                os.unlink(part)
        with suppress(OSError):
            os.unlink(self._path(name, "note"))
        if _size(video) < _MIN_FILE_BYTES:
            return None
        has_poster = 0 < _size(poster) <= MAX_POSTER_BYTES
        return RecordedFiles(video, poster if has_poster else "")

    def _join(self, name: str, parts: list[str], video: str, env: Mapping[str, str]) -> bool:
        """Players find the length and every place of a file that is not in fragments. If a part
        cannot be played, because its X server was killed at once, the largest is kept."""
        parts = [part for part in parts if _size(part) >= _MIN_FILE_BYTES]
        if not parts:
            return False
        names = self._path(name, "list")
        with open(names, "w", encoding="utf-8") as file:
            file.writelines(f"file '{part}'\n" for part in parts)
        end = ["-c", "copy", "-movflags", "+faststart", "-f", "mp4", f"{video}.new"]
        largest = max(parts, key=_size)
        tries = [["-i", largest, *end]]
        if len(parts) > 1:
            tries.insert(0, ["-f", "concat", "-safe", "0", "-i", names, *end])
        if not any(self._convert(words, env) for words in tries):
            return False
        os.replace(f"{video}.new", video)
        return True

    def find(self, name: str, kind: str) -> str:
        """The file of a recording that has ended. Raises AgentError."""
        path = self._path(name, kind)
        if kind not in ("mp4", "jpg") or not os.path.exists(path):
            raise AgentError(404, "There is no such recording.", code="no_recording")
        return path

    def close(self) -> None:
        for name in list(self._running):
            self._end(name)

    def _path(self, name: str, ending: str) -> str:
        if not _NAME.fullmatch(name):
            raise AgentError(400, "The name of a recording has letters and digits.")
        return f"{self._directory}/recording-{name}.{ending}"

    def _spawn(self, words: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["nice", "-n", "10", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            start_new_session=True,
        )

    def _convert(self, words: list[str], env: Mapping[str, str]) -> bool:
        child = self._spawn([RECORDER, "-nostdin", "-loglevel", "error", "-y", *words], env)
        try:
            return child.wait(RECORDING_CONVERT_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return False

    def _end(self, name: str) -> None:
        child = self._running.pop(name, None)
        if child is None:
            if pid := self._find_left(name):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)  # what is in the file can be played
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(RECORDING_STOP_TIMEOUT_S)
                return

    def _read_note(self, name: str) -> tuple[int, float] | None:
        """The process that records, and when the recording began. None if it was stopped."""
        with suppress(OSError, ValueError):
            with open(self._path(name, "note"), encoding="ascii") as noted:
                pid, began = noted.read().split()
            return int(pid), float(began)
        return None

    def _find_left(self, name: str) -> int:
        """The recorder that an earlier agent started; 0 if it has ended."""
        note = self._read_note(name)
        if note is not None:
            with suppress(OSError), open(f"/proc/{note[0]}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
                if any(part.encode() in words for part in self._list_parts(name)):
                    return note[0]
        return 0

    def _list_parts(self, name: str) -> list[str]:
        """The parts in their order."""
        numbers = range(1, MAX_RECORDING_PARTS + 1)
        paths = (self._path(name, f"part{number}.mp4") for number in numbers)
        return [path for path in paths if os.path.exists(path)]

    def _list_noted(self) -> list[str]:
        with suppress(OSError):
            found = sorted(os.listdir(self._directory))
            return [match[1] for each in found if (match := _NOTE.fullmatch(each))]
        return []

    def _reap(self) -> None:
        for name, child in list(self._running.items()):
            if child.poll() is not None:
                del self._running[name]

    def _remove(self, name: str) -> None:
        for path in (
            *self._list_parts(name),
            *(self._path(name, ending) for ending in ("mp4", "mp4.new", "jpg", "note", "list")),
        ):
            with suppress(OSError):
                os.unlink(path)

    def _remove_old(self) -> None:
        running = tuple(f"recording-{name}." for name in self._running)
        with suppress(OSError):
            for entry in list(os.scandir(self._directory)):
                is_old = entry.stat().st_mtime < time.time() - RECORDING_KEPT_S
                is_recording = entry.name.startswith("recording-")
                if is_recording and is_old and not entry.name.startswith(running):
                    os.unlink(entry.path)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
