"""Runs a command: settings, event loop, signals and exit codes.

Exit codes: 0 done or stopped on request, 1 failed, 2 wrong settings or usage,
3 migrations missing (`migrate check`), 130 cancelled.
"""

import asyncio
import contextlib
import gc
import getpass
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec
import typer
import uvloop

from chatd.domain.errors import ChatdError
from chatd.domain.text import utc_text
from chatd.log_event import LogEvent
from chatd.settings.config_file import default_data_dir, read_config
from chatd.settings.loader import load_settings
from chatd.settings.schema import LogSettings, Settings, SettingsError

T = TypeVar("T")


@contextlib.contextmanager
def report_errors() -> Generator[None]:
    """Print an expected error as one line; a bug keeps its traceback."""
    try:
        yield
    except ChatdError as error:
        _fail(error)
    except ExceptionGroup as group:
        # Task groups wrap the errors of services.
        expected, bugs = group.split(ChatdError)
        if expected is None or bugs is not None:
            raise
        _fail(_leaf(expected))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None


def _leaf(group: ExceptionGroup[ChatdError]) -> ChatdError:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, ExceptionGroup) else first


def read_settings(flags: dict[str, str | None], config: Path | None) -> Settings:
    cwd = Path.cwd()
    if config is not None:
        # A worker that this process starts reads the same file.
        os.environ["CHATD_CONFIG"] = str(cwd / config)
    settings = load_settings(
        read_config(config, os.environ, cwd),
        os.environ,
        flags,
        data_dir=default_data_dir(os.environ, uid=os.geteuid()),
    )
    return msgspec.structs.replace(settings, data_dir=cwd / settings.data_dir)


def read_password(name: str = "Password", *, again: bool = True) -> str:
    """Twice and hidden from a terminal; else the first line of standard input, so that no password
    is on a command line. Raises SettingsError."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass(f"{name}: ")
    if again and getpass.getpass("Again: ") != password:
        raise SettingsError(f"the two {name.lower()}s differ")
    return password


def run_to_completion(work: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


COLLECTOR_THRESHOLDS: Final = (20_000, 20, 50)


def tune_collector() -> None:
    """Call once the process has started. Reference counts free nearly all objects of a server, and
    each search for cycles stops it: search less often, and never among what the start has made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


class StopSignal:
    """Turns signals into an orderly stop.

    The first signal sets `requested`, and the server drains. A signal before `started` was called,
    and a second signal, cancel the task. With `is_member` a second one does not: it may be the same
    signal, sent to a whole group of processes, and the supervisor of the group decides.
    """

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.requested = asyncio.Event()
        self.is_member = False
        self._task = task
        self._started = False

    def started(self) -> None:
        self._started = True

    def on_signal(self) -> None:
        if not self._started or (self.requested.is_set() and not self.is_member):
            self._task.cancel()
        self.requested.set()

    def on_order(self, *, now: bool) -> None:
        """Of the supervisor."""
        if now:
            self._task.cancel()
        else:
            self.on_signal()


def run_until_signal(serve: Callable[[StopSignal], Awaitable[None]]) -> None:
    before = {number: signal.getsignal(number) for number in _ending_signals()}

    async def guarded() -> None:
        task = asyncio.current_task()
        assert task is not None
        stop = StopSignal(task)
        for number in before:
            asyncio.get_running_loop().add_signal_handler(number, stop.on_signal)
        await serve(stop)

    try:
        run_to_completion(guarded())
    finally:
        # A closed loop does not restore the handlers.
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending_signals() -> list[signal.Signals]:
    """SIGHUP (the terminal was closed) counts unless nohup made the process ignore it."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def _fail(error: ChatdError) -> NoReturn:
    from chatd.cli.output import print_notice  # the server's start does not need it

    print_notice(f"chatd: {error.message}")
    raise typer.Exit(2 if error.code == SettingsError.code else 1) from None


# The log: one line per event, as text or as JSON


class TextFormatter(logging.Formatter):
    """Times are in UTC, marked with Z, so that logs of several hosts can be compared."""

    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": utc_text(datetime.fromtimestamp(record.created, UTC), timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if isinstance(record.msg, LogEvent):
            line["event"] = record.msg.event
            if record.msg.explanation is not None:
                line["message"] = record.msg.explanation
            line |= record.msg.fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """uvicorn logs an error for a WebSocket that chatd refuses with a reply of its own. Clients
    without a token could fill the log with it."""
    return not record.getMessage().startswith("ASGI callable returned without completing handshake")


def configure_logging(log: LogSettings) -> None:
    """Log to standard error: standard output is for the output of commands."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log.format == "json" else TextFormatter())
    handler.addFilter(is_worth_logging)
    logging.basicConfig(level=log.level.upper(), handlers=[handler], force=True)
