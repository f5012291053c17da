"""Cards of subagents: spawn, wait, message, interrupt, list. A child is a chat of its own."""

import re
from typing import Final

from rich.text import Text

from chatd.terminal.timeline.cards.card import (
    Canvas,
    Card,
    failure_body,
    failure_lines,
    verb_of,
)
from chatd.terminal.timeline.cards.child import status_glyph, status_text, step_lines
from chatd.terminal.timeline.duration import counted
from chatd.terminal.timeline.lines import Lines, headline, one_line, paragraph
from chatd.terminal.timeline.markdown.blocks import markdown_lines
from chatd.terminal.timeline.rows.json_values import objects_of, text_of
from chatd.terminal.timeline.rows.tool_call import CallFacts

_CHAT_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OPEN_HINT: Final = "Enter opens the chat of this agent."
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
        if facts.state == "failed":
            return failure_lines(facts.error, inner)
        return step_lines(inner.children.get(child), prompt, inner.width, inner.palette)

    status = status_text(view) if child and facts.state == "done" else ""
    is_going = view is not None and view.status in ("running", "pending", "requires_action")
    return Card(
        verb=verb_of(facts, "Spawning agent", "Spawned agent", "Agent not spawned"),
        subject=text_of(facts.result, "title") or text_of(facts.args, "title") or prompt,
        is_sentence=True,
        meta=f"{status_glyph(view, canvas.palette)[0]} {status}" if status else None,
        opens=facts.state == "failed" or is_going,
        body=body,
        foot=_OPEN_HINT if child else "",
        child=child,
        children=(child,) if child else (),
    )


def wait_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    child = child_of(facts)
    report = text_of(facts.result, "report")
    error = text_of(facts.result, "last_error", "error")
    is_at_work = any(facts.result.get(why) is True for why in ("timed_out", "interrupted"))

    def body(inner: Canvas) -> Lines:
        lines = failure_lines(error, inner) if error else []
        if facts.call.is_going:
            lines += step_lines(inner.children.get(child), "", inner.width, inner.palette)
        return lines + (markdown_lines(report, inner.width, inner.palette) if report else [])

    done = "Agent still works" if is_at_work else "Agent answered"
    return Card(
        verb=verb_of(facts, "Waiting for agent", done, "Agent failed"),
        subject=text_of(facts.result, "title"),
        is_sentence=True,
        opens=facts.state == "failed" or facts.call.is_going,
        body=body if report or error or (child and facts.call.is_going) else None,
        foot=_OPEN_HINT if child else "",
        child=child,
        children=(child,) if child and facts.call.is_going else (),
    )


def message_agent_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    message = text_of(facts.args, "message")

    def body(inner: Canvas) -> Lines:
        return paragraph(message, inner.width, inner.palette.plain)

    child = child_of(facts)
    return Card(
        verb=verb_of(facts, "Writing to agent", "Wrote to agent", "Message not sent"),
        subject=text_of(facts.result, "title"),
        is_sentence=True,
        opens=facts.state == "failed",
        body=failure_body(facts) or (body if message else None),
        foot=_OPEN_HINT if child else "",
        child=child,
    )


def interrupt_agent_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    child = child_of(facts)
    return Card(
        verb=verb_of(facts, "Stopping agent", "Stopped agent", "Agent not stopped"),
        subject=text_of(facts.result, "title"),
        is_sentence=True,
        opens=facts.state == "failed",
        body=failure_body(facts),
        foot=_OPEN_HINT if child else "",
        child=child,
    )


def list_agents_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
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
        opens=facts.state == "failed",
        body=body if agents else failure_body(facts),
        children=tuple(filter(_CHAT_ID.fullmatch, (text_of(one, "chat_id") for one in agents))),
    )
