"""Models and providers that are declared in the settings: shared by replicas, read-only in the
API."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from chatd.clock import SystemClock
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.failures import ModelError
from chatd.services.models.configuration import build_registry
from chatd.services.models.directory import ModelDirectory
from chatd.settings.schema import ModelEntry, PriceEntry, ProviderEntry, Settings
from chatd.store.database.pool import Pool
from chatd.store.model import model_configs, providers
from tests.support.api.server import (
    ADMINISTRATOR,
    CLEVER,
    FAST,
    RETIRED,
    ApiServer,
    message_body,
)
from tests.support.clock import FakeClock
from tests.support.outcomes import present
from tests.support.stream_replica import Emitted, env_with

Renew = Callable[..., Awaitable[None]]

LOCAL = ProviderEntry(
    name="local", kind="openai-compat", base_url="http://127.0.0.1:1/v1", api_key="sk-hidden"
)
SMALL = ModelEntry(
    name="small", provider="local", model="s-1", context_limit=9, temperature=0.5,
    options={"user": "ada"}, prices=PriceEntry(input=0.5, output="2"),
)  # fmt: skip
BIG = ModelEntry(name="big", provider="local", model="b-1", default=True)


def catalogue(
    *entries: ModelEntry,
    providers: tuple[ProviderEntry, ...] = (LOCAL,),
    clock: FakeClock | None = None,
    emitted: Emitted | None = None,
) -> ModelDirectory:
    settings = Settings(data_dir=Path("/nowhere"), providers=providers, models=entries)
    at = clock or SystemClock()
    return ModelDirectory(build_registry(settings, {}, at), env_with(at, emitted))


async def enabled(pool: Pool) -> list[str]:
    return [one.config.name for one in await model_configs.list_models(pool) if one.enabled]


@asynccontextmanager
async def renewals(directory: ModelDirectory, clock: FakeClock) -> AsyncGenerator[Renew]:
    """Run the directory; the yielded function lets it renew its declaration some times."""

    async def renew(times: int = 1) -> None:
        for _ in range(times):
            await clock.advance_past("models_read")
            await clock.wait_for_sleeper("models_read")

    async with asyncio.TaskGroup() as group:
        running = group.create_task(directory.run())
        yield renew
        running.cancel()


async def names(known: ModelDirectory) -> list[str]:
    return [one.config.name for one in await known.all() if one.enabled]


# The database


async def test_declared_models_are_read_back_unchanged(pool: Pool) -> None:
    here = catalogue(SMALL, BIG)
    await here.declare(pool)
    assert await names(here) == ["big", "small", "demo"]
    small = present(await here.by_name("small"))
    choice = await here.choose(small.config.id)
    assert choice.config == small.config
    expected = (0.5, b'{"user":"ada"}')
    assert (small.config.temperature, bytes(small.config.options or b"")) == expected
    assert (small.is_default, small.source) == (False, "settings")
    assert present(await here.default()).config.name == "big"
    (local, demo) = sorted(await here.providers(), key=lambda one: one.name, reverse=True)
    expected = ("openai-compat", "http://127.0.0.1:1/v1", True)
    assert (local.kind, local.base_url, local.has_api_key) == expected
    assert (demo.kind, demo.has_api_key) == ("demo", False)
    await here.close()


async def test_a_removed_model_is_disabled_and_keeps_its_name_and_price(pool: Pool) -> None:
    before = catalogue(SMALL, BIG)
    await before.declare(pool)
    await before.withdraw()
    after = catalogue(providers=())
    await after.declare(pool)
    assert await names(after) == ["demo"]
    small = present(await after.by_name("small"))
    assert (small.enabled, small.is_default) == (False, False)
    assert small.config.prices is not None
    assert small.config.prices.input == "0.5"
    expected = {"demo": True, "local": False}
    assert {one.name: one.enabled for one in await after.providers()} == expected
    with pytest.raises(ModelError, match="not configured any more"):
        await after.choose(small.config.id)
    await after.withdraw()
    again = catalogue(SMALL)
    await again.declare(pool)
    back = present(await again.get(small.config.id))
    assert (back.enabled, back.is_default, back.created_at) == (True, True, small.created_at)


async def test_a_chosen_model_knows_the_provider_of_every_other(pool: Pool) -> None:
    """A provider must not get what only another can read, also of a model that is gone."""
    other = ProviderEntry(name="other", kind="openai-compat", base_url="http://127.0.0.1:2/v1")
    gone = ModelEntry(name="gone", provider="other", model="g-1")
    before = catalogue(SMALL, gone, providers=(LOCAL, other))
    await before.declare(pool)
    ids = {one.config.name: one.config.id for one in await before.all()}
    after = catalogue(SMALL)
    await after.declare(pool)
    origins = present((await after.choose(ids["small"])).origins)
    assert {name: origins.get(one) for name, one in ids.items()} == {
        "small": "local",
        "gone": "other",
        "demo": "demo",
    }
    await before.close()
    await after.close()


async def test_declaring_the_same_again_changes_nothing(pool: Pool) -> None:
    await catalogue(SMALL, BIG).declare(pool)
    before = (await model_configs.list_models(pool), await providers.list_providers(pool))
    await catalogue(SMALL, BIG).declare(pool)
    assert (
        await model_configs.list_models(pool),
        await providers.list_providers(pool),
    ) == before


async def test_replicas_with_different_settings_can_start_together(pool: Pool) -> None:
    """All models are enabled, and no start fails."""
    several = [catalogue(SMALL, BIG), catalogue(BIG), catalogue(providers=())] * 4
    async with asyncio.TaskGroup() as group:
        for one in several:
            group.create_task(one.declare(pool))
    assert await enabled(pool) == ["big", "small", "demo"]


async def test_a_replica_without_the_settings_disables_nothing_and_says_so(pool: Pool) -> None:
    """And it does not become the source of the default model."""
    await catalogue(SMALL, BIG).declare(pool)
    emitted = Emitted()
    bare = catalogue(providers=(), emitted=emitted)
    await bare.declare(pool)
    assert await enabled(pool) == ["big", "small", "demo"]
    assert [one.config.name for one in await bare.all() if one.is_default] == ["big"]
    assert [e["models"] for e in emitted.of("settings_lack_models")] == ["big, small"]
    assert emitted.of("settings_differ") == []


async def test_settings_win_over_a_bare_replica_that_started_before(pool: Pool) -> None:
    await catalogue(providers=()).declare(pool)
    await catalogue(BIG).declare(pool)
    [default] = [one for one in await model_configs.list_models(pool) if one.is_default]
    assert default.config.name == "big"


async def test_a_model_that_another_replica_defines_differently_is_named(pool: Pool) -> None:
    await catalogue(SMALL, BIG).declare(pool)
    emitted = Emitted()
    await catalogue(msgspec.structs.replace(SMALL, model="s-2"), BIG, emitted=emitted).declare(pool)
    assert [e["models"] for e in emitted.of("settings_differ")] == ["small"]


async def test_each_replica_uses_its_own_definition_and_others_the_last_one(pool: Pool) -> None:
    first, second = catalogue(SMALL), catalogue(msgspec.structs.replace(SMALL, model="s-2"))
    third = catalogue()
    for replica in (first, second, third):
        await replica.declare(pool)
    await first.all()
    wanted = present(await third.by_name("small")).config
    assert wanted.model == "s-2"
    used = [(await one.choose(wanted.id)).config.model for one in (first, second, third)]
    assert used == [SMALL.model, "s-2", "s-2"]


async def test_the_models_of_a_dead_replica_are_disabled_after_two_minutes(pool: Pool) -> None:
    """By the clock of the process that stays: a jump of the database's clock disables nothing."""
    clock = FakeClock()
    await catalogue(SMALL, BIG).declare(pool)
    stays = catalogue(BIG, clock=clock)
    await stays.declare(pool)
    async with renewals(stays, clock) as renew:
        await pool.execute("UPDATE model_declarations SET renewed_at = renewed_at - interval '1 d'")
        await renew(times=11)
        assert await enabled(pool) == ["big", "small", "demo"]
        await renew(times=3)
    assert await enabled(pool) == ["big", "demo"]
    assert await names(stays) == ["big", "demo"]


