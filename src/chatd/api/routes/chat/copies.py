"""Routes that copy chats: fork, export and import."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.error_codes import ARCHIVE_CODES
from chatd.api.operations import audit_read
from chatd.api.request import (
    ApiReply,
    ApiRequest,
    BodySpec,
    StreamedReply,
    read_body,
    read_json,
    reply,
)
from chatd.api.route import ApiRoute
from chatd.api.routes.chat.chats import new_view
from chatd.api.routes.workspace.builds import require_workspace, require_workspaces
from chatd.api.routes.workspace.workspace_archives import explain_archive
from chatd.api.schemas.chats import (
    ClientTool,
    ExportQuery,
    ForkBody,
    ImportedChat,
    ImportQuery,
)
from chatd.domain.access.permissions import is_allowed
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.copied_versions import NO_VERSIONS
from chatd.domain.chat_views.public_chat import PublicChat, public_chat
from chatd.domain.chat_views.transfer import (
    FORMAT_VERSION,
    MAX_LINE_BYTES,
    MAX_LINE_VALUES,
    EndLine,
    HeaderLine,
    TransferReader,
    chat_heading,
    encode_line,
    export_name,
    message_markdown,
)
from chatd.domain.errors import Conflict, Forbidden, InvalidInput, NotFound, Unavailable
from chatd.domain.files import content_disposition
from chatd.domain.ids import ChatId, MessageId, WorkspaceId
from chatd.domain.workspace.agent_api import AgentRefused
from chatd.domain.workspace.entities import BuildId
from chatd.domain.workspace.rules import workspace_ttl_s
from chatd.domain.workspace.templates import generated_name, require_copyable, require_size
from chatd.store import projects
from chatd.store.chat import chats, transfer, versions
from chatd.store.chat.transfer import ForkRequest, ImportRequest
from chatd.store.workspace import templates, workspaces
from chatd.store.workspace.workspaces import NewWorkspace

MAX_IMPORT_BYTES: Final = 64 * 1024 * 1024
MAX_CONCURRENT_IMPORTS: Final = 2
MAX_IMPORTED_FILES: Final = 50
_FORK: Final = BodySpec(ForkBody)
_CLIENT_TOOLS: Final = msgspec.json.Decoder(tuple[ClientTool, ...])


class CopyRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._imports = asyncio.Semaphore(MAX_CONCURRENT_IMPORTS)

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /chats/{chat_id}/fork",
                permission="chats.create",
                summary="Copy a chat up to a message into a new chat",
                description=(
                    "The new chat has the same messages, model, labels and workspace, and waits for"
                    " a message. With `workspace` = `copy` it gets a new workspace with the files"
                    " of the old one, which are copied by the first build of the new one; the"
                    " workspace must be the caller's own and run. It has the same budget,"
                    " of which nothing is spent. Calls without a result get an error result. The"
                    " versions of the copied messages come along. Usage, the queue and subagents"
                    " are not copied."
                ),
                handle=self.fork_chat,
                body_spec=_FORK,
                replies={201: PublicChat},
                errors=("not_found", *ARCHIVE_CODES, "workspace_too_large", "workspace_not_copied"),
                keyed=True,
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/export",
                permission="chats.read",
                summary="Export a root chat with its subagents",
                description=(
                    "JSON lines that can be imported, or Markdown for reading. The last line of"
                    " JSON lines has the type `end`: a file without it was cut off. Versions of"
                    " messages are part of the JSON lines, not of the Markdown. Files,"
                    " workspaces, usage and queues are not part of it."
                ),
                handle=self.export_chat,
                query=ExportQuery,
                replies={200: bytes},
                reply_types=("application/jsonl", "text/markdown"),
                errors=("not_found",),
            ),
            ApiRoute(
                endpoint="POST /chats/import",
                permission="chats.create",
                summary="Import a chat that was exported as JSON lines",
                description=(
                    f"The body is the file, of at most {MAX_IMPORT_BYTES // 1024 // 1024} MiB. It"
                    " is checked line by line; if one is wrong, nothing is written. A line has at"
                    f" most {MAX_LINE_BYTES // 1024 // 1024} MiB and {MAX_LINE_VALUES:,} JSON"
                    " values. The chats get new ids and wait for a message. Of the tool rules those"
                    " that ask or deny are kept; rules that let calls run unasked are not. The"
                    " model gets nothing of a file that the people of the chat cannot read;"
                    " `changes` counts what had to change or was left out for that."
                ),
                handle=self.import_chat,
                raw_body=True,
                query=ImportQuery,
                body_types=("application/jsonl", "application/octet-stream"),
                replies={201: ImportedChat},
                errors=("too_large", "request_timeout"),
            ),
        )

    async def fork_chat(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_FORK)
        # The id follows from the key: a repeated request finds the chat that the first one made.
        key = request.keyed_id(f"fork:{request.chat_id}:{body.message_id}")
        chat_id, actor = ChatId(key or deps.env.new_id()), request.caller.actor
        wanted = ForkRequest(
            id=chat_id,
            source_id=request.chat_id,
            change_id=deps.env.new_change_id(),
            message_id=None if body.message_id is None else MessageId(body.message_id),
        )
        if body.workspace == "copy" and await deps.read(chats.get, actor, chat_id) is None:
            wanted = replace(wanted, workspace=await self._plan_copy(request, chat_id))
        chat = await deps.retry(lambda: transfer.fork(deps.pool, actor, wanted))
        if wanted.workspace is not None:
            require_workspaces(deps).wake()
        if chat.project_id is not None:
            with suppress(Unavailable):
                await projects.announce_chat(deps.pool, chat.id)
        return self._created(request, chat)

    async def _plan_copy(self, request: ApiRequest, chat_id: ChatId) -> NewWorkspace:
        """The workspace of the new chat. Raises what makes a copy impossible, before anything is
        made."""
        deps, actor, control = self._deps, request.caller.actor, require_workspaces(self._deps)
        chat = await deps.read(chats.get, actor, request.chat_id)
        if chat is None:
            raise NotFound("There is no such chat.")
        if chat.workspace_id is None:
            raise Conflict("The chat has no workspace.", code="no_workspace")
        source_id = chat.workspace_id
        source = require_workspace(
            await deps.read(workspaces.load_snapshot, actor, source_id, "workspaces.write")
        )
        found, build = source.workspace, source.build
        if found is None or found.deleted or build is None:
            raise Conflict("The workspace is deleted.", code="no_workspace")
        template = await deps.read(templates.get, found.template_id)
        version = await deps.read(templates.get_version, build.template_version_id)
        if template is None or version is None:
            raise Conflict("The workspace is deleted.", code="no_workspace")
        require_copyable(template)
        # A deleted template is not offered any more; its workspaces go on, and so do their copies.
        if not template.deleted and not await deps.read(
            templates.is_usable, actor, request.caller.user_id, template, "workspaces.write"
        ):
            raise Forbidden("You may not use the template of this workspace any more.")
        try:
            files = await control.workspace_files(source_id)
            facts, pieces = await files.archive("", gzip=False)
        except AgentRefused as error:
            raise explain_archive(error) from error
        await pieces.aclose()
        require_size(facts.bytes, control.max_copy_bytes)
        workspace_id = deps.env.new_id()
        return NewWorkspace(
            id=WorkspaceId(workspace_id),
            build_id=BuildId(deps.env.new_id()),
            owner_id=request.caller.user_id,
            template_id=template.id,
            version_id=version.id,
            name=generated_name(template.name, workspace_id.bytes),
            host_id=control.new_host(template, version.spec),
            ttl_s=workspace_ttl_s(control.ttl_s, template),
            params=build.params,
            made_by=f"fork:{chat_id}",
            copied_from=source_id,
        )

    def _created(
        self, request: ApiRequest, chat: Chat, changes: Mapping[str, int] | None = None
    ) -> ApiReply:
        """The reply for a new chat that its user has read."""
        self._deps.announce(chat, "created")
        headers = {"location": f"/api/v1/chats/{chat.id}"}
        view = new_view(request.caller, MessageId(chat.next_message_id - 1))
        made = public_chat(chat, view)
        if changes is not None:
            made = ImportedChat(**msgspec.structs.asdict(made), changes=changes)
        return reply(made, 201, headers)

    async def export_chat(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(ExportQuery)
        chat_id, actor = request.chat_id, request.caller.actor
        root = await deps.read(transfer.load_root, actor, chat_id)
        if root is None:
            raise NotFound("There is no such root chat.")
        await audit_read(deps, request.caller, root)
        is_whole = is_allowed(actor, "debug.read", root.owner_id)
        if query.format == "markdown":
            pieces, media_type, suffix = self._markdown(root), "text/markdown", "md"
        else:
            pieces, media_type, suffix = (
                self._lines(root, is_whole=is_whole),
                "application/jsonl",
                "jsonl",
            )
        name = export_name(root.title, suffix)
        return StreamedReply(
            pieces=pieces,
            length=None,
            media_type=f"{media_type}; charset=utf-8",
            headers={"content-disposition": content_disposition("attachment", name)},
        )

    async def _lines(self, root: Chat, *, is_whole: bool) -> AsyncGenerator[bytes]:
        """Not whole: without prompts, rules and hidden versions, which readers by a share do not
        see."""
        rules = await transfer.read_rules(self._deps.pool, root) if is_whole else ()
        numbers: dict[ChatId, int] = {}
        total = 0
        yield encode_line(HeaderLine(version=FORMAT_VERSION))
        async for one in transfer.read_family(self._deps.pool, root):
            chat, copied = one, NO_VERSIONS
            if is_whole:
                chat, copied = await versions.read_state(self._deps.pool, one)
            numbers[chat.id] = len(numbers) + 1
            yield encode_line(transfer.chat_line(chat, numbers, rules))
            number, places = 0, dict[int, int]()
            async for batch in transfer.read_messages(self._deps.pool, chat, copied):
                lines: list[bytes] = []
                for stored in batch:
                    message = stored if is_whole else stored.as_readers_see()
                    if message is None:
                        continue
                    number += 1
                    if message.version_of is not None:
                        places[message.id] = number
                    line = transfer.message_line(message, numbers[chat.id], number, places)
                    lines.append(encode_line(line))
                if lines:
                    yield b"".join(lines)
            total += number
        yield encode_line(EndLine(chats=len(numbers), messages=total))

    async def _markdown(self, root: Chat) -> AsyncGenerator[bytes]:
        async for chat in transfer.read_family(self._deps.pool, root):
            yield chat_heading(chat.title, is_root=chat.is_root).encode()
            async for batch in transfer.read_messages(self._deps.pool, chat):
                texts = (message_markdown(message.message()) for message in batch)
                yield "".join(texts).encode(errors="replace")

    async def import_chat(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(ImportQuery)
        async with self._imports:
            length = request.header("content-length")
            body = await read_body(request.receive, length, MAX_IMPORT_BYTES)
            found = await read_file(body)
            if query.client_tools == "leave_out":
                found.leave_out_client_tools()
            wanted = ImportRequest(
                change_id=deps.env.new_change_id(),
                ids=[ChatId(deps.env.new_id()) for _ in found.chats],
                chats=found.chats,
                messages=found.messages,
                file_ids=_uuids(found.file_ids),
            )
            made = await deps.retry(
                lambda: transfer.write_import(
                    deps.pool, request.caller.actor, wanted, max_files=MAX_IMPORTED_FILES
                )
            )
        return self._created(request, made, dict(sorted((+found.changes).items())))


async def read_file(body: bytes) -> TransferReader:
    """In a thread: a file of the largest size takes seconds. Raises InvalidInput, which names the
    line."""
    return await asyncio.to_thread(_read_file, body)


def _read_file(body: bytes) -> TransferReader:
    reader, start = TransferReader(), 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        reader.read(body[start:end])
        start = end + 1
    reader.finish()
    for number, chat in enumerate(reader.chats, 1):
        try:
            validation.check_title(chat.title)
            validation.check_labels(chat.labels)
            if chat.client_tools is not UNSET:
                validation.check_client_tools(read_json(_CLIENT_TOOLS, bytes(chat.client_tools)))
        except InvalidInput as error:
            raise InvalidInput(f"chat {number}", error.message) from None
    return reader


def _uuids(texts: set[str]) -> list[UUID]:
    """The ids of files; other texts name no file."""
    found: list[UUID] = []
    for text in sorted(texts):
        try:
            found.append(UUID(text))
        except ValueError:
            continue
    return found
