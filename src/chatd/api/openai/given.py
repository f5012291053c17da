"""What a client gave: messages and items of both endpoints in one form, and a chat's history in the
same form, so that the two can be compared. Pure.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Literal, get_args
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.api.openai.protocol import (
    CallId,
    CompletionBody,
    Content,
    ContentPart,
    FileSource,
    FunctionSpec,
    ImageUrl,
    InputItem,
    Refused,
    RequestBody,
    ResponseBody,
    ToolIn,
    TurnId,
    read_call_id,
    read_conversation_id,
    read_response_id,
    unsupported,
)
from chatd.api.openai.turns import OutputItem, answer_text, asks, list_items
from chatd.api.schemas.chats import ClientTool
from chatd.domain.chat.messages import Draft, PublicMessage
from chatd.domain.chat.parts import (
    FilePart,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    validate_json,
)
from chatd.domain.ids import ChatId, FileId, MessageId, ToolCallId, UserId
from chatd.domain.model.protocol import Effort

CLIENT_TOOL_TIMEOUT_S: Final = 86_400.0
"""How long a chat waits for the output of a function."""
MAX_FILES: Final = 20
"""Images and files of one message."""
MAX_REQUEST_FILES: Final = 50
"""Of all messages of one request, which clients send again with each request: as many as a chat may
have. The same content counts once."""
MAX_TEXT_CHARS: Final = 4_000_000
"""Of all messages of one request together."""
MAX_MESSAGE_CHARS: Final = 1_000_000

Role = Literal["user", "assistant", "tool"]


class GivenFile(Struct, frozen=True, kw_only=True):
    """An uploaded file, or its bytes."""

    file_id: FileId | None = None
    data: bytes = b""
    media_type: str = ""
    name: str | None = None


class GivenCall(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    arguments: str


class GivenMessage(Struct, frozen=True, kw_only=True):
    """`call_id` is that of the call whose output this is."""

    role: Role
    text: str = ""
    files: tuple[GivenFile, ...] = ()
    calls: tuple[GivenCall, ...] = ()
    call_id: str = ""


class GivenApproval(Struct, frozen=True, kw_only=True):
    call: CallId
    approve: bool
    reason: str


class Asked(Struct, frozen=True, kw_only=True):
    """A request of either endpoint. `tools` of None: the request does not say."""

    model: str | None
    effort: Effort | None
    instructions: str | None
    tools: tuple[ClientTool, ...] | None
    messages: tuple[GivenMessage, ...]
    approvals: tuple[GivenApproval, ...] = ()
    previous: TurnId | None = None
    conversation: ChatId | None = None

    @property
    def outputs(self) -> tuple[GivenMessage, ...]:
        """The outputs of functions at the end."""
        count = 0
        while count < len(self.messages) and self.messages[-1 - count].role == "tool":
            count += 1
        return self.messages[len(self.messages) - count :]


def read_completion(body: CompletionBody) -> Asked:
    """Raises Refused."""
    if (body.n or 1) != 1:
        raise unsupported("n", "Only one choice is made for a request: leave n out.")
    _check_common(body, body.response_format and body.response_format.type, "response_format")
    reader = _Reader("messages")
    for index, item in enumerate(body.messages):
        reader.add_message(item, f"messages[{index}]")
    return Asked(
        model=body.model,
        effort=_effort(body.reasoning_effort, "reasoning_effort"),
        instructions=reader.instructions,
        tools=_tools(body.tools),
        messages=reader.finished(),
    )


def read_response(body: ResponseBody) -> Asked:
    """Raises Refused."""
    text = body.text and body.text.format
    _check_common(body, text.type if text else None, "text.format")
    if body.previous_response_id and body.conversation:
        raise Refused(
            "Give previous_response_id or conversation, not both.", param="previous_response_id"
        )
    reader = _Reader("input")
    given = body.input or ()
    items = (InputItem(role="user", content=given),) if isinstance(given, str) else given
    for index, item in enumerate(items):
        reader.add_item(item, f"input[{index}]")
    where = body.conversation
    told = [text for text in (body.instructions, reader.instructions) if text]
    return Asked(
        model=body.model,
        effort=_effort(body.reasoning and body.reasoning.effort, "reasoning.effort"),
        instructions="\n\n".join(told) if told else None,
        tools=_tools(body.tools),
        messages=reader.finished(may_be_empty=bool(reader.approvals)),
        approvals=tuple(reader.approvals),
        previous=read_response_id(body.previous_response_id) if body.previous_response_id else None,
        conversation=read_conversation_id(where if isinstance(where, str) else where.id)
        if where
        else None,
    )


def _effort(given: str | None, param: str) -> Effort | None:
    try:
        return msgspec.convert(given, Effort | None)
    except msgspec.ValidationError:
        words = ", ".join(get_args(Effort))
        raise Refused(f"The effort must be one of {words}.", param=param) from None


def _check_common(body: RequestBody, output: str | None, param: str) -> None:
    if output not in (None, "text"):
        raise unsupported(
            param, "A chat answers in text: leave the format out, and say in words what you need."
        )
    if body.tool_choice not in (None, "auto"):
        raise unsupported("tool_choice", "The agent chooses its tools itself: leave it out.")


def _tools(given: Sequence[ToolIn] | None) -> tuple[ClientTool, ...] | None:
    if given is None:
        return None
    found: list[ClientTool] = []
    if given and all(tool.type != "function" for tool in given):
        raise unsupported(
            "tools[0].type",
            "Only functions can be given as tools. The agent has its own tools: files,"
            " commands, MCP servers and what its administrator allows.",
        )
    for index, tool in enumerate(given):
        param = f"tools[{index}]"
        if tool.type != "function":
            continue  # Codex offers tools of OpenAI's servers beside its functions.
        spec: FunctionSpec = tool.function or tool
        schema = Raw(b'{"type":"object","properties":{}}')
        if bytes(spec.parameters) != b"null":
            schema = spec.parameters
        fields = {
            "name": spec.name,
            "description": spec.description or spec.name,
            "input_schema": schema,
            "timeout_s": CLIENT_TOOL_TIMEOUT_S,
        }
        try:
            found.append(msgspec.convert(fields, ClientTool))
        except msgspec.ValidationError as error:
            raise Refused(str(error), param=param) from None
    return tuple(found)


class _Reader:
    """Collects messages. What an assistant said and called without anything in between is one."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._messages: list[GivenMessage] = []
        self._system: list[str] = []
        self._files: set[object] = set()
        self._chars = 0
        self.approvals: list[GivenApproval] = []

    @property
    def instructions(self) -> str | None:
        return "\n\n".join(self._system) if self._system else None

    def finished(self, *, may_be_empty: bool = False) -> tuple[GivenMessage, ...]:
        if not self._messages and not may_be_empty:
            raise Refused("Give at least one message of a user.", param=self._param)
        if self._messages and self._messages[-1].role == "assistant":
            raise Refused("The last message must be a user's or the output of a function.")
        return tuple(self._messages)

    def add_message(self, item: InputItem, where: str) -> None:
        """Of Chat Completions."""
        match item.role:
            case "tool":
                self._add_output(item.tool_call_id, item.content, where)
            case "assistant":
                calls = tuple(
                    GivenCall(id=one.id, name=one.function.name, arguments=one.function.arguments)
                    for one in item.tool_calls or ()
                )
                text, _ = self._read(item.content, where)
                self._add_said(text, calls)
            case _:
                self._add_plain(item, where)

    def add_item(self, item: InputItem, where: str) -> None:
        """Of Responses."""
        match item.type:
            case "message" if item.role == "assistant":
                text, _ = self._read(item.content, where)
                self._add_said(text, ())
            case "message":
                self._add_plain(item, where)
            case "function_call":
                call = GivenCall(
                    id=item.call_id or "", name=item.name or "", arguments=item.arguments or "{}"
                )
                self._add_said("", (call,))
            case "function_call_output":
                self._add_output(item.call_id, item.output, where)
            case "mcp_approval_response":
                call = read_call_id(item.approval_request_id or "")
                if call is None:
                    raise Refused(
                        "There is no such approval request.", param=f"{where}.approval_request_id"
                    )
                self.approvals.append(
                    GivenApproval(call=call, approve=item.approve, reason=item.reason or "")
                )
            case "reasoning" | "mcp_approval_request":
                pass  # What chatd sent: the chat has it.
            case _:
                raise unsupported(
                    f"{where}.type", f"Items of the type {item.type!r} are not supported."
                )

    def _add_plain(self, item: InputItem, where: str) -> None:
        text, files = self._read(item.content, where)
        match item.role:
            case "user":
                if not text.strip() and not files:
                    raise Refused("A message must not be empty.", param=f"{where}.content")
                self._messages.append(GivenMessage(role="user", text=text, files=files))
            case "system" | "developer":
                if text.strip():
                    self._system.append(text.strip())
            case _:
                raise Refused("Unknown role.", param=f"{where}.role")

    def _add_said(self, text: str, calls: tuple[GivenCall, ...]) -> None:
        last = self._messages[-1] if self._messages else None
        if last is not None and last.role == "assistant":
            texts = [one for one in (last.text, text) if one]
            self._messages[-1] = GivenMessage(
                role="assistant", text="\n\n".join(texts), calls=(*last.calls, *calls)
            )
        elif text or calls:
            self._messages.append(GivenMessage(role="assistant", text=text, calls=calls))

    def _add_output(self, call_id: str | None, content: Content, where: str) -> None:
        if not call_id:
            raise Refused("The output needs the id of its call.", param=where)
        text, files = self._read(content, where)
        if files:
            raise unsupported(where, "The output of a function must be text.")
        self._messages.append(GivenMessage(role="tool", text=text, call_id=call_id))

    def _read(self, content: Content, where: str) -> tuple[str, tuple[GivenFile, ...]]:
        text, files = self._read_parts(content, where)
        self._chars += len(text)
        if len(text) > MAX_MESSAGE_CHARS or self._chars > MAX_TEXT_CHARS:
            raise Refused(
                f"A message can have {MAX_MESSAGE_CHARS:,} characters, all messages of a request"
                f" {MAX_TEXT_CHARS:,}.",
                status=413,
                code="too_large",
                param=where,
            )
        return text, files

    def _read_parts(self, content: Content, where: str) -> tuple[str, tuple[GivenFile, ...]]:
        if content is None or isinstance(content, str):
            return content or "", ()
        texts: list[str] = []
        files: list[GivenFile] = []
        for index, part in enumerate(content):
            if part.type in ("text", "input_text", "output_text", "refusal"):
                texts.append(part.text or part.refusal or "")
                continue
            file = _file(part, f"{where}.content[{index}]")
            files.append(file)
            self._files.add(file.file_id or sha256(file.data).digest())
            if len(files) > MAX_FILES or len(self._files) > MAX_REQUEST_FILES:
                raise Refused(
                    f"A message can have {MAX_FILES} images and files, all messages of a request"
                    f" {MAX_REQUEST_FILES}.",
                    param=where,
                )
        return "\n\n".join(text for text in texts if text), tuple(files)


