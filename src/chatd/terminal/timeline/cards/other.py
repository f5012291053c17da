"""Cards of web search, skills, attached files, workspaces, MCP tools, and tools without a card."""

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.text import Text

from chatd.terminal.timeline.cards.card import (
    Body,
    Canvas,
    Card,
    failure_body,
    failure_lines,
    time_text,
    verb_of,
)
from chatd.terminal.timeline.cards.command import capitalize
from chatd.terminal.timeline.cards.output import output_lines
from chatd.terminal.timeline.duration import counted
from chatd.terminal.timeline.lines import Lines, cut, one_line
from chatd.terminal.timeline.markdown.blocks import markdown_lines
from chatd.terminal.timeline.markdown.code import coloured
from chatd.terminal.timeline.rows.brief import humanize, server_of
from chatd.terminal.timeline.rows.json_values import (
    JsonObject,
    as_object,
    list_of,
    number_of,
    objects_of,
    text_of,
)
from chatd.terminal.timeline.rows.tool_call import CallFacts

_MAX_PAGES: Final = 50
_MAX_JSON_CHARS: Final = 20_000
_TEXT_FIELDS: Final = frozenset({"output", "text"})


def web_search_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    pages = _web_pages(facts)

    def body(inner: Canvas) -> Lines:
        return [
            line
            for page in pages[:_MAX_PAGES]
            for line in web_lines(text_of(page, "title"), text_of(page, "url"), inner)
        ]

    return Card(
        verb=verb_of(facts, "Searching the web", "Searched the web", "Web search failed"),
        subject=text_of(facts.args, "query"),
        is_sentence=True,
        meta=counted(len(pages), "page") if pages else None,
        opens=facts.state == "failed",
        body=body if pages else failure_body(facts),
    )


def web_lines(title: str, url: str, canvas: Canvas) -> Lines:
    """A page of the web: its title and, always, where it leads."""
    address = one_line(url, 200)
    name = one_line(title) or address
    text = Text(name, canvas.palette.link)
    if name != address:
        text.append(f"  {address}", canvas.palette.muted)
    return [cut(text, canvas.width)]


def _web_pages(facts: CallFacts) -> Sequence[JsonObject]:
    listed = list_of({"items": facts.result_value}, "items")
    found = [
        *(as_object(page) for page in listed),
        *objects_of(facts.result, "results"),
        *objects_of(facts.result, "sources"),
    ]
    return [page for page in found if text_of(page, "url")]


def skill_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    body_text, content = text_of(facts.result, "body"), text_of(facts.result, "content")

    def body(inner: Canvas) -> Lines:
        lines = markdown_lines(body_text, inner.width, inner.palette) if body_text else []
        return lines + (output_lines(content, inner.width, inner.palette) if content else [])

    names = (text_of(facts.args, "name"), text_of(facts.args, "path"))
    return Card(
        verb=verb_of(facts, "Reading skill", "Read skill", "Skill not read"),
        subject="/".join(name for name in names if name),
        opens=facts.state == "failed",
        body=failure_body(facts) or (body if body_text or content else None),
    )


def attach_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    size = number_of(facts.result, "size")
    media_type = one_line(text_of(facts.result, "media_type"), 60)
    facts_text = ", ".join(
        one for one in (media_type, "" if size is None else f"{int(size):,} bytes") if one
    )
    return Card(
        verb=verb_of(facts, "Attaching", "Attached", "Not attached"),
        subject=text_of(facts.result, "name") or text_of(facts.args, "path"),
        meta=facts_text if facts.state == "done" else None,
        opens=facts.state == "failed",
        body=failure_body(facts),
    )


_WORKSPACE_VERBS: Final = {
    "create_workspace": ("Creating workspace", "Created workspace", "Workspace not created"),
    "start_workspace": ("Starting workspace", "Started workspace", "Workspace not started"),
    "stop_workspace": ("Stopping workspace", "Stopped workspace", "Workspace not stopped"),
}


def workspace_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    going, done, failed = _WORKSPACE_VERBS[facts.call.name]
    is_kept = facts.result.get("already_exists") is True or facts.result.get("no_build") is True
    notes = (text_of(facts.result, name) for name in ("message", "agent_error", "directory"))
    return Card(
        verb=verb_of(facts, going, "Workspace is ready:" if is_kept else done, failed),
        subject=text_of(facts.result, "workspace_name") or text_of(facts.args, "name"),
        opens=facts.state == "failed",
        body=failure_body(facts),
        foot=" ".join(note for note in notes if note),
    )


def generic_card(facts: CallFacts, canvas: Canvas) -> Card:
    """Arguments and result as they are. Tools of MCP servers say which server they are of."""
    part = facts.call.call or facts.call.result
    server = server_of(facts.call.name) or (part.mcp_server_config_id if part else "") or ""
    name = humanize(facts.call.name)
    intent = capitalize(text_of(facts.args, "model_intent"))
    times = (one_line(server, 40), time_text(facts, canvas.now))
    return Card(
        verb=verb_of(facts, intent or name, name, f"{name} failed"),
        subject=_main_argument(facts.args),
        is_sentence=True,
        meta=" · ".join(one for one in times if one),
        opens=facts.state == "failed",
        body=_generic_body(facts),
    )


def _generic_body(facts: CallFacts) -> Body:
    def body(inner: Canvas) -> Lines:
        lines: Lines = []
        if facts.args or facts.args_text:
            lines += _labelled(
                "Arguments", _json_lines(facts.args or facts.args_text, inner), inner
            )
        if not facts.args and facts.args_text and not facts.call.is_going:
            lines += failure_lines("The arguments are not valid JSON: the call never ran.", inner)
        if facts.state == "failed":
            return lines + failure_lines(facts.error, inner)
        if facts.result_value is not None:
            lines += _labelled("Result", _result_lines(facts, inner), inner)
        return lines

    return body


def _labelled(label: str, lines: Lines, canvas: Canvas) -> Lines:
    return [Text(label, canvas.palette.muted), *lines]


def _result_lines(facts: CallFacts, canvas: Canvas) -> Lines:
    """Text as text, media by what they are, everything else as JSON."""
    result, width, palette = facts.result, canvas.width, canvas.palette
    if facts.call.is_media or (text_of(result, "data") and text_of(result, "mime_type")):
        data, kind = text_of(result, "data"), one_line(text_of(result, "mime_type"), 60)
        size = f"{len(data) * 3 // 4:,} bytes, " if data else ""
        note = f"[{kind or 'media'}, {size}not shown in the terminal]"
        lines = [cut(Text(note, palette.muted), width)]
        text = text_of(result, "text", "output")
        return lines + (output_lines(text, width, palette) if text else [])
    if isinstance(facts.result_value, str):
        return output_lines(facts.result_value, width, palette)
    text = text_of(result, "output", "text")
    if text and set(result) <= _TEXT_FIELDS:
        return output_lines(text, width, palette)
    return _json_lines(facts.result_value, canvas)


def _json_lines(value: object, canvas: Canvas) -> Lines:
    if isinstance(value, str):
        return output_lines(value, canvas.width, canvas.palette)
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if len(text) > _MAX_JSON_CHARS:
        return output_lines(text, canvas.width, canvas.palette)
    return [cut(line, canvas.width) for line in coloured(text, "json", canvas.palette)]


def _main_argument(args: JsonObject) -> str:
    texts = [
        value
        for name, value in args.items()
        if name != "model_intent" and isinstance(value, str) and value
    ]
    return texts[0][:400] if len(texts) == 1 else ""
