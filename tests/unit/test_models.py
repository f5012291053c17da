"""From settings to the models of a deployment."""

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from chatd.clock import SystemClock
from chatd.domain.model.failures import ModelError
from chatd.domain.model.protocol import EffortRange, ProviderError
from chatd.domain.model.retry import CallLimits
from chatd.services.models.configuration import build_declaration, build_registry, settings_gaps
from chatd.settings.schema import (
    EffortEntry,
    ModelEntry,
    PriceEntry,
    ProviderEntry,
    Settings,
    SettingsError,
)
from tests.support.providers.openai_chat import FakeCompatible, stream
from tests.support.providers.prompts import request

HERE = Path("/nowhere")
HOUSE = ProviderEntry(name="house", kind="openai-compat", base_url="http://127.0.0.1:1/v1")
NO_HOME = 'models "m": there is no provider "home"; there are house, demo'


async def test_without_settings_the_demo_model_answers() -> None:
    found = build_registry(Settings(data_dir=HERE), {}, SystemClock())
    assert [model.name for model in found.models] == ["demo"]
    choice = await found.choose(None)
    assert (choice.kind, choice.config.name) == ("demo", "demo")
    await found.close()


async def test_a_model_of_the_settings_replaces_the_demo_model_of_the_same_name() -> None:
    model = ModelEntry(name="demo", provider="house", model="qwen3:8b", context_limit=9)
    settings = Settings(data_dir=HERE, providers=(HOUSE,), models=(model,))
    found = build_registry(settings, {}, SystemClock())
    choice = await found.choose(None)
    assert [one.model for one in found.models] == ["qwen3:8b"]
    assert (choice.kind, choice.config.context_limit) == ("openai-compat", 9)
    await found.close()


async def test_a_provider_of_the_settings_replaces_the_demo_provider_of_the_same_name() -> None:
    provider = ProviderEntry(name="demo", kind="openai-compat", base_url="http://127.0.0.1:1/v1")
    model = ModelEntry(name="ours", provider="demo", model="qwen3:8b", default=True)
    settings = Settings(data_dir=HERE, providers=(provider,), models=(model,))
    found = build_registry(settings, {}, SystemClock())
    assert [one.name for one in found.models] == ["ours"]
    assert (await found.choose(None)).kind == "openai-compat"
    await found.close()


async def test_the_model_marked_as_default_comes_first_and_ids_outlive_a_restart() -> None:
    models = (
        ModelEntry(name="small", provider="house", model="s"),
        ModelEntry(name="big", provider="house", model="b", default=True, context_limit=9),
    )
    settings = Settings(data_dir=HERE, providers=(HOUSE,), models=models)
    one, two = (build_registry(settings, {}, SystemClock()) for _ in range(2))
    default = one.find(None)
    assert default is not None
    assert (default.name, default.context_limit) == ("big", 9)
    assert two.find(default.id) == default
    assert [model.name for model in one.models] == ["big", "small", "demo"]


async def test_prices_are_kept_as_text_and_the_key_comes_from_the_variable() -> None:
    entry = ModelEntry(
        name="m", provider="a", model="x", context_limit=5, prices=PriceEntry(input=0.5, output="2")
    )
    provider = ProviderEntry(name="a", kind="anthropic", api_key_env="OUR_KEY")
    settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
    found = build_registry(settings, {"OUR_KEY": "sk-test"}, SystemClock())
    choice = await found.choose(None)
    assert choice.config.prices is not None
    assert (choice.config.prices.input, choice.config.prices.output) == ("0.5", "2")
    await found.close()


async def test_headers_of_the_settings_go_out_with_every_request() -> None:
    async with FakeCompatible.running() as fake:
        fake.script(stream("text"))
        own = {"X-Team": "night shift"}
        provider = ProviderEntry(
            name="p", kind="openai-compat", base_url=f"{fake.url}/v1", headers=own
        )
        entry = ModelEntry(name="m", provider="p", model="m")
        settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
        found = build_registry(settings, {}, SystemClock())
        choice = await found.choose(None)
        async with choice.provider.stream(request(model="m")) as events:
            assert [event async for event in events]
        await found.close()
    assert fake.requests[0].headers["x-team"] == "night shift"


