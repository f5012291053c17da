"""Routes of the debug records of model calls."""

import msgspec

from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging, TimePosition
from chatd.api.read_audit import audit_read
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.schemas.debug import DebugRunItem, DebugRunPage, DebugRunReply
from chatd.domain.errors import NotFound
from chatd.domain.list_page import ListQuery
from chatd.store.chat import chats, debug_calls
from chatd.store.chat.debug_calls import StoredDebugCall


class DebugRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/debug/runs",
                permission="debug.read",
                summary="List the recorded model calls of a chat, newest first",
                handle=self.list_debug_runs,
                query=ListQuery,
                replies={200: DebugRunPage},
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/debug/runs/{debug_run_id}",
                permission="debug.read",
                summary="Get a recorded model call with its request and its answer",
                handle=self.get_debug_run,
                replies={200: DebugRunReply},
            ),
        )

    async def list_debug_runs(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        paging = Paging(request, request.query(ListQuery), TimePosition)
        await self._require_readable(request)
        last = paging.position
        found = await deps.retry(
            lambda: debug_calls.list_of_chat(
                deps.pool,
                actor,
                chat_id,
                None if last is None else (last.at, last.id),
                limit=paging.read_limit,
            )
        )
        shown, cursor = paging.cut(found, lambda call: TimePosition(call.started_at, call.id))
        items = tuple(map(_item, shown))
        return reply(DebugRunPage(items=items, has_more=cursor is not None, next_cursor=cursor))

    async def get_debug_run(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        call_id = request.debug_run_id
        await self._require_readable(request)
        found = await deps.retry(lambda: debug_calls.get(deps.pool, actor, chat_id, call_id))
        if found is None or found.request is None or found.response is None:
            raise NotFound("There is no such record of a model call.")
        fields = msgspec.structs.asdict(_item(found))
        return reply(DebugRunReply(**fields, request=found.request, response=found.response))

    async def _require_readable(self, request: ApiRequest) -> None:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        chat = require_chat(
            await deps.retry(lambda: chats.get_for_command(deps.pool, actor, chat_id, "debug.read"))
        )
        await audit_read(deps, request.caller, chat)


def _item(call: StoredDebugCall) -> DebugRunItem:
    names = DebugRunItem.__struct_fields__
    return DebugRunItem(**{name: getattr(call, name) for name in names})
