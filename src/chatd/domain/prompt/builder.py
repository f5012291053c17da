"""Builds the messages of a model request from history, and appends instructions that have changed.

Owns the order of the steps (convert, pair calls, apply strict rules), not tools, options or the
wire. Inputs are never modified.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from chatd.domain.answer.assembler import EMPTY_OBJECT
from chatd.domain.chat.messages import Draft, Message
from chatd.domain.chat.parts import (
    CONTENT_VERSION,
    CommandPart,
    ContextFilePart,
    FilePart,
    FileReferencePart,
    InstructionPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.person_commands import is_persons_call
from chatd.domain.chat.row import Chat
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import MessageId, ModelConfigId, ToolCallId
from chatd.domain.model.protocol import (
    KeptWire,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
    WireForm,
)
from chatd.domain.prompt.compaction import rows_for_prompt
from chatd.domain.prompt.instructions import (
    BEGINNING,
    Instructions,
    context_block,
    reference_text,
    update_block,
)
from chatd.domain.prompt.kept_rows import (
    ClearedResults,
    drop_screenshot,
    find_cleared,
    find_old_screenshots,
    shorten_result,
)
from chatd.domain.prompt.prompt_files import (
    AcceptsMediaType,
    ResolvedFile,
    base_media_type,
    convert_file,
)
from chatd.domain.prompt.provider_content import drop_unpaired, strip_provider_content
from chatd.domain.prompt.repair import (
    CONTINUE_MESSAGE,
    begin_with_user,
    join_answers,
    join_consecutive,
    pair_calls_with_results,
    rename_call_ids,
)
from chatd.domain.text import (
    Json,
    is_empty_json,
    model_json,
    model_text,
    parse_json,
    replace_surrogates,
)

UNKNOWN_TOOL: Final = "unknown"
_LONG_FIELDS: Final = ("text", "args", "result", "data", "content", "context_file_content")
_ROW_CHARS: Final = 64
CHANGED_ARGS_TEXT: Final = "[A hook of the server changed the arguments before the call ran:]"
PERSON_COMMAND_TEXT: Final = "[The user ran this command in the workspace, without you:]"
PERSON_REPORT_TEXT: Final = "[The report of the command that the user ran:]"
MEDIA_UNAVAILABLE_TEXT: Final = "[The tool returned a file that cannot be read.]"

Origins = Mapping[ModelConfigId, str]
"""Which provider serves or has served each configured model."""


class PromptTarget(Struct, frozen=True, kw_only=True):
    """The provider that will read the prompt, and what building it needs.

    `strict_tools`: the provider rejects a prompt in which a provider-executed call and its result
    are not properly paired. `accepts` tells which media types it takes as files; None: unknown.
    """

    provider: str
    origins: Origins | None = None
    files: Mapping[str, ResolvedFile] = {}
    accepts: AcceptsMediaType | None = None
    strict_tools: bool = False


class LeftOut(Struct, frozen=True, kw_only=True):
    """Tool results that the prompt shortens or leaves out."""

    cleared: ClearedResults
    screenshots: frozenset[ToolCallId]


def is_history_larger(history: Iterable[Message], chars: int) -> bool:
    """Whether texts, arguments, results and files exceed `chars`. Stops counting there."""
    for row in history:
        chars -= row_chars(row)
        if chars < 0:
            return True
    return False


def row_chars(row: Message) -> int:
    """The approximate length of the content."""
    size = 0
    for part in row.content:
        if type(part) is TextPart:
            size += _ROW_CHARS + len(part.text)
            continue
        size += _ROW_CHARS + sum(
            memoryview(value).nbytes if isinstance(value, Raw) else len(value)
            for name in _LONG_FIELDS
            if isinstance(value := getattr(part, name, None), str | Raw)
        )
    return size


def list_file_ids(history: Sequence[Message]) -> list[str]:
    """Ids of all files that the prompt needs, so that one read can load them."""
    rows = [row for row in rows_for_prompt(history) if row.role == "user"]
    ids = (p.file_id for row in rows for p in row.content if isinstance(p, FilePart))
    return list(dict.fromkeys(file_id for file_id in ids if file_id is not None))


class _SettledPrompt(Struct, kw_only=True):
    """The prompt of the first `row_count` rows. `answered` and `used` are the ids of its calls,
    which later rows need. `forms` is its encoded form."""

    kind: object = None
    system: list[str] = []
    messages: list[PromptMessage] = []
    row_count: int = 0
    ends: tuple[Message, Message] | None = None
    answered: set[ToolCallId] = set()
    used: set[str] = set()
    forms: dict[object, WireForm] = {}

    def is_start_of(self, rows: Sequence[Message]) -> bool:
        """History only grows, so comparing both ends is enough."""
        if self.ends is None or len(rows) < self.row_count:
            return self.ends is None
        first, last = self.ends
        return rows[0] is first and rows[self.row_count - 1] is last


class KeptPrompt:
    """The beginning of a chat's prompt, kept from one step to the next. It ends before an answer,
    so later rows cannot change it. Not safe for two threads at a time.

    For a history without files and provider-executed calls. It is rebuilt for another provider,
    other system messages, a compaction, and shortened results.
    """

    def __init__(self) -> None:
        self._settled = _SettledPrompt()

    @property
    def wire(self) -> KeptWire:
        return KeptWire(count=len(self._settled.messages), forms=self._settled.forms)

    def build(
        self,
        system: list[str],
        rows: Sequence[Message],
        target: PromptTarget,
        left_out: LeftOut,
    ) -> tuple[PromptMessage, ...] | None:
        """None if the prompt must be built as a whole."""
        kind = (target.provider, target.strict_tools, target.origins, left_out)
        known = self._settled
        if (known.kind, known.system) != (kind, system) or not known.is_start_of(rows):
            known = self._settled = _SettledPrompt(kind=kind, system=system)
        new = rows[known.row_count :]
        if any(_has_unkept_part(row) for row in new):
            self._settled = _SettledPrompt()
            return None
        middle, count, end = _split_before_answer(new, target, left_out)
        is_first = known.row_count == 0
        if middle:
            settled = _repair(middle, known.answered, known.used)
            if is_first:
                front = [_system_message(text) for text in system]
                settled = [*front, *begin_with_user(settled)]
                is_first = False
            known.messages += settled
            known.row_count += count
            known.ends = (rows[0], rows[known.row_count - 1])
        last = _repair(end, set(known.answered), set(known.used))
        if is_first:
            last = [*(_system_message(text) for text in system), *begin_with_user(last)]
        whole = (*known.messages, *last)
        return (*whole, CONTINUE_MESSAGE) if whole[-1].role == "assistant" else whole


def _repair(
    converted: Sequence[PromptMessage], answered: set[ToolCallId], used: set[str]
) -> list[PromptMessage]:
    return rename_call_ids(join_answers(pair_calls_with_results(converted, answered)), used)


def _has_unkept_part(row: Message) -> bool:
    for part in row.content:
        match part:
            case FilePart() | ToolCallPart(provider_executed=True):
                return True
            case ToolResultPart() if part.is_media or part.provider_executed:
                return True
            case _:
                pass
    return False


def _split_before_answer(
    rows: Sequence[Message], target: PromptTarget, left_out: LeftOut
) -> tuple[list[PromptMessage], int, list[PromptMessage]]:
    """The messages of the rows before the last answer, if nothing that follows can change them,
    their number of rows, and the messages of the other rows."""
    for place in range(len(rows) - 1, 0, -1):
        if rows[place].role != "assistant" or rows[place - 1].role == "assistant":
            continue
        before = _convert_rows(rows[:place], target, left_out)
        after = _convert_rows(rows[place:], target, left_out)
        ordered = pair_calls_with_results(before, set())
        if (
            ordered
            and before[-1].role != "assistant"
            and ordered[-1].role != "assistant"
            and _message(rows[place], target, left_out).parts
        ):
            return before, place, after
        break
    return [], 0, _convert_rows(rows, target, left_out)


def _system_message(text: str) -> PromptMessage:
    return PromptMessage(role="system", parts=(PromptText(text=text),))


def build_prompt(
    history: Sequence[Message], target: PromptTarget, kept: KeptPrompt | None = None
) -> tuple[PromptMessage, ...]:
    """System messages, then messages that start with the user's and end with the user's or with
    tool results. `kept` is of the chat's last prompt, and becomes that of this one."""
    rows = rows_for_prompt(history)
    system = [text for row in rows if row.role == "system" for text in _system_texts(row)]
    others = [row for row in rows if row.role != "system"]
    left_out = LeftOut(cleared=find_cleared(history), screenshots=find_old_screenshots(others))
    if kept is not None and others:
        prompt = kept.build(system, others, target, left_out)
        if prompt is not None:
            return prompt
    messages = _convert_rows(others, target, left_out)
    ordered = pair_calls_with_results(messages)
    resumes = (
        target.strict_tools
        and is_paused(rows)
        and bool(ordered)
        and _has_provider_call(ordered[-1])
    )
    if target.strict_tools:
        ordered = drop_unpaired(ordered, last_is_paused=resumes)
    front = [_system_message(text) for text in system]
    return (*front, *rename_call_ids(join_consecutive(ordered, may_end_with_answer=resumes)))