async def test_the_region_of_the_settings_is_where_bedrock_is_asked() -> None:
    entry = ModelEntry(name="m", provider="b", model="m")
    for region, env, fails in (
        ("eu-west-1", {}, False),
        (None, {"AWS_REGION": "eu-west-1"}, False),
        (None, {"AWS_DEFAULT_REGION": "eu-west-1"}, False),
        (None, {}, True),
    ):
        provider = ProviderEntry(name="b", kind="bedrock", api_key="sk-test", region=region)
        settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
        found = build_registry(settings, env, SystemClock())
        with pytest.raises(ModelError, match="does not accept this") if fails else nullcontext():
            await found.choose(None)
        await found.close()


async def test_a_request_goes_through_the_proxy_of_the_environment() -> None:
    async with FakeCompatible.running() as fake:
        fake.unknown_path_body = b"seen by the proxy"
        base = "http://model.invalid/v1"
        provider = ProviderEntry(name="p", kind="openai-compat", base_url=base)
        entry = ModelEntry(name="m", provider="p", model="m")
        settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
        found = build_registry(settings, {"HTTP_PROXY": fake.url}, SystemClock())
        choice = await found.choose(None)
        with pytest.raises(ProviderError):
            async with choice.provider.stream(request(model="m")):
                pass
        await found.close()
    assert fake.requests[0].path == f"{base}/chat/completions"


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"proxy": "socks5://me:secret@p:1"}, "proxy: expected an address that starts with http"),
        ({"ca_file": "ca.pem"}, 'ca_file: expected an absolute path, got "ca.pem"'),
        ({"client_key": "/k.pem"}, "client_key: needs client_cert"),
    ],
)
def test_an_unusable_way_to_a_provider_is_said_at_start(entry: dict[str, str], text: str) -> None:
    provider = msgspec.structs.replace(ProviderEntry(name="p", kind="openai"), **entry)
    with pytest.raises(SettingsError) as failed:
        build_registry(Settings(data_dir=HERE, providers=(provider,)), {}, SystemClock())
    assert text in str(failed.value)
    assert "secret" not in str(failed.value)


async def test_limits_follow_from_the_kind_the_model_and_the_settings() -> None:
    async def limits(provider: ProviderEntry, **model: object) -> CallLimits:
        entry = msgspec.structs.replace(
            ModelEntry(name="m", provider=provider.name, model="m"), **model
        )
        settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
        found = build_registry(settings, {}, SystemClock())
        try:
            return (await found.choose(None)).limits
        finally:
            await found.close()

    cloud = ProviderEntry(name="p", kind="anthropic", api_key="sk-test")
    local = ProviderEntry(name="p", kind="openai-compat", base_url="http://127.0.0.1:1/v1")
    assert await limits(cloud) == CallLimits(silence_s=600, answer_s=3800)
    assert await limits(cloud, max_output_tokens=64_000) == CallLimits(answer_s=7000)
    assert (await limits(local)).silence_s == 2400
    own = msgspec.structs.replace(local, silence_timeout_s=30.0, answer_timeout_s=90.0)
    assert await limits(own) == CallLimits(silence_s=30, answer_s=90)


async def test_a_provider_without_a_key_fails_when_it_is_wanted_and_says_what_to_set() -> None:
    provider = ProviderEntry(name="a", kind="anthropic")
    entry = ModelEntry(name="m", provider="a", model="x")
    settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
    found = build_registry(settings, {}, SystemClock())
    with pytest.raises(ModelError) as failed:
        await found.choose(None)
    assert failed.value.classified.kind == "missing_key"


@pytest.mark.promise("P13")
def test_what_everybody_may_know_of_a_provider_has_no_secret_in_it() -> None:
    url = "https://ada:hunter2@models.example:8443/v1?key=swordfish#swordfish"
    provider = ProviderEntry(name="p", kind="openai-compat", base_url=url, api_key="sk-secret")
    settings = Settings(data_dir=HERE, providers=(provider,))
    told = build_declaration(build_registry(settings, {}, SystemClock()))
    first, demo = told.providers
    assert (first.base_url, first.has_api_key) == ("https://models.example:8443/v1", True)
    assert (demo.name, demo.base_url, demo.has_api_key) == ("demo", None, False)
    text = msgspec.json.encode(told)
    assert not [word for word in (b"hunter2", b"swordfish", b"sk-secret") if word in text]


