"""Cards of subagents, and of what a person answers."""

import re
from typing import Final

import msgspec
from rich.text import Text

from chatd.client.state import ShownChat
from chatd.terminal.safe_text import safe_line
from chatd.terminal.timeline.card import (
    Canvas,
    Card,
    ChildStep,
    ChildView,
    failure_lines,
    output_lines,
    verb_of,
)
from chatd.terminal.timeline.lines import (
    Lines,
    counted,
    cut,
    headline,
    one_line,
    paragraph,
    prefixed,
    shown,
    wrap,
)
from chatd.terminal.timeline.markdown_lines import markdown_lines
from chatd.terminal.timeline.row import ProseRow, ReadsRow, ReasoningRow, Row, ToolRow
from chatd.terminal.timeline.row_model import RowModel
from chatd.terminal.timeline.tool_call import (
    CallFacts,
    JsonObject,
    as_object,
    call_text,
    first_line,
    humanize,
    list_of,
    objects_of,
    text_of,
    texts_of,
)

_SHOWN_STEPS: Final = 3
_LAST_ROWS: Final = 12
_MAX_STEP: Final = 120

_STATUS_WORDS: Final[dict[str, str]] = {
    "waiting": "done",
    "pending": "starts",
    "running": "works",
    "interrupting": "stops",
    "requires_action": "needs you",
    "error": "failed",
    "archived": "archived",
}


def child_view(chat: ShownChat, model: RowModel, *, gone: bool = False) -> ChildView:
    if gone or not chat.is_loaded:
        return ChildView(gone=gone)
    briefs = [brief for row in model.rows(chat)[-_LAST_ROWS:] if (brief := brief_of(row))]
    steps = tuple(
        ChildStep(text=safe_line(text, _MAX_STEP), is_going=is_going)
        for text, is_going in briefs[-_SHOWN_STEPS:]
    )
    return ChildView(status=chat.status, steps=steps)


def brief_of(row: Row) -> tuple[str, bool] | None:
    """What the agent did or does, and whether it still does; None for rows that are not a step."""
    match row:
        case ToolRow(call=call):
            return call_text(call), call.state in ("running", "streaming")
        case ReadsRow(calls=calls):
            text = call_text(calls[0]) if len(calls) == 1 else f"Read {len(calls)} files"
            return text, False
        case ProseRow(text=text, is_live=is_live):
            return first_line(text), is_live
        case ReasoningRow(title=title, is_live=is_live):
            return title or "Thought", is_live
        case _:
            return None


def status_text(view: ChildView | None) -> str:
    if view is None:
        return ""
    if view.gone:
        return "deleted"
    return "" if view.status is None else _STATUS_WORDS.get(view.status, view.status)


def status_glyph(view: ChildView | None) -> str:
    match None if view is None else view.status:
        case "running" | "pending" | "interrupting":
            return "●"
        case "requires_action":
            return "◆"
        case "error":
            return "✗"
        case "waiting":
            return "✓"
        case _:
            return "○"


def step_lines(view: ChildView | None, prompt: str, canvas: Canvas) -> Lines:
    """The last steps of the child, as the end of a tree; its task before there are any."""
    steps, palette = () if view is None else view.steps, canvas.palette
    if not steps:
        return paragraph(prompt, canvas.width, palette.muted)[:6] if prompt else []
    lines: Lines = []
    for number, step in enumerate(steps, 1):
        branch = "└ " if number == len(steps) else "├ "
        glyph = ("● ", palette.accent) if step.is_going else ("✓ ", palette.ok)
        line = Text.assemble((branch, palette.faint), glyph, (step.text, palette.muted))
        lines.append(cut(line, canvas.width))
    return lines


# Cards of subagents: spawn, wait, message, interrupt, list. A child is a chat of its own.

_CHAT_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_AGENTS: Final = 50


def child_of(facts: CallFacts) -> str:
    """The chat of the subagent; empty if it is not known."""
    found = text_of(facts.result, "chat_id") or text_of(facts.args, "chat_id")
    return found if _CHAT_ID.fullmatch(found) else ""


def spawn_card(facts: CallFacts, canvas: Canvas) -> Card:
    child = child_of(facts)
    view = canvas.children.get(child)
    prompt = text_of(facts.args, "prompt")

    def body(inner: Canvas) -> Lines:
        return step_lines(inner.children.get(child), prompt, inner)

    status = status_text(view) if child and facts.state == "done" else ""
    is_going = view is not None and view.status in ("running", "pending", "requires_action")
    return Card(
        verb=verb_of(facts, "Spawning agent", "Spawned agent", "Agent not spawned"),
        subject=text_of(facts.result, "title") or text_of(facts.args, "title") or prompt,
        is_sentence=True,
        meta=f"{status_glyph(view)} {status}" if status else None,
        opens=facts.state == "failed" or is_going,
        body=None if facts.state == "failed" else body,
        child=child,
        children=(child,) if child else (),
    )


