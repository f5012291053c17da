"""Which provider, key and model a chat's call uses, and how a change reaches other replicas."""

import asyncio
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.access.permissions import UserActor
from chatd.domain.deployment.config_change import ConfigChange, encode_config_change
from chatd.domain.errors import Conflict
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.model.config import LearnedLimit
from chatd.domain.model.failures import ModelError, ModelRemoved
from chatd.domain.model.protocol import Effort, Fallback, ModelCapabilities
from chatd.domain.ports import ModelChoice
from chatd.services.models.directory import LIMIT_CHANGE_INTERVAL_S
from chatd.services.models.model_bodies import CreateModelBody, OverridesBody, UpdateModelBody
from chatd.services.models.provider_bodies import (
    CreateProviderBody,
    UpdateProviderBody,
    UserKeyBody,
)
from chatd.settings.schema import ModelEntry, ProviderEntry, Settings
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.notifications import HintListener, ListenConfig
from chatd.store.database.pool import Pool
from chatd.store.model import model_configs
from chatd.store.model.model_configs import StoredModel
from chatd.store.model.providers import StoredProvider
from tests.support.clock import FakeClock
from tests.support.factories import OWNER
from tests.support.models import ModelRig, model_rig
from tests.support.outcomes import present
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk, stream
from tests.support.providers.prompts import request
from tests.support.providers.server import Gate

CENTRAL, MINE = "sk-central-key", "sk-my-own-key"
OTHER_OWNER = UserId(UUID(int=77))
AUTHOR = ChangeAuthor(actor=UserActor(user_id=OWNER, role="admin"))


async def create_provider(rig: ModelRig, url: str, **more: object) -> StoredProvider:
    fields: dict[str, object] = {"api_keys": (CENTRAL,), **more}
    body = CreateProviderBody(name="house", kind="openai-compat", base_url=f"{url}/v1")
    return await rig.providers.create_provider(
        AUTHOR,
        CreateProviderBody(**{**_fields(body), **fields}),  # pyright: ignore[reportArgumentType]
    )


def _fields(body: CreateProviderBody) -> dict[str, object]:
    return {name: getattr(body, name) for name in body.__struct_fields__}


async def create_model(rig: ModelRig, name: str = "m", provider: str = "house") -> StoredModel:
    return await rig.models.create_model(
        AUTHOR, CreateModelBody(name=name, provider=provider, model="m")
    )


async def answer(fake: FakeCompatible, choice: ModelChoice) -> str:
    """Make a call; return the key that the provider got."""
    fake.script(stream("text"))
    async with choice.provider.stream(request(model="m")) as events:
        assert [event async for event in events]
    return fake.requests[-1].headers["authorization"].removeprefix("Bearer ")


# Keys


async def test_a_call_uses_the_key_of_the_chats_owner_then_the_central_one(pool: Pool) -> None:
    async with FakeCompatible.running() as fake, model_rig(pool) as rig:
        await create_provider(rig, fake.url, user_keys=True)
        model = (await create_model(rig)).config.id
        await rig.user_keys.set_user_key(AUTHOR, OWNER, UserKeyBody(provider="house", api_key=MINE))
        assert await answer(fake, await rig.directory.choose(model, OWNER)) == MINE
        assert await answer(fake, await rig.directory.choose(model, OTHER_OWNER)) == CENTRAL
        assert await answer(fake, await rig.directory.choose(model)) == CENTRAL


async def test_keys_of_users_count_only_while_the_provider_takes_them(pool: Pool) -> None:
    async with FakeCompatible.running() as fake, model_rig(pool) as rig:
        provider = await create_provider(rig, fake.url, user_keys=True)
        model = (await create_model(rig)).config.id
        await rig.user_keys.set_user_key(AUTHOR, OWNER, UserKeyBody(provider="house", api_key=MINE))
        off = UpdateProviderBody(user_keys=False)
        await rig.providers.update_provider(AUTHOR, provider.id, off)
        assert await answer(fake, await rig.directory.choose(model, OWNER)) == CENTRAL


@pytest.mark.parametrize(
    ("takes_user_keys", "words"),
    [(True, "needs an API key of your own"), (False, "An administrator must add one")],
)
async def test_a_missing_key_is_an_error_that_says_which_key_is_missing(
    pool: Pool,
    takes_user_keys: bool,  # noqa: FBT001
    words: str,
) -> None:
    async with model_rig(pool) as rig:
        body = CreateProviderBody(name="house", kind="anthropic", user_keys=takes_user_keys)
        await rig.providers.create_provider(AUTHOR, body)
        model = (await create_model(rig)).config.id
        with pytest.raises(ModelError, match=words) as missing:
            await rig.directory.choose(model, OWNER)
        assert missing.value.classified.kind == "missing_key"


