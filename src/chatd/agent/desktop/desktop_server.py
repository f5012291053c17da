"""The desktop of a workspace: one X server with a VNC socket and a window manager, started on first
use and again when it has ended.

Both sockets are Unix sockets that only the workspace's account can open. A desktop that an agent
before this one started is used again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import stat
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from chatd.agent.desktop.desktop_actions import ActionOutcome, DesktopAction, DesktopInput
from chatd.agent.desktop.recorder import (
    RECORDING_STOP_TIMEOUT_S,
    DesktopRecorder,
    RecordedFiles,
)
from chatd.agent.desktop.x_display import (
    COOKIE_BYTES,
    DisplayLost,
    ScreenRegion,
    XDisplay,
    encode_png,
    write_authority,
)
from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import CommandEnvironment
from chatd.agent.server.agent_server import log_line
from chatd.agent.threads import start_pool

X_SERVER = "Xvnc"
WINDOW_MANAGERS = ("openbox", "fluxbox", "icewm", "xfwm4", "metacity", "matchbox-window-manager")
DESKTOP_PACKAGES = {X_SERVER: "tigervnc-standalone-server", "openbox": "openbox"}
"""The packages of Debian that have them."""
DESKTOP_START_TIMEOUT_S = 15.0
WINDOW_MANAGER_TIMEOUT_S = 3.0
MIN_RESTART_INTERVAL_S = 1.0
"""A desktop that ends at once is not started in a loop."""
SETTLE_FIRST_S = 0.03
SETTLE_STEP_S = 0.03
SETTLE_MAX_S = 0.5
"""How long after an action the screenshot waits at most for the screen to stop changing."""
_NO_WINDOW_MANAGER = "The desktop has no window manager: windows have no frames."
# When memory is short, the kernel kills programs of the desktop before the agent.
_DIE_FIRST = '{ echo 1000 >>/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"'
_SOCKETS_DIR = "/tmp/.X11-unix"

T = TypeVar("T")


@dataclass(frozen=True)
class ScreenSize:
    width: int
    height: int


@dataclass(frozen=True)
class Screenshot:
    """A PNG, and where the pointer is. `took_ms`: by stage (settle, capture, encode)."""

    image: bytes
    pointer: tuple[int, int]
    took_ms: dict[str, float]


@dataclass(frozen=True)
class DesktopPlace:
    """Where a desktop's display, cookie and VNC socket are. The same for every agent of the
    workspace. The directory is short: the name of a socket has at most 107 bytes."""

    number: int
    directory: str

    @staticmethod
    def of(run_dir: str, temporary: str = "/tmp") -> DesktopPlace:
        number = 100 + zlib.crc32(run_dir.encode()) % 9000
        return DesktopPlace(number, f"{temporary}/.chatd-desktop-{number}")

    @property
    def display_socket(self) -> str:
        return f"{_SOCKETS_DIR}/X{self.number}"

    @property
    def authority(self) -> str:
        return f"{self.directory}/authority"

    @property
    def vnc_socket(self) -> str:
        return f"{self.directory}/vnc"

    @property
    def noted_pid(self) -> str:
        return f"{self.directory}/pid"

    def variables(self) -> dict[str, str]:
        return {"DISPLAY": f":{self.number}", "XAUTHORITY": self.authority}


def missing_programs(path: str | None = None) -> list[str]:
    """The package that a workspace lacks for a desktop, in the words of Debian."""
    if shutil.which(X_SERVER, path=path) is None:
        return [DESKTOP_PACKAGES[X_SERVER]]
    return []


class DesktopServer:
    """Create it inside the event loop. One thread speaks to the display."""

    def __init__(
        self,
        size: ScreenSize,
        place: DesktopPlace,
        environment: CommandEnvironment,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self.place = place
        self._environment = environment
        self._now = now
        self._pool: ThreadPoolExecutor | None = None
        self._display: XDisplay | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        self._started_at = float("-inf")
        self._lock = asyncio.Lock()
        self._recorder = DesktopRecorder(place.directory)
        self._recording = asyncio.Lock()
        self._is_new = False
        """The X server was started and recordings have not been resumed on it yet."""
        self._resuming: asyncio.Future[None] | None = None
        self.starts = 0
        self.note = ""

    # --- use ------------------------------------------------------------------------------------

    async def act(self, actions: list[DesktopAction], stop: threading.Event) -> ActionOutcome:
        async with self._lock:
            display = await self._ensure()
            outcome = await self._run(lambda: DesktopInput(display, stop).run(actions))
            if outcome.is_unknown:
                self._drop_display()
            return outcome

    async def screenshot(
        self, size: ScreenSize, region: ScreenRegion | None = None, *, settles: bool = False
    ) -> Screenshot:
        """Capture the whole screen or a region."""
        async with self._lock:
            display = await self._ensure()
            try:
                return await self._run(lambda: _capture(display, size, region, settles=settles))
            except DisplayLost:
                self._drop_display()
                display = await self._ensure()
                return await self._run(lambda: _capture(display, size, region))

    async def start_recording(self, name: str) -> str:
        """Why nothing is recorded; empty if it is. Raises AgentError if there is no desktop."""
        await self.ensure_started()
        if self._resuming is not None:
            await asyncio.wait({self._resuming})  # it would end what begins now
        size, env = (self.size.width, self.size.height), self._variables()
        async with self._recording:
            return await asyncio.to_thread(self._recorder.start, name, size, env)

    async def _resume_recordings(self) -> None:
        """Best effort, and no action waits for it."""
        size, env = (self.size.width, self.size.height), self._variables()
        async with self._recording:
            with suppress(OSError, subprocess.SubprocessError):
                await asyncio.to_thread(self._recorder.resume, size, env)

    async def stop_recording(self, name: str) -> RecordedFiles | None:
        async with self._recording:
            return await asyncio.to_thread(self._recorder.stop, name, self._variables())

    async def read_recording(self, name: str, kind: str, offset: int, limit: int) -> bytes:
        """Raises AgentError."""

        def read() -> bytes:
            with open(self._recorder.find(name, kind), "rb") as file:
                file.seek(offset)
                return file.read(limit)

        return await asyncio.to_thread(read)

    def _variables(self) -> dict[str, str]:
        return self._environment.build_variables(self.place.variables(), None)

    async def ensure_started(self) -> None:
        async with self._lock:
            await self._ensure()

    def is_running(self) -> bool:
        return self._display is not None and all(each.poll() is None for each in self._children[:1])

    # --- life -----------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._resuming is not None:
            await asyncio.wait({self._resuming}, timeout=RECORDING_STOP_TIMEOUT_S)
        await asyncio.to_thread(self._recorder.close)
        await asyncio.to_thread(self._end)
        shutil.rmtree(self.place.directory, ignore_errors=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._pool is None:
            self._pool = start_pool(1, "desktop")
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _ensure(self) -> XDisplay:
        """Raises AgentError 503, after which nothing was done."""
        if self._display is not None and not self.is_running():
            log_line("the desktop has ended: it is started again")
            self._drop_display()
        if self._display is None:
            wait_s = self._started_at + MIN_RESTART_INTERVAL_S - self._now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._started_at = self._now()
            try:
                self._display = await self._run(self._connect_or_start)
            except (DisplayLost, OSError, subprocess.SubprocessError) as error:
                text = f"The desktop of the workspace cannot be started: {error}."
                raise AgentError(503, text, code="no_desktop") from error
            self.starts += 1
            if self._is_new:
                self._is_new = False
                self._resuming = asyncio.ensure_future(self._resume_recordings())
        return self._display

    def _drop_display(self) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def _connect_or_start(self) -> XDisplay:
        with suppress(DisplayLost, OSError):
            return self._connect()
        self._end()
        display = self._start()
        self._is_new = True
        return display

    def _connect(self) -> XDisplay:
        """Raises DisplayLost and OSError if no desktop runs here."""
        with open(self.place.authority, "rb") as file:
            cookie = file.read()[-COOKIE_BYTES:]
        return XDisplay(self.place.display_socket, cookie)

    def _start(self) -> XDisplay:
        place = self.place
        env = self._variables()
        if shutil.which(X_SERVER, path=env.get("PATH")) is None:
            package = DESKTOP_PACKAGES[X_SERVER]
            text = f"The workspace has no {X_SERVER}. Install the Debian package {package} in it."
            raise AgentError(503, text, code="no_desktop")
        make_private(place.directory)
        # A server that was killed leaves its sockets.
        for left in (place.display_socket, place.vnc_socket):
            with suppress(OSError):
                os.unlink(left)
        with suppress(OSError):
            os.makedirs(_SOCKETS_DIR, mode=0o1777)
            os.chmod(_SOCKETS_DIR, 0o1777)  # whatever the umask
        cookie = secrets.token_bytes(COOKIE_BYTES)
        write_authority(place.authority, place.number, cookie)
        ready, tell = os.pipe()
        words = [
            X_SERVER, f":{place.number}", "-displayfd", str(tell), "-auth", place.authority,
            "-geometry", f"{self.size.width}x{self.size.height}", "-depth", "24",
            "-nolisten", "tcp", "-nolisten", "local", "-rfbport", "-1",
            "-rfbunixpath", place.vnc_socket, "-SecurityTypes", "None",
            "-AlwaysShared", "-AcceptSetDesktopSize=0", "-desktop", "chatd", "-noreset",
            "-Log", "*:stderr:0",
        ]  # fmt: skip
        try:
            server = self._spawn(words, env, pass_fds=(tell,))
        finally:
            os.close(tell)
        self._children = [server]
        with open(place.noted_pid, "w", encoding="ascii") as noted:
            noted.write(str(server.pid))
        try:
            _wait_ready(ready, server, f"{place.directory}/log")
            display = self._connect()
        except BaseException:
            self._end()
            raise
        finally:
            os.close(ready)
        manager = next(
            (name for name in WINDOW_MANAGERS if shutil.which(name, path=env["PATH"])), ""
        )
        self.note = "" if manager else _NO_WINDOW_MANAGER
        if manager:
            self._children.append(self._spawn([manager], env))
            # It would take the keyboard from windows that are opened before it is ready.
            until = time.monotonic() + WINDOW_MANAGER_TIMEOUT_S
            while not display.has_window_manager() and time.monotonic() < until:
                time.sleep(0.02)
        return display

    def _spawn(
        self, words: list[str], env: Mapping[str, str], pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        name = "log" if words[0] == X_SERVER else f"log-{words[0]}"
        with open(f"{self.place.directory}/{name}", "wb") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", _DIE_FIRST, "/bin/sh", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self._environment.resolve_workdir(None),
                env=dict(env),
                start_new_session=True,
                pass_fds=pass_fds,
            )

    def _end(self) -> None:
        """Kill what this agent or an earlier one has started. Programs with windows end with their
        server."""
        if not self._children and (pid := find_server(self.place)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for child in self._children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(2.0)
        self._children = []


def make_private(directory: str) -> None:
    """A directory that only this account can enter. Raises OSError if another account has it."""
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{directory} belongs to another account")
    os.chmod(directory, 0o700)


def find_server(place: DesktopPlace) -> int:
    """The process of the X server, by the number that its agent has noted; 0 if there is none."""
    with suppress(OSError, ValueError):
        with open(place.noted_pid, encoding="ascii") as noted:
            pid = int(noted.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        if os.path.basename(words[0]) == X_SERVER.encode() and f":{place.number}".encode() in words:
            return pid
    return 0


def _wait_ready(ready: int, server: subprocess.Popen[bytes], log: str) -> None:
    until = time.monotonic() + DESKTOP_START_TIMEOUT_S
    os.set_blocking(ready, False)
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            if os.read(ready, 16):
                return
            break  # the server has closed it
        if server.poll() is not None:
            break
        time.sleep(0.01)
    with open(log, "rb") as file:
        said = file.read()[-500:].decode("utf-8", "replace").split("\n")
    reason = " ".join(line.strip() for line in said if line.strip()) or "it does not answer"
    raise DisplayLost(f"{X_SERVER}: {reason}")


def _capture(
    display: XDisplay, size: ScreenSize, region: ScreenRegion | None, *, settles: bool = False
) -> Screenshot:
    area = region or ScreenRegion(0, 0, display.width, display.height)
    width, height = size.width, size.height
    took = {"settle": 0.0, "capture": 0.0, "encode": 0.0}

    def timed(stage: str, work: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return work()
        finally:
            took[stage] += (time.monotonic() - began) * 1000

    def capture() -> bytes:
        return timed("capture", lambda: display.capture(area, width, height))

    def encode() -> bytes:
        return timed("encode", lambda: encode_png(pixels, width, height))

    until = time.monotonic() + SETTLE_MAX_S
    if settles:
        timed("settle", lambda: time.sleep(SETTLE_FIRST_S))
    pixels = capture()
    next_at = time.monotonic() + SETTLE_STEP_S
    image = encode()  # while programs may still paint
    while settles and time.monotonic() < until:
        wait_s = max(next_at - time.monotonic(), 0)
        timed("settle", lambda wait_s=wait_s: time.sleep(wait_s))
        now = capture()
        if now == pixels:
            break
        pixels, image, next_at = now, b"", time.monotonic() + SETTLE_STEP_S
    return Screenshot(image or encode(), display.pointer(), took)