def _file(part: ContentPart, where: str) -> GivenFile:
    if part.type in ("image_url", "input_image"):
        url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url
        source = FileSource(file_id=part.file_id, file_data=url)
    elif part.type in ("file", "input_file"):
        source = part.file or part
    else:
        raise unsupported(f"{where}.type", f"Parts of the type {part.type!r} are not supported.")
    if source.file_id:
        try:
            return GivenFile(file_id=FileId(UUID(source.file_id.removeprefix("file-"))))
        except ValueError:
            raise Refused("There is no such file.", param=f"{where}.file_id") from None
    head, comma, text = (source.file_data or "").partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        raise Refused(
            "Send the content itself, as data:<type>;base64,... Nothing is fetched from a URL.",
            param=where,
        )
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise Refused("The data is not valid base64.", param=where) from None
    media_type = head[5:-7].partition(";")[0]
    return GivenFile(data=data, media_type=media_type, name=source.filename)


# Comparing


class Said(Struct, frozen=True, kw_only=True):
    """A message as both sides have it."""

    role: Role
    text: str
    files: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    call_id: str = ""


def said_by_client(messages: Iterable[GivenMessage]) -> list[Said]:
    """Files must have their ids."""
    return [
        Said(
            role=one.role,
            text=one.text.strip(),
            files=tuple(str(file.file_id) for file in one.files),
            calls=tuple(call.id for call in one.calls),
            call_id=one.call_id,
        )
        for one in messages
    ]


