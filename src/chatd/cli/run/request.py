"""Sends the message of a run: resolves the names of its options, uploads its files, and creates or
continues a chat."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.run.prompt import MAX_INPUT_BYTES, Prompt
from chatd.cli.run.turn import SentMessage
from chatd.client.drafts import Draft, FileInput, InputPart, TextInput
from chatd.client.resources import ListedChat, StoredFile
from chatd.client.server import ServerApi
from chatd.domain.chat.parts import KnownPart
from chatd.domain.ids import ChatId, McpServerId, WorkspaceId
from chatd.domain.model.protocol import Effort
from chatd.domain.tool_modes import ModeChoice

OCTETS = "application/octet-stream"


class RunRequest(Struct, frozen=True, kw_only=True):
    """What the command line asks for. `chat_id` of None: a new chat, or with `continues` the chat
    that changed last."""

    prompt: Prompt
    chat_id: ChatId | None = None
    continues: bool = False
    model: str | None = None
    effort: Effort | None = None
    mode: ModeChoice | None = None
    workspace: str | None = None
    template: str | None = None
    files: tuple[Path, ...] = ()
    labels: Mapping[str, str] = {}
    mcp: tuple[str, ...] = ()
    max_cost_micros: int | None = None


class StartedTurn(Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    sent: SentMessage


async def start_turn(api: ServerApi, request: RunRequest) -> StartedTurn:
    chat_id = request.chat_id or (await last_chat(api) if request.continues else None)
    content = await message_content(api, request.prompt, request.files)
    draft = Draft(
        content=content,
        model=request.model,
        reasoning_effort=request.effort,
        mode=request.mode,
        mcp_server_ids=await _mcp_ids(api, request.mcp),
        labels=request.labels,
        workspace_id=await _workspace_id(api, request),
        max_cost_micros=request.max_cost_micros,
    )
    if chat_id is None:
        return await _create(api, draft)
    return await _send(api, chat_id, draft)


async def last_chat(api: ServerApi) -> ChatId:
    """The user's own chat that changed last, pinned or not. Raises UsageProblem."""
    found: list[ListedChat] = []
    for pinned in (False, True):
        limit = 200 if pinned else 1
        found += (await api.list_chats(pinned=pinned, limit=limit)).items
    if not found:
        raise UsageProblem("there is no chat to continue: leave out -c to start one")
    return max(found, key=lambda chat: chat.updated_at).id


async def _create(api: ServerApi, draft: Draft) -> StartedTurn:
    chat = await api.create_chat(draft)
    # A repeated request gets the chat as it is by then: so the version of its first message.
    return StartedTurn(chat_id=chat.id, sent=SentMessage(version=1))


async def _send(api: ServerApi, chat_id: ChatId, draft: Draft) -> StartedTurn:
    before = await api.get_chat(chat_id)
    reply = await api.send_message(chat_id, draft)
    queued = () if reply.queued_message is None else reply.queued_message.content
    sent = SentMessage(
        version=reply.version,
        message_id=reply.message_id,
        queue_id=reply.queue_id,
        after=before.last_message_id or 0,
        content=_read_parts(queued),
    )
    return StartedTurn(chat_id=chat_id, sent=sent)


def _read_parts(parts: Sequence[Raw]) -> tuple[KnownPart, ...]:
    """None of them if a newer server has made one that is not known here."""
    try:
        return tuple(msgspec.json.decode(part, type=KnownPart) for part in parts)
    except msgspec.ValidationError:
        return ()


async def message_content(
    api: ServerApi, prompt: Prompt, files: Sequence[Path]
) -> tuple[InputPart, ...]:
    """Uploads the files."""
    stored = [FileInput((await upload_file(api, path)).id) for path in files]
    parts: list[InputPart] = [*([TextInput(prompt.text)] if prompt.text else []), *stored]
    if prompt.attached is not None:
        file = io.BytesIO(prompt.attached)
        rest = await api.upload_file("input.txt", "text/plain", file)
        parts.append(FileInput(rest.id))
    return tuple(parts)


async def upload_file(api: ServerApi, path: Path) -> StoredFile:
    """A pipe is read first: an upload that failed is sent again. Raises UsageProblem."""
    try:
        with path.open("rb") as file:
            given = file if file.seekable() else io.BytesIO(read_bounded(file, str(path)))
            return await api.upload_file(path.name, OCTETS, given)
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {error.strerror or error}") from None


def read_bounded(file: BinaryIO, name: str, most: int = MAX_INPUT_BYTES) -> bytes:
    """Raises UsageProblem."""
    found = file.read(most + 1)
    if len(found) > most:
        raise UsageProblem(f"{name} has more than {most / 1024:,.0f} KiB")
    return found


async def _mcp_ids(api: ServerApi, slugs: Sequence[str]) -> tuple[McpServerId, ...] | None:
    if not slugs:
        return None
    listed = await api.list_mcp_servers(limit=200)
    known = {server.slug: server.id for server in listed.items}
    if missing := [slug for slug in slugs if slug not in known]:
        there = ", ".join(sorted(known)) or "none"
        raise UsageProblem(f"--mcp: there is no MCP server {missing[0]!r}; there are: {there}")
    return tuple(known[slug] for slug in slugs)


async def _workspace_id(api: ServerApi, request: RunRequest) -> WorkspaceId | None:
    if request.template is not None:
        return (await api.create_workspace(request.template)).id
    if request.workspace is None:
        return None
    if (given := read_id(request.workspace)) is not None:
        return cast("WorkspaceId", given)
    page = await api.list_workspaces(limit=200)
    for one in page.items:
        if one.name == request.workspace:
            return one.id
    there = ", ".join(sorted(one.name for one in page.items)) or "none"
    raise UsageProblem(
        f"-w: there is no workspace {request.workspace!r}; there are: {there}. --template makes one"
    )


def read_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
