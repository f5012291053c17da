"""Routes that read and replace tool policies: of the deployment, of the caller, of a template and
of a chat."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import UNSET

from chatd.api.deps import ApiDeps
from chatd.api.request import LARGE_BODY_BYTES, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.chat.answers import (
    ToolPolicyBody,
    ToolPolicyReply,
    ToolTrialBody,
    ToolTrialReply,
    TrialCommand,
)
from chatd.domain.access.permissions import UserActor, has_permission
from chatd.domain.chat_views.transfer import count_values
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.tool_policy.decision import try_call
from chatd.domain.tool_policy.rules import LayerName, PolicyLayer, ToolPolicy, check_policy
from chatd.store.chat import chats
from chatd.store.deployment import tool_policies
from chatd.store.deployment.tool_policies import StoredPolicy

_BODY: Final = BodySpec(ToolPolicyBody, LARGE_BODY_BYTES)
_REPLIES: Final = {200: ToolPolicyReply}
_TRIAL: Final = BodySpec(ToolTrialBody, LARGE_BODY_BYTES)
_TRIAL_REPLIES: Final = {200: ToolTrialReply}
_TRY: Final = (
    "Nothing is run or stored. `rules` are tried instead of the saved ones of this policy; wider"
    " policies count as they are."
)
_ERRORS: Final = ("version_conflict",)
MAX_TRIED_BYTES: Final = 32 * 1024
"""Of the arguments of a call that is tried."""
MAX_TRIED_VALUES: Final = 100
"""Of the arguments of a call that is tried: every rule is compared with every value."""


class ToolPolicyRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._trials = asyncio.Semaphore(1)

    def routes(self) -> tuple[ApiRoute, ...]:
        return (*self._shared_routes(), *self._own_routes())

    def _shared_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /settings/tool-policy",
                permission="config.read",
                summary="Get the tool policy of this deployment",
                handle=self.get_tool_policy,
                replies=_REPLIES,
            ),
            ApiRoute(
                endpoint="PUT /settings/tool-policy",
                permission="config.write",
                summary="Replace the tool policy of this deployment",
                handle=self.put_tool_policy,
                body_spec=_BODY,
                replies=_REPLIES,
                errors=_ERRORS,
            ),
            ApiRoute(
                endpoint="POST /settings/tool-policy/try",
                permission="config.read",
                summary="Say what the tool policy of this deployment would do to a call",
                description=_TRY,
                handle=self.try_tool_policy,
                body_spec=_TRIAL,
                replies=_TRIAL_REPLIES,
            ),
            ApiRoute(
                endpoint="GET /templates/{template_id}/tool-policy",
                permission="catalog.read",
                summary="Get the tool policy of workspaces of a template",
                handle=self.get_template_tool_policy,
                replies=_REPLIES,
            ),
            ApiRoute(
                endpoint="PUT /templates/{template_id}/tool-policy",
                permission="config.write",
                summary="Replace the tool policy of workspaces of a template",
                handle=self.put_template_tool_policy,
                body_spec=_BODY,
                replies=_REPLIES,
                errors=_ERRORS,
            ),
        )

    def _own_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /settings/me/tool-policy",
                permission="account.read",
                summary="Get your own tool policy",
                handle=self.get_my_tool_policy,
                replies=_REPLIES,
            ),
            ApiRoute(
                endpoint="PUT /settings/me/tool-policy",
                permission="account.write",
                summary="Replace your own tool policy",
                handle=self.put_my_tool_policy,
                body_spec=_BODY,
                replies=_REPLIES,
                errors=_ERRORS,
            ),
            ApiRoute(
                endpoint="POST /settings/me/tool-policy/try",
                permission="account.read",
                summary="Say what would happen to a call in your chats",
                description=_TRY,
                handle=self.try_my_tool_policy,
                body_spec=_TRIAL,
                replies=_TRIAL_REPLIES,
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/tool-policy/try",
                permission="policies.read",
                summary="Say what would happen to a call of a chat",
                description=_TRY,
                handle=self.try_chat_tool_policy,
                body_spec=_TRIAL,
                replies=_TRIAL_REPLIES,
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/tool-policy",
                permission="policies.read",
                summary="Get the tool policy of a chat and its subagents",
                description="Readers by a share do not see it.",
                handle=self.get_chat_tool_policy,
                replies=_REPLIES,
            ),
            ApiRoute(
                endpoint="PUT /chats/{chat_id}/tool-policy",
                permission="chats.write",
                summary="Replace the tool policy of a chat and its subagents",
                handle=self.put_chat_tool_policy,
                body_spec=_BODY,
                replies=_REPLIES,
                errors=_ERRORS,
            ),
        )

    async def get_tool_policy(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        return _reply(await self._deps.read(tool_policies.get_deployment, actor))

    async def put_tool_policy(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        policy, wanted = await _read(request)
        ip = deps.accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            before = _expect(await tool_policies.get_deployment(session, actor), wanted)
            version = await tool_policies.save_deployment(
                session, actor, policy, before=before, ip=ip
            )
        return _reply(StoredPolicy(version=version, policy=policy))

    async def try_tool_policy(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        body = await request.body(_TRIAL)
        stored = await self._deps.read(tool_policies.get_deployment, actor)
        layers = [PolicyLayer(name="deployment", policy=stored.policy)]
        return await self._try(body, "deployment", layers, frozenset({"deployment"}))

    async def try_my_tool_policy(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        body = await request.body(_TRIAL)
        layers = await self._deps.read(tool_policies.load_owner_layers, actor.user_id)
        shown: set[LayerName] = {*_readable(actor), "user"}
        return await self._try(body, "user", layers, shown)

    async def try_chat_tool_policy(self, request: ApiRequest) -> ApiReply:
        actor, chat_id = request.caller.actor, request.chat_id
        body = await request.body(_TRIAL)
        chat = await self._deps.read(chats.get_for_command, actor, chat_id, "policies.read")
        if chat is None:
            raise NotFound("There is no such chat.")
        found = chat
        layers = await self._deps.read(tool_policies.load_layers, found)
        shown: set[LayerName] = {*_readable(actor), "template", "chat"}
        if chat.owner_id == actor.user_id:
            shown.add("user")
        return await self._try(body, "chat", layers, shown)

    async def _try(
        self,
        body: ToolTrialBody,
        own: LayerName,
        layers: Sequence[PolicyLayer],
        shown: Collection[LayerName],
    ) -> ApiReply:
        """`own` is the policy that the rules of the body stand for. Of policies that are not
        `shown` the reply has the reason and not the rule. In a thread, one at a time: many rules
        take long."""
        given = b"" if body.args is UNSET else bytes(body.args)
        if len(given) > MAX_TRIED_BYTES or count_values(given) > MAX_TRIED_VALUES:
            text = f"at most {MAX_TRIED_BYTES // 1024} KiB and {MAX_TRIED_VALUES} values"
            raise InvalidInput("args", text)
        if body.rules is not UNSET:
            if body.may_loosen and own != "deployment":
                raise InvalidInput("may_loosen", "only a deployment or a template has it")
            policy = check_policy(ToolPolicy(rules=body.rules, may_loosen=body.may_loosen))
            others = [layer for layer in layers if layer.name != own]
            layers = (*others, PolicyLayer(name=own, policy=policy))
        async with self._trials:
            trial = await asyncio.to_thread(try_call, layers, body.tool, body.args)
        decision = trial.decision
        is_shown = decision.layer in shown
        return reply(
            ToolTrialReply(
                action=decision.action,
                layer=decision.layer,
                rule=decision.rule if is_shown else None,
                reason=decision.reason,
                explanation=trial.explanation,
                commands=tuple(
                    TrialCommand(command=command, matches=match)
                    for command, match in trial.commands
                )
                if is_shown or decision.layer is None
                else (),
            )
        )

    async def get_template_tool_policy(self, request: ApiRequest) -> ApiReply:
        template_id = request.template_id
        return _reply(await self._deps.read(tool_policies.get_template, template_id))

    async def put_template_tool_policy(self, request: ApiRequest) -> ApiReply:
        deps, actor, template_id = self._deps, request.caller.actor, request.template_id
        policy, wanted = await _read(request)
        ip = deps.accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            stored = await tool_policies.get_template(session, template_id)
            version = await tool_policies.save_template(
                session, actor, template_id, policy, before=_expect(stored, wanted), ip=ip
            )
        return _reply(StoredPolicy(version=version, policy=policy))

    async def get_my_tool_policy(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        return _reply(await self._deps.read(tool_policies.get_user, actor))

    async def put_my_tool_policy(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        policy, wanted = await _read(request, owned=True)
        async with deps.pool.transaction() as session:
            before = _expect(await tool_policies.get_user(session, actor), wanted)
            version = await tool_policies.save_user(session, actor, policy, version=before.version)
        return _reply(StoredPolicy(version=version, policy=policy))

    async def get_chat_tool_policy(self, request: ApiRequest) -> ApiReply:
        pool, actor, chat_id = self._deps.pool, request.caller.actor, request.chat_id

        async def read() -> StoredPolicy:
            await chats.get_for_command(pool, actor, chat_id, "policies.read")
            return await tool_policies.get_chat(pool, actor, chat_id, "policies.read")

        return _reply(await self._deps.retry(read))

    async def put_chat_tool_policy(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        policy, wanted = await _read(request, owned=True)
        async with deps.pool.transaction() as session:
            await chats.get_for_command(session, actor, chat_id, "chats.write")
            stored = await tool_policies.get_chat(session, actor, chat_id, "chats.write")
            before = _expect(stored, wanted)
            version = await tool_policies.save_chat(
                session, actor, chat_id, policy, version=before.version
            )
        return _reply(StoredPolicy(version=version, policy=policy))


async def _read(request: ApiRequest, *, owned: bool = False) -> tuple[ToolPolicy, int | None]:
    """The policy, and the version that it is to replace, if given. `owned`: of a user or a chat."""
    body = await request.body(_BODY)
    if owned and body.may_loosen:
        raise InvalidInput("may_loosen", "only a deployment or a template has it")
    policy = ToolPolicy(rules=body.rules, may_loosen=body.may_loosen)
    version = body.version
    return check_policy(policy), None if version is UNSET else version


def _readable(actor: UserActor) -> frozenset[LayerName]:
    names: tuple[LayerName, ...] = ("deployment",) if has_permission(actor, "config.read") else ()
    return frozenset(names)


def _expect(stored: StoredPolicy, version: int | None) -> StoredPolicy:
    if version is not None and version != stored.version:
        raise Conflict(
            "The policy has changed meanwhile. Read it again and repeat the change.",
            code="version_conflict",
        )
    return stored


def _reply(stored: StoredPolicy) -> ApiReply:
    return reply(
        ToolPolicyReply(
            version=stored.version,
            rules=stored.policy.rules,
            may_loosen=stored.policy.may_loosen,
        )
    )
