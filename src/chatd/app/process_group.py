"""Several processes of one server on one port: `chatd serve --processes N`.

The process that was started is the supervisor: it serves nothing. It starts the members, restarts
one that has ended, and passes a stop on to all. Each member is a whole replica that binds the port
itself, so that the kernel spreads connections over those that live (SO_REUSEPORT), and a member
that cannot start takes none.

A socket pair connects the supervisor to each member. A member says there that it serves, and asks
for the metrics of all; the supervisor says when to stop. A member whose supervisor has died stops
as after SIGTERM, so that the next start finds the port free.
"""

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from chatd.aio import Backoff, first_of
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.log_event import LogEvent
from chatd.settings.schema import Settings, SettingsError

log = logging.getLogger(__name__)

MAX_AUTO_PROCESSES: Final = 8
"""What `auto` chooses at most: the embedded database has connections for about so many."""
CONNECTIONS_BESIDE_POOL: Final = 10
"""Of one process: heartbeats, hints, records of calls, runners."""
EMBEDDED_CONNECTIONS: Final = 190
"""That processes may use of the embedded database; the rest is for commands."""
RESTART_BACKOFF: Final = Backoff(first_delay_s=0.5, max_delay_s=30.0)
STABLE_AFTER_S: Final = 60.0
"""A process that ends later than this after its start is restarted at once."""
STOP_MARGIN_S: Final = 30.0
"""Beside the time for steps in progress: then a process that has not stopped is killed."""
STOP_NOW_S: Final = 5.0
COLLECT_TIMEOUT_S: Final = 2.0
GATHER_TIMEOUT_S: Final = 4.0
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


def count_processes(settings: Settings) -> int:
    """As `server.processes` says. Raises SettingsError."""
    chosen = settings.server.processes
    each = settings.database.pool_size + CONNECTIONS_BESIDE_POOL
    is_embedded = settings.database.url is None
    if chosen == "auto":
        fitting = EMBEDDED_CONNECTIONS // each if is_embedded else MAX_AUTO_PROCESSES
        return max(1, min(os.cpu_count() or 1, MAX_AUTO_PROCESSES, fitting))
    count = chosen
    needed = count * each
    if count > 1 and is_embedded and needed > EMBEDDED_CONNECTIONS:
        raise SettingsError(
            f"server.processes: {count} processes use up to {needed} database connections, and the"
            f" embedded database has {EMBEDDED_CONNECTIONS} for them. Start fewer, lower"
            " database.pool_size, or use a PostgreSQL server of your own."
        )
    return count


# What travels between the supervisor and its members: one JSON object per line.


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """The member serves. `banner` is what the command prints."""

    url: str
    banner: tuple[str, ...]


class Left(Struct, frozen=True, kw_only=True, tag="left"):
    """The member has stopped; so many workspaces keep running."""

    workspaces: int


class Gather(Struct, frozen=True, kw_only=True, tag="gather"):
    """A member asks for the metrics of all."""

    id: int


class Metrics(Struct, frozen=True, kw_only=True, tag="metrics"):
    """Of one member, or of all as the reply to `Gather`."""

    id: int
    text: str


class Collect(Struct, frozen=True, kw_only=True, tag="collect"):
    """The supervisor asks a member for its own metrics."""

    id: int


class Stop(Struct, frozen=True, kw_only=True, tag="stop"):
    """`now`: without waiting for steps in progress."""

    now: bool = False


_FromMember: TypeAlias = Ready | Left | Gather | Metrics
_ToMember: TypeAlias = Collect | Metrics | Stop
_FROM_MEMBER: Final[msgspec.json.Decoder[_FromMember]] = msgspec.json.Decoder(_FromMember)
_TO_MEMBER: Final[msgspec.json.Decoder[_ToMember]] = msgspec.json.Decoder(_ToMember)


