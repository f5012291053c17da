"""What a chat waits for, and which of it a command answers.

That is the call that is named, or what a person has just seen and confirmed: meanwhile another call
may wait than the one that somebody has read about.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from chatd.cli.api_session import UsageProblem, confirm, run_command
from chatd.cli.chats.work import find_chat
from chatd.cli.output import print_notice
from chatd.cli.run.call_lines import always_text, ask_lines, plan_lines, told_lines
from chatd.cli.run.watch import load_chat
from chatd.client.exchange import ServerAddress
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId
from chatd.terminal.answers.asks import Ask, ProposedPlan, asks_of, proposed_plan
from chatd.terminal.answers.exact_text import exact_text

MAX_PLAN_BYTES: Final = 256 * 1024
"""A longer plan is not shown, so it is answered only by its id."""


class Waiting(Struct, frozen=True, kw_only=True):
    """Calls, or a plan with its text."""

    chat_id: ChatId
    asks: tuple[Ask, ...] = ()
    plan: ProposedPlan | None = None
    plan_text: str = ""


class Choice(Struct, frozen=True, kw_only=True):
    """What the options name."""

    call: str | None = None
    every: bool = False

    @property
    def is_made(self) -> bool:
        return self.call is not None or self.every


def load_waiting(server: Callable[[], ServerAddress], name: str, choice: Choice) -> Waiting:
    """With the text of a plan if a person is to be asked about it."""

    async def load(api: ServerApi) -> Waiting:
        chat_id = await find_chat(api, name)
        shown = await load_chat(api, chat_id)
        plan = proposed_plan(shown)
        text = ""
        if plan is not None and not choice.is_made and _is_terminal():
            content = await api.load_content(plan.file_id).read(max_bytes=MAX_PLAN_BYTES)
            text = content.decode(errors="replace")
        asks = tuple(asks_of(shown))
        return Waiting(chat_id=chat_id, asks=asks, plan=plan, plan_text=text)

    return run_command(server, load)


def choose(waiting: Waiting, kinds: Sequence[str], choice: Choice) -> Waiting:
    """The call or the plan that is named, the only one, or all calls. Raises UsageProblem."""
    if choice.call is not None and choice.every:
        raise UsageProblem("--call names one call, and --all means all of them: give one")
    asks = tuple(
        ask
        for ask in waiting.asks
        if ask.call.kind in kinds and choice.call in (None, ask.call.tool_call_id)
    )
    listed = "\n".join(_waiting_lines(waiting))
    if asks:
        if len(asks) > 1 and not choice.every:
            raise UsageProblem(
                f"{len(asks)} calls wait; name one with --call, or say --all:\n{listed}"
            )
        return Waiting(chat_id=waiting.chat_id, asks=asks)
    plan = waiting.plan
    if plan is None or choice.every or choice.call not in (None, plan.call_id):
        told = f" It waits for:\n{listed}" if listed else ""
        raise UsageProblem(f"the chat does not wait for that.{told}")
    return Waiting(chat_id=waiting.chat_id, plan=plan, plan_text=waiting.plan_text)


def confirm_choice(chosen: Waiting, choice: Choice, question: str, *, always: bool = False) -> None:
    """Show what is answered and ask, unless it was named. Raises UsageProblem."""
    if choice.is_made:
        return
    if not _is_terminal():
        listed = "\n".join(_waiting_lines(chosen))
        every = ", or say --all" if chosen.asks else ""
        raise UsageProblem(
            f"name with --call what you answer{every}: there is no terminal to ask at. The chat"
            f" waits for:\n{listed}"
        )
    for ask in chosen.asks:
        print_notice("\n".join(told_lines(ask)))
        if always:
            print_notice(f"  --always stores: {always_text(ask)}")
    if chosen.plan is not None:
        print_notice(f"{exact_text(chosen.plan_text)}\n")
    confirm(question, yes=False)


def _waiting_lines(waiting: Waiting) -> list[str]:
    plan = waiting.plan
    told = [] if plan is None else plan_lines(str(waiting.chat_id), plan.call_id)
    return [*ask_lines(waiting.asks), *told]


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
