"""Lists of models as vendors and local servers send them."""

from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import (
    ModelCapabilities,
    ModelConfig,
    ProviderError,
    merge_capabilities,
)
from chatd.providers.known_models import (
    OfferedModel,
    find_objection,
    known_capabilities,
    list_offered,
    parse_offered,
    suggest_model,
)
from chatd.providers.provider_config import ProviderConfig, ProviderKind, Secret
from chatd.providers.registry import build_provider
from tests.support.providers.server import FakeServer, RecordedRequest, Reply

ROUTER = (
    b'{"data": [{"id": "a/b", "name": "A: B", "context_length": 1000,'
    b' "architecture": {"input_modalities": ["text", "image", "file"]},'
    b' "top_provider": {"context_length": 900, "max_completion_tokens": 70}}]}'
)
GOOGLE = (
    b'{"models": [{"name": "models/gemini-x", "displayName": "Gemini X",'
    b' "inputTokenLimit": 1048576, "outputTokenLimit": 65536,'
    b' "supportedGenerationMethods": ["generateContent"]},'
    b' {"name": "models/embed", "supportedGenerationMethods": ["embedContent"]}]}'
)
ODD = (
    b'{"data": [7, {"id": 8}, {"id": ""}, {"id": "a\\u0000b"}, {"id": "m", "meta": [],'
    b' "max_model_len": true, "max_tokens": -1}, {"id": "m"}]}'
)


@pytest.mark.parametrize(
    ("body", "model", "shown", "capabilities"),
    [
        (
            b'{"data": [{"id": "claude-x", "display_name": "Claude X", "type": "model"}]}',
            "claude-x", "Claude X", ModelCapabilities(),
        ),
        (b'{"data": [{"id": "gpt-x", "object": "model"}]}', "gpt-x", "gpt-x", ModelCapabilities()),
        (
            b'{"data": [{"id": "Qwen/Q", "max_model_len": 40960}]}',
            "Qwen/Q", "Qwen/Q", ModelCapabilities(context_limit=40960),
        ),
        (
            b'{"data": [{"id": "m.gguf", "meta": {"n_ctx_train": 8192, "n_params": 9}}]}',
            "m.gguf", "m.gguf", ModelCapabilities(context_limit=8192),
        ),
        (
            ROUTER,
            "a/b", "A: B",
            ModelCapabilities(context_limit=1000, max_output_tokens=70, images=True, pdfs=True),
        ),
        (
            GOOGLE,
            "gemini-x", "Gemini X",
            ModelCapabilities(context_limit=1048576, max_output_tokens=65536),
        ),
        (
            b'{"data": [{"id": "m", "max_context_length": 5, "capabilities": {"vision": false}}]}',
            "m", "m", ModelCapabilities(context_limit=5, images=False),
        ),
        (
            ODD,
            "m", "m", ModelCapabilities(),
        ),
    ],
)  # fmt: skip
def test_a_list_of_models_is_read(
    body: bytes, model: str, shown: str, capabilities: ModelCapabilities
) -> None:
    [found] = parse_offered(body)
    assert found == OfferedModel(model=model, display_name=shown, capabilities=capabilities)


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"data": 7}', b'{"data": "\xff"}'])
def test_a_list_in_an_unknown_form_is_an_error(body: bytes) -> None:
    with pytest.raises(ProviderError, match="not in a known form"):
        parse_offered(body)


class Listing(FakeServer):
    """Answers every request with a list of one model, and has the last request."""

    def refuse(self, request: RecordedRequest) -> Reply | None:
        body = b'{"data": [{"id": "m"}]}'
        return Reply(headers={"content-type": "application/json"}, steps=(body,))


@pytest.mark.parametrize(
    ("kind", "path", "header", "value"),
    [
        ("anthropic", "/v1/models?limit=1000", "x-api-key", "sk-1"),
        ("openai", "/v1/models", "authorization", "Bearer sk-1"),
        ("google", "/v1beta/models?pageSize=1000", "x-goog-api-key", "sk-1"),
    ],
)
async def test_each_vendor_is_asked_for_its_list_with_the_key(
    kind: ProviderKind, path: str, header: str, value: str
) -> None:
    async with Listing.running() as fake:
        base = f"{fake.url}/v1" if kind == "openai" else fake.url
        provider = build_provider(ProviderConfig(kind=kind, base_url=base, api_key=Secret("sk-1")))
        [found] = await list_offered(provider, kind)
        await provider.close()
    assert found.model == "m"
    [sent] = fake.requests
    assert (sent.method, sent.path, sent.headers[header]) == ("GET", path, value)


# What chatd knows itself


