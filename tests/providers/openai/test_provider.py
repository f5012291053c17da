"""The OpenAI provider over real sockets."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.parts import TextPart, ToolCallPart
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import (
    ComputerTool,
    ModelEvent,
    ModelRequest,
    PromptMessage,
    ProviderError,
    ToolSpec,
)
from chatd.providers.openai.openai_provider import (
    OPENROUTER_URL,
    VERCEL_URL,
    OpenAIProvider,
    base_address,
    suggest_version_path,
)
from chatd.providers.provider_config import ProviderConfig, ProviderKind, Secret
from chatd.providers.registry import PROVIDER_CLASSES, build_provider
from tests.support.providers.openai_chat import NAMES as CHAT_NAMES
from tests.support.providers.openai_chat import (
    FakeChat,
    FakeCompatible,
    FakeDeepSeek,
    FakeKimi,
    chunk,
)
from tests.support.providers.openai_chat import stream as chat_stream
from tests.support.providers.openai_responses import KEY, NAMES, FakeResponses, stream
from tests.support.providers.prompts import call, message, replayed, request, result
from tests.support.providers.server import FakeServer, Reset
from tests.support.providers.stream_reader import answer_of, collect

WAIT_S = 30
THINKS, PLAIN = "gpt-5.2", "gpt-4.1"
USE_CHAT = Raw(b'{"use_responses_api":false}')
USE_RESPONSES = Raw(b'{"use_responses_api":true}')


def settings(fake: FakeServer, **more: object) -> ProviderConfig:
    plain = ProviderConfig(kind="openai", api_key=Secret(KEY), base_url=f"{fake.url}/v1")
    return msgspec.structs.replace(plain, **more)


async def ask(fake: FakeServer, sent: ModelRequest, **more: object) -> list[ModelEvent]:
    return await ask_of(OpenAIProvider(settings(fake, **more)), sent)


async def ask_of(provider: OpenAIProvider, sent: ModelRequest) -> list[ModelEvent]:
    try:
        return await collect(provider, sent)
    finally:
        await provider.close()


async def failure(fake: FakeServer, sent: ModelRequest, **more: object) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await ask(fake, sent, **more)
    return caught.value


TOOLS = tuple(
    ToolSpec(name=name, description="", input_schema=Raw(b'{"type":"object"}'))
    for name in ("read_file", "show.time", "write_file")
)


# Histories


ANSWERED = [name for name in NAMES if name not in ("cut", "error", "error_nested", "failed")]


@pytest.mark.parametrize("name", ANSWERED)
async def test_the_responses_api_accepts_all_its_answers_back(
    responses: FakeResponses, name: str
) -> None:
    responses.script(stream(name))
    first = request(model=THINKS, tools=TOOLS)
    answer = answer_of(await ask(responses, first))
    responses.script(stream("text"))
    again = request(*_going_on(replayed(answer)), model=THINKS, tools=TOOLS)
    assert answer_of(await ask(responses, again)).content
    assert len(responses.accepted) == 2


CHATTED = [
    name for name in CHAT_NAMES if name not in ("cut", "error", "no_resources", "openrouter_error")
]


@pytest.mark.parametrize("name", CHATTED)
async def test_a_compatible_server_accepts_all_its_answers_back(
    compatible: FakeCompatible, name: str
) -> None:
    compatible.script(chat_stream(name))
    first = request(model="m", tools=TOOLS)
    answer = answer_of(await ask(compatible, first, kind="openai-compat"))
    compatible.script(chat_stream("text"))
    again = request(*_going_on(replayed(answer)), model="m", tools=TOOLS)
    assert answer_of(await ask(compatible, again, kind="openai-compat")).content
    assert len(compatible.accepted) == 2


@pytest.mark.parametrize(
    ("vendor", "model"), [(FakeDeepSeek, "deepseek-v4"), (FakeKimi, "kimi-k2.6")]
)
async def test_a_server_that_requires_its_reasoning_gets_it_in_every_later_turn(
    vendor: type[FakeCompatible], model: str
) -> None:
    async with vendor.running() as server:
        sent = [
            message("user", "Hi"),
            message("assistant", call("x")),
            message("tool", result("x")),
        ]
        for _ in range(3):
            server.script(chat_stream("deepseek"))
            asked = request(*sent, model=model, tools=TOOLS)
            answer = answer_of(await ask(server, asked, kind="openai-compat"))
            sent += [*replayed(answer), message("user", "And?")]
        assert len(server.accepted) == 3


def _going_on(said: list[PromptMessage]) -> list[PromptMessage]:
    return [message("system", "Be kind."), message("user", "Hi"), *said, message("user", "And?")]


async def test_repeated_ids_of_a_server_become_unique_call_ids(compatible: FakeCompatible) -> None:
    compatible.script(chat_stream("tools"))
    compatible.script(chat_stream("tools"))
    sent = request(model="m", tools=TOOLS)
    first = answer_of(await ask(compatible, sent, kind="openai-compat"))
    again = request(*_going_on(replayed(first)), model="m", tools=TOOLS)
    second = answer_of(await ask(compatible, again, kind="openai-compat"))
    calls = [p for p in (*first.content, *second.content) if isinstance(p, ToolCallPart)]
    assert len({part.tool_call_id for part in calls}) == 4


async def test_a_history_of_openai_continues_at_other_providers(
    responses: FakeResponses, compatible: FakeCompatible
) -> None:
    responses.script(stream("web_search"))
    searched = answer_of(await ask(responses, request(model=THINKS)))
    responses.script(stream("tools"))
    called = answer_of(await ask(responses, request(model=THINKS, tools=TOOLS)))
    compatible.script(chat_stream("text"))
    sent = request(
        message("user", "Hi"), *replayed(searched), *_user(), *replayed(called), model="llama"
    )
    await ask(compatible, sent, kind="openai-compat", name="local")
    responses.script(stream("text"))
    await ask(responses, msgspec.structs.replace(sent, model=PLAIN), name="another")


@pytest.mark.covers("providers-7")
async def test_encrypted_reasoning_of_another_account_is_not_sent(responses: FakeResponses) -> None:
    responses.script(stream("reasoning"))
    sealed = answer_of(await ask(responses, request(model=THINKS)))
    sent = request(*_going_on(replayed(sealed)), model=THINKS)
    for key in (KEY, f"{KEY}2"):
        responses.reply(503)
        await failure(responses, sent, api_key=Secret(key))
    own, others = responses.requests[1:]
    assert b"gAAAAABo8x9k" in own.body
    assert b"gAAAAABo8x9k" not in others.body


def _user() -> list[PromptMessage]:
    return [message("user", "And?")]


async def test_a_call_without_a_result_is_rejected_and_not_retried(
    responses: FakeResponses, chat: FakeChat
) -> None:
    sent = request(message("user", "Hi"), message("assistant", call("a")), model=PLAIN)
    classified = classify_fault((await failure(responses, sent)).fault)
    expected = ("generic", False, 400)
    assert (classified.kind, classified.retryable, classified.error.status_code) == expected
    sent = msgspec.structs.replace(sent, options=USE_CHAT)
    classified = classify_fault((await failure(chat, sent)).fault)
    expected = ("generic", False, 400)
    assert (classified.kind, classified.retryable, classified.error.status_code) == expected
    assert "did not have response messages" in (classified.error.detail or "")


# Choice of the API


@pytest.mark.covers("providers-15")
@pytest.mark.parametrize(
    ("kind", "model", "configured", "options", "path"),
    [
        ("openai", PLAIN, None, None, "/v1/responses"),
        ("openai", "gpt-3.5-turbo", None, None, "/v1/chat/completions"),
        ("openai", PLAIN, False, None, "/v1/chat/completions"),
        ("openai", PLAIN, False, USE_RESPONSES, "/v1/responses"),
        ("openai", PLAIN, None, USE_CHAT, "/v1/chat/completions"),
        ("azure", PLAIN, None, None, "/v1/responses"),
        ("azure", "my-deployment", None, None, "/v1/chat/completions"),
        ("azure", "my-deployment", True, None, "/v1/responses"),
        ("openai-compat", PLAIN, None, None, "/v1/chat/completions"),
        ("openai-compat", PLAIN, True, None, "/v1/responses"),
        ("openrouter", "openai/gpt-5", True, None, "/v1/chat/completions"),
        ("vercel", "openai/gpt-5", True, None, "/v1/chat/completions"),
    ],
)
async def test_kind_model_and_options_choose_the_api(
    chat: FakeChat,
    kind: ProviderKind,
    model: str,
    *,
    configured: bool | None,
    options: Raw | None,
    path: str,
) -> None:
    chat.reply(503, {"error": {"message": "later"}})
    sent = request(model=model) if options is None else request(model=model, options=options)
    chosen = settings(chat, kind=kind, use_responses_api=configured)
    provider = OpenAIProvider(chosen, f"{chat.url}/v1")
    wire = provider.transport(sent)
    with pytest.raises(ProviderError):
        await ask_of(provider, sent)
    assert chat.requests[0].path == path
    assert path.endswith("/responses") == (wire == "responses")


def test_every_kind_is_built_from_the_registry() -> None:
    key = Secret(KEY)
    for kind in ("openai", "azure", "openai-compat", "openrouter", "vercel"):
        chosen = ProviderConfig(kind=kind, api_key=key, base_url="https://gate.example.org/v1")
        assert PROVIDER_CLASSES[kind] is OpenAIProvider
        assert build_provider(chosen).name == kind


@pytest.mark.parametrize(
    ("kind", "base", "used"),
    [
        ("openai", None, "https://api.openai.com/v1"),
        ("openai", "https://gate.example.org/v1/", "https://gate.example.org/v1"),
        ("openrouter", "https://gate.example.org/v1", "https://gate.example.org/v1"),
        ("openrouter", None, OPENROUTER_URL),
        ("vercel", None, VERCEL_URL),
        ("azure", "https://acme.openai.azure.com/", "https://acme.openai.azure.com/openai/v1"),
        ("openai-compat", "http://localhost:11434/v1", "http://localhost:11434/v1"),
    ],
)
def test_base_addresses(kind: ProviderKind, base: str | None, used: str) -> None:
    assert base_address(ProviderConfig(kind=kind, base_url=base)) == used


@pytest.mark.parametrize("kind", ["azure", "openai-compat"])
def test_kinds_without_a_fixed_address_need_one(kind: ProviderKind) -> None:
    with pytest.raises(ProviderError, match="base_url"):
        build_provider(ProviderConfig(kind=kind, api_key=Secret(KEY)))


# Keys and headers


async def test_the_key_is_only_in_its_header(responses: FakeResponses) -> None:
    responses.script(stream("text"))
    provider = OpenAIProvider(settings(responses))
    assert KEY not in repr(provider) + repr(vars(provider)) + str(settings(responses))
    sent = request(model=PLAIN)
    await ask_of(provider, sent)
    [seen] = responses.requests
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["user-agent"].startswith("chatd/")
    assert KEY.encode() not in seen.body


async def test_azure_has_a_header_of_its_own(responses: FakeResponses) -> None:
    responses.script(stream("text"))
    await ask(responses, request(model=PLAIN), kind="azure")
    [seen] = responses.requests
    assert seen.headers["api-key"] == KEY
    assert "authorization" not in seen.headers


async def test_a_configured_header_replaces_the_key(responses: FakeResponses) -> None:
    responses.script(stream("text"))
    own = {"Authorization": Secret(f"Bearer {KEY}"), "OpenAI-Organization": Secret("org-1")}
    await ask(responses, request(model=PLAIN), api_key=None, headers=own)
    assert responses.requests[0].headers["openai-organization"] == "org-1"


async def test_a_compatible_server_needs_no_key(compatible: FakeCompatible) -> None:
    compatible.script(chat_stream("text"))
    await ask(compatible, request(model="m"), kind="openai-compat", api_key=None)
    assert "authorization" not in compatible.requests[0].headers
    with pytest.raises(ProviderError, match="OPENROUTER_API_KEY"):
        build_provider(ProviderConfig(kind="openrouter"))


async def test_an_invalid_key_is_reported_without_the_key(responses: FakeResponses) -> None:
    wrong = "sk-proj-WrongWrongWrongWrong"
    failed = await failure(responses, request(model=PLAIN), api_key=Secret(wrong))
    assert classify_fault(failed.fault).kind == "auth"
    assert wrong not in repr(failed) + repr(failed.fault) + repr(failed.args)
    assert failed.__context__ is None


# Failures


async def test_a_computer_needs_the_responses_api(chat: FakeChat) -> None:
    screen = ComputerTool(width_px=1, height_px=1)
    failed = await failure(chat, request(model=PLAIN, computer=screen, options=USE_CHAT))
    assert "Responses API" in failed.fault.message
    assert not chat.requests


@pytest.mark.parametrize(
    ("status", "error", "kind", "retryable"),
    [
        (429, {"code": "rate_limit_exceeded", "type": "requests"}, "rate_limit", True),
        (429, {"code": "insufficient_quota", "type": "insufficient_quota"}, "usage_limit", False),
        (400, {"code": "context_length_exceeded"}, "context_overflow", False),
        (404, {"code": "model_not_found", "type": "invalid_request_error"}, "config", False),
        (401, {"code": "invalid_api_key"}, "auth", False),
        (500, {"code": None, "type": "server_error"}, "generic", True),
        (503, {"code": None, "type": "service_unavailable"}, "timeout", True),
    ],
)
async def test_rejections_can_be_classified(
    responses: FakeResponses, status: int, error: dict[str, object], kind: str, *, retryable: bool
) -> None:
    body = {"error": {"message": "It went wrong.", "param": None, **error}}
    responses.reply(status, body, {"retry-after-ms": "1500"})
    failed = await failure(responses, request(model=PLAIN), name="my openai")
    classified = classify_fault(failed.fault)
    assert (classified.kind, classified.retryable) == (kind, retryable)
    assert (failed.fault.status_code, failed.fault.retry_after_s) == (status, 1.5)
    assert failed.fault.provider == "my openai"


async def test_an_error_instead_of_a_stream_is_reported(compatible: FakeCompatible) -> None:
    compatible.reply(200, {"error": {"message": "No endpoints found.", "code": 404}})
    failed = await failure(compatible, request(model="m"), kind="openai-compat")
    assert "No endpoints found." in (failed.fault.body or "")


async def test_a_connection_cut_after_the_answer_is_ignored(compatible: FakeCompatible) -> None:
    compatible.script(chunk(content="Hi") + chunk("stop"), Reset())
    events = await ask(compatible, request(model="m"), kind="openai-compat")
    assert answer_of(events).content == (TextPart(text="Hi"),)


@pytest.mark.parametrize("body", [b"404 page not found", {"detail": "Not Found"}, b"<html>"])
async def test_a_base_url_without_its_version_is_corrected_in_the_error(
    compatible: FakeCompatible, body: object
) -> None:
    compatible.unknown_path_body = body
    base = compatible.url
    failed = await failure(compatible, request(model="m"), kind="openai-compat", base_url=base)
    found = classify_fault(failed.fault)
    assert (found.kind, found.retryable) == ("config", False)
    assert f'The base_url has no /v1. Try base_url = "{base}/v1".' in (found.error.detail or "")


@pytest.mark.parametrize(
    ("base", "meant"),
    [
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("http://localhost:11434/openai", "http://localhost:11434/openai/v1"),
        ("http://localhost:11434/v1", None),
        ("https://api.z.ai/api/paas/v4", None),
        ("https://generativelanguage.googleapis.com/v1beta/openai", None),
    ],
)
def test_a_version_is_suggested_for_a_base_url_that_has_none(base: str, meant: str | None) -> None:
    hint = suggest_version_path(base)
    assert (hint is None) is (meant is None)
    assert meant is None or f'"{meant}"' in (hint or "")


@pytest.mark.parametrize(
    ("base_model", "path", "effort"),
    [
        (None, "/v1/chat/completions", "max"),
        ("gpt-5.2", "/v1/responses", "xhigh"),
        ("gpt-6-astra", "/v1/responses", "max"),
    ],
)
async def test_a_deployment_is_known_by_its_base_model(
    base_model: str | None, path: str, effort: str
) -> None:
    options = Raw(msgspec.json.encode({} if base_model is None else {"base_model": base_model}))
    sent = request(model="prod-1", reasoning_effort="max", options=options)
    async with FakeServer.running() as fake:
        await failure(fake, sent, kind="azure")
        [seen] = fake.requests
    assert (seen.path, seen.json["model"]) == (path, "prod-1")
    reasoning = seen.json.get("reasoning") or {"effort": seen.json.get("reasoning_effort")}
    assert reasoning == {"effort": effort}


async def test_tools_of_a_model_of_the_responses_api_are_not_sent_elsewhere(chat: FakeChat) -> None:
    sent = request(model="gpt-6-astra", tools=TOOLS, options=USE_CHAT)
    found = classify_fault((await failure(chat, sent)).fault)
    assert (found.kind, found.retryable) == ("config", False)
    assert "remove use_responses_api = false" in (found.error.detail or "")
    assert chat.requests == []
