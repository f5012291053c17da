"""Cards of commands and of all other tools, and which card a call gets."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from rich.text import Text

from chatd.domain.chat.person_commands import is_persons_call
from chatd.terminal.answers.exact_text import exact_text
from chatd.terminal.timeline.agent_cards import (
    DENIED_TEXT,
    denied_card,
    interrupt_agent_card,
    list_agents_card,
    message_agent_card,
    plan_card,
    question_card,
    spawn_card,
    wait_card,
    waiting_card,
)
from chatd.terminal.timeline.card import Canvas, Card, failure_lines, output_lines, verb_of
from chatd.terminal.timeline.file_cards import edit_card, read_card, search_card, write_card
from chatd.terminal.timeline.lines import Lines, counted, cut, duration_text, headline, one_line
from chatd.terminal.timeline.markdown_lines import coloured, markdown_lines
from chatd.terminal.timeline.tool_call import (
    CallFacts,
    JsonObject,
    as_object,
    humanize,
    list_of,
    number_of,
    objects_of,
    server_of,
    text_of,
)

_FAILED_LINES: Final = 20
_LIVE_LINES: Final = 12
_LONG_COMMAND: Final = 90
_MAX_PROCESSES: Final = 50
_LINE_FEEDS: Final = re.compile(r"\s*\n\s*")


def command_card(facts: CallFacts) -> Card:
    is_wait = facts.call.name == "process_output"
    verb = verb_of(facts, "Waiting for", "Output of", "Output of") if is_wait else _verb(facts)
    took = "" if facts.duration_s is None else f" · {duration_text(facts.duration_s)}"
    ended = _ended_text(facts.result) if facts.state == "failed" else ""
    has_body = _output(facts) != "" or facts.error != "" or _is_long(facts)
    return Card(
        verb=verb,
        subject=joined(text_of(facts.args, "process_id" if is_wait else "command")),
        meta=f"{ended}{took}" if ended else None,
        opens=facts.state == "failed"
        or is_persons_call(facts.call.id)
        or (facts.state == "running" and facts.live_output != ""),
        body=(lambda inner: _body(facts, inner)) if has_body else None,
        foot=_foot(facts),
    )


def _verb(facts: CallFacts) -> str:
    if facts.state == "background":
        return capitalize(text_of(facts.args, "model_intent")) or "Started"
    return verb_of(facts, "Running", "Ran", "Ran")


def _output(facts: CallFacts) -> str:
    return facts.live_output or text_of(facts.result, "output")


def _is_long(facts: CallFacts) -> bool:
    command = text_of(facts.args, "command")
    return "\n" in command or len(command) > _LONG_COMMAND


def _body(facts: CallFacts, canvas: Canvas) -> Lines:
    lines: Lines = []
    if _is_long(facts):
        lines += output_lines(f"$ {text_of(facts.args, 'command')}", canvas)
    if output := _output(facts):
        tail = _LIVE_LINES if facts.live_output else 0
        tail = _FAILED_LINES if facts.state == "failed" else tail
        lines += output_lines(output, canvas, tail)
    if facts.error and facts.state != "interrupted":
        lines += failure_lines(capitalize(facts.error), canvas)
    return lines


def _ended_text(result: Mapping[str, object]) -> str:
    """How a command ended; empty for one that has not, and for a result of an earlier version
    whose exit code is -1."""
    signal, code = text_of(result, "signal"), number_of(result, "exit_code")
    if signal:
        return "ended by a signal" if signal == "unknown" else f"ended by {one_line(signal)}"
    return "" if code is None or code < 0 else f"exit {int(code)}"


def _foot(facts: CallFacts) -> str:
    process = text_of(facts.result, "background_process_id")
    if facts.state == "background":
        name = f" as process {process}" if process else ""
        return f"Goes on in the workspace{name}."
    if facts.state == "interrupted" and process:
        return f"Its process may still run ({process})."
    return text_of(facts.result, "note")


def process_list_card(facts: CallFacts) -> Card:
    processes = objects_of(facts.result, "processes")
    running = sum(process.get("running") is True for process in processes)

    def body(inner: Canvas) -> Lines:
        lines: Lines = []
        for process in processes[:_MAX_PROCESSES]:
            ended = _ended_text(process) or "ended"
            state = "running" if process.get("running") is True else ended
            left = Text(one_line(joined(text_of(process, "command"))), inner.palette.code)
            lines.append(headline(left, Text(state, inner.palette.muted), inner.width))
        return lines

    return Card(
        verb=verb_of(facts, "Listing processes", "Listed processes"),
        meta=f"{running} running" if facts.state == "done" else None,
        opens=False,
        body=body if processes else None,
    )


def process_signal_card(facts: CallFacts) -> Card:
    is_kill = text_of(facts.args, "signal") == "kill"
    going, done = ("Killing", "Killed") if is_kill else ("Ending", "Ended")
    return Card(
        verb=verb_of(facts, f"{going} process", f"{done} process", "Process not ended"),
        subject=text_of(facts.args, "process_id"),
    )


def joined(text: str) -> str:
    """A text of several lines as one, with its line breaks marked."""
    return _LINE_FEEDS.sub(" ↵ ", text[:2000]).strip()


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


# Cards of web search, skills, attached files, workspaces, MCP tools, and tools without a card.

_MAX_PAGES: Final = 50
_MAX_JSON_CHARS: Final = 20_000
_TEXT_FIELDS: Final = frozenset({"output", "text"})


def web_search_card(facts: CallFacts) -> Card:
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
        body=body if pages else None,
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


def note_card(facts: CallFacts) -> Card:
    """The text as it is, with what cannot be seen as escapes."""
    text = text_of(facts.result, "text") or text_of(facts.args, "text")
    is_proposed = facts.state == "done"
    return Card(
        verb=verb_of(facts, "Writing a note", "Proposed a note", "Note not proposed"),
        subject="",
        opens=is_proposed,
        body=(lambda inner: output_lines(exact_text(text), inner)) if text else None,
        foot="Nothing is kept until you accept it: /memory" if is_proposed else "",
    )


def skill_card(facts: CallFacts) -> Card:
    body_text, content = text_of(facts.result, "body"), text_of(facts.result, "content")

    def body(inner: Canvas) -> Lines:
        lines = markdown_lines(body_text, inner.width, inner.palette) if body_text else []
        return lines + (output_lines(content, inner) if content else [])

    names = (text_of(facts.args, "name"), text_of(facts.args, "path"))
    return Card(
        verb=verb_of(facts, "Reading skill", "Read skill", "Skill not read"),
        subject="/".join(name for name in names if name),
        body=body if (body_text or content) and facts.state != "failed" else None,
    )


def attach_card(facts: CallFacts) -> Card:
    size = number_of(facts.result, "size")
    media_type = one_line(text_of(facts.result, "media_type"), 60)
    facts_text = ", ".join(
        one for one in (media_type, "" if size is None else f"{int(size):,} bytes") if one
    )
    return Card(
        verb=verb_of(facts, "Attaching", "Attached", "Not attached"),
        subject=text_of(facts.result, "name") or text_of(facts.args, "path"),
        meta=facts_text if facts.state == "done" else None,
    )


_WORKSPACE_VERBS: Final = {
    "create_workspace": ("Creating workspace", "Created workspace", "Workspace not created"),
    "start_workspace": ("Starting workspace", "Started workspace", "Workspace not started"),
    "stop_workspace": ("Stopping workspace", "Stopped workspace", "Workspace not stopped"),
}


def workspace_card(facts: CallFacts) -> Card:
    going, done, failed = _WORKSPACE_VERBS[facts.call.name]
    is_kept = facts.result.get("already_exists") is True or facts.result.get("no_build") is True
    notes = (text_of(facts.result, name) for name in ("message", "agent_error", "directory"))
    return Card(
        verb=verb_of(facts, going, "Workspace is ready:" if is_kept else done, failed),
        subject=text_of(facts.result, "workspace_name") or text_of(facts.args, "name"),
        foot=" ".join(note for note in notes if note),
    )


def generic_card(facts: CallFacts) -> Card:
    """Arguments and result as they are. Tools of MCP servers say which server they are of."""
    part = facts.call.call or facts.call.result
    server = server_of(facts.call.name) or (part.mcp_server_config_id if part else "") or ""
    name = humanize(facts.call.name)
    intent = capitalize(text_of(facts.args, "model_intent"))

    def body(inner: Canvas) -> Lines:
        lines: Lines = []
        muted = inner.palette.muted
        if facts.args or facts.args_text:
            written = _json_lines(facts.args or facts.args_text, inner)
            lines += [Text("Arguments", muted), *written]
        if not facts.args and facts.args_text and not facts.call.is_going:
            lines += failure_lines("The arguments are not valid JSON: the call never ran.", inner)
        if facts.state == "failed":
            return lines + failure_lines(facts.error, inner)
        if facts.result_value is not None:
            lines += [Text("Result", muted), *_result_lines(facts, inner)]
        return lines

    return Card(
        verb=verb_of(facts, intent or name, name, f"{name} failed"),
        subject=_main_argument(facts.args),
        is_sentence=True,
        place=one_line(server, 40),
        body=body,
    )


def _result_lines(facts: CallFacts, canvas: Canvas) -> Lines:
    """Text as text, media by their type, everything else as JSON."""
    result = facts.result
    if facts.call.is_media or (text_of(result, "data") and text_of(result, "mime_type")):
        data, kind = text_of(result, "data"), one_line(text_of(result, "mime_type"), 60)
        size = f"{len(data) * 3 // 4:,} bytes, " if data else ""
        note = f"[{kind or 'media'}, {size}p shows it]"
        lines = [cut(Text(note, canvas.palette.muted), canvas.width)]
        text = text_of(result, "text", "output")
        return lines + (output_lines(text, canvas) if text else [])
    if isinstance(facts.result_value, str):
        return output_lines(facts.result_value, canvas)
    text = text_of(result, "output", "text")
    if text and set(result) <= _TEXT_FIELDS:
        return output_lines(text, canvas)
    return _json_lines(facts.result_value, canvas)


def _json_lines(value: object, canvas: Canvas) -> Lines:
    if isinstance(value, str):
        return output_lines(value, canvas)
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if len(text) > _MAX_JSON_CHARS:
        return output_lines(text, canvas)
    return [cut(line, canvas.width) for line in coloured(text, "json", canvas.palette)]


def _main_argument(args: JsonObject) -> str:
    texts = [
        value
        for name, value in args.items()
        if name != "model_intent" and isinstance(value, str) and value
    ]
    return texts[0][:400] if len(texts) == 1 else ""


# Which card shows which tool.

_CARDS: Final[Mapping[str, Callable[[CallFacts], Card]]] = {
    "execute": command_card,
    "process_output": command_card,
    "process_list": process_list_card,
    "process_signal": process_signal_card,
    "read_file": read_card,
    "write_file": write_card,
    "edit_files": edit_card,
    "list_files": search_card,
    "list_directory": search_card,
    "search_files": search_card,
    "grep": search_card,
    "glob": search_card,
    "web_search": web_search_card,
    "create_workspace": workspace_card,
    "start_workspace": workspace_card,
    "stop_workspace": workspace_card,
    "wait_agent": wait_card,
    "message_agent": message_agent_card,
    "interrupt_agent": interrupt_agent_card,
    "close_agent": interrupt_agent_card,
    "list_agents": list_agents_card,
    "ask_user_question": question_card,
    "attach_file": attach_card,
    "remember": note_card,
    "read_skill": skill_card,
    "read_skill_file": skill_card,
}
_SPAWNS: Final = ("spawn_agent", "spawn_computer_use_agent")
KNOWN_TOOLS: Final = (*_CARDS, *_SPAWNS, "propose_plan")


def card_of(facts: CallFacts, canvas: Canvas, *, is_last: bool = False) -> Card:
    """`is_last`: a plan that the user may still answer."""
    name, request = facts.call.name, facts.call.request
    if facts.state == "waiting" and (request is None or request.kind != "question"):
        return waiting_card(facts)
    if facts.state == "failed" and facts.error.startswith(DENIED_TEXT):
        return denied_card(facts)
    if name == "propose_plan":
        return plan_card(facts, is_last=is_last)
    if name in _SPAWNS:
        return spawn_card(facts, canvas)
    return _CARDS.get(name, generic_card)(facts)