def is_paused(history: Sequence[Message]) -> bool:
    """Whether the provider paused the newest answer, and nothing follows it."""
    last = next((row for row in reversed(history) if row.visibility != "user"), None)
    return last is not None and last.role == "assistant" and last.finish_reason == "pause"


def _has_provider_call(message: PromptMessage) -> bool:
    """The provider recognizes an answer to be continued by such a call."""
    calls = (part for part in message.parts if isinstance(part, PromptCall))
    return message.role == "assistant" and any(call.provider_executed for call in calls)


def _convert_rows(
    rows: Sequence[Message], target: PromptTarget, left_out: LeftOut
) -> list[PromptMessage]:
    """A paused answer and its continuation are one message: a call of the one may have its result
    in the other."""
    out: list[PromptMessage] = []
    resumes = False
    for row in rows:
        message = _message(row, target, left_out)
        if message.parts and resumes and row.role == "assistant":
            parts = (*out.pop().parts, *message.parts)
            out.append(PromptMessage(role="assistant", parts=parts))
        elif message.parts:
            out.append(message)
        else:
            continue
        resumes = row.role == "assistant" and row.finish_reason == "pause"
    return out


def _system_texts(row: Message) -> list[str]:
    _check_version(row)
    told = [part for part in row.content if isinstance(part, InstructionPart)]
    if told:
        return [text for part in told if (text := model_text(part.text)).strip()]
    parts = [convert_text(part) for part in row.content if isinstance(part, TextPart)]
    return ["\n\n".join(part.text for part in parts if part is not None)] if any(parts) else []