async def test_a_replica_that_was_taken_for_dead_declares_its_models_again(pool: Pool) -> None:
    clock = FakeClock()
    suspended = catalogue(SMALL, clock=clock)
    await suspended.declare(pool)
    await pool.execute("DELETE FROM model_declarations")
    await catalogue(BIG).declare(pool)
    assert await enabled(pool) == ["big", "demo"]
    async with renewals(suspended, clock) as renew:
        await renew()
    assert await enabled(pool) == ["big", "small", "demo"]


async def test_a_model_declared_by_another_replica_is_known(pool: Pool) -> None:
    clock = FakeClock()
    old, new = catalogue(BIG, clock=clock), catalogue(SMALL, BIG)
    await old.declare(pool)
    await new.declare(pool)
    small = present(await old.by_name("small"))
    choice = await old.choose(small.config.id)
    assert choice.config.model == "s-1"
    async with renewals(old, clock) as renew:
        await renew()
        assert await names(old) == ["big", "small", "demo"]
        await new.withdraw()
        await renew()
    assert await names(old) == ["big", "demo"]
    await old.close()


async def test_a_model_without_its_provider_here_is_reported(pool: Pool) -> None:
    await catalogue(SMALL).declare(pool)
    small = (await model_configs.list_models(pool))[0]
    elsewhere = catalogue(providers=())
    with pytest.raises(ModelError, match="not configured any more"):
        await elsewhere.choose(small.config.id)
    await elsewhere.declare(pool)
    await catalogue(SMALL).declare(pool)
    unheard = ModelConfigId(UUID(int=9))
    assert await elsewhere.get(unheard) is None  # reads the list again
    with pytest.raises(ModelError, match="provider of the model small is not configured on"):
        await elsewhere.choose(small.config.id)


