"""The route that lists the files of a chat: those that its messages name and those that its tools
made. `files` loads them."""

from chatd.api.deps import ApiDeps
from chatd.api.pages import Paging, TimePosition
from chatd.api.read_audit import audit_read
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.schemas.files import FilePage, file_reply
from chatd.domain.ids import FileId
from chatd.domain.list_page import ListQuery
from chatd.store.chat import chats
from chatd.store.file import chat_files


class ChatFileRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/files",
                permission="chats.read",
                summary="List the files of a chat, newest first",
                description=(
                    "Files that messages name, and files that the model attached or proposed as a"
                    " plan."
                ),
                handle=self.list_chat_files,
                query=ListQuery,
                replies={200: FilePage},
            ),
        )

    async def list_chat_files(self, request: ApiRequest) -> ApiReply:
        deps, actor, chat_id = self._deps, request.caller.actor, request.chat_id
        paging = Paging(request, request.query(ListQuery), TimePosition)
        chat = require_chat(await deps.retry(lambda: chats.get(deps.pool, actor, chat_id)))
        await audit_read(deps, request.caller, chat)
        last = paging.position
        after = None if last is None else (last.at, FileId(last.id))
        found = await deps.retry(
            lambda: chat_files.list_page(
                deps.pool, actor, chat_id, after=after, limit=paging.read_limit
            )
        )
        shown, cursor = paging.cut(found, lambda file: TimePosition(file.created_at, file.id))
        items = tuple(map(file_reply, shown))
        return reply(FilePage(items=items, has_more=cursor is not None, next_cursor=cursor))
