"""Routes of the debug records of model calls."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Raw, Struct

from chatd.api.deps import ApiDeps
from chatd.api.operations import audit_read
from chatd.api.pages import Paging, TimePosition, page_reply
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.description import CREATED_AT, MODEL_ID, describe
from chatd.domain.errors import NotFound
from chatd.domain.ids import MessageId, ModelConfigId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.store.chat import chats
from chatd.store.model import model_calls
from chatd.store.model.model_calls import StoredDebugCall

# Replies with debug records of model calls. Docstrings here are part of the OpenAPI document.

_RUN_ID = "0193c5a6-2d4e-7f60-8a1b-3c4d5e6f7081"
_REQUEST = {
    "model": "sable-4",
    "messages": [{"role": "user", "parts": [{"type": "text", "text": "Why does it fail?"}]}],
}
_RESPONSE = {"finish_reason": "stop", "parts": [{"type": "text", "text": "The sum starts at 1."}]}


class DebugRunItem(Struct, frozen=True, kw_only=True):
    """One model call."""

    id: Annotated[UUID, describe("The id of the record.", _RUN_ID)]
    kind: Annotated[
        Literal["turn", "title", "compaction"],
        describe("What the call was for: an answer, a title or a summary.", "turn"),
    ]
    model_config_id: Annotated[ModelConfigId | None, describe("The model's id.", MODEL_ID)]
    provider: Annotated[str, describe("The name of the provider.", "anthropic")]
    model: Annotated[str, describe("The model as the provider calls it.", "sable-4")]
    attempt: Annotated[int, describe("The number of the try at this answer.", 1)]
    history_version: Annotated[
        int, describe("The version at which the answer began; with `attempt` it names it.", 11)
    ]
    turn_message_id: Annotated[MessageId | None, describe("The message that began the turn.", 12)]
    started_at: Annotated[datetime, describe("When the call began.", CREATED_AT)]
    duration_ms: Annotated[int, describe("How long it took, in milliseconds.", 4200)]
    first_part_ms: Annotated[
        int | None, describe("Milliseconds until the first part of the answer.", 610)
    ]
    error: Annotated[
        str | None, describe("Why it failed, for people.", "The provider is overloaded.")
    ]
    error_kind: Annotated[
        str | None,
        describe("The kind of error; `cancelled` if a user stopped the call.", "overloaded"),
    ]
    status_code: Annotated[int | None, describe("The HTTP status of the error.", 529)]
    finish_reason: Annotated[
        str | None, describe("Why the answer ended; null if it was cut off.", "stop")
    ]
    usage: Annotated[TokenUsage, describe("The tokens of the call.")]
    is_cut: Annotated[bool, Meta(description="The record leaves out what was over its size limit.")]


class DebugRunReply(DebugRunItem, frozen=True, kw_only=True):
    """One model call with its request and its answer, without secrets."""

    request: Annotated[
        Raw,
        describe(
            "The request before the provider's own encoding, any JSON. Keys, headers and the"
            " queries of URLs are removed, and files are named by type and size.",
            _REQUEST,
        ),
    ]
    response: Annotated[Raw, describe("The answer as far as it came, any JSON.", _RESPONSE)]


class DebugRunPage(ListPage[DebugRunItem], frozen=True, kw_only=True):
    """Model calls of a chat, newest first."""


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
        found = await deps.read(
            model_calls.list_debug_calls,
            actor,
            chat_id,
            None if last is None else (last.at, last.id),
            limit=paging.read_limit,
        )
        shown, cursor = paging.cut(found, lambda call: TimePosition(call.started_at, call.id))
        return page_reply(DebugRunPage, map(_item, shown), cursor)

    async def get_debug_run(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        call_id = request.debug_run_id
        await self._require_readable(request)
        found = await deps.read(model_calls.get_debug_call, actor, chat_id, call_id)
        if found is None or found.request is None or found.response is None:
            raise NotFound("There is no such record of a model call.")
        fields = msgspec.structs.asdict(_item(found))
        return reply(DebugRunReply(**fields, request=found.request, response=found.response))

    async def _require_readable(self, request: ApiRequest) -> None:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        chat = require_chat(await deps.read(chats.get_for_command, actor, chat_id, "debug.read"))
        await audit_read(deps, request.caller, chat)


def _item(call: StoredDebugCall) -> DebugRunItem:
    names = DebugRunItem.__struct_fields__
    return DebugRunItem(**{name: getattr(call, name) for name in names})