def _check_version(row: Message) -> None:
    if row.content_version != CONTENT_VERSION:
        raise InvariantBroken(
            f"Message {row.id} has content version {row.content_version},"
            " which this version of chatd cannot read."
        )


def _message(row: Message, target: PromptTarget, left_out: LeftOut) -> PromptMessage:
    _check_version(row)
    match row.role:
        case "user":
            parts = _user_parts(row.content, target)
        case "assistant":
            content = row.content
            if is_from_other_provider(row, target.provider, target.origins):
                content = strip_provider_content(content)
            parts = _assistant_parts(content)
        case _:
            results = [part for part in row.content if isinstance(part, ToolResultPart)]
            parts = [_tool_result(row.id, part, target, left_out) for part in results]
    if row.role == "assistant" and row.content and all(map(_is_persons, row.content)):
        return PromptMessage(role="user", parts=())
    if row.role == "tool" and row.content and all(map(_is_persons, row.content)):
        texts = (part.text for part in parts if isinstance(part, PromptResult))
        told = tuple(PromptText(text=f"{PERSON_REPORT_TEXT}\n{text}") for text in texts)
        return PromptMessage(role="user", parts=told)
    return PromptMessage(role=row.role, parts=tuple(parts))


def _is_persons(part: Part) -> bool:
    """Whether it belongs to a command that a person ran, which the model reads as the user's words:
    no vendor takes a call that its model did not make in place of a signed answer."""
    return isinstance(part, ToolCallPart | ToolResultPart) and is_persons_call(part.tool_call_id)


