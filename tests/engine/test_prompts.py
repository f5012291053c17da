"""The prompts of the deployment and of users, as the model gets them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from chatd.app.replica import Replica
from chatd.clock import SystemClock
from chatd.domain.access.permissions import UserActor
from chatd.domain.deployment.runtime_settings import DeploymentSettings, UserSettings
from chatd.domain.ids import ChatId, UserId
from chatd.domain.prompt.instructions import DEFAULT_SYSTEM_PROMPT
from chatd.services.operation.runtime_settings import PromptedTools, RuntimeSettings
from chatd.store.account import runtime_settings
from chatd.store.account.runtime_settings import StoredDeployment
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.stream_replica import env_with
from tests.support.tools import Tools

POLITE: Final = DeploymentSettings(system_prompt="Be polite.", include_default_prompt=False)


@asynccontextmanager
async def prompted_rig(dsn: str) -> AsyncGenerator[tuple[EngineRig, RuntimeSettings]]:
    built: list[RuntimeSettings] = []

    def build_tools(replica: Replica) -> PromptedTools:
        built.append(RuntimeSettings(replica.database.pool, replica.config_changes))
        return PromptedTools(Tools(()), built[0], env_with(SystemClock()))

    async with engine_rig(dsn, build_tools=build_tools) as rig:
        yield rig, built[0]


async def save_deployment(rig: EngineRig, document: DeploymentSettings, version: int) -> None:
    admin = UserActor(user_id=UserId(rig.owner), role="admin")
    async with rig.pool.transaction() as session:
        await runtime_settings.save_deployment(
            session, admin, document, before=StoredDeployment(version=version)
        )


async def save_user(rig: EngineRig, text: str, version: int) -> None:
    user = UserActor(user_id=rig.owner, role="member")
    async with rig.pool.transaction() as session:
        document = UserSettings(custom_prompt=text)
        await runtime_settings.save_user(session, user, document, version=version)


def system_texts(rig: EngineRig) -> list[str]:
    """Of the newest request."""
    rows = msgspec.convert(rig.api.requests[-1].json["messages"], list[dict[str, object]])
    return [str(row["content"]) for row in rows if row["role"] == "system"]


async def ask(rig: EngineRig, text: str) -> ChatId:
    chat_id = await rig.ask(text, "hello")
    await rig.wait_chat_task_left(chat_id)
    return chat_id


async def test_a_new_chat_begins_with_the_built_in_prompt(dsn: str) -> None:
    async with prompted_rig(dsn) as (rig, _):
        await ask(rig, "hi")
        assert DEFAULT_SYSTEM_PROMPT in "\n".join(system_texts(rig))


async def test_a_changed_prompt_of_the_deployment_is_told_to_new_chats_only(dsn: str) -> None:
    async with prompted_rig(dsn) as (rig, settings):
        await save_deployment(rig, POLITE, 0)
        old = await ask(rig, "hi")
        assert system_texts(rig) == ["Be polite."]
        await save_deployment(rig, DeploymentSettings(include_default_prompt=False), 1)

        async def is_known() -> bool:
            return (await settings.deployment()).system_prompt == ""

        await eventually(is_known)
        rig.answer("hello again")
        await rig.send(old, "still there?")
        await rig.wait_chat_task_left(old, epoch=3)
        assert system_texts(rig) == ["Be polite."]
        await ask(rig, "a new chat")
        assert system_texts(rig) == []


async def test_a_changed_prompt_of_a_user_is_told_to_its_chats_at_the_next_message(
    dsn: str,
) -> None:
    async with prompted_rig(dsn) as (rig, settings):
        await save_deployment(rig, POLITE, 0)
        chat_id = await ask(rig, "hi")
        await save_user(rig, "I like tables.", 0)

        async def is_known() -> bool:
            return (await settings.user(rig.owner)).custom_prompt != ""

        await eventually(is_known)
        rig.answer("hello again")
        await rig.send(chat_id, "more")
        await rig.wait_chat_task_left(chat_id, epoch=3)
        assert "I like tables." in rig.api.requests[-1].body.decode()
        assert "I like tables." not in rig.api.requests[0].body.decode()
