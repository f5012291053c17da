"""Chats as lines: calls, what a person is asked, the progress of a run, JSON lines, transcripts.

Pure. Progress and JSON lines compare the state that the client shows with what was printed before:
a reconnect, which brings the same state again, repeats nothing.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, cast

import msgspec
from msgspec import Raw

from chatd.cli.chats.run_turn import SentMessage, text_of, turn_messages
from chatd.cli.options import suggest
from chatd.cli.output import dollars, field_lines, short_time
from chatd.client.resources import Chat, ListedChat
from chatd.client.state import LiveEpisode, ShownChat
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import (
    CommandPart,
    FilePart,
    FileReferencePart,
    NoticePart,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.row import RetryState
from chatd.domain.chat.takeover import TakeoverPayload
from chatd.domain.ids import MessageId, ModelConfigId
from chatd.domain.text import Json
from chatd.terminal.answers.asks import Ask, questions_of
from chatd.terminal.answers.exact_text import describe_call, exact_text
from chatd.terminal.safe_text import safe_line, safe_text
from chatd.terminal.screens.policy_rules import always_rule

MAX_LINE: Final = 160
_TELLING: Final = ("command", "path", "file_path", "url", "query", "name", "title", "prompt")
"""Arguments that say most about a call, the first of them that it has."""


def read_object(raw: Json) -> Mapping[str, object]:
    """An empty one for anything else than a JSON object."""
    if isinstance(raw, msgspec.UnsetType):
        return {}
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def call_line(tool_name: str, args: Json, width: int = MAX_LINE) -> str:
    """Such as `execute  pytest -q`."""
    found = read_object(args)
    texts = (value for key in _TELLING if isinstance(value := found.get(key), str))
    listed = [*_each(found.get("files"), "path"), *_each(found.get("questions"), "question")]
    telling = next(texts, None) or ", ".join(listed)
    if not telling and found:
        telling = msgspec.json.encode(found).decode()
    return safe_line(f"{tool_name} {telling}", width).replace(" ", "  ", 1)


def _each(entries: object, field: str) -> list[str]:
    """The texts of this field in a list of objects."""
    listed = cast("list[object]", entries) if isinstance(entries, list) else []
    objects = [cast("Mapping[str, object]", one) for one in listed if isinstance(one, dict)]
    return [text for one in objects if isinstance(text := one.get(field), str)]


def subagent_lines(chat: Chat) -> list[str]:
    """What a subagent waits for, which is answered by its own id. The command shows the call and
    asks first, because the call's id is not known here."""
    needed = safe_line(chat.action_summary or "an answer", MAX_LINE)
    kinds = () if chat.action is None else chat.action.kinds
    asks = "question" in kinds
    answer = suggest(*("chats answer", f"{chat.id} TEXT") if asks else ("chats approve", chat.id))
    return [f"A subagent waits: {needed}", f"  {answer}"]


def ask_lines(asks: Sequence[Ask]) -> list[str]:
    """What each call waits for, and the commands that answer it. They name the call: another one
    may wait when they are run. Nothing of a call that is to be approved is left out or hidden."""
    return [line for ask in asks for line in (*told_lines(ask), *_command_lines(ask))]


def told_lines(ask: Ask) -> list[str]:
    """What a call waits for."""
    match ask.call.kind:
        case "approval":
            return _approval_lines(ask)
        case "question":
            return _question_lines(ask)
        case _:
            name = safe_line(ask.call.tool_name, MAX_LINE)
            return [f"The client that declared the tool {name} must send its result, not you."]


def always_text(ask: Ask) -> str:
    """The rule that `--always` stores, in words; empty if there is none."""
    rule = always_rule(ask.call.tool_name, ask.args)
    if rule is None:
        return ""
    which = (
        "with exactly this command and directory"
        if rule.args
        else "every call, whatever its arguments"
    )
    return f"run {exact_line(rule.tool)} without asking in this chat, {which}"


def plan_lines(chat_id: str, call_id: str) -> list[str]:
    named = f"{chat_id} --call {_quote_id(call_id)}"
    return [
        "The model proposes a plan. To have it implemented, changed or dropped:",
        f"  {suggest('chats approve', named)}",
        f"  {suggest('chats answer', f'{named} TEXT')}",
        f"  {suggest('chats deny', named)}",
    ]


def exact_line(text: str) -> str:
    return exact_text(text).replace("\n", "\\n")


def _quote_id(call_id: str) -> str:
    """Models give ids: one that a shell or a terminal would obey names no call here."""
    return shlex.quote(exact_line(call_id))