def test_the_first_layer_that_knows_a_field_counts() -> None:
    own = ModelCapabilities(images=False, efforts=())
    told = ModelCapabilities(images=True, context_limit=5)
    known = ModelCapabilities(context_limit=9, max_output_tokens=3, efforts=("low",))
    assert merge_capabilities(own, None, told, known) == ModelCapabilities(
        images=False, efforts=(), context_limit=5, max_output_tokens=3
    )


@pytest.mark.parametrize(
    ("kind", "model", "expected"),
    [
        ("anthropic", "claude-sonnet-4-5", (True, True, True, 64_000, True)),
        ("anthropic", "claude-opus-4-1", (True, True, True, 32_000, True)),
        ("anthropic", "claude-3-5-haiku-latest", (True, True, True, 8_192, False)),
        ("bedrock", "eu.anthropic.claude-sonnet-4-5-v1:0", (True, True, False, 64_000, True)),
        ("openrouter", "anthropic/claude-sonnet-4-5", (True, False, False, 64_000, True)),
        ("openai", "gpt-4o", (True, True, True, 16_384, False)),
        ("openai", "gpt-5.2", (True, True, True, 128_000, True)),
        ("openai", "o3-mini", (False, False, True, 100_000, True)),
        ("google", "gemini-2.5-flash", (True, True, False, 65_536, True)),
        ("google", "gemini-3-pro-preview", (True, True, True, 65_536, True)),
        ("openai-compat", "gpt-oss-20b", (False, False, False, None, True)),
        ("openai-compat", "qwen3:8b", (None, None, None, None, None)),
        ("demo", "demo", (False, False, False, None, False)),
    ],
)
def test_what_is_known_of_a_vendors_model(
    kind: ProviderKind, model: str, expected: tuple[object, ...]
) -> None:
    """Images, PDFs, web search, the longest answer, and whether it reasons."""
    found = known_capabilities(kind, model)
    reasons = None if found.efforts is None else bool(found.efforts)
    told = (found.images, found.pdfs, found.web_search, found.max_output_tokens, reasons)
    assert told == expected


@pytest.mark.parametrize(
    ("kind", "model", "options", "field"),
    [
        ("bedrock", "us.anthropic.claude-sonnet-4-5-v1:0", b"{}", None),
        ("bedrock", "global.anthropic.claude-opus-5-v1", b"{}", None),
        ("bedrock", "arn:aws:bedrock:us-east-1:1:application-inference-profile/abc", b"{}", None),
        ("bedrock", "amazon.nova-pro-v1:0", b"{}", "model"),
        ("bedrock", "eu.meta.llama3-3-70b-instruct-v1:0", b"{}", "model"),
        ("bedrock", "openai.gpt-oss-120b-1:0", b"{}", "model"),
        (
            "bedrock",
            "arn:aws:bedrock:us-east-1::foundation-model/mistral.mistral-large-2407-v1:0",
            b"{}",
            "model",
        ),
        ("google", "gemini-2.5-pro", b'{"web_search_enabled":true}', "options.web_search_enabled"),
        ("google", "gemini-2.5-pro", b'{"web_search_enabled":false}', None),
        ("google", "gemini-3-pro-preview", b'{"web_search_enabled":true}', None),
    ],
)
def test_what_a_provider_cannot_do_is_known_before_a_call(
    kind: ProviderKind, model: str, options: bytes, field: str | None
) -> None:
    config = ModelConfig(
        id=ModelConfigId(UUID(int=1)), name="m", provider="p", model=model, options=Raw(options)
    )
    found = find_objection(kind, config)
    assert (None if found is None else found.field) == field
    assert found is None or model in found.text


@pytest.mark.parametrize(
    ("kind", "offered", "first"),
    [
        ("anthropic", ["claude-3-haiku", "claude-opus-5", "claude-sonnet-5"], "claude-opus-5"),
        ("openai", ["babbage-002", "gpt-4o"], "gpt-4o"),
        ("openai-compat", ["qwen3:8b", "zephyr"], "qwen3:8b"),
        ("openai", [], None),
    ],
)
def test_a_model_to_begin_with_is_suggested(
    kind: ProviderKind, offered: list[str], first: str | None
) -> None:
    assert suggest_model(kind, offered) == first


@pytest.mark.parametrize(
    ("parameters", "efforts"),
    [(["reasoning", "tools"], ("low", "medium", "high")), (["tools"], ()), ("tools", None)],
)
def test_a_gateway_tells_which_models_reason(
    parameters: object, efforts: tuple[str, ...] | None
) -> None:
    listed = {"data": [{"id": "a/b", "supported_parameters": parameters}]}
    [found] = parse_offered(msgspec.json.encode(listed))
    assert found.capabilities.efforts == efforts
