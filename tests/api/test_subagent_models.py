"""The model of a subagent, with settings over the API and the directory of a replica."""

from collections.abc import AsyncGenerator

import pytest
from msgspec import Struct

from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError
from chatd.domain.ids import ModelConfigId
from chatd.domain.subagents import SubagentType
from chatd.services.models.model_administration import SubagentModelChoice
from chatd.services.operation.runtime_settings import RuntimeSettings
from chatd.store.model import model_configs
from tests.support.api.server import ADMINISTRATOR, ApiOptions, ApiServer, serve_api
from tests.support.factories import chat
from tests.support.models import ModelRig

LOCAL = {"name": "local", "kind": "openai-compat", "base_url": "http://127.0.0.1:1/v1"}
NAMES = ("own", "house", "mine", "wanted", "off")


class Rig(Struct, frozen=True, kw_only=True):
    server: ApiServer
    choice: SubagentModelChoice
    ids: dict[str, ModelConfigId]

    @property
    def parent(self) -> Chat:
        return chat(model_config_id=self.ids["own"])

    async def name_of(self, type_: SubagentType = "general", wanted: str = "") -> str:
        found = await self.choice.choose(self.parent, type_, wanted)
        return next(name for name, model_id in self.ids.items() if model_id == found)

    async def prefer(self, **fields: str) -> None:
        """As the owner of the chat."""
        saved = await self.server.ask("PATCH", "/settings/me", fields)
        assert saved.status == 200

    async def override(self, **fields: str | None) -> None:
        saved = await self.server.ask("PATCH", "/model-overrides", fields, token=ADMINISTRATOR)
        assert saved.status == 200


@pytest.fixture
async def rig(dsn: str) -> AsyncGenerator[Rig]:
    async with serve_api(dsn, ApiOptions(models=None)) as server:
        await server.ask("POST", "/providers", LOCAL, token=ADMINISTRATOR)
        for name in NAMES:
            body = {"name": name, "provider": "local", "model": name, "enabled": name != "off"}
            made = await server.ask("POST", "/models", body, token=ADMINISTRATOR)
            assert made.status == 201, made.content
        pool = server.replica.pool
        stored = await model_configs.list_models(pool)
        models = ModelRig(pool, SystemClock())
        await models.directory.declare(pool)
        models.changes.on_disconnected()  # from now on every use reads again
        settings = RuntimeSettings(pool, models.changes)
        choice = SubagentModelChoice(models.directory, settings, models.env)
        yield Rig(
            server=server, choice=choice, ids={one.config.name: one.config.id for one in stored}
        )
        await models.directory.close()


async def test_the_call_comes_before_the_user_the_administrator_and_the_parent(rig: Rig) -> None:
    assert await rig.name_of() == "own"
    await rig.override(general="house")
    assert await rig.name_of() == "house"
    await rig.prefer(general_model="mine")
    assert await rig.name_of() == "mine"
    assert await rig.name_of(wanted="wanted") == "wanted"
    assert await rig.name_of(wanted=str(rig.ids["wanted"])) == "wanted"
    await rig.prefer(general_model="")
    await rig.override(general=None)
    assert await rig.name_of() == "own"


async def test_each_type_has_its_own_model(rig: Rig) -> None:
    await rig.override(explore="house")
    await rig.prefer(general_model="mine")
    assert (await rig.name_of("explore"), await rig.name_of("general")) == ("house", "mine")


async def test_a_preference_that_cannot_be_used_is_passed_over(rig: Rig) -> None:
    await rig.prefer(general_model="off")
    assert await rig.name_of() == "own"
    await rig.prefer(general_model="no such model")
    assert await rig.name_of() == "own"


@pytest.mark.parametrize("wanted", ["off", "no such model", "00000000-0000-0000-0000-000000000001"])
async def test_a_wanted_model_that_cannot_be_used_is_refused(rig: Rig, wanted: str) -> None:
    with pytest.raises(ToolError, match="list_subagent_models"):
        await rig.name_of(wanted=wanted)


async def test_only_models_that_can_be_used_are_listed(rig: Rig) -> None:
    listed = await rig.choice.usable(rig.parent.owner_id)
    names = {one.name for one in listed}
    assert {"own", "house", "mine", "wanted"} <= names
    assert "off" not in names
