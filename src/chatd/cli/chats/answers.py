"""The work of `chatd chats approve`, `deny` and `answer`: calls that wait, questions and plans."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Raw

from chatd.cli.api_session import UsageProblem, report_errors, run_command
from chatd.cli.chats.waiting import Choice, Waiting, choose, confirm_choice, load_waiting
from chatd.cli.output import print_json, print_notice
from chatd.cli.run.call_lines import always_text, call_line
from chatd.client.drafts import CallAnswer, ChatChange, Decision, Draft, TextInput
from chatd.client.exchange import ServerAddress
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId
from chatd.domain.questions import Question, QuestionReply
from chatd.domain.tool_modes import ModeChoice
from chatd.terminal.answers.asks import Ask
from chatd.terminal.answers.question_draft import QuestionDraft, questions_of

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
            raise UsageProblem(
                "to have the plan changed:"
                f" chatd chats answer {chosen.chat_id} --call {chosen.plan.call_id} TEXT"
            )
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
    print_notice(f"To wait for the answer: chatd chats tail {chat_id} --until-idle")
