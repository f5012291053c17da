"""Runs the collected tests in forks of the process that collected them: `pytest --forks N`.

Importing every test takes six seconds of the processor, which pytest-xdist (`-n`) spends in each of
its processes. A fork has them all. It asks for one test at a time, with one more in advance: pytest
keeps fixtures that the next test needs. Tests of a module stay in one process, in their order,
until every module has begun; then an idle process takes tests from the end of the longest.

A fork that dies fails the test that it ran, and another takes its place.
"""

import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import pytest
from _pytest.capture import CaptureManager
from _pytest.terminal import TerminalReporter

FACTORY: Final = "_tmp_path_factory"
ROOT: Final = Path(__file__).parents[2]
# What a fork says: wants a test, has finished the oldest that it was given, or reports on it.
TAKE: Final = "take"
FINISHED: Final = "finished"
REPORT: Final = "report"
END_TIMEOUT_S: Final = 20
"""Of an interrupted run, for the fixtures of its forks."""

InFork = Callable[[], Any]


class TestQueue:
    """The tests by their numbers, in groups that stay together while they can."""

    __test__ = False

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self._waiting = deque(deque(group) for group in groups if group)
        self._begun: dict[int, deque[int]] = {}

    def take(self, worker: int) -> int | None:
        """The next test for this worker; None if there is none left."""
        if not self._begun.get(worker):
            if self._waiting:
                self._begun[worker] = self._waiting.popleft()
            else:
                longest = max(self._begun.values(), key=len, default=None)
                return longest.pop() if longest else None
        return self._begun[worker].popleft()

    def put_back(self, tests: Sequence[int]) -> None:
        if tests:
            self._waiting.append(deque(tests))


class Fork:
    def __init__(self, number: int, pid: int, connection: Connection) -> None:
        self.number = number
        self.pid = pid
        self.connection = connection
        self.given: deque[int] = deque()


class ForkedTests:
    """A plugin of pytest. `in_fork` is a context that a fork is in from its start to its end."""

    def __init__(self, forks: int, in_fork: InFork) -> None:
        self._count = forks
        self._in_fork = in_fork
        self._forks: dict[int, Fork] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed or len(session.items) < 2:
            return None
        modules = groupby(range(len(session.items)), lambda test: session.items[test].path)
        queue = TestQueue([list(tests) for _path, tests in modules])
        try:
            for number in range(min(self._count, len(session.items))):
                self._start(session, number)
            while self._forks:
                self._listen(session, queue)
        except BaseException:
            self._end_forks()
            raise
        return True

    def _start(self, session: pytest.Session, number: int) -> None:
        here, there = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            here.close()
            for other in self._forks.values():
                other.connection.close()
            run_in_fork(session, there, self._in_fork)
        there.close()
        self._forks[number] = Fork(number, pid, here)

    def _listen(self, session: pytest.Session, queue: TestQueue) -> None:
        by_connection = {fork.connection: fork for fork in self._forks.values()}
        for ready in cast("list[Connection]", wait(list(by_connection))):
            fork = by_connection[ready]
            try:
                what, data = ready.recv()
            except (EOFError, ConnectionResetError):
                self._replace(session, queue, fork)
                continue
            if what == TAKE:
                test = queue.take(fork.number)
                if test is not None:
                    fork.given.append(test)
                ready.send(test)
            elif what == FINISHED:
                fork.given.popleft()
            else:
                log_report(session, data)

    def _replace(self, session: pytest.Session, queue: TestQueue, ended: Fork) -> None:
        del self._forks[ended.number]
        ended.connection.close()
        status = os.waitstatus_to_exitcode(os.waitpid(ended.pid, 0)[1])
        if not ended.given and status == 0:
            return
        if ended.given:
            failed = session.items[ended.given.popleft()]
            log_report(session, report_death(session, failed, status))
        queue.put_back(ended.given)
        self._start(session, ended.number)

    def _end_forks(self) -> None:
        """They have heard of a Ctrl-C already. One that does not end in time is killed."""
        for fork in self._forks.values():
            os.kill(fork.pid, signal.SIGINT)
        deadline = time.monotonic() + END_TIMEOUT_S
        for fork in self._forks.values():
            try:
                while fork.connection.poll(max(0, deadline - time.monotonic())):
                    fork.connection.recv()
                os.kill(fork.pid, signal.SIGKILL)
            except (EOFError, ConnectionResetError):
                pass  # it has ended
            os.waitpid(fork.pid, 0)


def log_report(session: pytest.Session, data: dict[str, Any]) -> None:
    """As if the test had run here. Raises if the run must end, as with `-x`."""
    hook = session.config.hook
    report = hook.pytest_report_from_serializable(config=session.config, data=data)
    hook.pytest_runtest_logreport(report=report)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def report_death(session: pytest.Session, item: pytest.Item, status: int) -> dict[str, Any]:
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome="failed",
        longrepr=f"The process that ran the test ended {how}.",
        when="call",
    )
    hook = session.config.hook
    return hook.pytest_report_to_serializable(config=session.config, report=report)


# In a fork


def run_in_fork(session: pytest.Session, parent: Connection, in_fork: InFork) -> NoReturn:
    status = 1
    try:
        with in_fork(), own_output(session.config):
            own_directory(session.config)
            session.config.pluginmanager.register(ReportSender(session.config, parent))
            run_tests(session, parent)
        status = 0
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass  # the run was interrupted, and its end is told by the parent
    except BaseException:  # noqa: BLE001 (printed, and the parent sees the status)
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def run_tests(session: pytest.Session, parent: Connection) -> None:
    def take() -> pytest.Item | None:
        parent.send((TAKE, None))
        test: int | None = parent.recv()
        return None if test is None else session.items[test]

    try:
        item = take()
        while item is not None:
            following = take()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            parent.send((FINISHED, None))
            item = following
    finally:
        # Of a run that was interrupted; else the last test has done it.
        session._setupstate.teardown_exact(None)  # pyright: ignore[reportPrivateUsage]


class ReportSender:
    def __init__(self, config: pytest.Config, parent: Connection) -> None:
        self._config = config
        self._parent = parent

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._parent.send((REPORT, data))


def own_directory(config: pytest.Config) -> None:
    """For the temporary directories of its tests, in that of the run."""
    factory = cast("pytest.TempPathFactory", getattr(config, FACTORY))
    factory._basetemp = factory.mktemp("fork")  # pyright: ignore[reportPrivateUsage]


@contextmanager
def own_output(config: pytest.Config) -> Generator[None]:
    """Captured in files of the fork, which would share those of the parent and their positions;
    and what the terminal reporter would print is printed by the parent alone."""
    capture = cast("CaptureManager", config.pluginmanager.getplugin("capturemanager"))
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    with open(os.devnull, "w") as nowhere:
        reporter = cast("TerminalReporter", config.pluginmanager.getplugin("terminalreporter"))
        reporter._tw._file = nowhere  # pyright: ignore[reportPrivateUsage]
        yield