def _tool_result(
    row_id: MessageId, part: ToolResultPart, target: PromptTarget, left_out: LeftOut
) -> PromptResult:
    result = convert_result(part)
    if left_out.cleared.covers(row_id, part):
        return shorten_result(result, left_out.cleared.kept_chars)
    if part.tool_call_id in left_out.screenshots and result.media is not None:
        return drop_screenshot(result)
    return _fit_media(result, target)


def is_from_other_provider(row: Message, provider: str, origins: Origins | None) -> bool:
    """Compares provider instances, not kinds: two accounts at one vendor cannot read each other's
    encrypted data. An answer without a model counts as another provider's. Without `origins`, all
    answers count as this provider's."""
    if origins is None or row.role != "assistant":
        return False
    return row.model_config_id is None or origins.get(row.model_config_id) != provider


def _user_parts(content: Sequence[Part], target: PromptTarget) -> list[PromptPart]:
    files = [part for part in content if isinstance(part, ContextFilePart)]
    told = [part for part in content if isinstance(part, InstructionPart)]
    parts: list[PromptPart | None] = []
    for part in content:
        match part:
            case TextPart():
                parts.append(convert_text(part))
            case FilePart():
                parts.append(convert_file(part, target.files, target.accepts))
            case FileReferencePart():
                parts.append(PromptText(text=reference_text(part)))
            case CommandPart(command=command):
                parts.append(PromptText(text=f"{PERSON_COMMAND_TEXT}\n{model_text(command)}"))
            case ContextFilePart() if part is files[0]:
                block = context_block(files)
                parts.append(None if block is None else PromptText(text=block))
            case InstructionPart() if part is told[0]:
                parts.append(PromptText(text=model_text(update_block(told))))
            case ToolResultPart():
                parts.append(_fit_media(convert_result(part), target))
            case _:
                pass
    return [part for part in parts if part is not None]


def _fit_media(result: PromptResult, target: PromptTarget) -> PromptResult:
    """A model that does not take images is told that the tool returned one."""
    media = result.media
    if media is None or target.accepts is None:
        return result
    kind = base_media_type(media.media_type)
    if not kind.startswith("image/") or target.accepts(kind):
        return result
    note = f"[The tool returned a file of type {kind}, which this model does not take.]"
    text = f"{result.text}\n{note}" if result.text else note
    return replace(result, text=model_text(text), media=None)


def _assistant_parts(content: Sequence[Part]) -> list[PromptPart]:
    """Files in an answer are for viewers only and are not sent back to the model."""
    parts: list[PromptPart | None] = []
    for part in content:
        match part:
            case TextPart():
                parts.append(convert_text(part))
            case ReasoningPart():
                parts.append(convert_reasoning(part))
            case ToolCallPart():
                parts.append(convert_call(part))
            case ToolResultPart():
                parts.append(convert_result(part))
            case _:
                pass
    return [part for part in parts if part is not None]


def convert_text(part: TextPart) -> PromptText | None:
    text = model_text(part.text)
    return PromptText(text=text, provider_metadata=part.provider_metadata) if text.strip() else None


def convert_reasoning(part: ReasoningPart) -> PromptReasoning | None:
    """Signed or encrypted reasoning is sent back unchanged, even without text."""
    if not is_empty_json(part.provider_metadata):
        return PromptReasoning(
            text=replace_surrogates(part.text), provider_metadata=part.provider_metadata
        )
    text = model_text(part.text)
    return PromptReasoning(text=text) if text.strip() else None


def convert_call(part: ToolCallPart) -> PromptCall:
    args = model_json(part.args)
    valid = args if args is not UNSET and isinstance(parse_json(args), dict) else EMPTY_OBJECT
    return PromptCall(
        id=part.tool_call_id,
        name=_name(part.tool_name),
        input=valid,
        provider_executed=part.provider_executed,
        provider_metadata=part.provider_metadata,
    )