def _command_lines(ask: Ask) -> list[str]:
    named = f"{ask.chat_id} --call {_quote_id(ask.call.tool_call_id)}"
    match ask.call.kind:
        case "approval":
            lines = [f"  {suggest('chats approve', named)}"]
            if ask.call.can_always and (stored := always_text(ask)):
                lines += [
                    f"  {suggest('chats approve', f'{named} --always')}",
                    f"    stores: {stored}",
                ]
            return [*lines, f"  {suggest('chats deny', f'{named} --reason TEXT')}"]
        case "question":
            answers = " ".join(["TEXT"] * max(len(questions_of(ask.args)), 1))
            return [
                f"  {suggest('chats answer', f'{named} {answers}')}",
                f"  {suggest('chats deny', named)}",
            ]
        case _:
            return []


def _approval_lines(ask: Ask) -> list[str]:
    told = describe_call(ask.call, ask.args)
    lines = [told.title]
    for block in told.blocks:
        lines += _block_lines(block.name, exact_text(block.text))
    for name, text in told.facts:
        head, *rest = exact_text(text).split("\n")
        lines += [f"  {name}: {head}", *(f"  | {line}" for line in rest)]
    return [*lines, *(f"  Attention: {text}" for text in told.warnings)]


def _block_lines(name: str, text: str) -> list[str]:
    """Each line of the text with the same mark before it, so that none looks like ours."""
    first = f"  | {name}: " if name else "  | "
    head, *rest = text.split("\n")
    return [f"{first}{head}", *(f"  | {line}" for line in rest)]


def _question_lines(ask: Ask) -> list[str]:
    lines: list[str] = []
    questions = questions_of(ask.args)
    for number, question in enumerate(questions, 1):
        mark = f"{number}. " if len(questions) > 1 else ""
        lines.append(f"{mark}{safe_text(question.question)}")
        for place, one in enumerate(question.options, 1):
            told = f"{one.label}: {one.description}" if one.description else one.label
            lines.append(f"  {place}. {safe_line(told, MAX_LINE)}")
    return lines


# What a run prints on standard error: one line for each thing that happened, each once

CALL_MARK: Final = "→"
MAX_NOTICE: Final = 400


class ProgressLines:
    def __init__(self, sent: SentMessage, *, tells_messages: bool = True) -> None:
        self._sent = sent
        self._tells_messages = tells_messages
        self._told_up_to = 0
        self._retry: RetryState | None = None
        self._waits_for = ""
        self._takeover: TakeoverPayload | None = None
        self._queue_place: int | None = None
        self._is_first = True

    def lines(self, shown: ShownChat) -> list[str]:
        """What is new since the last call."""
        if not shown.is_loaded:
            return []
        if self._is_first:
            # A takeover of an earlier turn stays in the state.
            self._is_first, self._takeover = False, shown.takeover
        messages = self._message_lines(shown) if self._tells_messages else ()
        return [*self._queue_lines(shown), *messages, *self._event_lines(shown)]

    def _queue_lines(self, shown: ShownChat) -> Iterator[str]:
        ids = (at for at, one in enumerate(shown.queue) if one.id == self._sent.queue_id)
        place = next(ids, None)
        if place is not None and place != self._queue_place:
            before = "next" if place == 0 else f"behind {place} other{'s' if place > 1 else ''}"
            yield f"The chat is busy; the message waits in its queue, {before}."
        self._queue_place = place

    def _message_lines(self, shown: ShownChat) -> Iterator[str]:
        for message in turn_messages(shown, self._sent)[1:]:
            if message.id > self._told_up_to:
                self._told_up_to = message.id
                yield from message_lines(message)

    def _event_lines(self, shown: ShownChat) -> Iterator[str]:
        if shown.retry is not None and shown.retry != self._retry:
            yield retry_line(shown.retry)
        self._retry = shown.retry
        if shown.waits_for and shown.waits_for != self._waits_for:
            yield waits_line(shown.waits_for)
        self._waits_for = shown.waits_for
        if shown.takeover is not None and shown.takeover != self._takeover:
            yield "The worker of this chat died; another one took it over."
        self._takeover = shown.takeover


