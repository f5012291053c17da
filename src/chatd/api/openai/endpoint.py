"""`/v1`: the endpoints of OpenAI's API, so that a client of it uses a chatd agent.

`/v1/models`, `/v1/chat/completions` and `/v1/responses`. A response is a turn of a chat: it goes on
without the client, on any replica, and the client finds it again by its id.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from chatd.api.deps import ApiDeps
from chatd.api.errors import STOPPING_TEXT, Draining, MethodNotAllowed, Unauthorized
from chatd.api.mcp.toolset import RouteCalls
from chatd.api.openai.answers import (
    CompletionWriter,
    ResponseWriter,
    TurnWriter,
    completion_reply,
    response_json,
    response_reply,
)
from chatd.api.openai.conversations import BegunTurn, Conversations, list_client_tools
from chatd.api.openai.given import read_completion, read_response
from chatd.api.openai.live_turns import LiveTurns
from chatd.api.openai.protocol import (
    DEFAULT_MODEL,
    MAX_BODY_BYTES,
    CompletionBody,
    ErrorDetail,
    Json,
    ResponseBody,
    RetrieveQuery,
    TurnId,
    conversation_id,
    describe_error,
    not_found,
    read_response_id,
    refuse,
)
from chatd.api.openai.turns import AnswerReplaced, Turn
from chatd.api.operations import run_operation
from chatd.api.request import (
    ApiCaller,
    ApiReply,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    read_json,
    read_query,
    reply,
    response_body,
    response_start,
    send_reply,
)
from chatd.api.route import ApiRoute, MountedRoute
from chatd.api.sse import SSE_HEADERS
from chatd.api.streams import (
    CLIENT_GONE_END,
    NOT_READING_END,
    SERVER_STOPPING_END,
    ClientStream,
    StreamEnd,
    StreamRegistry,
)
from chatd.domain.access.permissions import Permission, require_permission
from chatd.domain.chat.commands import InterruptChat
from chatd.domain.errors import ChatdError, Conflict
from chatd.stream.fanout import PING

OPENAI_PREFIX: Final = "/v1"

RETRY_GRACE_S: Final = 2.0
"""Between the loss of a completion's stream and the interrupt of its turn: clients send a request
again at once, or after a second."""
_ANSWERED_END: Final = StreamEnd("answered", "The response is over.", 1000)
_NO_TOKEN: Final = (
    "Send a token as the API key. Create one on the page of chatd, under Settings, Tokens."
)
_COMPLETION: Final = msgspec.json.Decoder(CompletionBody)
_RESPONSE: Final = msgspec.json.Decoder(ResponseBody)
_QUERY: Final = frozenset(name.encode() for name in RetrieveQuery.__struct_fields__)

T = TypeVar("T")


class Exchange(Struct, frozen=True, kw_only=True):
    """A request with its caller."""

    caller: ApiCaller
    scope: Scope
    receive: Receive
    send: Send

    async def body(self, decoder: msgspec.json.Decoder[T]) -> T:
        announced = header(self.scope, b"content-length")
        return read_json(decoder, await read_body(self.receive, announced, MAX_BODY_BYTES))


Serve = Callable[[Exchange], Awaitable[None]]


class OpenAiRoute(Struct, frozen=True, kw_only=True):
    """`endpoint` is a method and a path below the prefix."""

    endpoint: str
    permission: Permission
    summary: str
    serve: Serve


def build_openai_routes(
    deps: ApiDeps, routes: Iterable[ApiRoute], registry: StreamRegistry
) -> tuple[MountedRoute, ...]:
    endpoint = OpenAiEndpoint(deps, RouteCalls(routes, deps.draining), registry)
    return endpoint.mounted()


class OpenAiEndpoint:
    def __init__(self, deps: ApiDeps, routes: RouteCalls, registry: StreamRegistry) -> None:
        self._deps = deps
        self._conversations = Conversations(deps, routes)
        self._turns = LiveTurns(deps)
        self._registry = registry
        self._completing: Counter[TurnId] = Counter()
        """Open requests for a completion, by their turn."""

    def routes(self) -> tuple[OpenAiRoute, ...]:
        one = "/responses/{response_id}"
        return (
            OpenAiRoute(
                endpoint="GET /models",
                permission="catalog.read",
                summary="List the models",
                serve=self.list_models,
            ),
            OpenAiRoute(
                endpoint="GET /models/{model}",
                permission="catalog.read",
                summary="Get a model",
                serve=self.get_model,
            ),
            OpenAiRoute(
                endpoint="POST /chat/completions",
                permission="chats.create",
                summary="Answer messages",
                serve=self.complete,
            ),
            OpenAiRoute(
                endpoint="POST /responses",
                permission="chats.create",
                summary="Create a response",
                serve=self.create_response,
            ),
            OpenAiRoute(
                endpoint=f"GET {one}",
                permission="chats.read",
                summary="Get a response, or continue its stream",
                serve=self.get_response,
            ),
            OpenAiRoute(
                endpoint=f"POST {one}/cancel",
                permission="chats.control",
                summary="Cancel a response; what was said is kept",
                serve=self.cancel_response,
            ),
        )

    def mounted(self) -> tuple[MountedRoute, ...]:
        by_path: dict[str, dict[str, OpenAiRoute]] = {}
        for route in self.routes():
            method, _, path = route.endpoint.partition(" ")
            by_path.setdefault(path, {})[method] = route
        return tuple(
            MountedRoute(
                path=OPENAI_PREFIX + path,
                methods=tuple(methods),
                serve=partial(self._serve, methods),
            )
            for path, methods in by_path.items()
        )

    async def _serve(
        self, methods: Mapping[str, OpenAiRoute], scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            if (route := methods.get(method)) is None:
                allow = ", ".join(methods)
                raise MethodNotAllowed(f"Only {allow} is allowed here.", allow)
            caller = await self._authenticate(scope)
            self._deps.accounts.limits.take(caller, "requests")
            require_permission(caller.actor, route.permission)
            if method == "POST" and self._deps.draining():
                raise Draining(STOPPING_TEXT)
            await route.serve(Exchange(caller=caller, scope=scope, receive=receive, send=send))
        except ChatdError as error:
            await send_reply(send, refuse(error))

    async def _authenticate(self, scope: Scope) -> ApiCaller:
        """A cookie does not count: only a program that was given a token is a client."""
        accounts = self._deps.accounts
        if any(header(scope, name) is not None for name in (b"origin", b"sec-fetch-site")):
            accounts.site.require_same_site(scope, needs_proof=False)
        if not (header(scope, b"authorization") or "").lower().startswith("bearer "):
            raise Unauthorized(_NO_TOKEN)
        return await accounts.authenticator.caller(scope)

    # Models

    async def list_models(self, exchange: Exchange) -> None:
        found = await self._list_models()
        await send_reply(exchange.send, reply({"object": "list", "data": found}))

    async def get_model(self, exchange: Exchange) -> None:
        name = _last_segment(exchange.scope, "/models/")
        found = next((one for one in await self._list_models() if one["id"] == name), None)
        if found is None:
            text = f"The model {name[:100]!r} does not exist or you do not have access to it."
            raise not_found(text, code="model_not_found", param="model")
        await send_reply(exchange.send, reply(found))

    async def _list_models(self) -> list[Json]:
        """The default one first, also under a name that never changes."""
        found = [one for one in await self._deps.models.all() if one.enabled]
        found.sort(key=lambda one: not one.is_default)
        listed = [_model(one.config.name, int(one.created_at.timestamp())) for one in found]
        if found and found[0].is_default and all(one["id"] != DEFAULT_MODEL for one in listed):
            listed.insert(0, _model(DEFAULT_MODEL, int(found[0].created_at.timestamp())))
        return listed

    async def _model_name(self, begun: BegunTurn) -> str:
        model = begun.chat.model_config_id
        found = None if model is None else await self._deps.models.get(model)
        return DEFAULT_MODEL if found is None else found.config.name

    # Chat Completions

    async def complete(self, exchange: Exchange) -> None:
        body = await exchange.body(_COMPLETION)
        self._registry.require_room(exchange.caller)
        begun = await self._conversations.begin(exchange, read_completion(body))
        head: Json = {
            "id": f"chatcmpl-{begun.id}",
            "created": int(begun.chat.updated_at.timestamp()),
            "model": body.model or await self._model_name(begun),
        }
        self._completing[begun.id] += 1
        try:
            if not body.stream:
                make_reply = partial(completion_reply, head)
                await self._answer(exchange, begun, make_reply, asks_here=False)
                return
            options = body.stream_options
            writer = CompletionWriter(head, with_usage=bool(options and options.include_usage))
            end = await self._stream(exchange, begun, writer, asks_here=False)
        finally:
            self._completing[begun.id] -= 1
            if self._completing[begun.id] == 0:
                del self._completing[begun.id]
        if end is CLIENT_GONE_END:
            # Who closes the stream has pressed «stop», or has lost the connection and asks again
            # for the same turn. Nobody is told if the interrupt fails.
            await self._deps.env.clock.sleep(RETRY_GRACE_S, "openai_retry")
            if begun.id not in self._completing:
                with suppress(ChatdError):
                    await self._interrupt(exchange.caller, begun)

    # Responses

    async def create_response(self, exchange: Exchange) -> None:
        body = await exchange.body(_RESPONSE)
        if body.stream or not body.background:
            self._registry.require_room(exchange.caller)
        begun = await self._conversations.begin(exchange, read_response(body))
        head = await self._response_head(begun, body)
        if body.stream:
            await self._stream(exchange, begun, ResponseWriter(begun.id, head), asks_here=True)
        elif body.background:
            turn = await self._turns.read(exchange.caller, begun, asks_here=True)
            await send_reply(exchange.send, reply(response_json(head, turn)))
        else:
            await self._answer(exchange, begun, partial(response_reply, head), asks_here=True)

    async def get_response(self, exchange: Exchange) -> None:
        begun = await self._require(exchange)
        query = read_query(RetrieveQuery, _known_parameters(exchange.scope["query_string"]))
        head = await self._response_head(begun)
        if query.stream:
            writer = ResponseWriter(begun.id, head, query.starting_after)
            await self._stream(exchange, begun, writer, asks_here=True)
            return
        turn = await self._turns.read(exchange.caller, begun, asks_here=True)
        await send_reply(exchange.send, reply(response_json(head, turn)))

    async def cancel_response(self, exchange: Exchange) -> None:
        """A response that is over stays as it is."""
        begun = await self._require(exchange)
        turn = await self._turns.read(exchange.caller, begun, asks_here=True)
        head = await self._response_head(begun)
        if turn.is_over:
            await send_reply(exchange.send, reply(response_json(head, turn)))
            return
        await self._interrupt(exchange.caller, begun)
        await self._answer(exchange, begun, partial(response_reply, head), asks_here=True)

    async def _require(self, exchange: Exchange) -> BegunTurn:
        path = exchange.scope["path"].removesuffix("/cancel")
        turn = read_response_id(_last_segment({"path": path}, "/responses/"))
        return await self._conversations.require(exchange.caller, turn)

    async def _response_head(self, begun: BegunTurn, body: ResponseBody | None = None) -> Json:
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": False,
            }
            for tool in list_client_tools(begun.chat)
        ]
        return {
            "id": f"resp_{begun.id}",
            "object": "response",
            "created_at": int(begun.chat.updated_at.timestamp()),
            "background": bool(body and body.background),
            "conversation": {"id": conversation_id(begun.chat.id)},
            "instructions": body.instructions if body else None,
            "metadata": {},
            "model": body.model if body and body.model else await self._model_name(begun),
            "parallel_tool_calls": True,
            "previous_response_id": body.previous_response_id if body else None,
            "store": True,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": tools,
            "top_p": None,
            "truncation": "auto",
        }

    # Waiting

    async def _interrupt(self, caller: ApiCaller, begun: BegunTurn) -> None:
        """A turn that has ended meanwhile stays as it is."""
        turn = await self._turns.read(caller, begun, asks_here=False)
        if turn.is_over:
            return
        with suppress(Conflict):
            await run_operation(self._deps, caller, begun.chat.id, InterruptChat())

    async def _answer(
        self,
        exchange: Exchange,
        begun: BegunTurn,
        make_reply: Callable[[Turn], ApiReply],
        *,
        asks_here: bool,
    ) -> None:
        """One reply when the turn is over. A client that goes away finds the answer in the chat."""
        caller, answers = exchange.caller, list[ApiReply]()
        with self._registry.open(caller, "openai", exchange.send) as stream:

            async def work() -> None:
                turns = self._turns.follow(caller, stream.access, begun, asks_here=asks_here)
                async with aclosing(turns):
                    async for turn in turns:
                        if turn.is_over:
                            answers.append(make_reply(turn))
                stream.end(_ANSWERED_END)

            end = await self._run(stream, exchange, work, ping=False)
        if answers:
            await send_reply(exchange.send, answers[0])
        elif end not in (CLIENT_GONE_END, NOT_READING_END):
            raise Draining(STOPPING_TEXT if end is SERVER_STOPPING_END else end.message)

    async def _stream(
        self, exchange: Exchange, begun: BegunTurn, writer: TurnWriter, *, asks_here: bool
    ) -> StreamEnd:
        caller = exchange.caller
        with self._registry.open(caller, "openai", exchange.send) as stream:

            async def work() -> None:
                turns = self._turns.follow(caller, stream.access, begun, asks_here=asks_here)
                try:
                    async with aclosing(turns):
                        async for turn in turns:
                            if events := writer.write(turn):
                                await stream.write(response_body(events, more=True))
                except ChatdError as error:
                    _, detail, _ = describe_error(error)
                    if isinstance(error, AnswerReplaced):
                        detail = ErrorDetail(
                            message=error.message, type="server_error", param=None, code=error.code
                        )
                    await stream.write(response_body(writer.fail(detail), more=True))
                stream.end(_ANSWERED_END)

            await stream.write(response_start(200, SSE_HEADERS))
            end = await self._run(stream, exchange, work, ping=True)
            last = b""
            if end is not _ANSWERED_END:
                detail = ErrorDetail(
                    message=end.message, type="server_error", param=None, code=end.code
                )
                last = writer.fail(detail)
            await stream.send_end(response_body(last))
            return end

    async def _run(
        self,
        stream: ClientStream,
        exchange: Exchange,
        work: Callable[[], Awaitable[None]],
        *,
        ping: bool,
    ) -> StreamEnd:
        async def wait_for_disconnect() -> None:
            while (await exchange.receive())["type"] != "http.disconnect":
                pass

        comment = response_body(PING, more=True) if ping else None
        return await stream.run(work, wait_for_disconnect, partial(stream.watch, comment))


def _last_segment(scope: Mapping[str, str], after: str) -> str:
    return scope["path"].rstrip("/").partition(after)[2]


def _known_parameters(query: bytes) -> bytes:
    """Clients send `include[]` and others, which change nothing here."""
    pairs = [pair for pair in query.split(b"&") if pair.partition(b"=")[0] in _QUERY]
    return b"&".join(pairs)


def _model(name: str, created: int) -> Json:
    return {"id": name, "object": "model", "created": created, "owned_by": "chatd"}
