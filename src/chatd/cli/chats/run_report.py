"""The work of `chatd run`: send the message, follow its turn, print progress on standard error
while it goes on, and the result at its end."""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from time import monotonic
from typing import Final, Literal, get_args

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from chatd.cli.api_session import ExitCode, UsageProblem, patient
from chatd.cli.chats.chat_lines import EventLines, ProgressLines, activity, ask_lines, plan_lines
from chatd.cli.chats.run_follow import TurnFollower
from chatd.cli.chats.run_request import RunRequest, StartedTurn, read_id, send_turn, start_turn
from chatd.cli.chats.run_turn import TurnOutcome
from chatd.cli.chats.structured_output import NotFitting, retry_text
from chatd.cli.options import suggest
from chatd.cli.output import dollars, print_json, print_json_line, print_notice, print_text
from chatd.client.drafts import Draft, TextInput
from chatd.client.resources import ChatCost
from chatd.client.server import ServerApi
from chatd.client.state import ShownChat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import Effort
from chatd.terminal.answers.asks import asks_of, proposed_plan
from chatd.terminal.safe_text import fit_line

RunFormat = Literal["text", "json", "stream-json"]

MAX_PLAN_BYTES: Final = 64 * 1024
_WITH_ANSWER: Final = frozenset({"done", "plan", "interrupted"})
"""What was said before a question or an error is no answer."""
_CLEAR_LINE: Final = "\r\x1b[K"


class RunReport:
    """Satisfies `follow.Reporter`."""

    def __init__(self, turn: StartedTurn, form: RunFormat, *, quiet: bool) -> None:
        self._turn = turn
        self._form = form
        self._is_quiet = quiet
        self._progress = ProgressLines(turn.sent)
        self._events = EventLines(after=turn.sent.after)
        self._has_activity = False
        self._shown: ShownChat | None = None
        # One line that is written again and again is for a person who looks at it.
        is_plain = os.environ.get("TERM") in ("dumb", "")
        self._shows_activity = sys.stderr.isatty() and not quiet and not is_plain

    def begin(self) -> None:
        if self._form == "stream-json":
            print_json_line({"type": "chat", "chat_id": str(self._turn.chat_id)})
        self._say(f"chat {self._turn.chat_id}")

    def show(self, shown: ShownChat) -> None:
        self._shown = shown
        if self._form == "stream-json":
            for line in self._events.lines(shown):
                print_json_line(line)
        for line in self._progress.lines(shown):
            self._say(line)
        if self._shows_activity:
            self._show_activity(activity(shown))

    def notice(self, text: str) -> None:
        self._clear_activity()
        print_notice(text)

    async def finish(self, api: ServerApi, outcome: TurnOutcome) -> None:
        self._clear_activity()
        plan = await self._read_plan(api, outcome)
        if self._form == "text":
            answer = plan or outcome.answer
            if outcome.output is not UNSET:
                self._separate()
                print_json(outcome.output)
            elif answer and outcome.ending in _WITH_ANSWER:
                self._separate()
                print_text(answer, is_data=True)
        else:
            result = result_of(self._turn, outcome, plan, await self._read_cost(api))
            printed = print_json if self._form == "json" else print_json_line
            printed(result)
        for line in self._ending_lines(outcome):
            print_notice(line)

    def _separate(self) -> None:
        """A person sees where the progress ends."""
        if sys.stdout.isatty() and sys.stderr.isatty() and not self._is_quiet:
            print_notice("")

    def _ending_lines(self, outcome: TurnOutcome) -> list[str]:
        chat_id = str(self._turn.chat_id)
        lines: list[str] = []
        if outcome.reason:
            lines.append(f"chatd: {outcome.reason}")
        if outcome.error is not None and outcome.error.detail:
            lines.append(f"  {outcome.error.detail}")
        if outcome.finish_reason == "length":
            lines.append("The output limit of the model cut the answer off.")
        if outcome.ending == "needs_action" and self._shown is not None:
            lines += ask_lines(asks_of(self._shown))
            lines.append(
                f"Then wait for the answer: {suggest('chats tail', f'{chat_id} --until-idle')}"
            )
        elif outcome.ending == "plan":
            plan = None if self._shown is None else proposed_plan(self._shown)
            lines += [] if plan is None else plan_lines(chat_id, plan.call_id)
        elif outcome.ending != "done":
            lines.append(f"To go on: {suggest('run', f'-r {chat_id} PROMPT')}")
        return lines

    async def _read_plan(self, api: ServerApi, outcome: TurnOutcome) -> str:
        if outcome.plan_file_id is None:
            return ""
        plan = patient(api).load_content(outcome.plan_file_id)
        found = await plan.read(max_bytes=MAX_PLAN_BYTES)
        return found.decode(errors="replace")

    async def _read_cost(self, api: ServerApi) -> ChatCost | None:
        """None if the server does not say: the answer counts more than its price."""
        try:
            return await api.get_chat_cost(self._turn.chat_id)
        except ChatdError:
            return None

    def _say(self, line: str) -> None:
        if self._is_quiet:
            return
        is_terminal = sys.stderr.isatty()
        self.notice(fit_line(line, shutil.get_terminal_size().columns) if is_terminal else line)

    def _show_activity(self, text: str) -> None:
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"{_CLEAR_LINE}{fit_line(text, width - 1)}")
        sys.stderr.flush()
        self._has_activity = bool(text)

    def _clear_activity(self) -> None:
        if self._has_activity:
            self._has_activity = False
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()


