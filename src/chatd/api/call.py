"""Requests, replies and routes, and the ASGI messages between them and the server.

A route declares its handler, body, query and reply types once. The route table and the OpenAPI
document are both built from that declaration, so they cannot differ.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Generic, Literal, TypeVar
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from chatd.api import checks
from chatd.api.auth import Caller
from chatd.api.reading import Receive, read_body, read_json, read_number, read_query, read_uuid
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, QueueId, RequestId, WorkspaceId
from chatd.domain.workspace.entities import BuildId, TemplateId

Scope = MutableMapping[str, Any]
Message = Mapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

S = TypeVar("S", bound=Struct)
B_co = TypeVar("B_co", bound=Struct, covariant=True)

PREFIX: Final = "/api/v1"
SMALL_BODY: Final = 256 * 1024
LARGE_BODY: Final = 1024 * 1024
KEY_HEADER: Final = "idempotency-key"

_KEYS: Final = UUID("6f1c9d3e-6a0b-5c55-9d0f-3f6a1c0e7b21")
_ENCODER: Final = msgspec.json.Encoder()


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this name. ASGI header names are in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


class Reply(Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"


NOTHING: Final = Reply(status=204)


def reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status=status, body=_ENCODER.encode(value), headers=headers or {})


def response_start(status: int, headers: Mapping[str, str], *, prefix: str = "") -> Message:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": f"{prefix}http.response.start", "status": status, "headers": encoded}


def response_body(content: bytes, *, more: bool = False, prefix: str = "") -> Message:
    return {"type": f"{prefix}http.response.body", "body": content, "more_body": more}


async def send_reply(send: Send, answer: Reply, *, prefix: str = "") -> None:
    """With the prefix `websocket.`, reply to a WebSocket handshake."""
    headers: dict[str, str] = {}
    if answer.status != 204:
        headers = {"content-type": answer.media_type, "content-length": str(len(answer.body))}
    await send(response_start(answer.status, {**headers, **answer.headers}, prefix=prefix))
    await send(response_body(answer.body, prefix=prefix))


class Call:
    """A request by an authenticated caller. `path` holds the path parameters."""

    def __init__(
        self, *, caller: Caller, path: Mapping[str, str], scope: Scope, receive: Receive
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

    async def body(self, takes: "Takes[B_co]") -> B_co:
        announced = self.header("content-length")
        return takes.read(await read_body(self.receive, announced, takes.most))

    def request(
        self, op: Literal["create", "send"], scope: UUID, body: Struct
    ) -> IdempotencyKey | None:
        """The idempotency key, if there is one. The caller is in it: nobody can ask after what
        another has sent by guessing a key."""
        key = self.header(KEY_HEADER)
        if key is None:
            return None
        name = f"{self.caller.user_id}:{checks.idempotency_key(key)}"
        return IdempotencyKey(
            scope=scope,
            id=RequestId(uuid5(_KEYS, name)),
            op=op,
            fingerprint=sha256(_ENCODER.encode(body)).hexdigest(),
        )

    def made_by(self, what: str) -> str | None:
        """The idempotency key, if there is one, for rows that remember who asked for them."""
        key = self.header(KEY_HEADER)
        if key is None:
            return None
        name = f"{self.caller.user_id}:{what}:{checks.idempotency_key(key)}"
        return f"api:{uuid5(_KEYS, name)}"


class Takes(Generic[B_co]):
    """A body: its type, and how large it may be."""

    def __init__(self, kind: type[B_co], most: int = SMALL_BODY) -> None:
        self.most = most
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    @property
    def kind(self) -> type[B_co]:
        return self._kind

    def read(self, body: bytes) -> B_co:
        return read_json(self._decoder, body)


Handle = Callable[[Call], Awaitable[Reply]]
Page = Callable[[], Awaitable[Reply]]
ServeStream = Callable[[Call, Send], Awaitable[None]]


class Route(Struct, frozen=True, kw_only=True):
    """`gives` maps the status of each successful reply to its type, None if it has no body;
    `refuses` lists error statuses beside those that every route has. A draining server refuses
    routes with `starts_work`."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    name: str
    summary: str
    handle: Handle
    gives: Mapping[int, object]
    takes: Takes[Struct] | None = None
    query: type[Struct] | None = None
    refuses: tuple[int, ...] = ()
    keyed: bool = False
    starts_work: bool = False


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
