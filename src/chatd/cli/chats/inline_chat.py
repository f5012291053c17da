"""`chatd chat --inline`: a chat line by line, without taking the screen.

What is said goes into the terminal's own scrollback and stays there. A line is read between turns;
a turn is followed as `chatd run` follows it, and what it waits for is asked for below it.
"""

import asyncio
import os
import readline  # it gives `input` editing and the history of this run
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Final, TypeVar, get_args

from msgspec import UNSET, Struct
from msgspec.structs import replace

from chatd.cli import process
from chatd.cli.api_session import (
    START_PATIENCE_S,
    ExitCode,
    UsageProblem,
    describe_refusal,
    exit_code_of_refusal,
)
from chatd.cli.chats.answers import read_replies
from chatd.cli.chats.chat_lines import (
    CALL_MARK,
    ProgressLines,
    activity,
    call_line,
    read_object,
    result_line,
    told_lines,
    transcript_lines,
)
from chatd.cli.chats.chat_work import find_chat
from chatd.cli.chats.run_follow import TurnFollower, load_chat
from chatd.cli.chats.run_request import StartedTurn, send_turn
from chatd.cli.chats.run_turn import BUSY, SentMessage, TurnOutcome, text_of, turn_messages
from chatd.cli.output import dollars
from chatd.client.drafts import CallAnswer, ChatChange, Draft
from chatd.client.errors import ApiError
from chatd.client.exchange import ServerAddress
from chatd.client.server import ServerApi, open_api
from chatd.client.state import ShownChat
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import NoticePart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.person_commands import is_persons_call
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import Effort
from chatd.domain.tool_modes import ModeChoice
from chatd.terminal.answers.asks import Ask, asks_of, proposed_plan, questions_of
from chatd.terminal.answers.exact_text import exact_text
from chatd.terminal.composer.message_content import content_of
from chatd.terminal.safe_text import safe_line, safe_text

T = TypeVar("T")

PROMPT: Final = "> "
SHOWN_MESSAGES: Final = 6
"""Of a chat that is opened."""
MAX_PLAN_BYTES: Final = 256 * 1024
MAX_LISTED_MODELS: Final = 200
RECALLED_PROMPTS: Final = 100
SHORTEST_REASON: Final = 3
"""Of a denied call, in characters: fewer are a slip of the finger."""
_CLEAR_LINE: Final = "\r\x1b[K"
_HELP: Final = """\
Enter sends. A line that ends with a backslash goes on. The arrow up brings earlier prompts back.
  !command        run a command in the chat's workspace
  /model [NAME]   choose the model, or list them      /effort LEVEL   how much it thinks
  /plan, /plan off  plan mode                         /usage          what this chat has cost
  /new            start a new chat                    /open ID        go to another chat
  /help           this                                /quit, Ctrl-D   leave; the chat goes on
Ctrl-C interrupts the answer, or clears the line. All else is in: chatd chat"""


class Spot(Struct, frozen=True, kw_only=True):
    """Where the person is, and what holds for the next messages."""

    chat_id: ChatId | None = None
    model: str | None = None
    effort: Effort | None = None
    mode: ModeChoice | None = None


class InlineRows:
    """What of a turn is not printed yet. A text goes on where the last one ended, a line stands
    alone."""

    def __init__(self, sent: SentMessage, told_up_to: int = 0) -> None:
        self._sent = sent
        self._progress = ProgressLines(sent, tells_messages=False)
        self._told_up_to = told_up_to
        self._streamed = ""

    def pieces(self, shown: ShownChat) -> Iterator[tuple[str, bool]]:
        """Each with whether it is a text."""
        for line in self._progress.lines(shown):
            yield line, False
        for message in turn_messages(shown, self._sent)[1:]:
            if message.id > self._told_up_to:
                self._told_up_to = message.id
                yield from self._message(message)
        live = shown.live
        if live is not None:
            text = "".join(part.text for part in live.parts if isinstance(part, TextPart))
            yield from self._text(text)

    def _message(self, message: PublicMessage) -> Iterator[tuple[str, bool]]:
        if message.role == "assistant":
            yield from self._text(text_of(message))
            self._streamed = ""
        if message.role == "user":  # it has joined the turn
            yield from ((line, False) for line in transcript_lines([message]))
        for part in message.content:
            match part:
                case ToolCallPart() if not is_persons_call(part.tool_call_id):
                    yield f"{CALL_MARK} {call_line(part.tool_name, part.args)}", False
                case NoticePart(text=text):
                    yield text, False
                case ToolResultPart() if is_persons_call(part.tool_call_id):
                    yield from ((line, False) for line in command_lines(part))
                case ToolResultPart() if line := result_line(part):
                    yield line, False
                case _:
                    pass

    def _text(self, text: str) -> Iterator[tuple[str, bool]]:
        if not text.startswith(self._streamed):
            yield "(The answer begins again.)", False
            self._streamed = ""
        if rest := text[len(self._streamed) :]:
            self._streamed = text
            yield rest, True


