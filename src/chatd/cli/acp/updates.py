"""What an editor is told of a chat: session updates of the Agent Client Protocol. Pure.

The editor appends what it is told, so everything is told once: of a text only what is new, of a
committed answer only what its live parts lacked.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct, UnsetType

from chatd.client.state import ShownChat
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import (
    SUMMARY_TOOL_NAME,
    CommandPart,
    FilePart,
    FileReferencePart,
    KnownPart,
    NoticePart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.text import Json, clip

Update = dict[str, Any]
TextKind = Literal["agent_message_chunk", "agent_thought_chunk"]

MAX_OUTPUT_CHARS: Final = 20_000
"""Of a result that an editor is sent; the chat has all of it."""
MAX_TITLE_CHARS: Final = 120
MAX_PLAN_ENTRIES: Final = 100
REPLACED_TEXT: Final = "\n\n(The model began its answer anew.)\n\n"
PLAN_TOOL: Final = "propose_plan"

_KINDS: Final[Mapping[str, str]] = {
    "read_file": "read",
    "read_files": "read",
    "list_files": "read",
    "write_file": "edit",
    "edit_files": "edit",
    "execute": "execute",
    "process_output": "execute",
    "search_files": "search",
    "web_search": "fetch",
    PLAN_TOOL: "switch_mode",
    "spawn_agent": "think",
    "wait_agent": "think",
}


class _Said(Struct, frozen=True):
    kind: TextKind
    text: str


class Presenter:
    """Remembers what the editor was told of one chat. Messages up to `after` are known to it."""

    def __init__(self, after: int = 0) -> None:
        self._last_id = after
        self._said: list[_Said] = []
        self._calls: dict[str, str] = {}
        self._live_calls: list[str] = []
        self._renamed: dict[str, str] = {}
        self._own: set[int] = set()
        self._own_next = 0
        self.plans: list[str] = []
        """Files of plans that were proposed since the last look."""

    def skip_prompt(self, message_id: int) -> None:
        """The editor shows its own prompts itself."""
        self._own.add(message_id)

    def skip_next_prompt(self) -> None:
        """The same for a prompt of which the id is not known yet."""
        self._own_next += 1

    def _is_own(self, message: PublicMessage) -> bool:
        if message.id in self._own:
            return True
        self._own_next -= 1
        return self._own_next >= 0

    def call_id(self, call_id: str) -> str:
        """The id under which the editor knows the call: a commit may change that of a live one."""
        return self._renamed.get(call_id, call_id)

    def advance(self, shown: ShownChat) -> list[Update]:
        found: list[Update] = []
        for message in shown.messages:
            if message.id <= self._last_id:
                continue
            self._last_id = message.id
            match message.role:
                case "assistant":
                    found += self._tell_answer(message.content, is_done=True)
                    self._said, self._live_calls = [], []
                case "user":
                    if not self._is_own(message):
                        self._own_next = 0
                        found += [_chunk("user_message_chunk", text) for text in _texts(message)]
                case "tool":
                    for part in message.content:
                        if isinstance(part, ToolResultPart):
                            found += self._tell_result(part)
                case _:
                    found += [
                        _chunk("agent_thought_chunk", f"{part.text}\n")
                        for part in message.content
                        if isinstance(part, NoticePart)
                    ]
        if shown.live is not None:
            found += self._tell_answer(shown.live.parts, is_done=False)
        return found

    def _tell_answer(self, parts: Iterable[KnownPart], *, is_done: bool) -> list[Update]:
        found: list[Update] = []
        texts = calls = 0
        last: TextKind | None = None
        joined = ""
        for part in parts:
            match part:
                case TextPart() | ReasoningPart() if part.text:
                    kind: TextKind = (
                        "agent_message_chunk"
                        if isinstance(part, TextPart)
                        else "agent_thought_chunk"
                    )
                    if kind == last:
                        joined += part.text
                        texts -= 1
                    else:
                        joined = part.text
                    found += self._tell_text(texts, _Said(kind, joined), is_done=is_done)
                    texts, last = texts + 1, kind
                case ToolCallPart():
                    if is_done and calls < len(self._live_calls):
                        self._renamed[part.tool_call_id] = self._live_calls[calls]
                    elif calls >= len(self._live_calls):
                        self._live_calls.append(part.tool_call_id)
                    calls += 1
                    found += self._tell_call(part)
                    last = None
                case ToolResultPart():
                    if is_done or part.result_delta is None:
                        found += self._tell_result(part)
                case _:
                    pass
        return found

    def _tell_text(self, place: int, said: _Said, *, is_done: bool) -> list[Update]:
        if place >= len(self._said):
            self._said.append(said)
            return [_chunk(said.kind, said.text)]
        known = self._said[place]
        if said.kind == known.kind and said.text.startswith(known.text):
            self._said[place] = said
            new = said.text[len(known.text) :]
            return [_chunk(said.kind, new)] if new else []
        if said.kind == known.kind and known.text.startswith(said.text) and not is_done:
            return []  # Another worker says the same again, and is not as far yet.
        if known.text.strip() == said.text.strip():
            return []
        self._said[place:] = [said]
        return [_chunk(said.kind, REPLACED_TEXT + said.text)]

    def _tell_call(self, part: ToolCallPart) -> list[Update]:
        if part.tool_name == SUMMARY_TOOL_NAME:
            return []
        is_whole, call_id = part.args_delta is None, self.call_id(part.tool_call_id)
        known = self._calls.get(call_id)
        if known is not None and (known != "pending" or not is_whole):
            return []
        status = "in_progress" if is_whole else "pending"
        self._calls[call_id] = status
        shown = call_fields(part.tool_name, part.args if is_whole else msgspec.UNSET)
        return [
            {
                "sessionUpdate": "tool_call" if known is None else "tool_call_update",
                "toolCallId": call_id,
                "status": status,
                **shown,
            }
        ]

    def _tell_result(self, part: ToolResultPart) -> list[Update]:
        call_id = self.call_id(part.tool_call_id)
        known = self._calls.get(call_id)
        if known in ("completed", "failed") or part.tool_name == SUMMARY_TOOL_NAME:
            return []
        status = "failed" if part.is_error else "completed"
        self._calls[call_id] = status
        text = result_text(part.result)
        if part.tool_name == PLAN_TOOL and (file_id := _arguments(part.result).get("file_id")):
            self.plans.append(str(file_id))
        update: Update = {
            "sessionUpdate": "tool_call_update",
            "toolCallId": call_id,
            "status": status,
        }
        if known is None:
            update |= {"sessionUpdate": "tool_call", "title": part.tool_name}
        if text and (part.is_error or part.tool_name not in ("edit_files", "write_file")):
            update["content"] = [_text_content(text)]
        return [update]


def _chunk(kind: str, text: str) -> Update:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def _text_content(text: str) -> Update:
    return {"type": "content", "content": {"type": "text", "text": text}}


def _texts(message: PublicMessage) -> list[str]:
    found: list[str] = []
    for part in message.content:
        match part:
            case TextPart():
                found.append(part.text)
            case CommandPart(command=command):
                found.append(f"! {command}")
            case FileReferencePart():
                found.append(f"{part.file_name}:{part.start_line}-{part.end_line}")
            case FilePart():
                found.append(f"[{part.name or part.media_type}]")
            case _:
                pass
    return found


# Tool calls


def call_fields(name: str, raw: Json) -> Update:
    """Title, kind, input, files and diffs of a call."""
    args = _arguments(raw)
    fields: Update = {"title": _title(name, args), "kind": _KINDS.get(name, "other")}
    if args:
        fields["rawInput"] = args
    diffs, paths = _changes(name, args)
    if diffs:
        fields["content"] = diffs
    if paths:
        fields["locations"] = paths
    return fields


def _arguments(raw: Json) -> dict[str, Any]:
    if isinstance(raw, UnsetType):
        return {}
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _title(name: str, args: Mapping[str, Any]) -> str:
    for key in ("command", "path", "query", "url", "title", "prompt"):
        value = args.get(key)
        if isinstance(value, str) and value.strip():
            text = " ".join(value.split())
            return clip(text if key == "command" else f"{name} {text}", MAX_TITLE_CHARS)
    return name


def _changes(name: str, args: Mapping[str, Any]) -> tuple[list[Update], list[Update]]:
    """Diffs and places of a call that reads or changes files."""
    path = args.get("path")
    if name == "write_file" and isinstance(path, str):
        new = args.get("content")
        text = new if isinstance(new, str) else ""
        return [{"type": "diff", "path": path, "oldText": None, "newText": text}], [_place(path)]
    if name == "edit_files":
        diffs: list[Update] = []
        places: list[Update] = []
        for file in _dicts(args.get("files")):
            where = file.get("path")
            if not isinstance(where, str):
                continue
            places.append(_place(where))
            for edit in _dicts(file.get("edits")):
                old, new = edit.get("old_text"), edit.get("new_text")
                if isinstance(old, str) and isinstance(new, str):
                    diffs.append({"type": "diff", "path": where, "oldText": old, "newText": new})
        return diffs, places
    if isinstance(path, str) and path.startswith("/"):
        offset = args.get("offset")
        return [], [_place(path, offset if isinstance(offset, int) else None)]
    return [], []


def _place(path: str, line: int | None = None) -> Update:
    return {"path": path} if line is None else {"path": path, "line": line}


def _dicts(value: object) -> list[dict[str, Any]]:
    items = cast("Sequence[object]", value) if isinstance(value, list) else ()
    return [cast("dict[str, Any]", one) for one in items if isinstance(one, dict)]


def result_text(raw: Json) -> str:
    """The output of a command, or the result as JSON."""
    if isinstance(raw, UnsetType):
        return ""
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return ""
    output = cast("dict[str, object]", value).get("output") if isinstance(value, dict) else value
    text = output if isinstance(output, str) else bytes(raw).decode(errors="replace")
    return clip(text, MAX_OUTPUT_CHARS)


def plan_update(plan: str) -> Update | None:
    """The steps of a plan that was proposed: the items of its lists."""
    steps = [
        line.lstrip()[2:].strip() if line.lstrip()[:2] in ("- ", "* ") else _numbered(line)
        for line in plan.splitlines()
    ]
    entries = [
        {"content": clip(step, 500), "priority": "medium", "status": "pending"}
        for step in steps
        if step
    ][:MAX_PLAN_ENTRIES]
    return {"sessionUpdate": "plan", "entries": entries} if entries else None


def _numbered(line: str) -> str:
    number, dot, rest = line.strip().partition(". ")
    return rest.strip() if dot and number.isdecimal() else ""
