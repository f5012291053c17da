"""Routes for hooks of the deployment and of templates, for administrators."""

from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.domain.list_page import ListPage, ListQuery
from chatd.services.hooks import (
    HookConfig,
    HookPatch,
    HookTrial,
    NewHookBody,
    NewHookConfig,
    hook_config,
)
from chatd.store.deployment import hooks

_CREATE: Final = BodySpec(NewHookBody)
_PATCH: Final = BodySpec(HookPatch)


class HookPage(ListPage[HookConfig], frozen=True, kw_only=True):
    """The hooks, in the order in which they are asked."""


class HookRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/hooks/{hook_id}"
        return (
            ApiRoute(
                endpoint="POST /hooks",
                permission="config.write",
                summary="Add a hook: a URL that is asked while a turn waits",
                description="Requests are signed as those of webhooks. A worker that asks again"
                " after a crash uses the same `webhook-id` and `idempotency-key`.",
                handle=self.create_hook,
                body_spec=_CREATE,
                replies={201: NewHookConfig},
                errors=("too_many_hooks", "hook_exists", "secret_key_missing"),
            ),
            ApiRoute(
                endpoint="GET /hooks",
                permission="config.read",
                summary="List the hooks",
                handle=self.list_hooks,
                query=ListQuery,
                replies={200: HookPage},
            ),
            ApiRoute(
                endpoint=f"GET {one}",
                permission="config.read",
                summary="Get a hook",
                handle=self.get_hook,
                replies={200: HookConfig},
            ),
            ApiRoute(
                endpoint=f"PATCH {one}",
                permission="config.write",
                summary="Change a hook, disable it, or enable it again",
                handle=self.change_hook,
                body_spec=_PATCH,
                replies={200: HookConfig},
                errors=("hook_exists",),
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="config.write",
                summary="Delete a hook",
                handle=self.delete_hook,
                replies={204: None},
            ),
            ApiRoute(
                endpoint=f"POST {one}/test",
                permission="config.write",
                summary="Ask a hook something without effect, and show what it answers",
                handle=self.try_hook,
                replies={200: HookTrial},
            ),
        )

    async def create_hook(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_CREATE)
        made = await deps.hooks.add(deps.author(request), body)
        return reply(made, 201, {"location": f"/api/v1/hooks/{made.id}"})

    async def list_hooks(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(hooks.list_all, request.caller.actor)
        shown, cursor = cut_whole(paging, found, lambda stored: stored.hook.id)
        return page_reply(HookPage, map(hook_config, shown), cursor)

    async def get_hook(self, request: ApiRequest) -> ApiReply:
        found = await self._deps.read(hooks.get, request.caller.actor, request.hook_id)
        return reply(hook_config(found))

    async def change_hook(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_PATCH)
        return reply(await deps.hooks.update(deps.author(request), request.hook_id, body))

    async def delete_hook(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        await deps.hooks.delete(deps.author(request), request.hook_id)
        return NO_CONTENT

    async def try_hook(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        deps.accounts.limits.take_test(request.caller)
        return reply(await deps.hooks.try_hook(request.caller.actor, request.hook_id))
