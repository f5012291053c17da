"""Cards of what a person answers: questions, plans, approvals, tools that a client runs.

The answer panel takes the answers; these cards show what was asked and what was answered.
"""

import msgspec
from rich.text import Text

from chatd.terminal.timeline.cards.card import Canvas, Card, failure_lines, verb_of
from chatd.terminal.timeline.cards.output import output_lines
from chatd.terminal.timeline.duration import counted
from chatd.terminal.timeline.lines import Lines, one_line, paragraph, prefixed, shown, wrap
from chatd.terminal.timeline.rows.brief import humanize
from chatd.terminal.timeline.rows.json_values import (
    JsonObject,
    as_object,
    list_of,
    objects_of,
    text_of,
    texts_of,
)
from chatd.terminal.timeline.rows.tool_call import CallFacts

DENIED_TEXT = "The user denied this call"
_UNANSWERED_TEXT = "The user did not answer the questions"


def question_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    questions = objects_of(facts.args, "questions")
    texts = [text_of(question, "question", "header") for question in questions]
    answers = objects_of(facts.result, "answers")
    is_declined = facts.error.startswith(_UNANSWERED_TEXT)

    def body(inner: Canvas) -> Lines:
        lines: Lines = []
        for number, question in enumerate(questions):
            lines += paragraph(texts[number], inner.width, inner.palette.strong)
            answer = answers[number] if number < len(answers) else None
            lines += _answer_lines(question, answer, inner, is_open=facts.call.is_going)
        if facts.state == "failed" and facts.error:
            lines += failure_lines(facts.error, inner)
        return lines

    failed = "Left to the agent:" if is_declined else "Not answered:"
    return Card(
        verb=verb_of(facts, "Asking you", "Asked you", failed),
        subject=texts[0] if len(texts) == 1 else counted(len(texts), "question"),
        is_sentence=True,
        opens=bool(answers) or facts.state == "waiting",
        body=body if questions or facts.error else None,
    )


def _answer_lines(
    question: JsonObject, answer: JsonObject | None, canvas: Canvas, *, is_open: bool
) -> Lines:
    palette = canvas.palette
    if answer is not None:
        said = ". ".join(
            part
            for part in (", ".join(texts_of(answer, "chosen")), text_of(answer, "text"))
            if part
        )
        lines = wrap(Text(shown(said) or "No answer", palette.plain), canvas.width - 2)
        return prefixed(lines, Text("→ ", palette.ok), Text("  "))
    if not is_open:
        return [Text("No answer", palette.muted)]
    options = [
        one_line(option if isinstance(option, str) else text_of(as_object(option), "label"))
        for option in list_of(question, "options")[:8]
    ]
    return [line for option in options for line in wrap(Text(f"○ {option}"), canvas.width)]


def plan_card(facts: CallFacts, canvas: Canvas, *, is_last: bool) -> Card:
    del canvas
    path = text_of(facts.result, "path") or text_of(facts.args, "path")
    is_ready = facts.state == "done" and is_last

    def failed(inner: Canvas) -> Lines:
        return failure_lines(facts.error, inner)

    hint = "Read it and answer it below. " if is_ready else ""
    return Card(
        verb=verb_of(facts, "Writing a plan", "Proposed a plan", "Plan not proposed"),
        subject=path,
        meta="waits for you" if is_ready else None,
        opens=is_ready or facts.state == "failed",
        body=failed if facts.state == "failed" else None,
        foot=f"{hint}The plan is a file of this chat." if facts.state == "done" else "",
    )


def waiting_card(facts: CallFacts, canvas: Canvas) -> Card:
    """A call that waits for approval, or for the result of a program outside."""
    del canvas
    request = facts.call.request
    is_approval = request is not None and request.kind == "approval"
    command = text_of(facts.args, "command")

    def body(inner: Canvas) -> Lines:
        text = f"$ {command}" if command else _pretty(facts.args)
        lines = output_lines(text, inner.width, inner.palette)
        if request is not None and request.reason:
            lines += paragraph(f"Why it asks: {request.reason}", inner.width, inner.palette.muted)
        if not is_approval:
            note = "A program outside of chatd runs this tool. The chat goes on when its result is"
            lines += paragraph(f"{note} there.", inner.width, inner.palette.muted)
        return lines

    return Card(
        verb="Asks to run" if is_approval else "Waits for the result of",
        subject=humanize(facts.call.name),
        is_sentence=True,
        opens=True,
        body=body,
    )


def denied_card(facts: CallFacts, canvas: Canvas) -> Card:
    """A call that the user did not allow."""
    del canvas
    command = text_of(facts.args, "command")

    def body(inner: Canvas) -> Lines:
        lines = output_lines(f"$ {command}", inner.width, inner.palette) if command else []
        return lines + paragraph(facts.error, inner.width, inner.palette.muted)

    return Card(
        verb="Denied:",
        subject=command or humanize(facts.call.name),
        is_sentence=not command,
        meta="did not run",
        body=body,
    )


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