class _Channel:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: _FromMember | _ToMember) -> None:
        """Does nothing if the other side has gone."""
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    async def receive(self) -> bytes:
        """The next line; empty once the other side has gone."""
        try:
            return await self._reader.readline()
        except (OSError, ValueError):  # reset, or a line that is too long
            return b""

    def close(self) -> None:
        self._writer.close()


async def _open_channel(end: socket.socket) -> _Channel:
    reader, writer = await asyncio.open_unix_connection(sock=end, limit=MAX_MESSAGE_BYTES)
    return _Channel(reader, writer)


# A member


class MemberSpec(Struct, frozen=True, kw_only=True):
    """How a process is told that it is a member. `shows_link`: its banner goes to a terminal."""

    fd: int
    number: int
    port: int
    shows_link: bool = False


_SPEC: Final = msgspec.json.Decoder(MemberSpec)


def read_spec(text: str) -> MemberSpec:
    try:
        return _SPEC.decode(text)
    except msgspec.DecodeError:
        raise SettingsError("--member is for processes that chatd serve itself starts") from None


def member_settings(settings: Settings, spec: MemberSpec) -> Settings:
    """The port that the supervisor has chosen, and a peer address of its own."""
    peer = settings.server.peer_address
    if peer is not None:
        host, _, port = peer.rpartition(":")
        peer = f"{host}:{int(port) + spec.number}"
    server = msgspec.structs.replace(settings.server, port=spec.port, peer_address=peer)
    return msgspec.structs.replace(settings, server=server)


class Membership:
    """A member's side of its group. `stop` is called when the supervisor says so or has gone."""

    def __init__(self, spec: MemberSpec, stop: Callable[[Stop], None]) -> None:
        self.spec = spec
        self._stop = stop
        self._channel: _Channel | None = None
        self._own_metrics: Callable[[], bytes] = bytes
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._last_id = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Membership"]:
        self._channel = await _open_channel(socket.socket(fileno=self.spec.fd))
        listening = asyncio.get_running_loop().create_task(self._listen(self._channel))
        try:
            yield self
        finally:
            listening.cancel()
            self._channel.close()

    def ready(self, url: str, banner: tuple[str, ...]) -> None:
        self._send(Ready(url=url, banner=banner))

    def left(self, workspaces: int) -> None:
        self._send(Left(workspaces=workspaces))

    def publish_metrics(self, own: Callable[[], bytes]) -> None:
        """`own` makes the metrics of this process."""
        self._own_metrics = own

    async def gather_metrics(self) -> bytes:
        """Of all members; only this one's if the supervisor does not answer."""
        self._last_id += 1
        asked = self._asked[self._last_id] = asyncio.get_running_loop().create_future()
        self._send(Gather(id=self._last_id))
        try:
            async with asyncio.timeout(GATHER_TIMEOUT_S):
                return await asked
        except TimeoutError:
            return merge_metrics({self.spec.number: self._own_metrics()})
        finally:
            self._asked = {number: it for number, it in self._asked.items() if it is not asked}

    def _send(self, message: _FromMember) -> None:
        if self._channel is not None:
            self._channel.send(message)

    async def _listen(self, channel: _Channel) -> None:
        while line := await channel.receive():
            match _TO_MEMBER.decode(line):
                case Collect(id=number):
                    self._send(Metrics(id=number, text=self._own_metrics().decode()))
                case Metrics(id=number, text=text):
                    asked = self._asked.get(number)
                    if asked is not None and not asked.done():
                        asked.set_result(text.encode())
                case Stop() as order:
                    self._stop(order)
        self._stop(Stop())


# The supervisor


class MemberFailed(ChatdError):
    """The first member could not start; it has printed why."""

    code = "member_failed"

    def __init__(self, exit_code: int) -> None:
        super().__init__("The server did not start.")
        self.exit_code = exit_code


