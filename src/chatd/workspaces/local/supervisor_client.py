"""The server's client of the supervisor: connect, start a supervisor if none runs, send requests.

All requests are idempotent, so a request is repeated, to the same supervisor or to its successor,
when the connection is lost. A supervisor of another version is used if it has the same protocol.
"""

import asyncio
import fcntl
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Clock
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.local.supervisor.plan import PROTOCOL, SandboxOrder, encode_json
from chatd.workspaces.local.supervisor.sandbox_processes import MODULE_ENVIRONMENT, module_command
from chatd.workspaces.local.supervisor.service import (
    IDLE_EXIT_AFTER_S,
    LOCK_FILE,
    LOG_FILE,
    SOCKET_FILE,
)

SUPERVISOR_MODULE: Final = "chatd.workspaces.local.supervisor"
SUPERVISOR_REPLY_TIMEOUT_S: Final = 60.0
SUPERVISOR_START_TIMEOUT_S: Final = 20.0
MAX_SUPERVISOR_STARTS: Final = 8
FIRST_CONNECT_DELAY_S: Final = 0.02
MAX_SUCCESSOR_POLLS: Final = 40
SUCCESSOR_POLL_S: Final = 0.5
"""MAX_SUCCESSOR_POLLS of these take 20 s: the time for a new supervisor to replace the old one on a
busy host."""
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024


class SandboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    build: int = 0
    state: str = ""
    starts: int = 0
    pid: int = 0
    exit_code: int | None = None
    detail: str = ""
    controllers: tuple[str, ...] = ()
    """Which control groups limit the workspace as a whole."""


class SupervisorReply(SandboxStatus, frozen=True, kw_only=True):
    """The reply to any request: fields that do not apply have their defaults."""

    protocol: int
    ok: bool
    code: str = ""
    error: str = ""
    found: bool = False
    ready: bool = False
    log: str = ""
    workspaces: dict[str, SandboxStatus] | int = 0
    words: tuple[str, ...] = ()


class SupervisorGone(Exception):
    """No supervisor listens, or it closed the connection."""


class SupervisorClient:
    def __init__(self, directory: Path, clock: Clock, *, idle_s: float = IDLE_EXIT_AFTER_S) -> None:
        self._directory = directory
        self._clock = clock
        self._idle_s = idle_s

    async def start(self, order: SandboxOrder) -> SupervisorReply:
        return _require_ok(await self._request({"op": "start", "order": encode_json(order)}))

    async def stop(self, workspace: str, build: int) -> None:
        reply = await self._request_if_running(
            {"op": "stop", "workspace": workspace, "build": build}
        )
        if reply is not None:
            _require_ok(reply)

    async def inspect(self, workspace: str) -> SupervisorReply | None:
        """None if the workspace does not run."""
        reply = await self._request_if_running({"op": "inspect", "workspace": workspace})
        return reply if reply is not None and _require_ok(reply).found else None

    async def list_running(self) -> dict[str, SandboxStatus]:
        reply = await self._request_if_running({"op": "list"})
        found = _require_ok(reply).workspaces if reply is not None else {}
        return found if isinstance(found, dict) else {}

    async def words_in_use(self, words: Sequence[str]) -> AbstractSet[str] | None:
        """Which of these occur in running orders. None if the supervisor cannot tell."""
        reply = await self._request_if_running({"op": "mentioned", "words": list(words)})
        if reply is None:
            return set()
        return set(reply.words) if reply.ok else None

    async def shutdown(self) -> None:
        await self._request_if_running({"op": "shutdown"})

    async def _request(self, request: dict[str, object]) -> SupervisorReply:
        """Start a supervisor only if the lock is free: its holder is about to listen or to exit,
        and is given time for it."""
        starts = 0
        for number in range(MAX_SUCCESSOR_POLLS):
            try:
                reply = await self._send(request)
                if reply.code != "closing":
                    return reply
            except SupervisorGone:
                if self._is_lock_free():
                    if starts == MAX_SUPERVISOR_STARTS:
                        break
                    starts += 1
                    await self._launch()
                    if starts == 1:  # It listens already.
                        continue
            await self._wait(number)
        raise Unavailable("The supervisor of local workspaces does not start." + self._last_log())

    async def _request_if_running(self, request: dict[str, object]) -> SupervisorReply | None:
        """None if no supervisor runs, so no sandbox does. While the lock is held, a killed
        supervisor is being replaced by another with the same sandboxes."""
        for number in range(MAX_SUCCESSOR_POLLS):
            try:
                return await self._send(request)
            except SupervisorGone:
                if self._is_lock_free():
                    return None
            await self._wait(number)
        raise Unavailable("The supervisor of local workspaces does not answer.")

    async def _wait(self, number: int) -> None:
        delay_s = min(FIRST_CONNECT_DELAY_S * 2**number, SUCCESSOR_POLL_S)
        await self._clock.sleep(delay_s, "supervisor")

    def _is_lock_free(self) -> bool:
        """Also removes the dead holder's pid from the file: another process may have it now."""
        try:
            lock = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.truncate(lock, 0)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    async def _send(self, request: dict[str, object]) -> SupervisorReply:
        line = json.dumps({"protocol": PROTOCOL, **request}).encode() + b"\n"
        try:
            async with asyncio.timeout(SUPERVISOR_REPLY_TIMEOUT_S):
                answer = await self._exchange(line)
        except TimeoutError:
            raise Unavailable("The supervisor of local workspaces does not answer.") from None
        try:
            return msgspec.json.decode(answer, type=SupervisorReply)
        except msgspec.DecodeError as error:
            raise Unavailable(f"The supervisor's reply is invalid: {error}") from None

    async def _exchange(self, line: bytes) -> bytes:
        try:
            connection = self._connect()
        except (FileNotFoundError, ConnectionError) as error:
            raise SupervisorGone from error
        except OSError as error:
            # A full queue, or no free descriptor here, does not prove that no supervisor runs.
            raise Unavailable(
                f"The supervisor of local workspaces cannot be reached: {error.strerror}."
            ) from error
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_REPLY_BYTES)
        try:
            writer.write(line)
            await writer.drain()
            answer = await reader.readline()
        except (ConnectionError, ValueError) as error:
            raise SupervisorGone from error
        finally:
            writer.close()
        if not answer.endswith(b"\n"):
            raise SupervisorGone
        return answer

    def _connect(self) -> socket.socket:
        """Connect through the directory's descriptor: the path may be too long for a socket
        address."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(0)
                connection.connect(f"/proc/self/fd/{directory}/{SOCKET_FILE}")
            except OSError:
                connection.close()
                raise
        finally:
            os.close(directory)
        return connection

    async def _launch(self) -> None:
        """The supervisor detaches from this process; a second one exits by itself."""
        await asyncio.to_thread(self._directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        options = [str(self._directory), "--idle-s", str(self._idle_s)]
        with (self._directory / LOG_FILE).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *module_command(SUPERVISOR_MODULE),
                *options,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=MODULE_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(SUPERVISOR_START_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()

    def _last_log(self) -> str:
        try:
            lines = (self._directory / LOG_FILE).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return f" Its log ends with: {lines[-1]}" if lines else ""


def _require_ok(reply: SupervisorReply) -> SupervisorReply:
    if reply.ok:
        return reply
    if reply.code == "protocol" or reply.protocol != PROTOCOL:
        raise BuildFailed(
            "The workspaces of this host are run by another version of chatd. Stop them, or end "
            "its supervisor, and try again."
        )
    raise BuildFailed(f"The supervisor refused: {reply.error}", code=f"supervisor_{reply.code}")
