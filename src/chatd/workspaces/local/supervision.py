"""The server's end of the supervisor: finding it, starting it if need be, asking it.

All questions may be asked twice, so a supervisor that goes away in mid-question is asked again,
or rather the next one is. A supervisor of another version is used if it speaks our protocol.
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
from chatd.workspaces.backend import BuildFailed
from chatd.workspaces.local.plan import PROTOCOL, Order, encode
from chatd.workspaces.local.spawning import environment, python
from chatd.workspaces.local.supervisor import IDLE_S, LOCK, LOG, SOCKET

MODULE: Final = "chatd.workspaces.local.supervisor"
ANSWER_S: Final = 60.0
START_S: Final = 20.0
TRIES: Final = 8
FIRST_PAUSE_S: Final = 0.02
LOOKS: Final = 40
LOOK_S: Final = 0.5
"""Some twenty seconds for a supervisor to follow another, however busy the host is."""
MAX_REPLY: Final = 4 * 1024 * 1024


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What is said about a sandbox."""

    build: int = 0
    state: str = ""
    starts: int = 0
    pid: int = 0
    exit_code: int | None = None
    detail: str = ""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    protocol: int
    ok: bool
    code: str = ""
    error: str = ""
    pid: int = 0
    found: bool = False
    ready: bool = False
    log: str = ""
    build: int = 0
    state: str = ""
    starts: int = 0
    exit_code: int | None = None
    detail: str = ""
    workspaces: dict[str, Told] | int = 0
    words: tuple[str, ...] = ()


class NotThere(Exception):
    """Nobody listens, or whoever did has gone."""


class Supervision:
    def __init__(self, directory: Path, clock: Clock, *, idle_s: float = IDLE_S) -> None:
        self._directory = directory
        self._clock = clock
        self._idle_s = idle_s

    async def start(self, order: Order) -> Reply:
        return _good(await self._ask({"op": "start", "order": encode(order)}))

    async def stop(self, workspace: str, build: int) -> None:
        """Nothing runs without a supervisor, so none is started for this."""
        reply = await self._ask_if_there({"op": "stop", "workspace": workspace, "build": build})
        if reply is not None:
            _good(reply)

    async def inspect(self, workspace: str) -> Reply | None:
        """None if it does not run."""
        reply = await self._ask_if_there({"op": "inspect", "workspace": workspace})
        return reply if reply is not None and _good(reply).found else None

    async def running(self) -> dict[str, Told]:
        reply = await self._ask_if_there({"op": "list"})
        found = _good(reply).workspaces if reply is not None else {}
        return found if isinstance(found, dict) else {}

    async def mentioned(self, words: Sequence[str]) -> AbstractSet[str] | None:
        """Which of these are in what is kept running. None if the supervisor does not know the
        question."""
        reply = await self._ask_if_there({"op": "mentioned", "words": list(words)})
        if reply is None:
            return set()
        return set(reply.words) if reply.ok else None

    async def hello(self) -> Reply:
        """Starts one if there is none."""
        return _good(await self._ask({"op": "hello"}))

    async def shutdown(self) -> None:
        await self._ask_if_there({"op": "shutdown"})

    async def _ask(self, question: dict[str, object]) -> Reply:
        """One is started only if nobody holds the lock: whoever does is about to listen, or to
        leave, and is given time for it."""
        started = 0
        for number in range(LOOKS):
            try:
                reply = await self._once(question)
                if reply.code != "closing":
                    return reply
            except NotThere:
                if self._abandoned():
                    if started == TRIES:
                        break
                    started += 1
                    await self._launch()
                    if started == 1:  # Whoever has just been started can be asked at once.
                        continue
            await self._clock.sleep(_pause_s(number), "supervisor")
        raise Unavailable("The supervisor of local workspaces does not start." + self._why())

    async def _ask_if_there(self, question: dict[str, object]) -> Reply | None:
        """Nobody is there only if nobody holds the lock either: a supervisor that was killed is
        followed by another, with all that it kept."""
        for number in range(LOOKS):
            try:
                return await self._once(question)
            except NotThere:
                if self._abandoned():
                    return None
            await self._clock.sleep(_pause_s(number), "supervisor")
        raise Unavailable("The supervisor of local workspaces does not answer.")

    def _abandoned(self) -> bool:
        """Then the number that was left in the file may be a stranger's by now: it is removed."""
        try:
            lock = os.open(self._directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
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

    async def _once(self, question: dict[str, object]) -> Reply:
        line = json.dumps({"protocol": PROTOCOL, **question}).encode() + b"\n"
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._exchange(line)
        except TimeoutError:
            raise Unavailable("The supervisor of local workspaces does not answer.") from None

    async def _exchange(self, line: bytes) -> Reply:
        connection = self._connect()
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_REPLY)
        try:
            writer.write(line)
            await writer.drain()
            answer = await reader.readline()
        except (ConnectionError, ValueError) as error:
            raise NotThere from error
        finally:
            writer.close()
        if not answer.endswith(b"\n"):
            raise NotThere
        try:
            return msgspec.json.decode(answer, type=Reply)
        except msgspec.DecodeError as error:
            raise Unavailable(f"The supervisor cannot be understood: {error}") from None

    def _connect(self) -> socket.socket:
        """That nobody listens is only what the kernel says in so many words. A full queue, or no
        descriptor left here, says nothing of who runs."""
        try:
            return self._connected()
        except (FileNotFoundError, ConnectionError) as error:
            raise NotThere from error
        except OSError as error:
            raise Unavailable(
                f"The supervisor of local workspaces cannot be asked: {error.strerror}."
            ) from error

    def _connected(self) -> socket.socket:
        """Through the descriptor of the directory: a path may be too long for a socket."""
        inside = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(0)
                connection.connect(f"/proc/self/fd/{inside}/{SOCKET}")
            except OSError:
                connection.close()
                raise
            return connection
        finally:
            os.close(inside)

    async def _launch(self) -> None:
        """It leaves us at once, so that it is nobody's child; a second one ends by itself."""
        await asyncio.to_thread(self._directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        words = [*python(MODULE), str(self._directory), "--idle-s", str(self._idle_s)]
        with (self._directory / LOG).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(START_S):
                await process.wait()
        except TimeoutError:
            process.kill()

    def _why(self) -> str:
        try:
            lines = (self._directory / LOG).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return f" It said: {lines[-1]}" if lines else ""


def _pause_s(number: int) -> float:
    return min(FIRST_PAUSE_S * 2**number, LOOK_S)


def _good(reply: Reply) -> Reply:
    if reply.ok:
        return reply
    if reply.code == "protocol" or reply.protocol != PROTOCOL:
        raise BuildFailed(
            "The workspaces of this host are kept by another version of chatd. Stop them, or end "
            "its supervisor, and try again."
        )
    raise BuildFailed(f"The supervisor refuses: {reply.error}", code=f"supervisor_{reply.code}")
