"""Running a command: reading the settings, the event loop, signals, and how errors end it.

Owns the exit codes 0 (done, or stopped when asked), 1 (it failed), 2 (the settings or the
usage are wrong) and 130 (broken off).
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
import typer
import uvloop

from chatd.domain.errors import ChatdError
from chatd.settings.files import default_data_dir, read_config
from chatd.settings.load import load
from chatd.settings.tree import Settings, SettingsError

T = TypeVar("T")


@contextlib.contextmanager
def errors() -> Generator[None]:
    """What a person can act on is one line; what is our bug keeps its traceback."""
    try:
        yield
    except ChatdError as error:
        _fail(error)
    except ExceptionGroup as group:
        # Services run in groups, which wrap what goes wrong in them.
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
    settings = load(
        read_config(config, os.environ, cwd),
        os.environ,
        flags,
        data_dir=default_data_dir(os.environ, uid=os.geteuid()),
    )
    return msgspec.structs.replace(settings, data_dir=cwd / settings.data_dir)


def to_the_end(work: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class Stop:
    """Turns signals into an orderly end.

    The first signal asks: `asked` is set, and whoever serves finishes and leaves. Before there is
    anything to finish (`started` has not been called), or when a second signal shows that the
    asker has lost patience, the task is cancelled: it unwinds and closes what it holds.
    """

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.asked = asyncio.Event()
        self._task = task
        self._started = False

    def started(self) -> None:
        self._started = True

    def on_signal(self) -> None:
        if not self._started or self.asked.is_set():
            self._task.cancel()
        self.asked.set()


def until_signal(serve: Callable[[Stop], Awaitable[None]]) -> None:
    before = {number: signal.getsignal(number) for number in _ending_signals()}

    async def guarded() -> None:
        task = asyncio.current_task()
        assert task is not None
        stop = Stop(task)
        for number in before:
            asyncio.get_running_loop().add_signal_handler(number, stop.on_signal)
        await serve(stop)

    try:
        to_the_end(guarded())
    finally:
        # The loop is closed, but does not let go of them by itself.
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending_signals() -> list[signal.Signals]:
    """SIGHUP says that the terminal was closed, which is nothing to us if nohup had it ignored."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def _fail(error: ChatdError) -> NoReturn:
    print(f"chatd: {error.message}", file=sys.stderr)
    raise typer.Exit(2 if error.code == SettingsError.code else 1) from None
