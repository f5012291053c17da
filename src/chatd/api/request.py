"""Requests and replies, and the ASGI messages between them and the server.

Reads bodies, queries and path parameters into types, within limits of size and time.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import aclosing
from datetime import datetime
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, Final, Generic, Literal, TypeVar, cast, get_origin
from urllib.parse import parse_qsl
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from chatd.api import validation
from chatd.api.errors import ClientDisconnected, RequestTimeout, TooLarge, Unauthorized
from chatd.api.schemas.messages import MAX_INT64
from chatd.domain.access.accounts import CredentialKind
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat_views.events import CURSOR_PATTERN, Cursor
from chatd.domain.decode_errors import (
    describe_decode_error,
    describe_invalid_json,
    describe_unknown_field,
)
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import (
    ChatId,
    CredentialId,
    FileId,
    GroupId,
    McpServerId,
    MessageId,
    ModelConfigId,
    ProjectId,
    QueueId,
    RequestId,
    UserId,
    WorkspaceId,
)
from chatd.domain.text import clip
from chatd.domain.workspace.entities import BuildId, TemplateId, VersionId
from chatd.domain.workspace.runners import RunnerId, RunnerTokenId


class ApiCaller(Struct, frozen=True, kw_only=True):
    """`credential_id` is None for the administrator's token and for a signed link. `kind` is that
    of the credential; that of a ticket is its parent's."""

    actor: UserActor
    credential_id: CredentialId | None = None
    expires_at: datetime | None = None
    kind: CredentialKind = "token"
    username: str = ""

    @property
    def user_id(self) -> UserId:
        return self.actor.user_id