async def test_a_key_of_the_environment_is_not_sent_to_an_administrators_provider(
    pool: Pool,
) -> None:
    """Its address may be any host."""
    variables = {"OPENAI_COMPAT_API_KEY": "sk-of-the-environment"}
    async with (
        FakeCompatible.running() as fake,
        model_rig(pool, variables=variables) as rig,
    ):
        await create_provider(rig, fake.url, api_keys=())
        model = (await create_model(rig)).config.id
        fake.script(stream("text"))
        choice = await rig.directory.choose(model)
        async with choice.provider.stream(request(model="m")) as events:
            assert [event async for event in events]
    assert "authorization" not in fake.requests[0].headers


async def test_without_the_secret_key_only_calls_that_need_it_fail(pool: Pool) -> None:
    async with FakeCompatible.running() as fake, model_rig(pool) as rig:
        await create_provider(rig, fake.url)
        model = (await create_model(rig)).config.id
        rig.ring.replace((), rig.ring.current)
        with pytest.raises(ModelError, match="does not hold key"):
            await rig.directory.choose(model)
        assert await rig.directory.choose(present(await rig.directory.by_name("demo")).config.id)
        with pytest.raises(Conflict, match="does not hold key") as refused:
            await create_provider(rig, fake.url, name="second")
        assert refused.value.code == "secret_key_missing"


# Efforts


@pytest.mark.parametrize(
    ("model", "told", "efforts"),
    [
        ("gpt-5", None, ("minimal", "low", "medium", "high")),
        ("gpt-4o", None, ()),
        ("house-made", None, None),
        ("house-made", ModelCapabilities(efforts=("low", "high")), ("low", "high")),
        ("house-made", ModelCapabilities(efforts=()), ()),
    ],
)
async def test_a_call_knows_which_efforts_its_model_takes(
    pool: Pool,
    model: str,
    told: ModelCapabilities | None,
    efforts: tuple[Effort, ...] | None,
) -> None:
    async with model_rig(pool) as rig:
        await create_provider(rig, "http://127.0.0.1:1")
        body = CreateModelBody(name="m", provider="house", model=model, capabilities=told)
        made = await rig.models.create_model(AUTHOR, body)
        assert (await rig.directory.choose(made.config.id)).efforts == efforts


# Changes


async def test_a_running_call_ends_normally_and_the_next_one_fails_clearly(pool: Pool) -> None:
    async with FakeCompatible.running() as fake, model_rig(pool) as rig, asyncio.timeout(30):
        provider = await create_provider(rig, fake.url)
        model = (await create_model(rig)).config.id
        choice = await rig.directory.choose(model)
        gate = Gate()
        fake.script(chunk(content="a"), gate, chunk(content="b"), chunk("stop"), DONE)
        async with choice.provider.stream(request(model="m")) as events:
            await gate.reached.wait()
            await rig.providers.update_provider(
                AUTHOR, provider.id, UpdateProviderBody(enabled=False)
            )
            with pytest.raises(ModelError, match="provider house of the model m is disabled") as no:
                await rig.directory.choose(model)
            assert no.value.classified.kind == "provider_disabled"
            await rig.clients.close_unused()
            gate.open()
            assert len([event async for event in events]) > 2
        await rig.clients.close_unused()


async def test_a_deleted_model_may_be_replaced_and_a_disabled_one_not(pool: Pool) -> None:
    async with model_rig(pool) as rig:
        await create_provider(rig, "http://127.0.0.1:1")
        model = (await create_model(rig)).config.id
        await rig.models.update_model(AUTHOR, model, UpdateModelBody(enabled=False))
        with pytest.raises(ModelError, match="m is disabled") as disabled:
            await rig.directory.choose(model)
        assert disabled.value.classified.kind == "config"
        await rig.models.delete_model(AUTHOR, model)
        with pytest.raises(ModelRemoved, match="m was deleted") as deleted:
            await rig.directory.choose(model)
        assert deleted.value.removed.name == "m"