def command_lines(result: ToolResultPart) -> list[str]:
    """The output of a command of the person, and how it ended."""
    found = read_object(result.result)
    lines = str(found.get("output") or "").rstrip("\n").split("\n")
    lines = [] if lines == [""] else lines
    for name, text in (("exit_code", "exit {}"), ("signal", "ended by {}"), ("error", "{}")):
        value = found.get(name)
        if value not in (None, "", 0):
            lines.append(f"({text.format(value)})")
    return lines


class InlineReport:
    """Writes the turn into the scrollback. Satisfies `follow.Reporter`."""

    def __init__(self, rows: InlineRows) -> None:
        self._rows = rows
        self._is_in_line = False
        self._activity = ""
        self.shown: ShownChat | None = None

    def show(self, shown: ShownChat) -> None:
        self.shown = shown
        for text, is_text in self._rows.pieces(shown):
            if is_text:
                self._clear()
                self._write(text)
            else:
                self.notice(text)
        parts = () if shown.live is None else shown.live.parts
        is_writing = bool(parts) and isinstance(parts[-1], TextPart)
        if not self._is_in_line:
            self._show_activity("" if is_writing else activity(shown))

    def notice(self, text: str) -> None:
        self.end_line()
        self._write(f"{text}\n")

    def end_line(self) -> None:
        self._clear()
        if self._is_in_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(safe_text(text))
        sys.stdout.flush()
        self._is_in_line = not text.endswith("\n")

    def _show_activity(self, text: str) -> None:
        if text != self._activity:
            self._clear()
            sys.stdout.write(text)
            sys.stdout.flush()
            self._activity = text

    def _clear(self) -> None:
        if self._activity:
            self._activity = ""
            sys.stdout.write(_CLEAR_LINE)