@pytest.mark.parametrize(
    ("provider", "env", "gaps"),
    [
        pytest.param(
            ProviderEntry(name="a", kind="anthropic", api_key_env="NOT_SET_KEY"),
            {"ANTHROPIC_API_KEY": "sk"},
            ['provider "a": api_key_env: NOT_SET_KEY is not set'],
            id="the named variable is not set",
        ),
        pytest.param(
            ProviderEntry(name="a", kind="anthropic"),
            {},
            ['provider "a" has no API key: set api_key, api_key_env or ANTHROPIC_API_KEY'],
            id="no key at all",
        ),
        pytest.param(
            ProviderEntry(name="a", kind="anthropic"),
            {"ANTHROPIC_API_KEY": "sk"},
            [],
            id="usual key",
        ),
        pytest.param(
            ProviderEntry(name="l", kind="openai-compat"),
            {},
            ['provider "l" has no base_url'],
            id="no address; a local server needs no key",
        ),
        pytest.param(
            ProviderEntry(name="l", kind="openai-compat", base_url="http://127.0.0.1:1"),
            {},
            [],
            id="a local server",
        ),
    ],
)
def test_what_a_provider_lacks_is_named_at_start(
    provider: ProviderEntry, env: dict[str, str], gaps: list[str]
) -> None:
    assert settings_gaps(Settings(data_dir=HERE, providers=(provider,)), env) == gaps


def test_two_default_models_are_refused_by_name() -> None:
    models = tuple(
        ModelEntry(name=name, provider="demo", model="demo", default=True) for name in "ab"
    )
    with pytest.raises(SettingsError, match='"a" and "b" are all the default'):
        build_registry(Settings(data_dir=HERE, models=models), {}, SystemClock())


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port/", "\n"])
def test_an_address_that_is_none_is_not_shown(url: str) -> None:
    provider = ProviderEntry(name="p", kind="openai-compat", base_url=url)
    told = build_declaration(
        build_registry(Settings(data_dir=HERE, providers=(provider,)), {}, SystemClock())
    )
    assert told.providers[0].base_url in {None, ""}


@pytest.mark.parametrize(
    ("names", "said"),
    [(("a", "a"), "there are two"), (("a\0b",), "printable"), (("x" * 201,), "printable")],
)
def test_a_name_is_one_line_that_is_used_once(names: tuple[str, ...], said: str) -> None:
    models = tuple(ModelEntry(name=name, provider="demo", model="demo") for name in names)
    with pytest.raises(SettingsError, match=said):
        build_registry(Settings(data_dir=HERE, models=models), {}, SystemClock())


@pytest.mark.parametrize(
    ("provider", "entry", "said"),
    [
        (HOUSE, ModelEntry(name="m", provider="home", model="x"), NO_HOME),
        (
            ProviderEntry(name="p", kind="openai-compat", headers={"X-Key": "sk-1\nX: y"}),
            ModelEntry(name="m", provider="p", model="x"),
            '^providers "p": headers "X-Key": a header has a name .* of one line$',
        ),
        (
            ProviderEntry(name="p", kind="openay"),
            ModelEntry(name="m", provider="p", model="x"),
            'kind: expected one of anthropic, .*, got "openay"; did you mean openai?',
        ),
        (
            HOUSE,
            ModelEntry(name="m", provider="house", model="x", reasoning_effort="huge"),
            'reasoning_effort: expected one of none, .*, got "huge"',
        ),
        (
            HOUSE,
            ModelEntry(
                name="m", provider="house", model="x", reasoning_effort=EffortEntry(max="huge")
            ),
            'reasoning_effort.max: expected one of none, .*, got "huge"',
        ),
        (
            HOUSE,
            ModelEntry(
                name="m",
                provider="house",
                model="x",
                reasoning_effort=EffortEntry(default="max", max="low"),
            ),
            "reasoning_effort: the default must not be above the max",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    provider: ProviderEntry, entry: ModelEntry, said: str
) -> None:
    settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
    with pytest.raises(SettingsError, match=said):
        build_registry(settings, {}, SystemClock())


@pytest.mark.parametrize("given", ["low", {"default": "low"}])
def test_settings_take_an_effort_as_a_word_or_with_its_maximum(given: object) -> None:
    entry = msgspec.convert(
        {"name": "m", "provider": "house", "model": "x", "reasoning_effort": given}, ModelEntry
    )
    settings = Settings(data_dir=HERE, providers=(HOUSE,), models=(entry,))
    registry = build_registry(settings, {}, SystemClock())
    assert registry.models[0].reasoning_effort == EffortRange(default="low")


def test_the_start_names_a_model_that_does_not_take_its_configured_effort() -> None:
    vendor = ProviderEntry(name="openai", kind="openai", api_key="sk")
    entry = ModelEntry(name="m", provider="openai", model="gpt-4o", reasoning_effort="low")
    settings = Settings(data_dir=HERE, providers=(vendor,), models=(entry,))
    [gap] = settings_gaps(settings, {})
    assert "gpt-4o takes no reasoning effort" in gap