def message_lines(message: PublicMessage) -> list[str]:
    """Of a step: its calls with what was said before them, and results that failed. The text of an
    answer without calls is the result of the run, so it is not told here."""
    calls = [part for part in message.content if isinstance(part, ToolCallPart)]
    lines = [f"{CALL_MARK} {call_line(call.tool_name, call.args, MAX_LINE)}" for call in calls]
    if calls and (said := text_of(message).strip()):
        lines.insert(0, safe_line(said, MAX_LINE))
    notices = (part.text for part in message.content if isinstance(part, NoticePart))
    lines += [safe_line(text, MAX_NOTICE) for text in notices]
    results = (part for part in message.content if isinstance(part, ToolResultPart))
    return [*lines, *(line for result in results if (line := result_line(result)))]


def result_line(result: ToolResultPart) -> str:
    found = read_object(result.result)
    name = safe_line(result.tool_name, 40)
    if result.is_error:
        said = next((found[key] for key in ("error", "message", "output") if found.get(key)), "")
        return "  " + safe_line(f"{name} failed: {said}".removesuffix(": "), MAX_LINE)
    code = found.get("exit_code")
    return f"  {name} exited with {code}" if isinstance(code, int) and code != 0 else ""


def retry_line(retry: RetryState) -> str:
    said = safe_line(retry.error, MAX_LINE)
    return f"{said} Trying again in {retry.delay_ms / 1000:.0f} s (failed {retry.attempt}x)."


def waits_line(text: str) -> str:
    return f"{safe_line(text, MAX_LINE)} The chat goes on by itself."


def activity(shown: ShownChat) -> str:
    """What happens right now, for a line of a terminal that is written again and again."""
    live = shown.live
    last = live.parts[-1] if live is not None and live.parts else None
    match last:
        case ReasoningPart():
            return "Thinking…"
        case TextPart(text=text):
            return f"Writing… {len(text.split())} words"
        case ToolCallPart(tool_name=name):
            return f"Calling {safe_line(name, 40)}…"
        case ToolResultPart(tool_name=name):
            return f"Running {safe_line(name, 40)}…"
        case _:
            return "" if shown.status not in ("pending", "running") else "Working…"


# JSON lines, for `--format stream-json` and `chatd chats tail`: the types of lines are those of the
# API's events; `delta` is text of the answer that is being written

Line = dict[str, object]


class EventLines:
    """`after`: messages up to this id are known and not told."""

    def __init__(self, after: int = 0, *, deltas: bool = True) -> None:
        self._after = after
        self._deltas = deltas
        self._was: ShownChat | None = None
        self._messages: dict[MessageId, PublicMessage] = {}
        self._episode: LiveEpisode | None = None
        self._told_chars: dict[int, int] = {}

    def lines(self, shown: ShownChat) -> list[Line]:
        if not shown.is_loaded:
            return []
        found = [*self._message_lines(shown), *self._state_lines(shown), *self._live_lines(shown)]
        self._was = shown
        return [{"type": line.pop("type"), "chat_id": str(shown.chat_id), **line} for line in found]

    def _message_lines(self, shown: ShownChat) -> Iterator[Line]:
        now = {one.id: one for one in shown.messages if one.id > self._after}
        # Messages below the oldest shown one are not gone: they are on an older page.
        oldest = shown.messages[0].id if shown.messages and shown.has_older else 0
        if gone := [key for key in self._messages if key not in now and key >= oldest]:
            yield {"type": "messages_deleted", "ids": gone}
        for key, message in now.items():
            if self._messages.get(key) != message:
                yield {"type": "message", "message": _raw(message)}
        self._messages = now

    def _state_lines(self, shown: ShownChat) -> Iterator[Line]:
        was = self._was
        waiting = shown.waiting_calls
        if was is None or (was.status, was.waiting_calls) != (shown.status, waiting):
            calls = {"waiting_calls": _raw(waiting)} if waiting else {}
            yield {"type": "status", "status": shown.status, **calls}
        if shown.queue != (() if was is None else was.queue):
            yield {"type": "queue_update", "queued_messages": _raw(shown.queue)}
        for name in ("retry", "error", "takeover"):
            value: object = getattr(shown, name)
            if value is not None and (was is None or getattr(was, name) != value):
                yield {"type": name, name: _raw(value)}
        if shown.requested_calls and (was is None or was.requested_calls != shown.requested_calls):
            calls = _raw(shown.requested_calls)
            yield {"type": "action_required", "tool_calls": calls}

    def _live_lines(self, shown: ShownChat) -> Iterator[Line]:
        """Text since the last line. An answer that is begun again begins with `preview_reset`."""
        live = shown.live
        if not self._deltas or live is None:
            return
        if live.episode != self._episode:
            if self._told_chars:
                yield {"type": "preview_reset"}
            self._episode, self._told_chars = live.episode, {}
        for at, part in enumerate(live.parts):
            if not isinstance(part, TextPart | ReasoningPart):
                continue
            told = self._told_chars.get(at, 0)
            if len(part.text) > told:
                kind = "text" if isinstance(part, TextPart) else "reasoning"
                yield {"type": "delta", "kind": kind, "text": part.text[told:]}
                self._told_chars[at] = len(part.text)


