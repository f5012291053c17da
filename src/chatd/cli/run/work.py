"""The work of `chatd run`: send the message, follow its turn, print the result."""

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, get_args

from chatd.cli.api_session import UsageProblem
from chatd.cli.exit_codes import ExitCode
from chatd.cli.output import print_json, print_notice, print_text
from chatd.cli.run.follow import TurnFollower
from chatd.cli.run.report import RunFormat, RunReport
from chatd.cli.run.request import RunRequest, StartedTurn, read_id, start_turn
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import Effort

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
    outcome = await TurnFollower(api, turn, report).run(timeout_s)
    await report.finish(api, outcome)
    return outcome.exit_code


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
    print_notice(f"It goes on by itself. To follow it: chatd chats tail {turn.chat_id}")
    return ExitCode.DONE


def check_choices(request: RunRequest) -> None:
    """Options that contradict each other. Raises UsageProblem."""
    continued = request.chat_id is not None or request.continues
    only_new: Mapping[str, object] = {
        "-w": request.workspace,
        "--template": request.template,
        "--label": request.labels,
        "--max-cost": request.max_cost_micros,
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


def read_dollars(text: str | None) -> int | None:
    """Micros. Raises UsageProblem."""
    if text is None:
        return None
    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise UsageProblem(
            f"--max-cost {text!r}: give an amount in dollars, such as 0.50"
        ) from None
    if not amount.is_finite() or not 0 < amount <= MAX_DOLLARS:
        raise UsageProblem(f"--max-cost {text!r}: give more than 0 and at most {MAX_DOLLARS:,}")
    return max(1, int(amount * 1_000_000))


def read_effort(text: str | None) -> Effort | None:
    """Raises UsageProblem."""
    for known in get_args(Effort):
        if text == known:
            return known
    if text is None:
        return None
    raise UsageProblem(f"--effort {text!r}: choose {', '.join(get_args(Effort))}")
