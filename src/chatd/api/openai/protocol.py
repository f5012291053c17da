"""Requests, ids and errors of the OpenAI endpoints.

Bodies have the fields that count here; all others are ignored, because clients send what their
newest version knows. A response is named by its chat and by the message that asked for it, so that
nothing is stored for it: any replica finds it, also after a restart.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta, Raw, Struct

from chatd.api.errors import error_reply
from chatd.api.request import MAX_NAME_CHARS, ApiReply, reply
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import ChatId, MessageId, ToolCallId
from chatd.domain.text import clip

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Of a request, with its images in base64."""
MAX_ITEMS: Final = 2_000
"""Messages or items of one request."""
MAX_PARTS: Final = 256
DEFAULT_MODEL: Final = "chatd"
"""Names the default model, for clients that need a name."""

Json = dict[str, object]

# Bodies


class FileSource(Struct, frozen=True, kw_only=True):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class ImageUrl(Struct, frozen=True, kw_only=True):
    url: str = ""


class ContentPart(FileSource, frozen=True, kw_only=True):
    """A piece of a message: of either endpoint, with the fields of all kinds."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    file: FileSource | None = None


Content = str | Annotated[tuple[ContentPart, ...], Meta(max_length=MAX_PARTS)] | None


class CalledFunction(Struct, frozen=True, kw_only=True):
    name: str = ""
    arguments: str = "{}"


class CompletionCall(Struct, frozen=True, kw_only=True):
    """A call in a message of Chat Completions."""

    id: str = ""
    function: CalledFunction = CalledFunction()


class InputItem(Struct, frozen=True, kw_only=True):
    """A message of Chat Completions, or an item of Responses, with the fields of all kinds."""

    type: str = "message"
    role: str | None = None
    content: Content = None
    tool_calls: Annotated[tuple[CompletionCall, ...], Meta(max_length=MAX_PARTS)] | None = None
    tool_call_id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content = None
    approval_request_id: str | None = None
    approve: bool = False
    reason: str | None = None


class FunctionSpec(Struct, frozen=True, kw_only=True):
    name: str = ""
    description: str | None = None
    parameters: Raw = Raw(b"null")


class ToolIn(FunctionSpec, frozen=True, kw_only=True):
    """Chat Completions nests the function, Responses does not."""

    type: str = ""
    function: FunctionSpec | None = None


class OutputFormat(Struct, frozen=True, kw_only=True):
    type: str = "text"


class TextOptions(Struct, frozen=True, kw_only=True):
    format: OutputFormat | None = None


class ReasoningOptions(Struct, frozen=True, kw_only=True):
    effort: str | None = None


class StreamOptions(Struct, frozen=True, kw_only=True):
    include_usage: bool = False


class ConversationRef(Struct, frozen=True, kw_only=True):
    id: str


class RequestBody(Struct, frozen=True, kw_only=True):
    model: Annotated[str, Meta(max_length=256)] | None = None
    tools: Annotated[tuple[ToolIn, ...], Meta(max_length=MAX_PARTS)] | None = None
    tool_choice: str | Mapping[str, object] | None = None
    stream: bool | None = None


class CompletionBody(RequestBody, frozen=True, kw_only=True):
    """Of `POST /v1/chat/completions`."""

    messages: Annotated[tuple[InputItem, ...], Meta(min_length=1, max_length=MAX_ITEMS)]
    n: int | None = None
    response_format: OutputFormat | None = None
    reasoning_effort: str | None = None
    stream_options: StreamOptions | None = None


class ResponseBody(RequestBody, frozen=True, kw_only=True):
    """Of `POST /v1/responses`."""

    input: str | Annotated[tuple[InputItem, ...], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    background: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None


class RetrieveQuery(Struct, frozen=True, kw_only=True):
    """Of `GET /v1/responses/{id}`."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=2**53)] | None = None


# Ids

_RESPONSE: Final = re.compile(r"^(?:resp_|chatcmpl-)([0-9a-f]{32})([0-9a-f]{1,16})$")
_CONVERSATION: Final = re.compile(r"^conv_([0-9a-fA-F-]{32,36})$")
_CALL: Final = re.compile(r"^(?:call|mcpr)_([0-9a-f]{32})_(.{1,500})$", re.DOTALL)