def _raw(value: object) -> Raw:
    """Also of values that have raw JSON of tools in them."""
    return Raw(msgspec.json.encode(value))


# Rows of the list, one chat with its facts, and messages as a transcript

LIST_HEADINGS: Final = ("ID", "STATUS", "CHANGED", "TITLE")
_NAMES: Final = {"user": "you", "assistant": "model", "tool": "tools", "system": "chatd"}


def list_row(chat: ListedChat, now: datetime) -> tuple[str, str, str, str]:
    count = len(chat.children)
    marks = [
        "pinned" if chat.pin_order else "",
        f"of {chat.owner_username}" if chat.is_owner is False and chat.owner_username else "",
        f"{count} subagent{'s' if count > 1 else ''}" if count else "",
    ]
    told = ", ".join(mark for mark in marks if mark)
    title = f"{chat.title} ({told})" if told else chat.title
    child = next((one for one in chat.children if one.status == "requires_action"), None)
    if chat.action_summary:
        title = f"{title} — {chat.action_summary}"
    elif child is not None:
        title = f"{title} — its subagent {child.id} waits: {child.action_summary or ''}"
    elif chat.match is not None:
        title = f"{title} — {chat.match.text}"
    return str(chat.id), chat.status, short_time(chat.updated_at, now), title


def chat_lines(chat: Chat, models: Mapping[ModelConfigId, str], now: datetime) -> list[str]:
    """The facts of a chat, one per line."""
    model = "" if chat.last_model_config_id is None else models.get(chat.last_model_config_id, "")
    error = chat.last_error
    fields = {
        "id": str(chat.id),
        "title": chat.title,
        "status": chat.status,
        "needs": chat.action_summary or "",
        "error": "" if error is None else error.message,
        "owner": chat.owner_username or "",
        "model": f"{model} {chat.reasoning_effort or ''}".strip(),
        "mode": chat.mode or "",
        "labels": ", ".join(f"{key}={value}" for key, value in chat.labels.items()),
        "workspace": str(chat.workspace_id or ""),
        "queue": "" if not chat.queue_len else f"{chat.queue_len} messages",
        "budget": "" if chat.max_cost_micros is None else dollars(chat.max_cost_micros),
        "parent": str(chat.parent_chat_id or ""),
        "created": short_time(chat.created_at, now),
        "changed": short_time(chat.updated_at, now),
    }
    return field_lines(fields)


def transcript_lines(messages: Sequence[PublicMessage]) -> list[str]:
    """Each message below a line with its number and its author. Results of tools are told only if
    they failed; the model's reasoning is left out."""
    lines: list[str] = []
    for message in messages:
        if told := message_text(message):
            lines += ["", f"[{message.id}] {_NAMES.get(message.role, message.role)}", *told]
    return lines[1:]


def message_text(message: PublicMessage) -> list[str]:
    lines: list[str] = []
    for part in message.content:
        match part:
            case TextPart(text=text):
                lines += text.strip("\n").split("\n")
            case ToolCallPart():
                lines.append(f"{CALL_MARK} {call_line(part.tool_name, part.args)}")
                if part.cut:
                    lines.append(safe_line(f"  (cut off: {part.args_text or ''}", 160) + ")")
            case ToolResultPart():
                lines += [result_line(part)] if result_line(part) else []
            case FilePart():
                named = part.name or part.media_type
                lines.append(safe_line(f"(file {named}, {part.file_id or 'inline'})", 200))
            case CommandPart(command=command):
                lines += f"! {command}".split("\n")
            case FileReferencePart():
                place = f"{part.file_name}:{part.start_line}-{part.end_line}"
                lines += [safe_line(f"({place})", 200), *part.content.split("\n")]
            case NoticePart(code="imported_prompt", text=text):
                lines += f"(notice: {text})".split("\n")  # in full: the model gets all of it
            case NoticePart():
                lines.append(safe_line(f"(notice: {part.text})", 400))
            case SourcePart():
                lines.append(safe_line(f"(source {part.title or ''} {part.url})", 200))
            case _:
                pass
    return lines