class History(Struct, frozen=True, kw_only=True):
    """What was said in a chat, and the last message of each piece."""

    said: list[Said]
    ids: list[MessageId]


def read_history(
    chat_id: ChatId, messages: Sequence[PublicMessage], client_tools: frozenset[str]
) -> History:
    found = History(said=[], ids=[])
    items: list[OutputItem] = []
    last = MessageId(0)

    def end_answer() -> None:
        calls = [one for one in items if one.kind == "function_call"]
        text = answer_text(items).strip()
        if text or calls:
            ids = tuple(str(CallId(chat_id, call.call_id)) for call in calls)
            found.said.append(Said(role="assistant", text=text, calls=ids))
            found.ids.append(last)
        items.clear()

    for message in messages:
        if asks(message, client_tools):
            end_answer()
            for one in _said(chat_id, message):
                found.said.append(one)
                found.ids.append(message.id)
        elif message.role == "assistant":
            items += list_items(message.content, client_tools, is_done=True)
        elif message.role == "tool":  # Those of the client that were denied, it never got.
            ended = {
                part.tool_call_id for part in message.content if isinstance(part, ToolResultPart)
            }
            items[:] = [one for one in items if one.call_id not in ended]
        last = message.id
    end_answer()
    return found


def _said(chat_id: ChatId, message: PublicMessage) -> Iterable[Said]:
    if message.role == "user":
        texts = [part.text for part in message.content if isinstance(part, TextPart)]
        files = tuple(part.file_id or "" for part in message.content if isinstance(part, FilePart))
        yield Said(role="user", text="\n\n".join(texts).strip(), files=files)
        return
    for part in message.content:
        if isinstance(part, ToolResultPart):
            yield Said(
                role="tool",
                text=_output_text(part).strip(),
                call_id=str(CallId(chat_id, part.tool_call_id)),
            )