Scope = MutableMapping[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
B_co = TypeVar("B_co", bound=Struct, covariant=True)

BODY_TIMEOUT_S: Final = 30.0
MAX_QUERY_PARAMETERS: Final = 100
MAX_NAME_CHARS: Final = 100
"""Of a parameter's name in an error."""
SMALL_BODY_BYTES: Final = 256 * 1024
LARGE_BODY_BYTES: Final = 1024 * 1024
KEY_HEADER: Final = "idempotency-key"

_KEYS: Final = UUID("6f1c9d3e-6a0b-5c55-9d0f-3f6a1c0e7b21")
_ENCODER: Final = msgspec.json.Encoder()
_CURSOR: Final = re.compile(CURSOR_PATTERN)


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this name. ASGI header names are in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


class ApiReply(Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"
    cookies: tuple[str, ...] = ()


class StreamedReply(ApiReply, frozen=True, kw_only=True):
    """A reply with a body that is sent in pieces. `length` is that of the whole body, or None if it
    is not known."""

    pieces: AsyncGenerator[bytes]
    length: int | None


NO_CONTENT: Final = ApiReply(status=204)


def reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> ApiReply:
    """A body ends with a newline, so that a shell's prompt begins a line of its own."""
    return ApiReply(status=status, body=_ENCODER.encode(value) + b"\n", headers=headers or {})


def response_start(status: int, headers: Mapping[str, str], *, prefix: str = "") -> Message:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": f"{prefix}http.response.start", "status": status, "headers": encoded}


def response_body(content: bytes, *, more: bool = False, prefix: str = "") -> Message:
    return {"type": f"{prefix}http.response.body", "body": content, "more_body": more}


async def send_reply(send: Send, answer: ApiReply, *, prefix: str = "") -> None:
    """With the prefix `websocket.`, reply to a WebSocket handshake."""
    if isinstance(answer, StreamedReply):
        await _send_pieces(send, answer)
        return
    headers: dict[str, str] = {}
    if answer.status not in (204, 304):
        headers = {"content-type": answer.media_type, "content-length": str(len(answer.body))}
    start = response_start(answer.status, {**headers, **answer.headers}, prefix=prefix)
    cookies = [(b"set-cookie", cookie.encode("latin-1")) for cookie in answer.cookies]
    start = {**start, "headers": [*start["headers"], *cookies]} if cookies else start
    await send_all(send, start, response_body(answer.body, prefix=prefix))


async def send_all(send: Send, *messages: Message) -> None:
    """One write for all of them where `send` can do that."""
    together = getattr(send, "together", None)
    if together is not None:
        await together(*messages)
        return
    for message in messages:
        await send(message)


async def _send_pieces(send: Send, answer: StreamedReply) -> None:
    """`send` waits while the client reads more slowly than the pieces arrive."""
    headers = {"content-type": answer.media_type}
    if answer.length is not None:
        headers["content-length"] = str(answer.length)
    async with aclosing(answer.pieces) as pieces:
        await send(response_start(answer.status, {**headers, **answer.headers}))
        async for piece in pieces:
            await send(response_body(piece, more=True))
    await send(response_body(b""))


class ApiRequest:
    """A request. `path` holds the path parameters. Only a public route has no `caller`."""

    def __init__(
        self, *, caller: ApiCaller | None, path: Mapping[str, str], scope: Scope, receive: Receive
    ) -> None:
        self.receive = receive
        self._caller = caller
        self._path = path
        self._scope = scope

    @property
    def caller(self) -> ApiCaller:
        if self._caller is None:
            raise Unauthorized("Sign in first.")
        return self._caller

    @property
    def scope(self) -> Scope:
        return self._scope

    def header(self, name: str) -> str | None:
        return header(self._scope, name.encode())

    @property
    def path_segments(self) -> list[str]:
        return [segment for segment in self._scope["path"].split("/") if segment]

    @cached_property
    def chat_id(self) -> ChatId:
        return ChatId(read_uuid("chat_id", self._path["chat_id"]))

    @cached_property
    def message_id(self) -> MessageId:
        return MessageId(read_number("message_id", self._path["message_id"]))

    @cached_property
    def queue_id(self) -> QueueId:
        return QueueId(read_number("queue_id", self._path["queue_id"]))

    @cached_property
    def model_id(self) -> ModelConfigId:
        return ModelConfigId(read_uuid("model_id", self._path["model_id"]))

    @cached_property
    def provider_id(self) -> UUID:
        return read_uuid("provider_id", self._path["provider_id"])

    @cached_property
    def key_id(self) -> UUID:
        return read_uuid("key_id", self._path["key_id"])

    @cached_property
    def template_id(self) -> TemplateId:
        return TemplateId(read_uuid("template_id", self._path["template_id"]))

    @cached_property
    def version_id(self) -> VersionId:
        return VersionId(read_uuid("version_id", self._path["version_id"]))

    @cached_property
    def workspace_id(self) -> WorkspaceId:
        return WorkspaceId(read_uuid("workspace_id", self._path["workspace_id"]))

    @cached_property
    def build_id(self) -> BuildId:
        return BuildId(read_uuid("build_id", self._path["build_id"]))

    @cached_property
    def debug_run_id(self) -> UUID:
        return read_uuid("debug_run_id", self._path["debug_run_id"])

    @cached_property
    def schedule_id(self) -> UUID:
        return read_uuid("schedule_id", self._path["schedule_id"])

    @cached_property
    def project_id(self) -> ProjectId:
        return ProjectId(read_uuid("project_id", self._path["project_id"]))

    @cached_property
    def skill_id(self) -> UUID:
        return read_uuid("skill_id", self._path["skill_id"])

    @cached_property
    def note_id(self) -> UUID:
        return read_uuid("note_id", self._path["note_id"])

    @property
    def credential_id(self) -> UUID:
        return read_uuid("credential_id", self._path["credential_id"])

    @cached_property
    def host_credential_id(self) -> UUID:
        return read_uuid("host_credential_id", self._path["host_credential_id"])

    @cached_property
    def shared_credential_id(self) -> UUID:
        return read_uuid("shared_credential_id", self._path["shared_credential_id"])

    @cached_property
    def hook_id(self) -> UUID:
        return read_uuid("hook_id", self._path["hook_id"])

    @cached_property
    def public_link_id(self) -> UUID:
        return read_uuid("public_link_id", self._path["public_link_id"])

    @cached_property
    def connection_id(self) -> UUID:
        return read_uuid("connection_id", self._path["connection_id"])

    @cached_property
    def slack_id(self) -> UUID:
        return read_uuid("slack_id", self._path["slack_id"])

    @cached_property
    def slack_link_id(self) -> UUID:
        return read_uuid("slack_link_id", self._path["slack_link_id"])

    @cached_property
    def webhook_id(self) -> UUID:
        return read_uuid("webhook_id", self._path["webhook_id"])

    @cached_property
    def mcp_server_id(self) -> McpServerId:
        return McpServerId(read_uuid("mcp_server_id", self._path["mcp_server_id"]))

    @cached_property
    def runner_id(self) -> RunnerId:
        return RunnerId(self._path["runner_id"])

    @cached_property
    def runner_token_id(self) -> RunnerTokenId:
        return RunnerTokenId(read_uuid("runner_token_id", self._path["runner_token_id"]))

    @cached_property
    def subscription_id(self) -> UUID:
        return read_uuid("subscription_id", self._path["subscription_id"])

    @cached_property
    def user_id(self) -> UserId:
        return UserId(read_uuid("user_id", self._path["user_id"]))

    @cached_property
    def group_id(self) -> GroupId:
        return GroupId(read_uuid("group_id", self._path["group_id"]))

    @cached_property
    def file_id(self) -> FileId:
        return FileId(read_uuid("file_id", self._path["file_id"]))

    @cached_property
    def session_id(self) -> CredentialId:
        return CredentialId(read_uuid("session_id", self._path["session_id"]))

    @cached_property
    def token_id(self) -> CredentialId:
        return CredentialId(read_uuid("token_id", self._path["token_id"]))

    def query(self, kind: type[S]) -> S:
        return read_query(kind, self._scope["query_string"])

    async def body(self, takes: "BodySpec[B_co]") -> B_co:
        announced = self.header("content-length")
        return takes.read(await read_body(self.receive, announced, takes.max_bytes))

    async def optional_body(self, takes: "BodySpec[B_co]", default: B_co) -> B_co:
        """The default for a request without a body."""
        announced = self.header("content-length")
        body = await read_body(self.receive, announced, takes.max_bytes)
        return takes.read(body) if body else default

    def idempotency_key(
        self,
        op: Literal["create", "send", "answer", "edit", "results"],
        scope: UUID,
        body: Struct,
        target: int | None = None,
    ) -> IdempotencyKey | None:
        """The idempotency key, if the request has one. It includes the caller, so that a guessed
        key does not reveal another user's request. `target` is what the path names besides the
        scope."""
        key = self.header(KEY_HEADER)
        if key is None:
            return None
        name = f"{self.caller.user_id}:{validation.check_idempotency_key(key)}"
        content = _ENCODER.encode(body if target is None else (target, body))
        return IdempotencyKey(
            scope=scope,
            id=RequestId(uuid5(_KEYS, name)),
            op=op,
            fingerprint=sha256(content).hexdigest(),
        )

    def request_key(self, what: str) -> str | None:
        """The idempotency key, if the request has one, for rows that store the key themselves."""
        found = self.keyed_id(what)
        return None if found is None else f"api:{found}"

    def keyed_id(self, what: str) -> UUID | None:
        """An id that follows from the idempotency key, if the request has one, for rows of which a
        repeated request finds the first by its id."""
        key = self.header(KEY_HEADER)
        if key is None:
            return None
        name = f"{self.caller.user_id}:{what}:{validation.check_idempotency_key(key)}"
        return uuid5(_KEYS, name)


class NoQuery(Struct, frozen=True, kw_only=True):
    """The query of a route that takes no parameters."""


class BodySpec(Generic[B_co]):
    """The type of a request body and its maximum size. `is_closed`: types inside it that are also
    decoded from elsewhere ignore unknown fields; here they are refused."""

    def __init__(
        self, kind: type[B_co], most: int = SMALL_BODY_BYTES, *, is_closed: bool = False
    ) -> None:
        self.max_bytes = most
        self._kind = kind
        self._is_closed = is_closed
        self._decoder = msgspec.json.Decoder(kind)

    @property
    def kind(self) -> type[B_co]:
        return self._kind

    def read(self, body: bytes) -> B_co:
        found = read_json(self._decoder, body)
        if self._is_closed:
            problem = describe_unknown_field(self._kind, msgspec.json.decode(body))
            if problem is not None:
                raise InvalidInput(*problem)
        return found


async def read_body(receive: Receive, content_length: str | None, max_bytes: int) -> bytes:
    """Raises TooLarge as early as possible, RequestTimeout, ClientDisconnected."""
    length = content_length or ""
    if length.isdecimal() and int(length[:19]) > max_bytes:
        raise TooLarge(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise ClientDisconnected("The client disconnected.")
                body += event.get("body", b"")
                if len(body) > max_bytes:
                    raise TooLarge(max_bytes)
                if not event.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        text = f"The body did not arrive within {BODY_TIMEOUT_S:.0f} seconds."
        raise RequestTimeout(text) from None


def read_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_input(error, "body", decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = describe_invalid_json(error, body)
        raise InvalidInput("body", text, code="invalid_json") from None
    except RecursionError:
        raise InvalidInput("body", "is nested too deeply", code="invalid_json") from None


@lru_cache(1024)
def _query_fields(kind: type[Struct]) -> Mapping[str, object]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def read_query(kind: type[S], query: bytes) -> S:
    known = _query_fields(kind)
    values: dict[str, object] = {}
    for name, text in _parse_query(query):
        if name not in known:
            raise _unknown_parameter(name, known)
        if get_origin(getattr(known[name], "__origin__", known[name])) is tuple:
            cast("list[str]", values.setdefault(name, [])).append(text)
        elif name in values:
            raise InvalidInput(name, "was given twice")
        else:
            values[name] = text
    return _convert(values, kind, "query")


def _unknown_parameter(name: str, known: Iterable[str]) -> InvalidInput:
    """A parameter that is ignored would look like a filter that matches everything."""
    listed = ", ".join(known)
    detail = f"there are {listed}" if listed else "this path takes none"
    return InvalidInput(clip(name, MAX_NAME_CHARS), f"is not a parameter of this path; {detail}")


def read_uuid(name: str, text: str) -> UUID:
    return _convert(text, UUID, name)


def read_cursor(name: str, text: str) -> Cursor:
    """A cursor, or a version alone."""
    if _CURSOR.fullmatch(text) and (cursor := Cursor.parse(text)).version <= MAX_INT64:
        return cursor
    raise InvalidInput(name, "must be the id of an event of this stream, or a version")


def read_number(name: str, text: str) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) <= 19
    if not digits or not 0 < (number := int(text)) <= MAX_INT64:
        raise InvalidInput(name, "must be a positive whole number")
    return number


def _parse_query(query: bytes) -> list[tuple[str, str]]:
    text = query.decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_QUERY_PARAMETERS)
    except ValueError:
        raise InvalidInput("query", f"at most {MAX_QUERY_PARAMETERS} parameters") from None


def _convert(value: object, kind: type[T], field: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_input(error, field, kind) from None


def _invalid_input(error: msgspec.ValidationError, field: str, kind: object) -> InvalidInput:
    inner, text = describe_decode_error(error, kind)
    return InvalidInput(inner or field, text)
