"""Recordings of the desktop: one MP4 for each chat that asked for one, made by ffmpeg.

Best effort: nothing else waits for a recording or fails with it. While it runs the file consists of
fragments, so that what was recorded before a crash can be played. It ends by itself at a length and
a size, so that no recording is left running.
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
"""At once."""
RECORDING_RATE = 4
"""Pictures in a second."""
RECORDING_STOP_TIMEOUT_S = 10.0
RECORDING_CONVERT_TIMEOUT_S = 30.0
RECORDING_KEPT_S = 3600.0
"""Finished recordings are removed after so long, when the next one begins."""
_MIN_FILE_BYTES = 1000
_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")
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
        self._remove(name)
        words = [
            RECORDER, "-nostdin", "-loglevel", "error", "-y",
            "-f", "x11grab", "-framerate", str(RECORDING_RATE),
            "-video_size", f"{size[0]}x{size[1]}", "-i", env["DISPLAY"],
            "-vf", _SCALE, "-c:v", "libx264", "-preset", "ultrafast", "-crf", "30",
            "-threads", "1", "-g", str(RECORDING_RATE * 2),
            "-movflags", "+frag_keyframe+empty_moov+default_base_moof",
            "-flush_packets", "1",
            "-t", str(MAX_RECORDING_S), "-fs", str(MAX_RECORDING_BYTES),
            self._path(name, "part.mp4"),
        ]  # fmt: skip
        self._running[name] = self._spawn(words, env)
        with open(self._path(name, "pid"), "w", encoding="ascii") as noted:
            noted.write(str(self._running[name].pid))
        return ""

    def stop(self, name: str, env: Mapping[str, str]) -> RecordedFiles | None:
        """None if there is no recording that can be played. The same again for one that ended."""
        self._end(name)
        video, poster = self._path(name, "mp4"), self._path(name, "jpg")
        part = self._path(name, "part.mp4")
        if os.path.exists(part):
            # Players find the length and every place of a file that is not in fragments.
            copy = ["-i", part, "-c", "copy", "-movflags", "+faststart", "-f", "mp4"]
            if self._convert([*copy, f"{video}.new"], env):
                os.replace(f"{video}.new", video)
                # Near its end: the first picture is often an empty desktop.
                shot = ["-frames:v", "1", "-q:v", "5", "-f", "mjpeg", poster]
                late = ["-sseof", "-1", "-i", video, *shot]
                if not self._convert(late, env):
                    self._convert(["-i", video, *shot], env)
            os.unlink(part)
        if _size(video) < _MIN_FILE_BYTES:
            return None
        has_poster = 0 < _size(poster) <= MAX_POSTER_BYTES
        return RecordedFiles(video, poster if has_poster else "")

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
            self._end_noted(name)
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(RECORDING_STOP_TIMEOUT_S)
                return

    def _end_noted(self, name: str) -> None:
        """What an agent before this one has started."""
        with suppress(OSError, ValueError):
            with open(self._path(name, "pid"), encoding="ascii") as noted:
                pid = int(noted.read())
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if self._path(name, "part.mp4").encode() in words:
                os.kill(pid, signal.SIGKILL)  # what is in the file can be played

    def _reap(self) -> None:
        for name, child in list(self._running.items()):
            if child.poll() is not None:
                del self._running[name]

    def _remove(self, name: str) -> None:
        for ending in ("part.mp4", "mp4", "mp4.new", "jpg", "pid"):
            with suppress(OSError):
                os.unlink(self._path(name, ending))

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
