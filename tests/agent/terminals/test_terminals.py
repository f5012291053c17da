"""Terminals of the agent: a real shell on a real pseudoterminal."""

import asyncio
import base64
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from shlex import quote

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.processes import terminal as frames
from chatd.agent.processes import terminal_table as limits
from chatd.agent.processes.process_child import CommandEnvironment
from chatd.agent.processes.terminal import (
    MAX_UNREAD_BYTES,
    SCROLLBACK_BYTES,
    Event,
    OutputRing,
    Terminal,
    TerminalSize,
)
from chatd.agent.processes.terminal_table import TerminalTable
from chatd.agent.threads import WorkerThreads
from tests.support.eventually import eventually

WAIT_S = 30.0
SIZE = TerminalSize(80, 24)
TRAPPED = b"""sh -c 'trap "echo \\$((40+2)) stopped; exit 0" INT; %b'"""
"""A program that tells when it is interrupted: what is typed before that may be discarded."""


WAITS_FOR_CTRL_C = (
    f"""{quote(sys.executable)} -c 'import signal as s; one = {{s.SIGINT}};"""
    """ s.pthread_sigmask(s.SIG_BLOCK, one); print(6 * 7, end="ready\\n", flush=True);"""
    """ s.sigwait(one); print(40 + 2, "stopped")'\r"""
).encode()
"""The signal is kept until the program waits for it, so that it cannot come too early."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    def __init__(self, home: Path) -> None:
        self.clock = Clock()
        self.threads = WorkerThreads(2)
        self.used: list[tuple[tuple[str, ...], list[str]]] = []
        environment = CommandEnvironment(
            home=str(home), base={"PATH": os.defpath, "SHELL": "/bin/sh", "PS1": "$ "}
        )
        self.table = TerminalTable(
            environment,
            self.threads,
            on_used=lambda chats, paths: self.used.append((chats, paths)),
            now=self.clock,
        )

    async def open(self, name: str = "t", chat: str = "c", size: TerminalSize = SIZE) -> Terminal:
        await self.table.open(chat, name, size)
        return self.table.find(chat, name)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    await rig.table.close()
    rig.threads.close()


class Viewer:
    def __init__(self, events: AsyncGenerator[Event]) -> None:
        self._events = events
        self.seen = b""

    async def next(self) -> Event:
        async with asyncio.timeout(WAIT_S):
            return await anext(self._events)

    async def until(self, is_enough: Callable[[bytes], bool]) -> bytes:
        while not is_enough(self.seen):
            event = await self.next()
            if event["type"] == "output":
                self.seen += base64.b64decode(str(event["data"]))
            else:
                assert event["type"] == "alive", (event, self.seen[-500:])
        return self.seen

    async def find(self, text: bytes) -> bytes:
        return await self.until(lambda seen: text in seen)

    async def end(self) -> Event:
        while (event := await self.next())["type"] in ("output", "alive"):
            pass
        return event


async def test_a_shell_on_a_terminal_answers_what_is_typed(rig: Rig, tmp_path: Path) -> None:
    terminal = await rig.open()
    async with aclosing(terminal.follow()) as events:
        viewer = Viewer(events)
        await terminal.write(b"tty && stty size && echo $TERM $((40+2)) && pwd\r")
        seen = await viewer.find(str(tmp_path).encode() + b"\r\n")
        assert b"/dev/pts/" in seen
        assert b"24 80" in seen
        assert b"xterm-256color 42" in seen
        terminal.resize(TerminalSize(132, 50))
        await terminal.write(b"stty size\r")
        await viewer.find(b"50 132")
        await terminal.write(b"exit 7\r")
        assert await viewer.end() == {"type": "exit", "exit_code": 7}
    assert rig.used == [(("c",), [str(tmp_path)])]
    with pytest.raises(AgentError, match="has ended"):
        await terminal.write(b"x")


async def test_ctrl_c_interrupts_the_program_and_not_the_shell(rig: Rig) -> None:
    terminal = await rig.open()
    async with aclosing(terminal.follow()) as events:
        viewer = Viewer(events)
        await terminal.write(WAITS_FOR_CTRL_C)
        await viewer.find(b"42ready")
        await terminal.write(b"\x03")
        await viewer.find(b"42 stopped")
        await terminal.write(b"echo al''ive\r")
        await viewer.find(b"alive")


async def test_ctrl_c_works_also_if_the_agent_was_started_in_the_background(rig: Rig) -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        terminal = await rig.open()
    finally:
        signal.signal(signal.SIGINT, former)
    async with aclosing(terminal.follow()) as events:
        viewer = Viewer(events)
        await terminal.write(WAITS_FOR_CTRL_C)
        await viewer.find(b"42ready")
        await terminal.write(b"\x03")
        await viewer.find(b"42 stopped")


@pytest.mark.promise("P13")
async def test_the_shell_inherits_nothing_from_the_agent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SECRET", "very secret")
    terminal = await rig.open()
    async with aclosing(terminal.follow()) as events:
        await terminal.write(b"env; ls -l /proc/self/fd; echo do''ne\r")
        seen = await Viewer(events).find(b"done")
    assert b"very secret" not in seen
    assert b"CHATD_CHAT_ID=c" in seen
    assert b"socket:" not in seen


async def test_a_second_viewer_takes_the_terminal_over_and_sees_what_was_printed(rig: Rig) -> None:
    terminal = await rig.open()
    async with aclosing(terminal.follow()) as first, aclosing(terminal.follow()) as second:
        old, new = Viewer(first), Viewer(second)
        await terminal.write(b"echo fi''rst\r")
        await old.find(b"first")
        assert await rig.table.open("c", "t", TerminalSize(100, 30))
        await new.find(b"first")
        assert await old.end() == {"type": "taken"}
        await terminal.write(b"stty size\r")
        await new.find(b"30 100")


async def test_a_shell_waits_for_a_viewer_that_does_not_read(rig: Rig) -> None:
    terminal = await rig.open()
    async with aclosing(terminal.follow()) as events:
        viewer = Viewer(events)
        await terminal.write(TRAPPED % b"yes 0123456789" + b"\r")
        await viewer.find(b"0123456789")

        async def is_paused() -> bool | None:
            return terminal.unread_bytes >= MAX_UNREAD_BYTES or None

        await eventually(is_paused, within_s=WAIT_S)
        assert terminal.unread_bytes < MAX_UNREAD_BYTES + 64 * 1024
        await terminal.write(b"\x03")
        await viewer.find(b"42 stopped")
        await terminal.write(b"echo al''ive\r")
        await viewer.find(b"alive")


async def test_without_a_viewer_the_shell_goes_on_and_the_last_output_is_kept(
    rig: Rig, tmp_path: Path
) -> None:
    terminal = await rig.open()
    await terminal.write(b"seq 1 200000; touch ran\r")

    async def has_run() -> bool | None:
        return (tmp_path / "ran").exists() or None

    await eventually(has_run, within_s=WAIT_S)
    async with aclosing(terminal.follow()) as events:
        seen = await Viewer(events).find(b"200000\r\n")
    assert len(seen) < 2 * SCROLLBACK_BYTES
    assert b"\r\n1\r\n" not in seen


async def test_the_frames_of_a_terminal_and_what_waits_for_it_are_bounded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_CHUNK_BYTES", 48)
    monkeypatch.setattr(frames, "MAX_PENDING_INPUT_BYTES", 100)
    terminal = await rig.open()
    with pytest.raises(AgentError):
        await terminal.write(b"x" * 101)
    await terminal.write(b"seq 1 200\r")
    async with aclosing(terminal.follow()) as events:
        seen = b""
        async for event in events:
            data = base64.b64decode(str(event.get("data") or ""))
            assert len(data) <= 48
            seen += data
            if b"\r\n200\r\n" in seen:
                break


async def test_terminals_are_limited_and_belong_to_their_chat(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_TERMINALS", 2)
    both = await asyncio.gather(*(rig.table.open("c", "t", SIZE) for _ in range(2)))
    assert sorted(both) == [False, True]
    await rig.open("u")
    with pytest.raises(AgentError, match="already has 2 terminals"):
        await rig.open("v")
    with pytest.raises(AgentError) as unknown:
        rig.table.find("another chat", "t")
    assert unknown.value.status == 404
    assert [each["id"] for each in rig.table.list("c")] == ["t", "u"]
    assert rig.table.list("another chat") == []


async def test_an_unused_terminal_ends_with_its_jobs(rig: Rig, tmp_path: Path) -> None:
    terminal = await rig.open()
    async with aclosing(terminal.follow()) as events:
        await terminal.write(b"sleep 600 & echo $! >pid; echo sta''rted\r")
        await Viewer(events).find(b"started")
        rig.clock.now += limits.UNUSED_TIMEOUT_S + 1
        rig.table.end_unused()
        assert terminal.is_running, "it has a viewer"
    rig.clock.now += limits.UNUSED_TIMEOUT_S + 1
    rig.table.end_unused()
    job = int((tmp_path / "pid").read_text())

    async def is_over() -> bool | None:
        return (not terminal.is_running and not _is_alive(job)) or None

    await eventually(is_over, within_s=WAIT_S)
    rig.clock.now += limits.ENDED_TTL_S + 1
    rig.table.end_unused()
    assert rig.table.list("c") == []


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(("cols", "rows"), [(0, 24), (80, 0), (1001, 24), (80, 100000)])
def test_a_size_that_no_terminal_has_is_refused(cols: int, rows: int) -> None:
    with pytest.raises(AgentError, match="from 1 to 1000"):
        TerminalSize(cols, rows)


def test_the_ring_keeps_the_last_bytes_and_replays_from_a_whole_line() -> None:
    ring = OutputRing(100)
    ring.write(b"first\n")
    assert ring.read(ring.replay_start(), 50) == b"first\n"
    for number in range(1000):
        ring.write(b"%d\n" % number)
    kept = ring.read(ring.replay_start(), 1000)
    assert len(kept) <= 100
    assert kept.endswith(b"\n999\n")
    assert int(kept.split(b"\n")[0]) > 900
    assert ring.read(0, 5) == ring.read(ring.start, 5)
    assert ring.read(ring.end, 5) == b""