class _Member:
    """One place in the group. `process` is None between two processes. `has_settled`: its first
    process serves or has ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.channel: _Channel | None = None
        self.has_settled = False
        self.starts = 0
        self.workspaces = 0

    def send(self, message: _ToMember) -> None:
        if self.channel is not None:
            self.channel.send(message)


class ProcessGroup:
    """The supervisor of `count` members. `arguments` are those of its own command, which a member
    repeats. `on_ready` gets the address and the banner once: when the first member serves, and each
    other one serves or has failed."""

    def __init__(
        self,
        count: int,
        arguments: tuple[str, ...],
        clock: Clock,
        *,
        port: int,
        drain_s: float,
        on_ready: Callable[[Ready], None],
        on_stopping: Callable[[], None],
        shows_link: bool = False,
    ) -> None:
        self._members = [_Member(number) for number in range(count)]
        self._arguments = arguments
        self._clock = clock
        self._port = port
        self._drain_s = drain_s
        self._on_ready: Callable[[Ready], None] | None = on_ready
        self._on_stopping = on_stopping
        self._shows_link = shows_link
        self._first_ready: Ready | None = None
        self._has_first = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._collected: dict[int, asyncio.Future[str]] = {}
        self._last_id = 0
        self._gathers: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> int:
        """Until `stop` is set and every member has stopped. Returns how many workspaces keep
        running. Raises MemberFailed if the first member cannot start. A cancellation stops all
        members at once."""
        first, *others = self._members
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stop_after(stop), name="stop")
            keeping = [group.create_task(self._keep(first), name="member 0")]
            await first_of(self._has_first.wait(), self._is_stopping.wait())
            for member in others:
                name = f"member {member.number}"
                keeping.append(group.create_task(self._keep(member), name=name))
            await asyncio.wait(keeping)
            for task in (stopping, *self._gathers):
                task.cancel()
        return max(member.workspaces for member in self._members)

    async def _stop_after(self, stop: asyncio.Event) -> None:
        """Let all finish their steps; kill what is left when the time is over."""
        await stop.wait()
        self._is_stopping.set()
        self._on_stopping()
        for member in self._members:
            member.send(Stop())
        await self._clock.sleep(self._drain_s + STOP_MARGIN_S, "group_stop")
        for member in self._members:
            if member.process is not None:
                log.error(LogEvent(event="process_killed", fields={"process": member.number}))
                _kill(member.process)

    async def _keep(self, member: _Member) -> None:
        """Start the member, and again whenever it has ended, until the group stops."""
        failures = 0
        while not self._is_stopping.is_set():
            began, refused = self._clock.monotonic(), None
            try:
                code = await self._run_process(member)
            except OSError as error:  # no memory for another process: the others go on
                if not self._has_first.is_set():
                    raise
                code, refused = error.errno or 1, error
            if self._is_stopping.is_set():
                return
            if not self._has_first.is_set():
                raise MemberFailed(code)
            is_stable = self._clock.monotonic() - began > STABLE_AFTER_S
            failures = 0 if is_stable else failures + 1
            delay_s = RESTART_BACKOFF.delay(failures) if failures else 0.0
            fields = {"process": member.number, "code": code, "restart_in_s": round(delay_s, 1)}
            why = "a process of the server has ended; the others go on with its chats"
            event = LogEvent(event="process_ended", fields=fields, explanation=why)
            log.error(event, exc_info=refused)
            self._settle(member)
            await first_of(self._clock.sleep(delay_s, "member_restart"), self._is_stopping.wait())

    async def _run_process(self, member: _Member) -> int:
        """One process of this place, until it has ended. Returns its exit code."""
        member.starts += 1
        own, theirs = socket.socketpair()
        spec = MemberSpec(
            fd=theirs.fileno(),
            number=member.number,
            port=self._port,
            shows_link=self._shows_link and member.number == 0 and member.starts == 1,
        )
        member.channel = channel = await _open_channel(own)
        try:
            with theirs:
                member.process = process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", "from chatd.cli.main import main; main()"),
                    *self._arguments,
                    f"--member={msgspec.json.encode(spec).decode()}",
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    # Ctrl-C in a terminal is for the supervisor alone, which passes it on.
                    start_new_session=True,
                )
            if self._is_stopping.is_set():
                channel.send(Stop())
            hearing = asyncio.get_running_loop().create_task(self._hear(member, channel))
            try:
                return await process.wait()
            except asyncio.CancelledError:
                channel.send(Stop(now=True))
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_NOW_S):
                        await process.wait()
                _kill(process)
                raise
            finally:
                hearing.cancel()
        finally:
            member.process = member.channel = None
            channel.close()

    async def _hear(self, member: _Member, channel: _Channel) -> None:
        while line := await channel.receive():
            match _FROM_MEMBER.decode(line):
                case Ready() as ready:
                    if not self._has_first.is_set():
                        self._first_ready = ready
                        self._has_first.set()
                    self._settle(member)
                case Left(workspaces=count):
                    member.workspaces = count
                case Gather(id=number):
                    gather = asyncio.get_running_loop().create_task(self._gather(channel, number))
                    self._gathers.add(gather)
                    gather.add_done_callback(self._gathers.discard)
                case Metrics(id=number, text=text):
                    collected = self._collected.get(number)
                    if collected is not None and not collected.done():
                        collected.set_result(text)

    def _settle(self, member: _Member) -> None:
        member.has_settled = True
        on_ready, ready = self._on_ready, self._first_ready
        if on_ready is None or ready is None or self._is_stopping.is_set():
            return
        if all(other.has_settled for other in self._members):
            self._on_ready = None
            on_ready(ready)

    async def _gather(self, channel: _Channel, number: int) -> None:
        """Ask all members at once; one that does not answer in time is left out, and counts as
        down."""
        living = [member for member in self._members if member.channel is not None]
        asked: dict[int, asyncio.Future[str]] = {}
        for member in living:
            self._last_id += 1
            asked[member.number] = asyncio.get_running_loop().create_future()
            self._collected[self._last_id] = asked[member.number]
            member.send(Collect(id=self._last_id))
        try:
            await asyncio.wait(asked.values(), timeout=COLLECT_TIMEOUT_S)
            texts = {k: it.result().encode() for k, it in asked.items() if it.done()}
        finally:
            waits = set(asked.values())
            self._collected = {k: it for k, it in self._collected.items() if it not in waits}
        restarts = {member.number: member.starts - 1 for member in self._members}
        merged = merge_metrics(texts) + _describe_group(texts.keys(), restarts)
        channel.send(Metrics(id=number, text=merged.decode()))


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


# Metrics


def merge_metrics(texts: Mapping[int, bytes]) -> bytes:
    """The metrics of several processes as one text in the format of Prometheus: each sample gets
    the label `process`, and each family is described once."""
    described: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, text in sorted(texts.items()):
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                lines = described.setdefault(family, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                samples.setdefault(family, []).append(_label(line, number))
    merged = [
        line for name, lines in described.items() for line in (*lines, *samples.get(name, ()))
    ]
    return ("\n".join(merged) + "\n").encode() if merged else b""


def _label(sample: str, number: int) -> str:
    """A name has neither a brace nor a blank, so the first one ends it."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{process="{number}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{process="{number}"}} {value}'


def _describe_group(up: Collection[int], restarts: Mapping[int, int]) -> bytes:
    lines = ["# HELP chatd_process_up Whether the process of the server answers"]
    lines.append("# TYPE chatd_process_up gauge")
    lines += [f'chatd_process_up{{process="{k}"}} {int(k in up)}' for k in restarts]
    lines.append("# HELP chatd_process_restarts_total Restarts of the process since the start")
    lines.append("# TYPE chatd_process_restarts_total counter")
    lines += [f'chatd_process_restarts_total{{process="{k}"}} {n}' for k, n in restarts.items()]
    return ("\n".join(lines) + "\n").encode()
