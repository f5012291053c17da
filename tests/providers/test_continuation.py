"""Which models go on from the beginning of an answer, and how each wire says it."""

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.model.protocol import ModelRequest, ProviderError, TextDelta
from chatd.domain.ports import Provider
from chatd.providers.openai.chat_answer import ChatAnswerBuilder
from chatd.providers.openai.chat_decoder import ChatDecoder
from chatd.providers.openai.openai_provider import OpenAIConnection, OpenAIProvider
from chatd.providers.openai.openai_tools import build_tool_names
from chatd.providers.provider_config import ProviderConfig, ProviderKind, Secret
from chatd.providers.registry import build_provider
from tests.support.providers.anthropic import KEY, FakeAnthropic
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.prompts import message, request
from tests.support.providers.stream_reader import collect

LOCAL = "http://127.0.0.1:8080/v1"


def asked(model: str = "m", options: str = "{}", **more: object) -> ModelRequest:
    return request(message("user", "go"), model=model, options=Raw(options.encode()), **more)


def config(kind: ProviderKind, base_url: str | None) -> ProviderConfig:
    return ProviderConfig(kind=kind, base_url=base_url, api_key=Secret("sk-1234567890"))


async def text_of(provider: Provider, sent: ModelRequest) -> str:
    """All text of the answer."""
    try:
        events = await collect(provider, sent)
    finally:
        await provider.close()
    return "".join(event.delta for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize(
    ("kind", "base_url", "model", "options", "continues"),
    [
        ("anthropic", None, "claude-sonnet-4-5", "{}", True),
        ("anthropic", None, "claude-3-5-haiku-20241022", "{}", True),
        ("anthropic", None, "claude-opus-4-6", "{}", False),
        ("anthropic", None, "claude-sonnet-5", "{}", False),
        ("anthropic", None, "claude-fable-5", "{}", False),
        ("anthropic", None, "unknown", "{}", False),
        ("anthropic", None, "unknown", '{"prefill":true}', True),
        ("anthropic", None, "claude-sonnet-4-5", '{"prefill":false}', False),
        ("anthropic", None, "claude-sonnet-4-5", '{"thinking":{"budget_tokens":2048}}', False),
        ("openai", None, "gpt-5.2", "{}", False),
        ("google", None, "gemini-2.5-pro", "{}", False),
        ("openrouter", None, "anthropic/claude-sonnet-4.5", "{}", True),
        ("openrouter", None, "anthropic/claude-opus-4.6", "{}", False),
        ("openrouter", None, "openai/gpt-5", "{}", False),
        ("openrouter", None, "mistralai/x", '{"prefill":true}', True),
        (
            "openrouter",
            None,
            "anthropic/claude-sonnet-4.5",
            '{"reasoning":{"effort":"low"}}',
            False,
        ),
        ("vercel", None, "anthropic/claude-sonnet-4.5", "{}", False),
        ("openai-compat", "https://api.deepseek.com", "deepseek-chat", "{}", True),
        ("openai-compat", "https://elsewhere.example/v1", "deepseek-chat", "{}", False),
        ("openai-compat", "https://api.mistral.ai/v1", "mistral-large-latest", "{}", True),
        ("openai-compat", LOCAL, "qwen", "{}", False),
        ("openai-compat", LOCAL, "qwen", '{"prefill":"continue_final_message"}', True),
        ("openai-compat", LOCAL, "qwen", '{"prefill":"off"}', False),
        ("openai-compat", LOCAL, "q", '{"prefill":"trailing","reasoning_effort":"low"}', False),
        ("openai-compat", LOCAL, "q", '{"prefill":"trailing","unknown":1}', False),
        ("demo", None, "demo", "{}", True),
    ],
)
def test_only_models_that_are_known_to_continue_an_answer_are_asked_to(
    kind: ProviderKind, base_url: str | None, model: str, options: str, *, continues: bool
) -> None:
    provider = build_provider(config(kind, base_url), SystemClock())
    assert provider.can_continue(asked(model, options)) is continues


def test_a_model_that_thinks_does_not_continue() -> None:
    provider = build_provider(config("anthropic", None))
    assert not provider.can_continue(asked("claude-sonnet-4-5", reasoning_effort="high"))


@pytest.mark.parametrize(
    ("style", "last", "fields"),
    [
        ("trailing", {}, {}),
        ("prefix", {"prefix": True}, {}),
        (
            "continue_final_message",
            {},
            {"continue_final_message": True, "add_generation_prompt": False},
        ),
    ],
)
async def test_how_a_server_is_told_to_go_on(
    style: str, last: dict[str, object], fields: dict[str, object]
) -> None:
    async with FakeCompatible.running() as api:
        provider = OpenAIProvider(config("openai-compat", f"{api.url}/v1"))
        api.script(chunk(content="wer"), chunk(finish="stop"), DONE)
        sent = replace(asked(options=f'{{"prefill":"{style}"}}'), continues="half an ans")
        assert await text_of(provider, sent) == "wer"
        body = api.requests[0].json
        messages = msgspec.convert(body["messages"], list[dict[str, object]])
        assert messages[-1] == {"role": "assistant", "content": "half an ans", **last}
        assert {name: body[name] for name in body if "_final_" in name or "add_" in name} == fields


@pytest.mark.parametrize(
    ("pieces", "new"),
    [
        (["half an ", "answer"], "wer"),
        (["half an ans", "wer"], "wer"),
        (["wer"], "wer"),
        (["half", " of it"], "half of it"),
        (["half"], "half"),
    ],
)
async def test_a_server_that_repeats_the_beginning_adds_only_what_is_new(
    pieces: list[str], new: str
) -> None:
    async with FakeCompatible.running() as api:
        provider = OpenAIProvider(config("openai-compat", f"{api.url}/v1"))
        api.script(*(chunk(content=piece) for piece in pieces), chunk(finish="stop"), DONE)
        sent = replace(asked(options='{"prefill":"trailing"}'), continues="half an ans")
        assert await text_of(provider, sent) == new


async def test_deepseek_takes_a_prefix_under_another_path() -> None:
    async with FakeCompatible.running() as api:
        connection = OpenAIConnection(config("openai-compat", f"{api.url}/v1"), f"{api.url}/v1")
        decoder = ChatDecoder(ChatAnswerBuilder("me", build_tool_names(asked())))
        opened = connection.stream("/chat/completions", asked(), b"{}", decoder, root="/beta")
        with pytest.raises(ProviderError):
            await opened.__aenter__()
        assert api.requests[0].path == "/beta/chat/completions"
        await connection.close()


async def test_the_beginning_of_an_answer_is_no_part_of_the_cached_prompt() -> None:
    async with FakeAnthropic.running() as api:
        provider = build_provider(
            ProviderConfig(kind="anthropic", base_url=api.url, api_key=Secret(KEY))
        )
        api.script_text("wer")
        sent = replace(asked("claude-sonnet-4-5"), continues="half an ans")
        assert await text_of(provider, sent) == "wer"
        messages = msgspec.convert(api.requests[0].json["messages"], list[dict[str, object]])
        assert messages[-1] == {
            "role": "assistant",
            "content": [{"type": "text", "text": "half an ans"}],
        }