def convert_result(part: ToolResultPart) -> PromptResult:
    """`is_error` takes precedence over `is_media`. Unreadable media become a text."""
    raw = _json_or_empty(part.result)
    value = parse_json(raw)
    media: PromptFile | None = None
    if part.is_error:
        text = _field(value, "error") or _plain(raw)
    elif part.is_media:
        media = _media(value)
        text = _field(value, "text") or ("" if media is not None else MEDIA_UNAVAILABLE_TEXT)
    else:
        # Plain text was wrapped as JSON to be stored; the model reads it without the escapes.
        text = _wrapped_text(value) or _plain(raw)
    if part.changed_args is not UNSET:
        text = f"{CHANGED_ARGS_TEXT} {_plain(_json_or_empty(part.changed_args))}\n{text}"
    return PromptResult(
        id=part.tool_call_id,
        name=_name(part.tool_name),
        text=model_text(text),
        is_error=part.is_error,
        media=media,
        provider_executed=part.provider_executed,
        raw=raw if part.provider_executed else UNSET,
        provider_metadata=part.provider_metadata,
    )


def _name(name: str) -> str:
    return name if name.strip() else UNKNOWN_TOOL


def _json_or_empty(result: Json) -> Raw:
    raw = model_json(result)
    return EMPTY_OBJECT if raw is UNSET or is_empty_json(raw) else raw


def _plain(raw: Raw) -> str:
    return bytes(raw).decode("utf-8", "replace")


def _wrapped_text(value: object) -> str | None:
    fields = _fields(value)
    text = value if isinstance(value, str) else fields.get("output") if len(fields) == 1 else None
    return text if isinstance(text, str) and text.strip() else None


def _media(value: object) -> PromptFile | None:
    data, kind = _field(value, "data"), _field(value, "mime_type")
    if data is None or kind is None:
        return None
    try:
        content = b64decode(data, validate=True)
    except (NotBase64, ValueError):
        return None
    return PromptFile(media_type=kind, data=content) if content else None


def _field(value: object, name: str) -> str | None:
    found = _fields(value).get(name)
    return found if isinstance(found, str) and found.strip() else None


def _fields(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


# Instruction updates: a chat's instructions as rows of its history, appended when they change.
#
# A request must begin with the bytes of the one before it: the provider's prompt cache depends on
# it, and newer models drop their reasoning otherwise. So instructions that the model has been given
# are never rewritten. The first update is part of the system prompt; later ones are messages that
# only the model sees. An update is committed with the answer that it preceded.


def next_update(history: Sequence[Message], instructions: Instructions) -> Draft | None:
    """What the next model call must be told in addition to the history; None: nothing is new.

    A summary hides earlier updates, except the first one: the next update repeats what is not
    in the system prompt. An imported chat has answers and was told nothing: it gets everything.
    """
    rows = rows_for_prompt(history)
    told = _told_sections(rows)
    is_first = not told and not any(row.role == "assistant" for row in rows)
    changed = tuple(
        InstructionPart(section=section, text=text)
        for section, text in instructions.sections()
        if text != told.get(section, "") and (not told or section != BEGINNING)
    )
    if not changed:
        return None
    role = "system" if is_first else "user"
    return Draft(role=role, content=changed, visibility="model")


def _told_sections(rows: Iterable[Message]) -> dict[str, str]:
    """The newest text of each section."""
    return {part.section: part.text for row in rows for part in _parts(row)}


def _parts(row: Message) -> Iterable[InstructionPart]:
    return (part for part in row.content if isinstance(part, InstructionPart))


class PendingUpdate(Struct, frozen=True, kw_only=True):
    """A message that the chat's next commit will store before its answer, and its row as stored.
    `place` counts these from 0."""

    draft: Draft
    row: Message

    @staticmethod
    def of(draft: Draft, chat: Chat, place: int = 0) -> "PendingUpdate":
        row = Message(
            id=MessageId(chat.next_message_id + place),
            revision=chat.snapshot_version + 1,
            created_at=chat.updated_at,
            role=draft.role,
            content=draft.content,
            visibility=draft.visibility,
        )
        return PendingUpdate(draft=draft, row=row)
