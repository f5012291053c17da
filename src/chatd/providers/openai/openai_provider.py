"""The provider for OpenAI's two APIs: OpenAI, Azure, gateways and compatible servers.

Chooses between Responses and Chat Completions; the accepted options follow from that.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import urljoin, urlsplit, urlunsplit

from msgspec import UNSET, Struct, structs

from chatd.domain.answer.partial import EchoFilter
from chatd.domain.computer_use import PICTURES_OF
from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import (
    ModelEvent,
    ModelRequest,
    PromptCall,
    ProviderError,
    StreamPing,
    TextDelta,
    TextStart,
    UsageReported,
    as_function,
)
from chatd.providers.anthropic.anthropic_models import claude_facts
from chatd.providers.http import ProviderSession, digest_off_loop, encode_off_loop
from chatd.providers.openai import chat_request, responses_request
from chatd.providers.openai.chat_answer import ChatAnswerBuilder
from chatd.providers.openai.chat_decoder import ChatDecoder
from chatd.providers.openai.chat_dialect import ChatDialect, choose_dialect
from chatd.providers.openai.chat_request import ChatOptions
from chatd.providers.openai.openai_models import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    Transport,
    VercelOptions,
    choose_transport,
    find_model,
    forbid_storage,
    has_computer_tool,
    is_claude,
    known_model,
)
from chatd.providers.openai.openai_tools import build_tool_names
from chatd.providers.openai.responses_decoder import ResponsesDecoder
from chatd.providers.options import parse_options
from chatd.providers.provider_config import (
    ProviderConfig,
    Secret,
    base_url,
    config_fault,
    join_url,
    list_headers,
    request_headers,
    require_key,
)
from chatd.providers.sse import FramedDecoder

# Address, authentication and HTTP session

OPENAI_URL: Final = "https://api.openai.com/v1"
OPENROUTER_URL: Final = "https://openrouter.ai/api/v1"
VERCEL_URL: Final = "https://ai-gateway.vercel.sh/v1"

_AZURE: Final = re.compile(
    r"([a-z0-9-]+)\.(?:openai|cognitiveservices|services\.ai)\.azure\.com", re.IGNORECASE
)

_T = TypeVar("_T", bound=Struct)


class OpenAIConnection:
    def __init__(self, config: ProviderConfig, base: str) -> None:
        self.config = config
        self.base = base
        self._key = _key(config)
        secrets = config.secrets if self._key is None else (self._key, *config.secrets)
        self._session = ProviderSession(
            config.label, secrets, config.http, wrong_path_hint=suggest_version_path(base)
        )

    @property
    def origin(self) -> str:
        """Identifies the account that encrypted a part. The API rejects encrypted reasoning of
        another account, which would block a chat for good. Stored with messages, so the key is
        in it only as a short hash."""
        account = "" if self._key is None else self._key.reveal()
        mark = hashlib.blake2b(f"{self.base} {account}".encode(), digest_size=4).hexdigest()
        return f"{self.config.label}:{mark}"

    def parse_options(self, block: type[_T], request: ModelRequest) -> _T:
        try:
            return parse_options(block, request.options)
        except InvalidInput as error:
            raise config_fault(self.config, error.message) from None

    def stream(
        self,
        path: str,
        request: ModelRequest,
        body: bytes,
        decoder: FramedDecoder,
        *,
        root: str | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """`root` replaces the path of the base address, at the same server."""
        base = self.base if root is None else urljoin(self.base, root)
        return self._session.stream(
            url=join_url(base, path),
            headers=request_headers(self.config, request, self._auth()),
            body=body,
            decoder=decoder,
        )

    async def read_model_list(self) -> bytes:
        return await self._session.read(
            join_url(self.base, "/models"), list_headers(self.config, self._auth())
        )

    async def close(self) -> None:
        await self._session.close()

    def _auth(self) -> dict[str, str]:
        if self._key is None:
            return {}
        if self.config.kind == "azure":
            return {"api-key": self._key.reveal()}
        return {"authorization": f"Bearer {self._key.reveal()}"}


def _key(config: ProviderConfig) -> Secret | None:
    """None if a compatible server needs no key, or if a configured header replaces it."""
    named = {name.lower() for name in config.headers}
    optional = config.kind == "openai-compat" or named & {"authorization", "api-key"}
    return None if optional and not config.api_key else require_key(config)


def base_address(config: ProviderConfig) -> str:
    """The base of all paths, including the API version."""
    match config.kind:
        case "openrouter":
            return base_url(config, OPENROUTER_URL)
        case "vercel":
            return base_url(config, VERCEL_URL)
        case "azure":
            return azure_url(base_url(config, None))
        case "openai":
            return base_url(config, OPENAI_URL)
        case _:
            return base_url(config, None)


def suggest_version_path(base: str) -> str | None:
    """The base URL that is most likely meant, if this one has no version in its path."""
    url = urlsplit(base)
    if any(re.fullmatch(r"v\d\w*", piece) for piece in url.path.split("/")):
        return None
    meant = urlunsplit((url.scheme, url.netloc, f"{url.path.rstrip('/')}/v1", "", ""))
    return f'The base_url has no /v1. Try base_url = "{meant}".'


def azure_url(base: str) -> str:
    """Convert any address of an Azure resource to its current form. Other addresses, such as a
    gateway's, stay unchanged."""
    match = _AZURE.fullmatch(urlsplit(base).hostname or "")
    return base if match is None else f"https://{match[1].lower()}.openai.azure.com/openai/v1"


