"""Routes that read and change the settings of the deployment and of the caller."""

from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from chatd.api.deps import ApiDeps
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.api.schemas.runtime_settings import DeploymentSettingsReply, UserSettingsReply
from chatd.domain.access.permissions import SystemActor
from chatd.domain.deployment.runtime_settings import (
    EXPERIMENTS,
    PROMPT_BODY_BYTES,
    DeploymentPatch,
    UserPatch,
    active_experiments,
    check_debug_choice,
    patched,
)
from chatd.domain.prompt.instructions import DEFAULT_SYSTEM_PROMPT
from chatd.store.account import runtime_settings
from chatd.store.account.runtime_settings import StoredDeployment, StoredUser

_DEPLOYMENT: Final = BodySpec(DeploymentPatch, PROMPT_BODY_BYTES)
_SERVER: Final = SystemActor(reason="settings of the deployment")
_USER: Final = BodySpec(UserPatch, PROMPT_BODY_BYTES)


class RuntimeSettingsRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /settings",
                permission="config.read",
                summary="Get the settings of this deployment",
                handle=self.get_settings,
                replies={200: DeploymentSettingsReply},
            ),
            ApiRoute(
                endpoint="PATCH /settings",
                permission="config.write",
                summary="Change settings of this deployment",
                handle=self.change_settings,
                body_spec=_DEPLOYMENT,
                replies={200: DeploymentSettingsReply},
                errors=("version_conflict",),
            ),
            ApiRoute(
                endpoint="GET /settings/me",
                permission="account.read",
                summary="Get your own settings",
                handle=self.get_my_settings,
                replies={200: UserSettingsReply},
            ),
            ApiRoute(
                endpoint="PATCH /settings/me",
                permission="account.write",
                summary="Change your own settings",
                handle=self.change_my_settings,
                body_spec=_USER,
                replies={200: UserSettingsReply},
                errors=("version_conflict", "debug_forced", "debug_off"),
            ),
        )

    async def get_settings(self, request: ApiRequest) -> ApiReply:
        pool, actor = self._deps.pool, request.caller.actor
        stored = await self._deps.retry(lambda: runtime_settings.get_deployment(pool, actor))
        return reply(self._deployment_reply(stored))

    async def change_settings(self, request: ApiRequest) -> ApiReply:
        deps, actor, patch = self._deps, request.caller.actor, await request.body(_DEPLOYMENT)
        ip = deps.accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            stored = await runtime_settings.get_deployment(session, actor)
            document = patched(stored.document, patch)
            before = replace(stored, version=_expected(patch.version, stored.version))
            version = await runtime_settings.save_deployment(
                session, actor, document, before=before, ip=ip
            )
        return reply(self._deployment_reply(StoredDeployment(version=version, document=document)))

    async def get_my_settings(self, request: ApiRequest) -> ApiReply:
        pool, actor = self._deps.pool, request.caller.actor
        stored = await self._deps.retry(
            lambda: runtime_settings.get_user(pool, actor, actor.user_id)
        )
        return reply(_user_reply(stored, await self._deployment()))

    async def change_my_settings(self, request: ApiRequest) -> ApiReply:
        deps, actor, patch = self._deps, request.caller.actor, await request.body(_USER)
        async with deps.pool.transaction() as session:
            stored = await runtime_settings.get_user(session, actor, actor.user_id)
            deployment = await runtime_settings.get_deployment(session, _SERVER)
            check_debug_choice(deployment.document.debug_recording, patch)
            document = patched(stored.document, patch)
            version = await runtime_settings.save_user(
                session, actor, document, version=_expected(patch.version, stored.version)
            )
        stored = StoredUser(version=version, document=document)
        return reply(_user_reply(stored, await self._deployment()))

    async def _deployment(self) -> StoredDeployment:
        """For every user: which unfinished features are on."""
        pool = self._deps.pool
        return await self._deps.retry(lambda: runtime_settings.get_deployment(pool, _SERVER))

    def _deployment_reply(self, stored: StoredDeployment) -> DeploymentSettingsReply:
        return from_rows(
            DeploymentSettingsReply,
            stored.document,
            version=stored.version,
            experiments=active_experiments(stored.document.experiments),
            available_experiments=EXPERIMENTS,
            default_system_prompt=DEFAULT_SYSTEM_PROMPT,
            retention=self._deps.retention,
        )


def _expected(given: int | UnsetType, current: int) -> int:
    return current if given is UNSET else given


def _user_reply(stored: StoredUser, deployment: StoredDeployment) -> UserSettingsReply:
    return from_rows(
        UserSettingsReply,
        stored.document,
        version=stored.version,
        experiments=active_experiments(deployment.document.experiments),
        debug_mode=deployment.document.debug_recording,
    )