async def test_a_changed_address_is_used_by_the_next_call(pool: Pool) -> None:
    async with (
        FakeCompatible.running() as old,
        FakeCompatible.running() as new,
        model_rig(pool) as rig,
    ):
        provider = await create_provider(rig, old.url)
        model = (await create_model(rig)).config.id
        await answer(old, await rig.directory.choose(model))
        body = UpdateProviderBody(base_url=f"{new.url}/v1", api_keys=(CENTRAL,))
        await rig.providers.update_provider(AUTHOR, provider.id, body)
        await answer(new, await rig.directory.choose(model))
        assert (len(old.requests), len(new.requests)) == (1, 1)


async def test_another_replica_hears_of_a_change(dsn: str, pool: Pool) -> None:
    """And while it hears nothing, it reads the lists before every use."""
    async with (
        model_rig(pool) as here,
        model_rig(pool) as there,
        asyncio.timeout(30),
        asyncio.TaskGroup() as group,
    ):
        heard: asyncio.Queue[ConfigChange | None] = asyncio.Queue()
        there.changes.subscribe(heard.put_nowait)
        listener = HintListener(
            ListenConfig(connect=ConnectConfig(dsn=dsn)),
            SystemClock(),
            on_hint=lambda _hint: None,
            on_connected=lambda: None,
            config_changes=there.changes,
        )
        listening = group.create_task(listener.run())
        assert await heard.get() is None  # connected
        provider = await create_provider(here, "http://127.0.0.1:1")
        assert await heard.get() == ConfigChange(kind="provider", id=str(provider.id))
        model = await create_model(here)
        assert await heard.get() == ConfigChange(kind="model", id=str(model.config.id))
        assert model.config.id in {one.config.id for one in await there.directory.all()}
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        await here.models.update_model(AUTHOR, model.config.id, UpdateModelBody(enabled=False))
        with pytest.raises(ModelError, match="is disabled"):
            await there.directory.choose(model.config.id)
        assert heard.empty()


# Models that cannot be used


@pytest.mark.parametrize(
    ("fields", "enabled", "kind"),
    [
        ({"enabled": False}, True, "provider_disabled"),
        ({"kind": "openai", "api_keys": ()}, True, "missing_key"),
        ({}, False, "config"),
    ],
    ids=["a disabled provider", "no key", "a disabled model"],
)
async def test_a_model_that_cannot_be_called_still_says_its_fallbacks(
    pool: Pool, fields: dict[str, object], kind: str, *, enabled: bool
) -> None:
    async with model_rig(pool) as rig:
        await create_provider(rig, "http://127.0.0.1:1", **fields)
        model = await create_model(rig)
        second = await create_model(rig, "second")
        chain = (Fallback(model="second"),)
        body = UpdateModelBody(fallbacks=chain, enabled=enabled)
        await rig.models.update_model(AUTHOR, model.config.id, body)
        with pytest.raises(ModelError) as raised:
            await rig.directory.choose(model.config.id)
        assert raised.value.classified.kind == kind
        assert present(await rig.directory.configured(model.config.id)).fallbacks == chain
        await rig.models.delete_model(AUTHOR, second.config.id)
        assert await rig.directory.configured(second.config.id) is None


# Tasks


async def test_the_models_of_tasks_are_used_instead_of_the_chats_own(pool: Pool) -> None:
    async with model_rig(pool) as rig:
        await create_provider(rig, "http://127.0.0.1:1")
        own, small = await create_model(rig, "own"), await create_model(rig, "small")
        choice = await rig.directory.choose(own.config.id, OWNER)
        assert choice.summary_model is None
        assert [one.config.name for one in await rig.directory.title_models(choice)] == ["own"]
        await rig.models.set_overrides(AUTHOR, OverridesBody(title="small", compaction="small"))
        choice = await rig.directory.choose(own.config.id, OWNER)
        assert present(choice.summary_model).config.name == "small"
        assert [one.config.name for one in await rig.directory.title_models(choice)] == ["small"]
        # A model that cannot be used is left out.
        await rig.models.update_model(AUTHOR, small.config.id, UpdateModelBody(enabled=False))
        choice = await rig.directory.choose(own.config.id, OWNER)
        assert choice.summary_model is None
        assert [one.config.name for one in await rig.directory.title_models(choice)] == ["own"]
        assert {event["task"] for event in rig.emitted.of("task_model_unusable")} == {
            "title",
            "compaction",
        }


# Settings and environment


