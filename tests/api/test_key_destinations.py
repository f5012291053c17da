"""A key is sent only to the address that it was given for; a user's own key loads no replica."""

import msgspec
import pytest

from chatd.domain.model.failures import ModelError
from chatd.services.models.provider_bodies import UpdateProviderBody, UserKeyBody
from chatd.store.database.pool import Pool
from tests.api.test_model_directory import (
    AUTHOR,
    CENTRAL,
    MINE,
    OTHER_OWNER,
    answer,
    create_model,
    create_provider,
)
from tests.support.api.server import ADMINISTRATOR, ApiOptions, serve_api
from tests.support.factories import OWNER
from tests.support.models import model_rig
from tests.support.outcomes import present
from tests.support.providers.openai_chat import FakeCompatible, stream
from tests.support.providers.prompts import request


@pytest.mark.promise("P13")
async def test_after_a_change_of_the_address_no_former_key_is_sent(pool: Pool) -> None:
    async with (
        FakeCompatible.running() as old,
        FakeCompatible.running() as new,
        model_rig(pool) as rig,
    ):
        provider = await create_provider(rig, old.url, user_keys=True, headers={"X-Team": "s"})
        model = (await create_model(rig)).config.id
        mine = UserKeyBody(provider="house", api_key=MINE)
        await rig.user_keys.set_user_key(AUTHOR, OWNER, mine)
        moved = UpdateProviderBody(base_url=f"{new.url}/v1")
        _, dropped = await rig.providers.update_provider(AUTHOR, provider.id, moved)
        assert (present(dropped).keys, present(dropped).user_keys) == (1, 1)
        assert present(dropped).header_names == ("X-Team",)
        new.script(stream("text"))
        choice = await rig.directory.choose(model, OTHER_OWNER)
        async with choice.provider.stream(request(model="m")) as events:
            assert [event async for event in events]
        assert not new.requests[0].headers.keys() & {"authorization", "x-team"}
        with pytest.raises(ModelError, match="has changed since you added your key") as refused:
            await rig.directory.choose(model, OWNER)
        assert refused.value.classified.kind == "missing_key"
        [listed] = await rig.user_keys.list_user_keys(OWNER)
        assert (listed.destination, listed.is_moved) == (new.url, True)
        await rig.user_keys.set_user_key(AUTHOR, OWNER, mine)
        assert await answer(new, await rig.directory.choose(model, OWNER)) == MINE


async def test_keys_that_are_in_the_same_request_are_sent_to_the_new_address(pool: Pool) -> None:
    async with (
        FakeCompatible.running() as old,
        FakeCompatible.running() as new,
        model_rig(pool) as rig,
    ):
        provider = await create_provider(rig, old.url, headers={"X-Team": "s"})
        model = (await create_model(rig)).config.id
        body = UpdateProviderBody(
            base_url=f"{new.url}/v1", api_keys=("sk-for-the-new-host",), headers={"X-Team": "t"}
        )
        _, dropped = await rig.providers.update_provider(AUTHOR, provider.id, body)
        assert (present(dropped).keys, present(dropped).header_names) == (0, ())
        assert await answer(new, await rig.directory.choose(model)) == "sk-for-the-new-host"
        assert new.requests[0].headers["x-team"] == "t"


async def test_a_users_key_is_sent_again_when_the_address_is_as_before(pool: Pool) -> None:
    async with FakeCompatible.running() as fake, model_rig(pool) as rig:
        provider = await create_provider(rig, fake.url, user_keys=True)
        model = (await create_model(rig)).config.id
        mine = UserKeyBody(provider="house", api_key=MINE)
        await rig.user_keys.set_user_key(AUTHOR, OWNER, mine)
        for url in ("http://127.0.0.1:1/v1", f"{fake.url}/v1/"):
            body = UpdateProviderBody(base_url=url)
            await rig.providers.update_provider(AUTHOR, provider.id, body)
        assert await answer(fake, await rig.directory.choose(model, OWNER)) == MINE


async def test_a_new_path_of_the_same_host_keeps_all_keys(pool: Pool) -> None:
    async with FakeCompatible.running() as fake, model_rig(pool) as rig:
        provider = await create_provider(rig, fake.url)
        model = (await create_model(rig)).config.id
        body = UpdateProviderBody(base_url=f"{fake.url}/v1/")
        _, dropped = await rig.providers.update_provider(AUTHOR, provider.id, body)
        assert dropped is None
        assert await answer(fake, await rig.directory.choose(model)) == CENTRAL


async def test_a_proxy_for_a_plain_address_drops_the_keys(pool: Pool) -> None:
    async with model_rig(pool) as rig:
        provider = await create_provider(rig, "http://127.0.0.1:1")
        body = UpdateProviderBody(proxy="http://127.0.0.1:2")
        changed, dropped = await rig.providers.update_provider(AUTHOR, provider.id, body)
        assert (present(dropped).keys, changed.keys, changed.has_api_key) == (1, (), False)


async def test_the_reply_and_the_audit_log_tell_what_was_dropped(dsn: str) -> None:
    async with serve_api(dsn, ApiOptions(models=None)) as server:
        local = {"name": "local", "kind": "openai-compat", "base_url": "http://127.0.0.1:1/v1"}
        made = await server.ask(
            "POST", "/providers", {**local, "api_keys": [CENTRAL]}, token=ADMINISTRATOR
        )
        moved = await server.ask(
            "PATCH",
            f"/providers/{made.json['id']}",
            {"base_url": "http://127.0.0.2:1/v1"},
            token=ADMINISTRATOR,
        )
        told: dict[str, object] = {
            "keys": 1,
            "header_names": [],
            "aws_credentials": False,
            "user_keys": 0,
        }
        assert (moved.json["dropped"], moved.json["has_api_key"]) == (told, False)
        text = await server.replica.pool.fetchval(
            "SELECT detail::text FROM audit_log WHERE action = 'provider.update'"
        )
        assert msgspec.json.decode(text) == {"fields": ["base_url"], "dropped": told}


async def test_a_users_own_key_makes_no_replica_read_the_providers_again(pool: Pool) -> None:
    """And a replaced one ends the client that holds it, on the replicas that hear of it."""
    async with FakeCompatible.running() as fake, model_rig(pool) as rig:
        await create_provider(rig, fake.url, user_keys=True)
        model = (await create_model(rig)).config.id
        await rig.directory.choose(model, OWNER)
        body = UserKeyBody(provider="house", api_key=MINE)
        first = await rig.user_keys.set_user_key(AUTHOR, OWNER, body)
        client = (await rig.directory.choose(model, OWNER)).provider
        # A replica that reads the lists again learns of this.
        await pool.execute("UPDATE model_configs SET enabled = false, is_default = false")
        second = await rig.user_keys.set_user_key(AUTHOR, OWNER, body)
        rig.changes.on_notice(f'{{"kind":"user_key","id":"{present(first.key).id}"}}')
        assert (await rig.directory.choose(model, OWNER)).provider is not client
        await rig.user_keys.delete_user_key(AUTHOR, OWNER, present(second.key).id)
        await rig.directory.choose(model, OWNER)
        rig.changes.on_notice('{"kind":"provider","id":""}')
        with pytest.raises(ModelError, match="is disabled"):
            await rig.directory.choose(model, OWNER)
