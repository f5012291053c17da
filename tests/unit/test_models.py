"""From settings to the models of a deployment."""

from pathlib import Path

import pytest

from chatd.clock import SystemClock
from chatd.domain.failures import ModelFailed
from chatd.models import directory
from chatd.settings.tree import ModelEntry, PriceEntry, ProviderEntry, Settings, SettingsError

HERE = Path("/nowhere")
HOUSE = ProviderEntry(name="house", kind="openai-compat", base_url="http://127.0.0.1:1/v1")


async def test_without_settings_the_demo_model_answers() -> None:
    found = directory(Settings(data_dir=HERE), {}, SystemClock())
    default = await found.default()
    assert default is not None
    assert default.name == "demo"
    choice = await found.choose(None)
    assert choice.kind == "demo"
    await found.close()


async def test_the_model_marked_as_default_comes_first_and_ids_outlive_a_restart() -> None:
    models = (
        ModelEntry(name="small", provider="house", model="s"),
        ModelEntry(name="big", provider="house", model="b", default=True, context_limit=9),
    )
    settings = Settings(data_dir=HERE, providers=(HOUSE,), models=models)
    one, two = (directory(settings, {}, SystemClock()) for _ in range(2))
    default = await one.default()
    assert default is not None
    assert (default.name, default.context_limit) == ("big", 9)
    assert await two.get(default.id) == default
    assert [model.name for model in await one.all()] == ["big", "small", "demo"]
    assert await one.by_name("none") is None


async def test_prices_are_kept_as_text_and_the_key_comes_from_the_variable() -> None:
    entry = ModelEntry(
        name="m", provider="a", model="x", context_limit=5, prices=PriceEntry(input=0.5, output="2")
    )
    provider = ProviderEntry(name="a", kind="anthropic", api_key_env="OUR_KEY")
    settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
    found = directory(settings, {"OUR_KEY": "sk-test"}, SystemClock())
    choice = await found.choose(None)
    assert choice.config.prices is not None
    assert (choice.config.prices.input, choice.config.prices.output) == ("0.5", "2")
    await found.close()


async def test_a_provider_without_a_key_fails_when_it_is_wanted_and_says_what_to_set() -> None:
    provider = ProviderEntry(name="a", kind="anthropic")
    entry = ModelEntry(name="m", provider="a", model="x")
    settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
    found = directory(settings, {}, SystemClock())
    with pytest.raises(ModelFailed) as failed:
        await found.choose(None)
    assert failed.value.classified.kind == "missing_key"


@pytest.mark.parametrize(
    ("provider", "entry", "said"),
    [
        (HOUSE, ModelEntry(name="m", provider="home", model="x"), "there is no provider 'home'"),
        (
            ProviderEntry(name="p", kind="openay"),
            ModelEntry(name="m", provider="p", model="x"),
            "kind must be one of",
        ),
        (
            HOUSE,
            ModelEntry(name="m", provider="house", model="x", reasoning_effort="huge"),
            "reasoning_effort must be one of",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    provider: ProviderEntry, entry: ModelEntry, said: str
) -> None:
    settings = Settings(data_dir=HERE, providers=(provider,), models=(entry,))
    with pytest.raises(SettingsError, match=said):
        directory(settings, {}, SystemClock())