HOUSE = ProviderEntry(name="house", kind="openai-compat", base_url="http://127.0.0.1:1/v1")
ENTRY = ModelEntry(name="m", provider="house", model="m")
BOTH = Settings(data_dir=Path("/nowhere"), providers=(HOUSE,), models=(ENTRY,))


async def test_what_administrators_made_wins_over_settings_of_the_same_name(pool: Pool) -> None:
    async with FakeCompatible.running() as fake, model_rig(pool) as rig:
        await create_provider(rig, fake.url)
        made = await create_model(rig)
        async with model_rig(pool, settings=BOTH) as later:
            assert [one["names"] for one in later.emitted.of("settings_shadowed")] == ["house, m"]
            found = present(await later.directory.by_name("m"))
            assert (found.config.id, found.source) == (made.config.id, "database")
            assert await answer(fake, await later.directory.choose(found.config.id)) == CENTRAL


async def test_a_model_that_left_the_settings_is_taken_over_with_its_chats(pool: Pool) -> None:
    """It keeps its id."""
    async with model_rig(pool, settings=BOTH) as before:
        declared = present(await before.directory.by_name("m"))
        with pytest.raises(Conflict, match=r"declared in chatd\.toml"):
            await create_model(before)
        await before.directory.withdraw()
    async with FakeCompatible.running() as fake, model_rig(pool) as rig:
        provider = await create_provider(rig, fake.url)
        made = await create_model(rig)
        assert made.config.id == declared.config.id
        assert provider.id == declared.provider_id
        assert await answer(fake, await rig.directory.choose(made.config.id)) == CENTRAL


async def test_a_key_in_the_environment_gives_a_provider_and_its_models(pool: Pool) -> None:
    variables = {"ANTHROPIC_API_KEY": "sk-ant-from-the-environment"}
    async with model_rig(pool, FakeClock(), variables=variables) as rig:
        found = {one.name: one for one in await rig.directory.providers()}
        assert (found["anthropic"].source, found["anthropic"].has_api_key) == ("environment", True)
        default = present(await rig.directory.default())
        assert (default.config.provider, default.source) == ("anthropic", "environment")
        assert (await rig.directory.choose(default.config.id)).kind == "anthropic"
        with pytest.raises(Conflict, match="declared in the environment"):
            await rig.models.update_model(AUTHOR, default.config.id, UpdateModelBody(enabled=False))


async def test_a_vendor_that_the_settings_configure_gets_no_preset(pool: Pool) -> None:
    own = ProviderEntry(name="ours", kind="anthropic", api_key="sk-ant-ours")
    settings = Settings(data_dir=Path("/nowhere"), providers=(own,))
    variables = {"ANTHROPIC_API_KEY": "sk-ant-from-the-environment"}
    async with model_rig(pool, settings=settings, variables=variables) as rig:
        assert {one.name for one in await rig.directory.providers()} == {"ours", "demo"}


# The context window that refusals teach

NOWHERE = "http://127.0.0.1:1"
LEARNED = LearnedLimit(tokens=8_192)


async def learning_model(rig: ModelRig) -> ModelConfigId:
    await create_provider(rig, NOWHERE)
    return (await create_model(rig)).config.id


async def test_a_learned_window_is_used_by_all_replicas(pool: Pool) -> None:
    async with model_rig(pool) as rig, model_rig(pool) as other:
        model = await learning_model(rig)
        assert (await rig.directory.choose(model)).config.context_limit is None
        await rig.directory.learn_limit(model, LEARNED)
        assert (await rig.directory.choose(model)).config.context_limit == 8_192
        other.changes.on_notice(encode_config_change(ConfigChange(kind="model", id=str(model))))
        choice = await other.directory.choose(model)
        assert (choice.config.context_limit, choice.learned) == (8_192, LEARNED)
        known = present(await other.directory.get(model))
        assert (await other.directory.capabilities(known)).context_limit == 8_192
        # An answer to a longer prompt has refuted it.
        await other.directory.forget_limit(model, LEARNED)
        assert (await other.directory.choose(model)).config.context_limit is None
        await rig.directory.forget_limit(model, LEARNED)
        assert [event["tokens"] for event in rig.emitted.of("limit_learned")] == [8_192]


async def test_a_learned_window_is_forgotten_after_some_days(pool: Pool) -> None:
    """One that is too small keeps prompts so short that none refutes it."""
    async with model_rig(pool) as rig:
        model = await learning_model(rig)
        await rig.directory.learn_limit(model, LEARNED)
        assert (await rig.directory.choose(model)).learned == LEARNED
        await pool.execute("UPDATE model_configs SET learned_at = now() - interval '8 days'")
        assert (await model_configs.list_models(pool))[0].learned is None
        bound = LearnedLimit(tokens=9_000, is_bound=True)
        await model_configs.learn_limit(pool, model, bound)
        assert (await model_configs.list_models(pool))[0].learned == bound