class InlineChat:
    """`run` makes requests, between which this waits for the person. `address` finds the server."""

    def __init__(self, address: ServerAddress, spot: Spot, come_back: Callable[[str], str]) -> None:
        self._address = address
        self._spot = spot
        self._come_back = come_back

    def run(self) -> ExitCode:
        """Until the person leaves. Raises ApiError if the server cannot be used at all."""
        self._do(self._begin)
        was_interrupted = False
        while True:
            try:
                text = read_message()
            except KeyboardInterrupt:
                say("" if was_interrupted else "\nCtrl-C again leaves; the chat stays.")
                if was_interrupted:
                    return self._leave(ExitCode.INTERRUPTED)
                was_interrupted = True
                continue
            except EOFError:
                say("")
                return self._leave(ExitCode.DONE)
            was_interrupted = False
            if text in ("/quit", "/exit"):
                return self._leave(ExitCode.DONE)
            try:
                self._take(text)
            except (KeyboardInterrupt, asyncio.CancelledError):
                return self._leave(ExitCode.INTERRUPTED)
            except ApiError as error:
                say(f"chatd: {describe_refusal(error)}")
                code = exit_code_of_refusal(error.status, error.code)
                if code is ExitCode.SIGN_IN:
                    return self._leave(code)
            except ChatdError as error:
                say(f"chatd: {error.message}")

    def _do(self, work: Callable[[ServerApi], Coroutine[object, object, T]]) -> T:
        async def connected() -> T:
            async with open_api(self._address, patience_s=START_PATIENCE_S) as api:
                return await work(api)

        return process.run_to_completion(connected())

    def _leave(self, code: ExitCode) -> ExitCode:
        if self._spot.chat_id is not None:
            command = self._come_back(str(self._spot.chat_id))
            say(f"The chat goes on without you. To come back: {command}")
        return code

    async def _begin(self, api: ServerApi) -> None:
        prompts = await api.list_prompts(limit=RECALLED_PROMPTS)
        for one in reversed(prompts.items):
            if "\n" not in one.text:
                readline.add_history(safe_line(one.text, 1000))
        say("/help shows what can be written here; Ctrl-D leaves.")
        if self._spot.chat_id is not None:
            await self._open(api, self._spot.chat_id)

    async def _open(self, api: ServerApi, chat_id: ChatId) -> None:
        """The newest messages; a turn that goes on is followed."""
        chat = await api.get_chat(chat_id)
        shown = await load_chat(api, chat_id)
        self._spot = replace(self._spot, chat_id=chat_id)
        say(f"{chat.title}\n")
        for line in transcript_lines(shown.messages[-SHOWN_MESSAGES:]):
            say(line)
        last = next((one for one in reversed(shown.messages) if one.role == "user"), None)
        if last is not None and shown.status in (*BUSY, "requires_action"):
            sent = SentMessage(version=shown.version, message_id=last.id)
            rows = InlineRows(sent, told_up_to=shown.messages[-1].id)
            await self._follow(api, StartedTurn(chat_id=chat_id, sent=sent), rows)

    def _take(self, text: str) -> None:
        """One message or command."""
        if not text:
            return
        if text.startswith("//"):
            text = text[1:]
        elif text.startswith("/") and "\n" not in text:
            word, _, argument = text[1:].partition(" ")
            self._command(word.lower(), argument.strip())
            return

        async def send(api: ServerApi) -> None:
            turn = await self._send(api, text)
            self._spot = replace(self._spot, chat_id=turn.chat_id, mode=None)
            await self._follow(api, turn, InlineRows(turn.sent))
            say("")

        self._do(send)

    async def _send(self, api: ServerApi, text: str) -> StartedTurn:
        spot = self._spot
        draft = Draft(
            content=content_of(text, ()),
            model=spot.model,
            reasoning_effort=spot.effort,
            mode=spot.mode,
        )
        if spot.chat_id is not None:
            return await send_turn(api, spot.chat_id, draft)
        chat = await api.create_chat(draft)
        return StartedTurn(chat_id=chat.id, sent=SentMessage(version=1))

    def _command(self, word: str, argument: str) -> None:
        match word:
            case "help":
                say(_HELP)
            case "new":
                self._spot = replace(self._spot, chat_id=None)
                say("A new chat: it begins with your next message.")
            case "open" | "resume":
                self._do(lambda api: self._open_named(api, argument or "last"))
            case "model" if argument:
                self._spot = replace(self._spot, model=argument)
                say(f"The next messages go to {argument}.")
            case "model":
                self._do(self._list_models)
            case "effort":
                self._spot = replace(self._spot, effort=read_effort(argument))
                say(f"Effort: {argument}.")
            case "plan":
                mode: ModeChoice = "off" if argument == "off" else "plan"
                self._spot = replace(self._spot, mode=mode)
                say(f"Plan mode is {'off' if mode == 'off' else 'on'} from your next message on.")
            case "usage":
                self._do(self._show_usage)
            case _:
                raise UsageProblem(f"there is no command /{word} here; /help lists them")

    async def _open_named(self, api: ServerApi, name: str) -> None:
        await self._open(api, await find_chat(api, name))

    async def _list_models(self, api: ServerApi) -> None:
        for one in await api.list_models().items(MAX_LISTED_MODELS):
            say(f"  {one.name}{'  (default)' if one.is_default else ''}")

    async def _show_usage(self, api: ServerApi) -> None:
        if self._spot.chat_id is None:
            raise UsageProblem("there is no chat yet")
        cost = await api.get_chat_cost(self._spot.chat_id)
        say(f"{dollars(cost.total_cost_micros)} for {cost.call_count} model calls")

    # A turn, and what it waits for

    async def _follow(self, api: ServerApi, turn: StartedTurn, rows: InlineRows) -> None:
        """Raises KeyboardInterrupt when the person leaves in the middle."""
        while True:
            report = InlineReport(rows)
            outcome = await TurnFollower(api, turn, report).run(None)
            report.end_line()
            for line in ending_lines(outcome):
                say(line)
            if outcome.ending == "plan" and report.shown is not None:
                started = await self._answer_plan(api, report.shown, outcome)
                if started is None:
                    return
                turn, rows = started, InlineRows(started.sent)
                continue
            asks = asks_of(report.shown) if report.shown is not None else []
            answers = ask_all(asks) if outcome.ending == "needs_action" else []
            if not answers:
                return
            chat = await api.answer_calls(turn.chat_id, answers)
            turn = replace(turn, sent=replace(turn.sent, version=chat.version))

    async def _answer_plan(
        self, api: ServerApi, shown: ShownChat, outcome: TurnOutcome
    ) -> StartedTurn | None:
        """None: nothing runs now."""
        if outcome.plan_file_id is None or proposed_plan(shown) is None:
            return None
        plan = await api.load_content(outcome.plan_file_id).read(max_bytes=MAX_PLAN_BYTES)
        say(exact_text(plan.decode(errors="replace")))
        answer = ask("The plan: i implements it, x drops it, or what to change [later]: ")
        if answer == "x":
            await api.amend_chat(shown.chat_id, ChatChange(mode="off"))
            say("The plan is dropped.")
            return None
        if not answer:
            return None
        is_done = answer == "i"
        text = "Implement the plan." if is_done else answer
        draft = Draft(content=content_of(text, ()), mode="off" if is_done else None)
        return await send_turn(api, shown.chat_id, draft)