def result_of(
    turn: StartedTurn, outcome: TurnOutcome, plan: str, cost: ChatCost | None
) -> dict[str, object]:
    """The result of a run for programs."""
    found: dict[str, object] = {
        "type": "result",
        "chat_id": str(turn.chat_id),
        "ending": outcome.ending,
        "exit_code": int(outcome.exit_code),
        "answer": outcome.answer,
        "message_id": outcome.message_id,
        "finish_reason": outcome.finish_reason,
    }
    if outcome.output is not UNSET:
        found["output"] = outcome.output
    if plan:
        found["plan"] = plan
    if outcome.reason:
        found["reason"] = outcome.reason
    if outcome.error is not None:
        found["error"] = to_builtins(outcome.error)
    if outcome.calls:
        found["calls"] = outcome.calls
    if cost is not None:
        found["chat_cost_micros"] = cost.total_cost_micros
        found["chat_cost"] = dollars(cost.total_cost_micros)
        found["model_calls"] = cost.call_count
    return found


# The command

MAX_DOLLARS: Final = 1_000_000


async def run(
    api: ServerApi,
    request: RunRequest,
    *,
    form: RunFormat,
    timeout_s: float | None,
    quiet: bool,
) -> ExitCode:
    turn = await _start(api, request)
    report = RunReport(turn, form, quiet=quiet)
    report.begin()
    ends_at = None if timeout_s is None else monotonic() + timeout_s
    outcome = await TurnFollower(api, turn, report, request.max_steps).run(timeout_s)
    if request.output is not None and outcome.ending == "done":
        try:
            outcome = replace(outcome, output=request.output.read(outcome.answer))
        except NotFitting as problem:
            report.notice(f"The answer does not fit the schema: {problem}. Asking once more.")
            left_s = None if ends_at is None else max(ends_at - monotonic(), 0.0)
            report, outcome = await _ask_again(
                api, turn.chat_id, request, str(problem), form=form, timeout_s=left_s, quiet=quiet
            )
    await report.finish(api, outcome)
    return outcome.exit_code


async def _ask_again(
    api: ServerApi,
    chat_id: ChatId,
    request: RunRequest,
    problem: str,
    *,
    form: RunFormat,
    timeout_s: float | None,
    quiet: bool,
) -> tuple[RunReport, TurnOutcome]:
    """In the same chat, with what was wrong."""
    assert request.output is not None
    draft = Draft(
        content=(TextInput(retry_text(problem)),),
        model=request.model,
        reasoning_effort=request.effort,
    )
    turn = await send_turn(api, chat_id, draft)
    report = RunReport(turn, form, quiet=quiet)
    outcome = await TurnFollower(api, turn, report, request.max_steps).run(timeout_s)
    if outcome.ending != "done":
        return report, outcome
    try:
        return report, replace(outcome, output=request.output.read(outcome.answer))
    except NotFitting as again:
        reason = f"The answer does not fit the schema, also when asked once more: {again}."
        code = ExitCode.NOT_FITTING
        return report, replace(outcome, ending="failed", exit_code=code, reason=reason)


async def _start(api: ServerApi, request: RunRequest) -> StartedTurn:
    try:
        return await start_turn(api, request)
    except asyncio.CancelledError:
        print_notice("Interrupted while the message was sent: chatd chats list shows if it was.")
        raise


async def run_detached(api: ServerApi, request: RunRequest, *, form: RunFormat) -> ExitCode:
    """The chat's id is the output: the chat goes on without this command."""
    turn = await _start(api, request)
    if form == "text":
        print_text(str(turn.chat_id))
    else:
        print_json({"type": "chat", "chat_id": str(turn.chat_id)})
    print_notice(f"It goes on by itself. To follow it: {suggest('chats tail', turn.chat_id)}")
    return ExitCode.DONE


def check_choices(request: RunRequest) -> None:
    """Options that contradict each other. Raises UsageProblem."""
    continued = request.chat_id is not None or request.continues
    only_new: Mapping[str, object] = {
        "-w": request.workspace,
        "--project": request.project,
        "--template": request.template,
        "--label": request.labels,
        "--max-cost": request.max_cost_micros,
        "--system": request.system,
        "--allow-tool and --deny-tool": request.tool_rules,
    }
    if request.chat_id is not None and request.continues:
        raise UsageProblem("-c continues the last chat, -r the one that it names: give one of them")
    if continued and (given := [name for name, value in only_new.items() if value]):
        raise UsageProblem(f"{given[0]} is for a new chat: leave out -c and -r")
    if request.workspace is not None and request.template is not None:
        raise UsageProblem("-w names a workspace, --template makes a new one: give one of them")


def read_chat_id(text: str) -> ChatId:
    """Raises UsageProblem."""
    if (found := read_id(text)) is None:
        raise UsageProblem(f"{text!r} is no id of a chat; chatd chats list shows them")
    return ChatId(found)


def read_labels(texts: Sequence[str]) -> Mapping[str, str]:
    """Of `key=value`. Raises UsageProblem."""
    labels: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key or not value:
            raise UsageProblem(f"--label {text!r}: write it as key=value")
        labels[key] = value
    return labels


def read_dollars(text: str, name: str = "--max-cost") -> int:
    """Micros. Raises UsageProblem, which begins with the name of the argument."""
    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise UsageProblem(f"{name} {text!r}: give an amount in dollars, such as 0.50") from None
    if not amount.is_finite() or not 0 < amount <= MAX_DOLLARS:
        raise UsageProblem(f"{name} {text!r}: give more than 0 and at most {MAX_DOLLARS:,}")
    return max(1, int(amount * 1_000_000))


def read_effort(text: str | None) -> Effort | None:
    """Raises UsageProblem."""
    for known in get_args(Effort):
        if text == known:
            return known
    if text is None:
        return None
    raise UsageProblem(f"--effort {text!r}: choose {', '.join(get_args(Effort))}")