class TurnId(Struct, frozen=True):
    """Names a response: what follows this message of this chat."""

    chat_id: ChatId
    anchor: MessageId

    def __str__(self) -> str:
        return f"{self.chat_id.hex}{self.anchor:x}"


def read_response_id(text: str) -> TurnId:
    if (found := _RESPONSE.match(text)) is None:
        raise not_found(f"There is no response with the id {clip(text, MAX_NAME_CHARS)!r}.")
    return TurnId(ChatId(UUID(found[1])), MessageId(int(found[2], 16) & (2**63 - 1)))


def conversation_id(chat_id: ChatId) -> str:
    return f"conv_{chat_id.hex}"


def read_conversation_id(text: str) -> ChatId:
    try:
        if (found := _CONVERSATION.match(text)) is not None:
            return ChatId(UUID(found[1]))
    except ValueError:
        pass
    raise not_found(f"There is no conversation with the id {clip(text, MAX_NAME_CHARS)!r}.")


class CallId(Struct, frozen=True):
    """A call as clients see it: its id names the chat that waits for the result."""

    chat_id: ChatId
    call_id: ToolCallId

    def __str__(self) -> str:
        return f"call_{self.chat_id.hex}_{self.call_id}"

    @property
    def approval(self) -> str:
        return f"mcpr_{self.chat_id.hex}_{self.call_id}"


def read_call_id(text: str) -> CallId | None:
    """None for a call that this server did not make."""
    found = _CALL.match(text)
    return None if found is None else CallId(ChatId(UUID(found[1])), ToolCallId(found[2]))


# Errors


class Refused(ChatdError):
    """A request that this protocol refuses, with its own code. `param` is the field at fault."""

    code = "invalid_value"

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.param = param


def not_found(message: str, *, code: str = "not_found", param: str | None = None) -> Refused:
    return Refused(message, status=404, code=code, param=param)


def unsupported(param: str, message: str) -> Refused:
    return Refused(message, code="unsupported_parameter", param=param)


_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_CODES: Final[Mapping[str, str]] = {
    "unauthorized": "invalid_api_key",
    "usage_limit_exceeded": "insufficient_quota",
    "rate_limited": "rate_limit_exceeded",
}


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """The error as clients read it, in a reply or in a stream."""

    message: str
    type: str
    param: str | None
    code: str | None


def describe_error(error: Exception) -> tuple[int, ErrorDetail, Mapping[str, str]]:
    """The status, the error and the headers. The package of OpenAI repeats 409, 429 and 5xx by
    itself: where that is of no use it is told so."""
    if isinstance(error, Refused):
        kind = _TYPES.get(error.status, "invalid_request_error")
        detail = ErrorDetail(message=error.message, type=kind, param=error.param, code=error.code)
        return error.status, detail, {}
    found = error_reply(error)
    status, code, headers = found.status, found.body.code, dict(found.headers)
    param = error.field if isinstance(error, InvalidInput) else None
    if code == "usage_limit_exceeded":
        status = 429
    if status == 409 or code == "usage_limit_exceeded":
        headers["x-should-retry"] = "false"
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    if code == "usage_limit_exceeded":
        kind = "insufficient_quota"
    detail = ErrorDetail(
        message=found.body.message, type=kind, param=param, code=_CODES.get(code, code)
    )
    return status, detail, headers


def refuse(error: Exception) -> ApiReply:
    status, detail, headers = describe_error(error)
    return reply({"error": detail}, status, headers)


def turn_error(kind: str, message: str) -> ErrorDetail:
    """Why a turn failed."""
    code = "rate_limit_exceeded" if kind in ("rate_limit", "overloaded") else "server_error"
    return ErrorDetail(message=message, type="server_error", param=None, code=code)


def encode_line(value: object) -> bytes:
    """JSON in one line: raw arguments of a call may hold line breaks, which equal spaces there."""
    return msgspec.json.encode(value).replace(b"\n", b" ").replace(b"\r", b" ")