async def test_the_default_model_is_usable_on_this_replica(pool: Pool) -> None:
    old, new = catalogue(providers=()), catalogue(BIG)
    await old.declare(pool)
    await new.declare(pool)
    await old.by_name("big")  # has the list read again
    for where, name in ((old, "demo"), (new, "big")):
        assert present(await where.default()).config.name == name


# The API


async def test_models_are_listed_with_their_public_fields(server: ApiServer) -> None:
    listed = (await server.ask("GET", "/models")).items
    assert [one["name"] for one in listed] == ["fast", "clever"]
    assert listed[0] == {
        "id": str(FAST.id),
        "name": "fast",
        "provider": "acme",
        "provider_id": str(UUID(int=0)),
        "model": "fast-1",
        "display_name": "fast",
        "enabled": True,
        "is_default": True,
        "source": "settings",
        "created_at": "2020-01-01T00:00:00Z",
        "updated_at": "2020-01-01T00:00:00Z",
        "capabilities": {"context_limit": 1000},
        "context_limit": 1000,
        "unpriced": True,
    }
    everything = (await server.ask("GET", "/models?include_disabled=true")).items
    assert [one["enabled"] for one in everything] == [True, True, False]
    one = await server.ask("GET", f"/models/{RETIRED.id}")
    assert one.json["prices"] == {"input": "3"}
    assert "unpriced" not in one.json
    assert (await server.ask("GET", f"/models/{UUID(int=9)}")).code == (404, "not_found")
    wrong = await server.ask("GET", "/models/fast")
    assert (wrong.status, wrong.field) == (400, "model_id")


@pytest.mark.promise("P13")
async def test_providers_are_listed_without_their_keys(server: ApiServer) -> None:
    listed = (await server.ask("GET", "/providers", token=ADMINISTRATOR)).items
    expected = [("acme", "anthropic", True), ("other", "anthropic", False)]
    assert [(one["name"], one["kind"], one["has_api_key"]) for one in listed] == expected
    assert not [name for one in listed for name in one if name in {"api_key", "key", "secret"}]


@pytest.mark.covers("O19")
async def test_a_disabled_model_is_refused(server: ApiServer) -> None:
    for field, value in (("model", "retired"), ("model_config_id", str(RETIRED.id))):
        refused = await server.ask("POST", "/chats", message_body("hi", **{field: value}))
        assert (refused.status, refused.field) == (400, field)
        assert "no longer configured" in str(refused.json["message"])
    chat = await server.create(model="clever")
    assert (await server.chat(chat)).model_config_id == CLEVER.id
