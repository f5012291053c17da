"""The work of `chatd chats approve`, `deny` and `answer`: calls that wait, questions and plans.

What is answered is the call that is named, or what a person has just seen and confirmed: another
call may be waiting by then than the one that somebody has read about.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw, Struct

from chatd.cli.api_session import UsageProblem, confirm, report_errors, run_command
from chatd.cli.chats.chat_lines import always_text, ask_lines, call_line, plan_lines, told_lines
from chatd.cli.chats.chat_work import find_chat
from chatd.cli.chats.run_follow import load_chat
from chatd.cli.options import suggest
from chatd.cli.output import print_json, print_notice
from chatd.client.drafts import CallAnswer, ChatChange, Decision, Draft, TextInput
from chatd.client.exchange import ServerAddress
from chatd.client.server import ServerApi
from chatd.domain.chat.call_waits import Question, QuestionReply
from chatd.domain.ids import ChatId
from chatd.domain.tool_modes import ModeChoice
from chatd.terminal.answers.asks import (
    Ask,
    ProposedPlan,
    QuestionDraft,
    asks_of,
    proposed_plan,
    questions_of,
)
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


IMPLEMENT: Final = "Implement the plan."
Server = Callable[[], ServerAddress]


def approve(server: Server, name: str, choice: Choice, *, always: bool, as_json: bool) -> None:
    with report_errors():
        waiting = load_waiting(server, name, choice)
        chosen = choose(waiting, ("approval",), choice)
        if always:
            check_always(chosen)
        question = "Implement this plan?" if chosen.plan else "Approve this?"
        confirm_choice(chosen, choice, question, always=always)
        answers = [_decide(ask, "approve", always=always) for ask in chosen.asks]

    async def send(api: ServerApi) -> None:
        if chosen.plan is not None:
            raw = await _say(api, chosen.chat_id, IMPLEMENT, "off")
            _report(raw, "the model implements the plan", chosen.chat_id, as_json=as_json)
            return
        await _answer(api, chosen, answers, "approved", as_json=as_json)

    run_command(server, send)


def deny(server: Server, name: str, choice: Choice, *, reason: str, as_json: bool) -> None:
    with report_errors():
        waiting = load_waiting(server, name, choice)
        chosen = choose(waiting, ("approval", "question"), choice)
        if chosen.plan is not None and reason:
            rest = f"{chosen.chat_id} --call {chosen.plan.call_id} TEXT"
            raise UsageProblem(f"to have the plan changed: {suggest('chats answer', rest)}")
        confirm_choice(chosen, choice, "Drop this plan?" if chosen.plan else "Deny this?")
        answers = [_decide(ask, "deny", reason=reason) for ask in chosen.asks]

    async def send(api: ServerApi) -> None:
        if chosen.plan is not None:
            await api.amend_chat(chosen.chat_id, ChatChange(mode="off"))
            raw = await api.get_chat(chosen.chat_id).raw()
            _report(raw, "the plan is dropped", chosen.chat_id, as_json=as_json)
            return
        await _answer(api, chosen, answers, "denied", as_json=as_json)

    run_command(server, send)


def answer(
    server: Server, name: str, texts: Sequence[str], choice: Choice, *, as_json: bool
) -> None:
    with report_errors():
        chosen = choose(load_waiting(server, name, choice), ("question",), choice)
        answers = [
            _decide(ask, "answer", replies=read_replies(questions_of(ask.args), texts))
            for ask in chosen.asks
        ]
        confirm_choice(chosen, choice, "Have this plan changed?" if chosen.plan else "Answer this?")

    async def send(api: ServerApi) -> None:
        if chosen.plan is not None:
            raw = await _say(api, chosen.chat_id, "\n".join(texts), None)
            _report(raw, "the model changes the plan", chosen.chat_id, as_json=as_json)
            return
        await _answer(api, chosen, answers, "answered", as_json=as_json)

    run_command(server, send)


def check_always(chosen: Waiting) -> None:
    """Raises UsageProblem."""
    if chosen.plan is not None:
        raise UsageProblem("a plan is approved once; leave out --always")
    if fixed := [ask for ask in chosen.asks if not ask.call.can_always]:
        shown = call_line(fixed[0].call.tool_name, fixed[0].args)
        raise UsageProblem(f"the policy asks for this call each time: {shown}; leave out --always")


def read_replies(questions: Sequence[Question], texts: Sequence[str]) -> tuple[QuestionReply, ...]:
    """One text for each question: labels of options, their numbers, or own words. Raises
    UsageProblem."""
    if len(questions) != len(texts):
        raise UsageProblem(f"there are {len(questions)} questions and {len(texts)} answers")
    replies = tuple(map(_read_reply, questions, texts))
    problem = QuestionDraft(questions=tuple(questions), replies=replies).problem()
    if problem:
        raise UsageProblem(problem)
    return replies


def _read_reply(question: Question, text: str) -> QuestionReply:
    pieces = text.split(",") if question.multi_select else [text]
    labels = [_find_label(question, piece.strip()) for piece in pieces]
    chosen = tuple(dict.fromkeys(label for label in labels if label is not None))
    if chosen and None not in labels:
        return QuestionReply(labels=chosen)
    return QuestionReply(text=text)


def _find_label(question: Question, text: str) -> str | None:
    for label in question.labels:
        if label.casefold() == text.casefold():
            return label
    is_number = text.isascii() and text.isdecimal() and 1 <= int(text) <= len(question.labels)
    return question.labels[int(text) - 1] if is_number else None


def _decide(
    ask: Ask,
    decision: Decision,
    *,
    reason: str = "",
    always: bool = False,
    replies: tuple[QuestionReply, ...] = (),
) -> CallAnswer:
    return CallAnswer(
        tool_call_id=ask.call.tool_call_id,
        decision=decision,
        reason=reason,
        always=always,
        replies=replies,
    )


async def _answer(
    api: ServerApi, chosen: Waiting, answers: Sequence[CallAnswer], done: str, *, as_json: bool
) -> None:
    raw = await api.answer_calls(chosen.chat_id, answers).raw()
    told = "; ".join(call_line(ask.call.tool_name, ask.args, 100) for ask in chosen.asks)
    stored = [f"stored: {always_text(ask)}" for ask in chosen.asks] if answers[0].always else []
    _report(raw, "\n".join([f"{done}: {told}", *stored]), chosen.chat_id, as_json=as_json)


async def _say(api: ServerApi, chat_id: ChatId, text: str, mode: ModeChoice | None) -> Raw:
    return await api.send_message(chat_id, Draft(content=(TextInput(text),), mode=mode)).raw()


def _report(raw: Raw, done: str, chat_id: ChatId, *, as_json: bool) -> None:
    if as_json:
        print_json(raw)
        return
    print_notice(done)
    print_notice(f"To wait for the answer: {suggest('chats tail', f'{chat_id} --until-idle')}")