def _output_text(part: ToolResultPart) -> str:
    if isinstance(part.result, UnsetType):
        return ""
    value = msgspec.json.decode(part.result)
    return value if isinstance(value, str) else bytes(part.result).decode(errors="replace")


def hash_text(*values: object) -> str:
    return sha256(msgspec.json.encode(values)).hexdigest()[:40]


# History for a new chat


def seed_drafts(
    messages: Sequence[GivenMessage], contents: Mapping[int, tuple[Part, ...]], author: UserId
) -> tuple[Draft, ...]:
    """Messages that a new chat begins with. `contents` are those of users' messages, by place. A
    call without an output is left out: a chat cannot begin with an unanswered one. Raises Refused
    for an output without its call."""
    answered = {one.call_id for one in messages if one.role == "tool"}
    names: dict[str, str] = {}
    found: list[Draft] = []
    for index, one in enumerate(messages):
        match one.role:
            case "user":
                found.append(Draft(role="user", content=contents[index], created_by=author))
            case "assistant":
                calls = [call for call in one.calls if call.id in answered]
                names |= {call.id: call.name for call in calls}
                text = (TextPart(text=one.text),) if one.text.strip() else ()
                content = (*text, *(_call(call) for call in calls))
                if content:
                    reason = "tool-calls" if calls else "stop"
                    found.append(Draft(role="assistant", content=content, finish_reason=reason))
            case "tool":
                name = names.pop(one.call_id, None)
                if name is None:
                    raise Refused(f"There is no function call for the output {one.call_id!r}.")
                part = ToolResultPart(
                    tool_call_id=plain_call_id(one.call_id),
                    tool_name=name,
                    result=Raw(msgspec.json.encode(one.text)),
                )
                found.append(Draft(role="tool", content=(part,)))
    return tuple(found)


def _call(call: GivenCall) -> ToolCallPart:
    try:
        arguments, text = validate_json(call.arguments), None
    except ValueError:
        arguments, text = UNSET, call.arguments
    return ToolCallPart(
        tool_call_id=plain_call_id(call.id), tool_name=call.name, args=arguments, args_text=text
    )


def plain_call_id(call_id: str) -> ToolCallId:
    own = read_call_id(call_id)
    return ToolCallId(call_id) if own is None else own.call_id
