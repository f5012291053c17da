"""The work of `chatd chats approve`, `deny` and `answer`: calls that wait, questions and plans."""

from collections.abc import Sequence
from types import NoneType
from typing import Final, Literal

from msgspec import Raw, Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.work import find_chat
from chatd.cli.output import print_json, print_notice
from chatd.cli.run.call_lines import ask_lines, call_line
from chatd.cli.run.follow import load_chat
from chatd.client.drafts import Draft, TextInput, send_body
from chatd.client.server import ServerApi, new_key
from chatd.domain.ids import ChatId
from chatd.domain.questions import Question, QuestionReply
from chatd.domain.tool_modes import ModeChoice
from chatd.terminal.answers.asks import Ask, asks_of, proposed_plan
from chatd.terminal.answers.question_draft import QuestionDraft, questions_of

IMPLEMENT: Final = "Implement the plan."
Decision = Literal["approve", "deny", "answer"]


class CallAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As `POST /chats/{id}/answers` takes it."""

    tool_call_id: str
    decision: Decision
    reason: str = ""
    always: bool = False
    replies: tuple[QuestionReply, ...] = ()


class Waiting(Struct, frozen=True, kw_only=True):
    """What a chat waits for."""

    chat_id: ChatId
    asks: tuple[Ask, ...]
    has_plan: bool


async def approve(
    api: ServerApi, name: str, *, call: str | None, every: bool, always: bool, as_json: bool
) -> None:
    waiting = await _load(api, name)
    if not waiting.asks and waiting.has_plan:
        raw = await _say(api, waiting.chat_id, IMPLEMENT, "off")
        _report(raw, "the model implements the plan", waiting.chat_id, as_json=as_json)
        return
    chosen = choose_asks(waiting.asks, ("approval",), call, every=every)
    if always and (fixed := [ask for ask in chosen if not ask.call.can_always]):
        shown = call_line(fixed[0].call.tool_name, fixed[0].args)
        raise UsageProblem(f"the policy asks for this call each time: {shown}; leave out --always")
    answers = [_decide(ask, "approve", always=always) for ask in chosen]
    await _answer(api, waiting.chat_id, chosen, answers, "approved", as_json=as_json)


async def deny(
    api: ServerApi, name: str, *, call: str | None, every: bool, reason: str, as_json: bool
) -> None:
    waiting = await _load(api, name)
    if not waiting.asks and waiting.has_plan:
        if reason:
            raise UsageProblem(
                f"to have the plan changed: chatd chats answer {waiting.chat_id} TEXT"
            )
        await api.patch(f"/chats/{waiting.chat_id}", {"mode": "off"}, NoneType)
        raw = await api.get(f"/chats/{waiting.chat_id}", Raw)
        _report(raw, "the plan is dropped", waiting.chat_id, as_json=as_json)
        return
    chosen = choose_asks(waiting.asks, ("approval", "question"), call, every=every)
    answers = [_decide(ask, "deny", reason=reason) for ask in chosen]
    await _answer(api, waiting.chat_id, chosen, answers, "denied", as_json=as_json)


async def answer(
    api: ServerApi, name: str, texts: Sequence[str], *, call: str | None, as_json: bool
) -> None:
    waiting = await _load(api, name)
    if not waiting.asks and waiting.has_plan:
        raw = await _say(api, waiting.chat_id, "\n".join(texts), None)
        _report(raw, "the model changes the plan", waiting.chat_id, as_json=as_json)
        return
    (ask,) = choose_asks(waiting.asks, ("question",), call, every=False)
    replies = read_replies(questions_of(ask.args), texts)
    answers = [_decide(ask, "answer", replies=replies)]
    await _answer(api, waiting.chat_id, [ask], answers, "answered", as_json=as_json)


def choose_asks(
    asks: Sequence[Ask], kinds: Sequence[str], call: str | None, *, every: bool
) -> list[Ask]:
    """The one that is named, the only one, or with `every` all. Raises UsageProblem."""
    fitting = [ask for ask in asks if ask.call.kind in kinds]
    if call is not None:
        fitting = [ask for ask in fitting if ask.call.tool_call_id == call]
    if not fitting:
        others = "\n".join(ask_lines(asks))
        told = f" It waits for:\n{others}" if others else ""
        raise UsageProblem(f"the chat does not wait for that.{told}")
    if len(fitting) > 1 and not every:
        told = "\n".join(ask_lines(asks))
        raise UsageProblem(f"{len(fitting)} calls wait; name one with --call, or --all:\n{told}")
    return fitting


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


async def _load(api: ServerApi, name: str) -> Waiting:
    chat_id = await find_chat(api, name)
    shown = await load_chat(api, chat_id)
    has_plan = proposed_plan(shown) is not None
    return Waiting(chat_id=chat_id, asks=tuple(asks_of(shown)), has_plan=has_plan)


async def _answer(
    api: ServerApi,
    chat_id: ChatId,
    asks: Sequence[Ask],
    answers: Sequence[CallAnswer],
    done: str,
    *,
    as_json: bool,
) -> None:
    raw = await api.post(f"/chats/{chat_id}/answers", {"answers": answers}, Raw, key=new_key())
    told = "; ".join(call_line(ask.call.tool_name, ask.args, 100) for ask in asks)
    _report(raw, f"{done}: {told}", chat_id, as_json=as_json)


async def _say(api: ServerApi, chat_id: ChatId, text: str, mode: ModeChoice | None) -> Raw:
    body = send_body(Draft(content=(TextInput(text),), mode=mode))
    return await api.post(f"/chats/{chat_id}/messages", body, Raw, key=new_key())


def _report(raw: Raw, done: str, chat_id: ChatId, *, as_json: bool) -> None:
    if as_json:
        print_json(raw)
        return
    print_notice(done)
    print_notice(f"To wait for the answer: chatd chats tail {chat_id} --until-idle")
