"""Routes that read and change the settings of the deployment and of the caller, and their replies.
The patches are in the domain."""

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from chatd.api.deps import ApiDeps, RetentionDays
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.domain.access.permissions import SystemActor
from chatd.domain.deployment.runtime_settings import (
    ANSWER_LINKS_TEXT,
    COMPUTER_USE_MODEL_TEXT,
    DEBUG_MODE_TEXT,
    EXPERIMENTS,
    EXPLORE_MODEL_TEXT,
    GENERAL_MODEL_TEXT,
    MEMORY_CHOICE_TEXT,
    MEMORY_TEXT,
    PROMPT_BODY_BYTES,
    PUBLIC_LINK_DAYS_TEXT,
    PUBLIC_LINKS_TEXT,
    DebugMode,
    DeploymentPatch,
    UserPatch,
    active_experiments,
    check_debug_choice,
    patched,
)
from chatd.domain.description import describe
from chatd.domain.memory import MemoryChoice
from chatd.domain.prompt.instructions import DEFAULT_SYSTEM_PROMPT
from chatd.store.account import runtime_settings
from chatd.store.account.runtime_settings import StoredDeployment, StoredUser

DocumentVersion = Annotated[
    int, Meta(description="Counts the changes of this document.", examples=[3])
]


Experiments = Annotated[
    tuple[str, ...],
    Meta(description="Names of the unfinished features that are switched on.", examples=[[]]),
]


class DeploymentSettingsReply(Struct, frozen=True, kw_only=True):
    """The settings of this deployment that are changed over the API."""

    version: DocumentVersion
    system_prompt: Annotated[
        str,
        Meta(
            description="Begins every new chat, after the built-in prompt.",
            examples=["Answer in British English."],
        ),
    ]
    include_default_prompt: Annotated[
        bool,
        Meta(description="Whether new chats begin with the built-in prompt.", examples=[True]),
    ]
    sharing_enabled: Annotated[
        bool,
        Meta(
            description="Whether users may share chats and read what is shared with them.",
            examples=[True],
        ),
    ]
    public_links: Annotated[bool, Meta(description=PUBLIC_LINKS_TEXT, examples=[True])]
    public_link_days: Annotated[int, Meta(description=PUBLIC_LINK_DAYS_TEXT, examples=[30])]
    answer_links: Annotated[bool, Meta(description=ANSWER_LINKS_TEXT, examples=[True])]
    memory: Annotated[bool, Meta(description=MEMORY_TEXT, examples=[True])]
    experiments: Experiments
    available_experiments: Annotated[
        dict[str, str],
        Meta(description="Names of unfinished features, and what each does.", examples=[{}]),
    ]
    debug_recording: Annotated[
        DebugMode, Meta(description=DEBUG_MODE_TEXT, examples=["allow_users"])
    ]
    default_system_prompt: Annotated[
        str, Meta(description="The built-in prompt.", examples=["You are an engineer who ..."])
    ]
    retention: Annotated[
        RetentionDays, describe("How long things are kept. Changed in the settings file.")
    ]


class UserSettingsReply(Struct, frozen=True, kw_only=True):
    """Your own settings."""

    version: DocumentVersion
    custom_prompt: Annotated[
        str,
        Meta(
            description="Told to the model in all your chats.",
            examples=["I work on the billing team. Prefer short answers."],
        ),
    ]
    memory: Annotated[MemoryChoice, Meta(description=MEMORY_CHOICE_TEXT, examples=["proposals"])]
    memory_allowed: Annotated[
        bool, Meta(description="Whether the deployment lets users have notes.", examples=[True])
    ]
    experiments: Experiments
    debug_recording: Annotated[
        bool,
        Meta(
            description="Record the model calls of your chats, if `debug_mode` lets you choose.",
            examples=[True],
        ),
    ]
    debug_mode: Annotated[DebugMode, Meta(description=DEBUG_MODE_TEXT, examples=["allow_users"])]
    general_model: Annotated[str, Meta(description=GENERAL_MODEL_TEXT, examples=["sonnet"])]
    explore_model: Annotated[str, Meta(description=EXPLORE_MODEL_TEXT, examples=["haiku"])]
    computer_use_model: Annotated[str, Meta(description=COMPUTER_USE_MODEL_TEXT, examples=["opus"])]


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
        actor = request.caller.actor
        stored = await self._deps.read(runtime_settings.get_deployment, actor)
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
        actor = request.caller.actor
        stored = await self._deps.read(runtime_settings.get_user, actor, actor.user_id)
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
        return await self._deps.read(runtime_settings.get_deployment, _SERVER)

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
        memory_allowed=deployment.document.memory,
        experiments=active_experiments(deployment.document.experiments),
        debug_mode=deployment.document.debug_recording,
    )
