"""Follows the turn of a run until it ends, through restarts of the server and signals.

Ctrl-C interrupts the chat, and so does the end of the time; a second Ctrl-C leaves at once. A
message that still waits in the queue is taken back instead: the running turn is of somebody else.
"""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from chatd.aio import first_of
from chatd.cli.api_session import patient
from chatd.cli.exit_codes import ExitCode
from chatd.cli.run.call_lines import subagent_lines
from chatd.cli.run.request import StartedTurn
from chatd.cli.run.turn import TurnOutcome, turn_outcome
from chatd.cli.run.watch import ChatWatch, ConnectionNotices, watch_chat
from chatd.client.errors import ApiError
from chatd.client.server import ServerApi
from chatd.client.state import ShownChat
from chatd.domain.ids import ChatId, QueueId

SETTLE_TIMEOUT_S: Final = 20.0
"""How long a run waits for the end of the turn that it has interrupted."""
_FOREVER_S: Final = 10.0**9


class Reporter(Protocol):
    """What a run says while it goes on."""

    def show(self, shown: ShownChat) -> None: ...

    def notice(self, text: str) -> None: ...


class TurnFollower:
    def __init__(self, api: ServerApi, turn: StartedTurn, reporter: Reporter) -> None:
        self._api = patient(api)
        self._turn = turn
        self._reporter = reporter
        self._interrupted = asyncio.Event()
        self._notices = ConnectionNotices(reporter.notice)
        self._told_waits: dict[ChatId, int] = {}

    async def run(self, timeout_s: float | None) -> TurnOutcome:
        task = asyncio.current_task()
        assert task is not None
        with _on_signals(lambda: self._on_signal(task)):
            async with watch_chat(self._api, self._turn.chat_id) as watch:
                left_s = _FOREVER_S if timeout_s is None else timeout_s
                ended = await first_of(
                    self._follow(watch), self._interrupted.wait(), asyncio.sleep(left_s)
                )
                if ended == 0:
                    return await self._follow(watch)
                code = ExitCode.INTERRUPTED if ended == 1 else ExitCode.TIME_OUT
                return await self._stop(watch, code)

    async def _follow(self, watch: ChatWatch) -> TurnOutcome:
        while True:
            watch.changed.clear()
            self._notices.tell(watch.connection)
            self._tell_subagents(watch)
            shown = watch.shown
            if shown is not None:
                self._reporter.show(shown)
                if (outcome := turn_outcome(shown, self._turn.sent)) is not None:
                    return outcome
            await watch.changed.wait()

    def _tell_subagents(self, watch: ChatWatch) -> None:
        """Each wait once: a person can answer it while the turn goes on."""
        for chat_id, chat in watch.waiting.items():
            if self._told_waits.get(chat_id) == chat.version:
                continue
            self._told_waits[chat_id] = chat.version
            self._reporter.notice("\n".join(subagent_lines(chat)))

    async def _stop(self, watch: ChatWatch, code: ExitCode) -> TurnOutcome:
        """The turn's outcome with this exit code, if it ends in time; the chat is stopped either
        way, because the server has the interrupt."""
        is_late = code == ExitCode.TIME_OUT
        self._reporter.notice(
            "The time is over; interrupting the chat."
            if is_late
            else "Interrupting the chat. Ctrl-C again leaves at once."
        )
        reason = "The time was over." if is_late else "Interrupted."
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                if await self._take_back(watch):
                    return _stopped(code, f"{reason} The message was taken out of the queue.")
                await self._interrupt()
                outcome = await self._follow(watch)
        except TimeoutError:
            return _stopped(code, reason)
        return TurnOutcome(
            ending="interrupted",
            exit_code=code,
            answer=outcome.answer,
            reason=reason,
            message_id=outcome.message_id,
        )

    async def _take_back(self, watch: ChatWatch) -> bool:
        queue_id, shown = self._turn.sent.queue_id, watch.shown
        if queue_id is None or shown is None or all(one.id != queue_id for one in shown.queue):
            return False
        try:
            await self._api.delete_queued(self._turn.chat_id, QueueId(queue_id))
        except ApiError:
            return False  # its turn has begun meanwhile
        return True

    async def _interrupt(self) -> None:
        with suppress(ApiError):  # the turn has ended meanwhile
            await self._api.interrupt_chat(self._turn.chat_id)

    def _on_signal(self, task: asyncio.Task[object]) -> None:
        if self._interrupted.is_set():
            task.cancel()
        self._interrupted.set()


def _stopped(code: ExitCode, reason: str) -> TurnOutcome:
    return TurnOutcome(ending="interrupted", exit_code=code, reason=reason)


@contextmanager
def _on_signals(act: Callable[[], None]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
