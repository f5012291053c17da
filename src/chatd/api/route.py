"""Requests, replies and routes, and the ASGI messages between them and the server.

A route declares its handler, body, query and reply types once. The route table and the OpenAPI
document are both built from that declaration, so they cannot differ.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Generic, Literal, Protocol, TypeVar
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from chatd.api import validation
from chatd.api.auth import ApiCaller
from chatd.api.request_reader import (
    Receive,
    read_body,
    read_json,
    read_number,
    read_query,
    read_uuid,
)
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, QueueId, RequestId, WorkspaceId
from chatd.domain.workspace.entities import BuildId, TemplateId

Scope = MutableMapping[str, Any]
Message = Mapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

S = TypeVar("S", bound=Struct)
B_co = TypeVar("B_co", bound=Struct, covariant=True)

PREFIX: Final = "/api/v1"
SMALL_BODY_BYTES: Final = 256 * 1024
LARGE_BODY_BYTES: Final = 1024 * 1024
KEY_HEADER: Final = "idempotency-key"

_KEYS: Final = UUID("6f1c9d3e-6a0b-5c55-9d0f-3f6a1c0e7b21")
_ENCODER: Final = msgspec.json.Encoder()


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


NO_CONTENT: Final = ApiReply(status=204)


def reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> ApiReply:
    return ApiReply(status=status, body=_ENCODER.encode(value), headers=headers or {})


def response_start(status: int, headers: Mapping[str, str], *, prefix: str = "") -> Message:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": f"{prefix}http.response.start", "status": status, "headers": encoded}


def response_body(content: bytes, *, more: bool = False, prefix: str = "") -> Message:
    return {"type": f"{prefix}http.response.body", "body": content, "more_body": more}


async def send_reply(send: Send, answer: ApiReply, *, prefix: str = "") -> None:
    """With the prefix `websocket.`, reply to a WebSocket handshake."""
    headers: dict[str, str] = {}
    if answer.status != 204:
        headers = {"content-type": answer.media_type, "content-length": str(len(answer.body))}
    await send(response_start(answer.status, {**headers, **answer.headers}, prefix=prefix))
    await send(response_body(answer.body, prefix=prefix))


class ApiRequest:
    """A request by an authenticated caller. `path` holds the path parameters."""

    def __init__(
        self, *, caller: ApiCaller, path: Mapping[str, str], scope: Scope, receive: Receive
    ) -> None:
        self.caller = caller
        self.receive = receive
        self._path = path
        self._scope = scope

    def header(self, name: str) -> str | None:
        return header(self._scope, name.encode())

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
    def template_id(self) -> TemplateId:
        return TemplateId(read_uuid("template_id", self._path["template_id"]))

    @cached_property
    def workspace_id(self) -> WorkspaceId:
        return WorkspaceId(read_uuid("workspace_id", self._path["workspace_id"]))

    @cached_property
    def build_id(self) -> BuildId:
        return BuildId(read_uuid("build_id", self._path["build_id"]))

    def query(self, kind: type[S]) -> S:
        return read_query(kind, self._scope["query_string"])

    async def body(self, takes: "BodySpec[B_co]") -> B_co:
        announced = self.header("content-length")
        return takes.read(await read_body(self.receive, announced, takes.max_bytes))

    def idempotency_key(
        self, op: Literal["create", "send"], scope: UUID, body: Struct
    ) -> IdempotencyKey | None:
        """The idempotency key, if the request has one. It includes the caller, so that a guessed
        key does not reveal another user's request."""
        key = self.header(KEY_HEADER)
        if key is None:
            return None
        name = f"{self.caller.user_id}:{validation.check_idempotency_key(key)}"
        return IdempotencyKey(
            scope=scope,
            id=RequestId(uuid5(_KEYS, name)),
            op=op,
            fingerprint=sha256(_ENCODER.encode(body)).hexdigest(),
        )

    def request_key(self, what: str) -> str | None:
        """The idempotency key, if the request has one, for rows that store the key themselves."""
        key = self.header(KEY_HEADER)
        if key is None:
            return None
        name = f"{self.caller.user_id}:{what}:{validation.check_idempotency_key(key)}"
        return f"api:{uuid5(_KEYS, name)}"


class BodySpec(Generic[B_co]):
    """The type of a request body and its maximum size."""

    def __init__(self, kind: type[B_co], most: int = SMALL_BODY_BYTES) -> None:
        self.max_bytes = most
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    @property
    def kind(self) -> type[B_co]:
        return self._kind

    def read(self, body: bytes) -> B_co:
        return read_json(self._decoder, body)


class Handle(Protocol):
    @property
    def __name__(self) -> str: ...

    async def __call__(self, request: ApiRequest) -> ApiReply: ...


Page = Callable[[], Awaitable[ApiReply]]
ServeStream = Callable[[ApiRequest, Send], Awaitable[None]]


class ApiRoute(Struct, frozen=True, kw_only=True):
    """`endpoint` is a method and a path, such as `GET /chats/{chat_id}`. `replies` maps the
    status of each successful reply to its type, None if it has no body; `error_statuses` lists
    errors beside those of every route. A draining server refuses routes with `starts_work`. The
    operation id is the handler's name unless `name` is given."""

    endpoint: str
    summary: str
    handle: Handle
    replies: Mapping[int, object]
    body_spec: BodySpec[Struct] | None = None
    query: type[Struct] | None = None
    error_statuses: tuple[int, ...] = ()
    keyed: bool = False
    starts_work: bool = False
    name: str = ""

    @property
    def method(self) -> str:
        return self.endpoint.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.endpoint.partition(" ")[2]

    @property
    def operation_id(self) -> str:
        return self.name or self.handle.__name__


def _always(_scope: Scope) -> bool:
    return True


class StreamRoute(Struct, frozen=True, kw_only=True):
    """A GET that is answered with server-sent events of type `events`. `is_requested` chooses
    between the stream and a route of the same path. A `resumable` one takes Last-Event-ID."""

    path: str
    name: str
    summary: str
    serve: ServeStream
    events: object
    query: type[Struct] | None = None
    resumable: bool = False
    is_requested: Callable[[Scope], bool] = _always
