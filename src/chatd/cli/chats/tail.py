"""The work of `chatd chats tail`: print a chat as it goes on."""

from chatd.cli.chats.views import transcript_lines
from chatd.cli.chats.work import find_chat
from chatd.cli.exit_codes import ExitCode, exit_code_of_error
from chatd.cli.output import print_json_line, print_notice, print_text
from chatd.cli.run.call_lines import ask_lines, plan_lines
from chatd.cli.run.event_lines import EventLines
from chatd.cli.run.progress import retry_line
from chatd.cli.run.turn import BUSY
from chatd.cli.run.watch import ChatWatch, ConnectionNotices, wait_until_loaded, watch_chat
from chatd.client.server import ServerApi
from chatd.client.state import ShownChat
from chatd.domain.chat.events import RequestedCall
from chatd.domain.chat.row import ChatError, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.terminal.answers.asks import asks_of, proposed_plan


async def tail(
    api: ServerApi, name: str, *, count: int, as_json: bool, until_idle: bool
) -> ExitCode:
    """Until Ctrl-C; with `until_idle` until the chat waits, with the exit code of `chatd run`."""
    chat_id = await find_chat(api, name)
    printer: TextTail | JsonTail = JsonTail(count) if as_json else TextTail(count)
    notices = ConnectionNotices(print_notice)
    async with watch_chat(api, chat_id) as watch:
        shown = await wait_until_loaded(watch, notices)
        while True:
            printer.show(shown)
            if until_idle and shown.status not in BUSY:
                return exit_code_of(shown)
            shown = await _next(watch, notices)


async def _next(watch: ChatWatch, notices: ConnectionNotices) -> ShownChat:
    while True:
        await watch.changed.wait()
        watch.changed.clear()
        notices.tell(watch.connection)
        if (shown := watch.shown) is not None and shown.is_loaded:
            return shown


def exit_code_of(shown: ShownChat) -> ExitCode:
    """Of a chat that is not busy."""
    if shown.status == "requires_action":
        return ExitCode.NEEDS_ACTION
    return exit_code_of_error(shown.error) if shown.status == "error" else ExitCode.DONE


def _first_id(shown: ShownChat, count: int) -> int:
    """The messages above this id are the newest `count`."""
    known = [message.id for message in shown.messages]
    return known[-count - 1] if len(known) > count else 0


class JsonTail:
    def __init__(self, count: int) -> None:
        self._count = count
        self._events: EventLines | None = None

    def show(self, shown: ShownChat) -> None:
        if self._events is None:
            self._events = EventLines(after=_first_id(shown, self._count))
        for line in self._events.lines(shown):
            print_json_line(line)


class TextTail:
    """Messages on standard output, what else happens on standard error; each once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._told_up_to: int | None = None
        self._status: PublicStatus | None = None
        self._retry: RetryState | None = None
        self._error: ChatError | None = None
        self._calls: tuple[RequestedCall, ...] = ()

    def show(self, shown: ShownChat) -> None:
        if self._told_up_to is None:
            self._told_up_to = _first_id(shown, self._count)
        new = [message for message in shown.messages if message.id > self._told_up_to]
        if new:
            self._told_up_to = new[-1].id
            if lines := transcript_lines(new):
                print_text("\n".join(lines) + "\n\n")
        for line in self._notices(shown):
            print_notice(line)

    def _notices(self, shown: ShownChat) -> list[str]:
        lines: list[str] = []
        if shown.retry is not None and shown.retry != self._retry:
            lines.append(retry_line(shown.retry))
        if shown.error is not None and shown.error != self._error:
            lines.append(f"The chat stopped: {shown.error.message}")
        if shown.requested_calls and shown.requested_calls != self._calls:
            lines += ask_lines(asks_of(shown))
        if shown.status != self._status and shown.status == "waiting":
            plan = proposed_plan(shown)
            lines += [] if plan is None else plan_lines(str(shown.chat_id), plan.call_id)
        self._status, self._retry = shown.status, shown.retry
        self._error, self._calls = shown.error, shown.requested_calls
        return lines