# The provider

_EventStream = AbstractAsyncContextManager[AsyncIterator[ModelEvent]]


class OpenAIProvider:
    """Satisfies `domain.ports.Provider`. `base` replaces the configured address."""

    def __init__(self, config: ProviderConfig, base: str | None = None) -> None:
        self._config = config
        self._connection = OpenAIConnection(config, base or base_address(config))

    @property
    def name(self) -> str:
        return self._config.label

    def transport(self, request: ModelRequest) -> Transport:
        """By the model's option, else the provider's, else the model's name."""
        return self._resolve(request)[0]

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        transport, options = self._resolve(request)
        is_own = transport == "responses" and self._config.kind in PICTURES_OF
        if not is_own or not has_computer_tool(known_model(request.model, options)):
            request = as_function(request)
        if transport == "responses":
            opened = await self._stream_response(request, _responses_options(options))
        else:
            opened = await self._stream_chat(request, options)
        async with opened as events:
            yield events

    def can_continue(self, request: ModelRequest) -> bool:
        """Servers refuse a prefill together with reasoning, and with a schema for the answer."""
        try:
            transport, options = self._resolve(request)
        except ProviderError:
            return False
        is_plain = transport == "chat" and request.output_schema is UNSET
        efforts = (request.reasoning_effort, _configured_effort(options))
        reasons = any(effort not in (None, "none") for effort in efforts)
        dialect = self._choose_dialect(request, options)
        return is_plain and not reasons and dialect.continues is not None

    async def read_model_list(self) -> bytes:
        return await self._connection.read_model_list()

    async def close(self) -> None:
        await self._connection.close()

    def _resolve(self, request: ModelRequest) -> tuple[Transport, ChatOptions]:
        configured = self._config.use_responses_api
        match self._config.kind:
            case "openrouter":
                return "chat", self._connection.parse_options(OpenRouterOptions, request)
            case "vercel":
                return "chat", self._connection.parse_options(VercelOptions, request)
            case "openai-compat":
                compat = self._connection.parse_options(CompatOptions, request)
                return "responses" if configured else "chat", compat
            case _:
                options = self._connection.parse_options(OpenAIOptions, request)
                options = forbid_storage(options, self._connection.base)
                chosen = options.use_responses_api
                chosen = configured if chosen is None else chosen
                model = known_model(request.model, options)
                return choose_transport(model, use_responses_api=chosen), options

    async def _stream_response(self, request: ModelRequest, options: OpenAIOptions) -> _EventStream:
        names = responses_request.responses_tool_names(request, options)
        origin = self._connection.origin
        body = await encode_off_loop(
            request, lambda: responses_request.encode_request(request, options, names, origin)
        )
        decoder = ResponsesDecoder(origin, names)
        return self._connection.stream("/responses", request, body, decoder)

    async def _stream_chat(self, request: ModelRequest, options: ChatOptions) -> _EventStream:
        if request.computer is not None:
            raise config_fault(
                self._config,
                f"{request.model} cannot use a computer here: that needs the Responses API",
            )
        self._check_chat(request, options)
        names = build_tool_names(request)
        origin = self._connection.origin
        dialect = self._choose_dialect(request, options)
        body = await encode_off_loop(
            request,
            lambda: chat_request.encode_request(request, options, names, dialect, origin),
        )
        answer = ChatAnswerBuilder(
            origin,
            names,
            used_call_ids={
                part.id
                for message in request.messages
                for part in message.parts
                if isinstance(part, PromptCall)
            },
            salt=await digest_off_loop(body, _call_salt),
            thought_tags=dialect.thought_tags,
            replays_tags=not dialect.is_gemini,
        )
        decoder = ChatDecoder(answer, reports_cost=self._config.kind == "openrouter")
        path = "/chat/completions"
        if request.continues is None:
            return self._connection.stream(path, request, body, decoder)
        root = dialect.continue_path
        opened = self._connection.stream(path, request, body, decoder, root=root)
        return _without_echo(opened, request.continues) if dialect.echoes_prefix else opened

    def _check_chat(self, request: ModelRequest, options: ChatOptions) -> None:
        """Only OpenAI's own API is known to lack what its models do elsewhere."""
        found = find_model(known_model(request.model, options))
        if isinstance(options, OpenAIOptions) and found and found.needs_responses and request.tools:
            raise config_fault(
                self._config,
                f"{request.model} calls tools in the Responses API only: remove"
                " use_responses_api = false",
            )

    def _choose_dialect(self, request: ModelRequest, options: ChatOptions) -> ChatDialect:
        dialect = choose_dialect(self._config.kind, self._connection.base, request.model)
        match options:
            case CompatOptions():
                return structs.replace(
                    dialect,
                    reasoning_replay=options.reasoning_replay or dialect.reasoning_replay,
                    thought_tags=dialect.thought_tags if options.think_tags else (),
                    **_configured_prefill(options),
                )
            case OpenRouterOptions() | VercelOptions():
                takes = options.prefill
                if takes is None:
                    # Other gateways are not known to pass it on.
                    is_known = is_claude(request.model) and self._config.kind == "openrouter"
                    takes = is_known and claude_facts(request.model).takes_prefill
                return structs.replace(dialect, continues="trailing" if takes else None)
            case OpenAIOptions():
                return dialect