def wait_card(facts: CallFacts) -> Card:
    child = child_of(facts)
    report = text_of(facts.result, "report")
    error = text_of(facts.result, "last_error", "error")
    is_at_work = any(facts.result.get(why) is True for why in ("timed_out", "interrupted"))
    is_going = facts.call.is_going

    def body(inner: Canvas) -> Lines:
        lines = failure_lines(error, inner) if error else []
        if is_going:
            lines += step_lines(inner.children.get(child), "", inner)
        return lines + (markdown_lines(report, inner.width, inner.palette) if report else [])

    done = "Agent still works" if is_at_work else "Agent answered"
    return Card(
        verb=verb_of(facts, "Waiting for agent", done, "Agent failed"),
        subject=text_of(facts.result, "title"),
        is_sentence=True,
        opens=facts.state == "failed" or is_going,
        body=body if report or error or (child and is_going) else None,
        child=child,
        children=(child,) if child and is_going else (),
    )


def message_agent_card(facts: CallFacts) -> Card:
    message = text_of(facts.args, "message")

    def body(inner: Canvas) -> Lines:
        return paragraph(message, inner.width, inner.palette.plain)

    return Card(
        verb=verb_of(facts, "Writing to agent", "Wrote to agent", "Message not sent"),
        subject=text_of(facts.result, "title"),
        is_sentence=True,
        body=body if message and facts.state != "failed" else None,
        child=child_of(facts),
    )


def interrupt_agent_card(facts: CallFacts) -> Card:
    return Card(
        verb=verb_of(facts, "Stopping agent", "Stopped agent", "Agent not stopped"),
        subject=text_of(facts.result, "title"),
        is_sentence=True,
        child=child_of(facts),
    )


def list_agents_card(facts: CallFacts) -> Card:
    agents = objects_of(facts.result, "agents")

    def body(inner: Canvas) -> Lines:
        lines: Lines = []
        for number, agent in enumerate(agents[:_MAX_AGENTS], 1):
            view = inner.children.get(text_of(agent, "chat_id"))
            branch = "└ " if number == len(agents) else "├ "
            title = Text.assemble((branch, inner.palette.faint), one_line(text_of(agent, "title")))
            status = status_text(view) or one_line(text_of(agent, "status"), 20)
            lines.append(headline(title, Text(status, inner.palette.muted), inner.width))
        return lines

    return Card(
        verb=verb_of(facts, "Listing agents", "Listed agents"),
        meta=counted(len(agents), "agent") if facts.state == "done" else None,
        body=body if agents else None,
        children=tuple(filter(_CHAT_ID.fullmatch, (text_of(one, "chat_id") for one in agents))),
    )


# Cards of what a person answers: questions, plans, approvals, tools that a client runs.
#
# The answer panel takes the answers; these cards show what was asked and what was answered.

DENIED_TEXT = "The user denied this call"
_UNANSWERED_TEXT = "The user did not answer the questions"


def question_card(facts: CallFacts) -> Card:
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


def plan_card(facts: CallFacts, *, is_last: bool) -> Card:
    is_ready = facts.state == "done" and is_last
    hint = "Read it and answer it below. " if is_ready else ""
    return Card(
        verb=verb_of(facts, "Writing a plan", "Proposed a plan", "Plan not proposed"),
        subject=text_of(facts.result, "path") or text_of(facts.args, "path"),
        meta="waits for you" if is_ready else None,
        opens=is_ready or facts.state == "failed",
        foot=f"{hint}The plan is a file of this chat." if facts.state == "done" else "",
    )


def waiting_card(facts: CallFacts) -> Card:
    """A call that waits for approval, or for the result of a program outside."""
    request = facts.call.request
    is_approval = request is not None and request.kind == "approval"
    command = text_of(facts.args, "command")

    def body(inner: Canvas) -> Lines:
        args = msgspec.json.format(msgspec.json.encode(facts.args), indent=2).decode()
        lines = output_lines(f"$ {command}" if command else args, inner)
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


def denied_card(facts: CallFacts) -> Card:
    """A call that the user did not allow."""
    command = text_of(facts.args, "command")

    def body(inner: Canvas) -> Lines:
        lines = output_lines(f"$ {command}", inner) if command else []
        return lines + paragraph(facts.error, inner.width, inner.palette.muted)

    return Card(
        verb="Denied:",
        subject=command or humanize(facts.call.name),
        is_sentence=not command,
        meta="did not run",
        opens=False,
        body=body,
    )
