"""Routes that copy chats: fork."""

from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.chats import ForkBody
from chatd.domain.chat.public_chat import PublicChat, public_chat
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat import forks
from chatd.store.chat.forks import ForkRequest

_FORK: Final = BodySpec(ForkBody)


class CopyRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /chats/{chat_id}/fork",
                permission="chats.create",
                summary="Copy a chat up to a message into a new chat",
                description=(
                    "The new chat has the same messages, model, labels and workspace, and waits for"
                    " a message. Calls without a result get an error result. Usage, the queue and"
                    " subagents are not copied."
                ),
                handle=self.fork_chat,
                body_spec=_FORK,
                replies={201: PublicChat},
                errors=("not_found",),
            ),
        )

    async def fork_chat(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_FORK)
        wanted = ForkRequest(
            id=ChatId(deps.env.new_id()),
            source_id=request.chat_id,
            owner_id=request.caller.user_id,
            change_id=deps.env.new_change_id(),
            message_id=None if body.message_id is None else MessageId(body.message_id),
        )
        chat = await deps.retry(lambda: forks.fork(deps.pool, wanted))
        deps.announce(chat, "created")
        read_up_to = MessageId(chat.next_message_id - 1)
        headers = {"location": f"/api/v1/chats/{chat.id}"}
        return reply(public_chat(chat, read_up_to), 201, headers)