def ending_lines(outcome: TurnOutcome) -> list[str]:
    if outcome.ending in ("needs_action", "plan"):
        return []
    lines = [f"({outcome.reason})"] if outcome.reason else []
    if outcome.error is not None and outcome.error.detail:
        lines.append(outcome.error.detail)
    if outcome.finish_reason == "length":
        lines.append("(The output limit of the model cut the answer off.)")
    return lines


def ask_all(asks: Sequence[Ask]) -> list[CallAnswer]:
    """Each is shown as a whole before it is asked for. Empty: the person answers later."""
    answers: list[CallAnswer] = []
    for one in asks:
        for line in told_lines(one):
            say(line)
        found = _ask_one(one)
        if found is None:
            say("It waits. Your next message ends it, or answer it with: chatd chats approve")
            return []
        answers.append(found)
    return answers


def _ask_one(one: Ask) -> CallAnswer | None:
    call_id = one.call.tool_call_id
    if one.call.kind == "approval" and one.args is not UNSET:
        always = ", a always in this chat" if one.call.can_always else ""
        while True:
            answer = ask(f"Approve? y once{always}, n no, or what to do instead [later]: ")
            if answer in ("y", "yes"):
                return CallAnswer(tool_call_id=call_id, decision="approve")
            if answer == "a" and always:
                return CallAnswer(tool_call_id=call_id, decision="approve", always=True)
            if not answer:
                return None
            reason = "" if answer in ("n", "no") else answer
            if reason and len(reason) < SHORTEST_REASON:
                say("Write y, n, or in some words what to do instead.")
                continue
            return CallAnswer(tool_call_id=call_id, decision="deny", reason=reason)
    if one.call.kind == "question":
        questions = questions_of(one.args)
        while True:
            marks = [f"{at}. " for at in range(1, len(questions) + 1)] if questions[1:] else [""]
            texts = [ask(f"{mark}Your answer [let the agent decide]: ") for mark in marks]
            if not any(texts):
                return CallAnswer(tool_call_id=call_id, decision="deny")
            try:
                replies = read_replies(questions, texts)
            except UsageProblem as error:
                say(error.message)
                continue
            return CallAnswer(tool_call_id=call_id, decision="answer", replies=replies)
    return None


def read_message() -> str:
    """Raises EOFError and KeyboardInterrupt."""
    lines = [input(PROMPT)]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("  "))
    return "\n".join(lines).strip()


def ask(question: str) -> str:
    """Ctrl-C and the end of the input are an empty answer."""
    try:
        return input(safe_text(question)).strip()
    except (EOFError, KeyboardInterrupt):
        say("")
        return ""


def say(text: str) -> None:
    sys.stdout.write(f"{safe_text(text)}\n")
    sys.stdout.flush()


def read_effort(text: str) -> Effort:
    """Raises UsageProblem."""
    for known in get_args(Effort):
        if text == known:
            return known
    raise UsageProblem(f"/effort takes one of {', '.join(get_args(Effort))}")


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != ""