async def test_a_bound_is_no_window_and_yields_to_a_number(pool: Pool) -> None:
    clock = FakeClock()
    async with model_rig(pool, clock) as rig:
        model = await learning_model(rig)
        for tokens in (9_000, 7_000, 8_000):
            clock.advance(LIMIT_CHANGE_INTERVAL_S)
            await rig.directory.learn_limit(model, LearnedLimit(tokens=tokens, is_bound=True))
            choice = await rig.directory.choose(model)
        bound = LearnedLimit(tokens=7_000, is_bound=True)
        assert (choice.config.context_limit, choice.learned) == (None, bound)
        await rig.directory.learn_limit(model, LEARNED)
        assert (await rig.directory.choose(model)).learned == LEARNED
        # Another replica that has not heard of the number writes its estimate.
        await model_configs.learn_limit(pool, model, bound)
        await rig.directory.withdraw()
        assert (await model_configs.list_models(pool))[0].learned == LEARNED


async def test_a_model_whose_limit_changes_all_the_time_is_written_once_a_minute(
    pool: Pool,
) -> None:
    clock = FakeClock()
    async with model_rig(pool, clock) as rig:
        model = await learning_model(rig)
        audited = "SELECT count(*) FROM audit_log WHERE action ~ 'model.(learned|forgotten)'"

        async def refuse() -> None:
            for tokens in range(8_000, 8_010):
                named = LearnedLimit(tokens=tokens)
                await rig.directory.learn_limit(model, named)
                await rig.directory.choose(model)
                await rig.directory.forget_limit(model, named)
                await rig.directory.choose(model)

        await refuse()
        assert (await rig.directory.choose(model)).learned == LearnedLimit(tokens=8_000)
        assert await pool.fetchval(audited) == 1
        clock.advance(LIMIT_CHANGE_INTERVAL_S)
        await rig.directory.learn_limit(model, LEARNED)
        await refuse()
        assert (await rig.directory.choose(model)).learned == LEARNED
        assert await pool.fetchval(audited) == 2


async def test_an_operators_limit_wins_and_saving_a_model_forgets_what_was_learned(
    pool: Pool,
) -> None:
    async with model_rig(pool) as rig:
        model = await learning_model(rig)
        await rig.directory.learn_limit(model, LEARNED)
        await rig.models.update_model(AUTHOR, model, UpdateModelBody(context_limit=32_000))
        await rig.directory.choose(model)
        await rig.directory.learn_limit(model, LEARNED)
        choice = await rig.directory.choose(model)
        assert (choice.config.context_limit, choice.learned) == (32_000, None)
        await rig.models.update_model(AUTHOR, model, UpdateModelBody(context_limit=None))
        assert (await rig.directory.choose(model)).learned is None


@pytest.mark.parametrize("configured", [None, 32_000])
async def test_a_model_of_the_settings_learns_its_window_unless_they_name_it(
    pool: Pool, configured: int | None
) -> None:
    settings = replace(BOTH, models=(replace(ENTRY, context_limit=configured),))
    expected = (8_192, LEARNED) if configured is None else (configured, None)
    async with model_rig(pool, settings=settings) as rig:
        model = present(await rig.directory.by_name("m")).config.id
        await rig.directory.learn_limit(model, LEARNED)
        choice = await rig.directory.choose(model)
        assert (choice.config.context_limit, choice.learned) == expected
    async with model_rig(pool, settings=settings) as restarted:
        choice = await restarted.directory.choose(model)
        assert (choice.config.context_limit, choice.learned) == expected
    entry = replace(ENTRY, model="another", context_limit=configured)
    async with model_rig(pool, settings=replace(BOTH, models=(entry,))) as changed:
        assert (await changed.directory.choose(model)).learned is None


async def test_a_window_that_cannot_be_stored_fails_no_chat(pool: Pool) -> None:
    async with model_rig(pool) as rig:
        model = await learning_model(rig)
        await rig.directory.choose(model)
        await rig.directory.learn_limit(model, LearnedLimit(tokens=2**40))
        assert [event["model"] for event in rig.emitted.of("limit_not_kept")] == ["m"]
