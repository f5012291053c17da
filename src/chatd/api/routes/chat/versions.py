"""Routes that repeat a turn, and that list and choose the versions of messages."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, ClassVar, Final

from msgspec import Struct

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import CHAT_STATE_CODES
from chatd.api.operations import (
    REPLAYED,
    appended_result,
    audit_read,
    replayed_result,
    run_operation,
)
from chatd.api.pages import NumberPosition, Paging, page_reply
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.chat.messages import choose_model
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.schemas.messages import ModelSelection, SentReply
from chatd.domain.chat.commands import ChooseVersion, RegenerateTurn
from chatd.domain.chat_views.public_chat import PublicChat, public_chat
from chatd.domain.description import CREATED_AT, MODEL_ID, describe
from chatd.domain.ids import MessageId, ModelConfigId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.store.chat import chats, versions
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.versions import ListedVersion


class RegenerateBody(ModelSelection, frozen=True, kw_only=True, omit_defaults=True):
    """Who answers the message again. Without a model: the one that it was sent to."""

    openapi_example: ClassVar[Mapping[str, object]] = {"model": "sonnet"}


class MessageVersion(Struct, frozen=True, kw_only=True):
    """A version of a message: the first message of a line."""

    message_id: Annotated[MessageId, describe("The message with which the line begins.", 12)]
    created_at: Annotated[datetime, describe("When it was stored.", CREATED_AT)]
    model_config_id: Annotated[
        ModelConfigId | None, describe("The model that answered, or that was asked to.", MODEL_ID)
    ]
    text: Annotated[str, describe("The beginning of its text.", "Fix the failing test")]


class VersionGroup(Struct, frozen=True, kw_only=True):
    """A message of history that was edited or answered again, with all its versions."""

    message_id: Annotated[MessageId, describe("The version that history has now.", 18)]
    versions: Annotated[
        tuple[MessageVersion, ...], describe("The versions, the oldest first; 100 at most.")
    ]


class VersionPage(ListPage[VersionGroup], frozen=True, kw_only=True):
    """Messages with several versions, the oldest first."""


_REGENERATE: Final = BodySpec(RegenerateBody)


class VersionRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /chats/{chat_id}/messages/{message_id}/regenerate",
                permission="chats.write",
                summary="Answer a user message again, if wanted by another model or with another"
                " effort",
                description=(
                    "As an edit with the same content: the message gets a new id, and it and all"
                    " later ones are kept as a version. A queue is deleted."
                ),
                handle=self.regenerate_turn,
                body_spec=_REGENERATE,
                replies={200: SentReply},
                errors=(*CHAT_STATE_CODES, "usage_limit_exceeded", "effort_not_supported"),
                keyed=True,
                starts_work=True,
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/versions",
                permission="versions.read",
                summary="List the messages that were edited or answered again, with their versions",
                description="Readers of a share see the versions that are shown only.",
                handle=self.list_versions,
                query=ListQuery,
                replies={200: VersionPage},
            ),
            ApiRoute(
                endpoint="PUT /chats/{chat_id}/messages/{message_id}/version",
                permission="chats.write",
                summary="Show this version of a message, with all that followed it",
                description=(
                    "For a chat at rest. The messages from the version that was shown on are kept"
                    " as its line. Files of a workspace stay as they are."
                ),
                handle=self.choose_version,
                replies={200: PublicChat},
                errors=(*CHAT_STATE_CODES, "version_not_reachable"),
            ),
        )

    async def regenerate_turn(self, request: ApiRequest) -> ApiReply:
        body = await request.optional_body(_REGENERATE, RegenerateBody())
        key = request.idempotency_key("edit", request.chat_id, body, request.message_id)
        deps, caller, chat_id = self._deps, request.caller, request.chat_id
        command = RegenerateTurn(
            message_id=request.message_id,
            created_by=caller.user_id,
            model_config_id=await choose_model(deps, caller, chat_id, body),
            reasoning_effort=body.reasoning_effort,
        )
        outcome = await run_operation(deps, caller, chat_id, command, key)
        if isinstance(outcome, AppliedChange) and outcome.request is not None:
            found = await replayed_result(deps, caller, outcome.chat, outcome.request)
            return reply(found, headers=REPLAYED)
        return reply(appended_result(outcome))

    async def list_versions(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        paging = Paging(request, request.query(ListQuery), NumberPosition)
        chat = await deps.read(chats.get_for_command, actor, chat_id, "versions.read")
        await audit_read(deps, request.caller, require_chat(chat))
        after = MessageId(paging.position.number if paging.position else 0)
        found = await deps.read(
            versions.list_groups, actor, chat_id, after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda group: NumberPosition(group[0].shown_id))
        return page_reply(VersionPage, map(_group, shown), cursor)

    async def choose_version(self, request: ApiRequest) -> ApiReply:
        command = ChooseVersion(message_id=request.message_id)
        outcome = await run_operation(self._deps, request.caller, request.chat_id, command)
        return reply(public_chat(outcome.chat))


def _group(found: Sequence[ListedVersion]) -> VersionGroup:
    return VersionGroup(
        message_id=found[0].shown_id,
        versions=tuple(
            MessageVersion(
                message_id=one.message_id,
                created_at=one.created_at,
                model_config_id=(
                    None if one.model_config_id is None else ModelConfigId(one.model_config_id)
                ),
                text=one.text or "",
            )
            for one in found
        ),
    )
