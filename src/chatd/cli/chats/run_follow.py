"""Follows a chat over the connection, and the turn of a run until it ends.

Ctrl-C interrupts the chat, and so does the end of the time; a second Ctrl-C leaves at once. A
message that still waits in the queue is taken back instead: the running turn belongs to somebody
else.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, Protocol

from chatd.aio import first_of
from chatd.cli.api_session import ExitCode, patient
from chatd.cli.chats.chat_lines import subagent_lines
from chatd.cli.chats.run_request import StartedTurn
from chatd.cli.chats.run_turn import TurnOutcome, has_reached, turn_outcome
from chatd.cli.output import print_notice
from chatd.client.connection import Connection, FollowedChat
from chatd.client.errors import ApiError
from chatd.client.frames import ChatChanged, ListEvent
from chatd.client.resources import Chat
from chatd.client.server import ServerApi
from chatd.client.socket import SOCKET_PATH
from chatd.client.state import ShownChat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, QueueId

LOAD_TIMEOUT_S: Final = 20.0
"""A command that needs the state of a chat waits this long for it, over a restart of the server."""


class ChatGone(ChatdError):
    code = "not_found"

    def __init__(self) -> None:
        super().__init__("The chat was deleted, or you may not read it any more.")


class NotFollowed(ChatdError):
    code = "not_followed"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The chat cannot be followed: {reason}. If the server answers other commands, a proxy"
            f" before it does not pass WebSockets on ({SOCKET_PATH})."
        )


class ChatWatch:
    """A followed chat: `changed` is set whenever it or the connection has changed. `waiting` are
    its subagents that wait for a person, as far as they changed since."""

    def __init__(self, connection: Connection, chat_id: ChatId) -> None:
        self.connection = connection
        self.changed = asyncio.Event()
        self.waiting: dict[ChatId, Chat] = {}
        self._chat_id = chat_id
        self._latest: FollowedChat | None = None
        self._running = asyncio.create_task(connection.run())
        self._running.add_done_callback(lambda _: self.changed.set())
        self._stop = [
            connection.follow_chat(chat_id, self._on_chat),
            connection.follow_list(self._on_list),
            connection.on_state(self.changed.set),
        ]

    @property
    def shown(self) -> ShownChat | None:
        """Raises ApiError after a sign-out, and ChatGone."""
        if self._running.done():
            self._running.result()  # a bug: it runs until it is cancelled
        if self.connection.state == "signed_out":
            raise ApiError(401, "signed_out", self.connection.problem or "You are signed out.")
        if self._latest is not None and self._latest.gone:
            raise ChatGone
        return None if self._latest is None else self._latest.shown

    async def close(self) -> None:
        for stop in self._stop:
            stop()
        self._running.cancel()
        await asyncio.wait([self._running])

    def _on_chat(self, chat: FollowedChat) -> None:
        self._latest = chat
        self.changed.set()

    def _on_list(self, event: ListEvent) -> None:
        if not isinstance(event, ChatChanged) or event.chat.root_chat_id != self._chat_id:
            return
        chat = event.chat
        if chat.status == "requires_action" and chat.id != self._chat_id:
            self.waiting[chat.id] = chat
            self.changed.set()
        else:
            self.waiting.pop(chat.id, None)


@asynccontextmanager
async def watch_chat(api: ServerApi, chat_id: ChatId) -> AsyncGenerator[ChatWatch]:
    watch = ChatWatch(Connection(api), chat_id)
    try:
        yield watch
    finally:
        await watch.close()


async def load_chat(
    api: ServerApi, chat_id: ChatId, timeout_s: float = LOAD_TIMEOUT_S
) -> ShownChat:
    """The newest messages of a chat and what it waits for, once. Raises as `wait_until_loaded`."""
    async with watch_chat(api, chat_id) as watch:
        return await wait_until_loaded(watch, ConnectionNotices(print_notice), timeout_s)


async def wait_until_loaded(
    watch: ChatWatch, notices: "ConnectionNotices", timeout_s: float = LOAD_TIMEOUT_S
) -> ShownChat:
    """Raises as `ChatWatch.shown`, and NotFollowed."""
    try:
        async with asyncio.timeout(timeout_s):
            while (shown := watch.shown) is None or not shown.is_loaded:
                watch.changed.clear()
                notices.tell(watch.connection)
                await watch.changed.wait()
            return shown
    except TimeoutError:
        raise NotFollowed(watch.connection.problem or "the server sends nothing") from None


class ConnectionNotices:
    """Says once that the connection is lost, and once that it is there again."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._was_lost = False

    def tell(self, connection: Connection) -> None:
        if connection.state == "waiting" and not self._was_lost:
            self._was_lost = True
            self._notice(
                f"The connection was lost ({connection.problem}); the chat goes on. Reconnecting."
            )
        if connection.state == "open" and self._was_lost:
            self._was_lost = False
            self._notice("Connected again.")


# The turn of a run, through restarts of the server and signals

SETTLE_TIMEOUT_S: Final = 20.0
"""How long a run waits for the end of the turn that it has interrupted."""
_FOREVER_S: Final = 10.0**9


class Reporter(Protocol):
    """What a run says while it goes on."""

    def show(self, shown: ShownChat) -> None: ...

    def notice(self, text: str) -> None: ...


class TurnFollower:
    """With `max_steps` the chat is interrupted after so many model calls of the turn."""

    def __init__(
        self, api: ServerApi, turn: StartedTurn, reporter: Reporter, max_steps: int | None = None
    ) -> None:
        self._api = patient(api)
        self._max_steps = max_steps
        self._turn = turn
        self._reporter = reporter
        self._interrupted = asyncio.Event()
        self._steps_over = asyncio.Event()
        self._notices = ConnectionNotices(reporter.notice)
        self._told_waits: dict[ChatId, int] = {}

    async def run(self, timeout_s: float | None) -> TurnOutcome:
        task = asyncio.current_task()
        assert task is not None
        with _on_signals(lambda: self._on_signal(task)):
            async with watch_chat(self._api, self._turn.chat_id) as watch:
                left_s = _FOREVER_S if timeout_s is None else timeout_s
                ended = await first_of(
                    self._follow(watch),
                    self._interrupted.wait(),
                    asyncio.sleep(left_s),
                    self._steps_over.wait(),
                )
                if ended == 0:
                    return await self._follow(watch)
                return await self._stop(watch, _STOPS[ended])

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
                most = self._max_steps
                if most is not None and has_reached(shown, self._turn.sent, most):
                    self._steps_over.set()
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
        notice, reason = _STOP_TEXTS[code]
        self._reporter.notice(notice)
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


_STOPS: Final[Mapping[int, ExitCode]] = {
    1: ExitCode.INTERRUPTED,
    2: ExitCode.TIME_OUT,
    3: ExitCode.MODEL_ERROR,
}
"""By what came first."""
_STOP_TEXTS: Final[Mapping[ExitCode, tuple[str, str]]] = {
    ExitCode.INTERRUPTED: ("Interrupting the chat. Ctrl-C again leaves at once.", "Interrupted."),
    ExitCode.TIME_OUT: ("The time is over; interrupting the chat.", "The time was over."),
    ExitCode.MODEL_ERROR: (
        "The steps of --max-steps are over; interrupting the chat.",
        "It reached its limit of steps.",
    ),
}


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