def _configured_prefill(options: CompatOptions) -> dict[str, object]:
    """What an operator says of a server counts. Whether that one repeats the text is not known."""
    if options.prefill is None:
        return {}
    if options.prefill == "off":
        return {"continues": None}
    return {"continues": options.prefill, "echoes_prefix": True}


def _configured_effort(options: ChatOptions) -> str | None:
    match options:
        case OpenAIOptions() | CompatOptions():
            return options.reasoning_effort
        case OpenRouterOptions() | VercelOptions():
            wanted = options.reasoning
            if wanted is None or wanted.enabled is False:
                return None
            return wanted.effort or "as configured"


@asynccontextmanager
async def _without_echo(
    opened: _EventStream, continues: str
) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
    async with opened as events:
        yield _new_events(events, EchoFilter(continues))


async def _new_events(
    events: AsyncIterator[ModelEvent], echo: EchoFilter
) -> AsyncGenerator[ModelEvent]:
    block = "0"
    async for event in events:
        match event:
            case TextStart():
                block = event.id
                yield event
            case TextDelta():
                block = event.id
                if new := echo.feed(event.delta):
                    yield structs.replace(event, delta=new)
            case StreamPing() | UsageReported():
                yield event
            case _:
                if held := echo.end():
                    yield TextDelta(id=block, delta=held)
                yield event


def _responses_options(options: ChatOptions) -> OpenAIOptions:
    if isinstance(options, OpenAIOptions):
        return options
    if not isinstance(options, CompatOptions):
        return OpenAIOptions()
    return OpenAIOptions(
        reasoning_effort=options.reasoning_effort,
        base_model=options.base_model,
        user=options.user,
        extra_body=options.extra_body,
    )


def _call_salt(body: bytes) -> str:
    """A hash of the request: equal when it is repeated, different in every other step."""
    return hashlib.blake2b(body, digest_size=6).hexdigest()
