"""The message of a run: its text from the command line and from standard input, its files; sent to
a new chat or to one that exists."""

import io
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, cast
from uuid import UUID

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_turn import SentMessage
from chatd.cli.chats.structured_output import OutputSchema
from chatd.cli.output import print_notice
from chatd.client.drafts import Draft, FileInput, InputPart, TextInput
from chatd.client.resources import ListedChat, Project, StoredFile
from chatd.client.server import ServerApi
from chatd.domain.chat.parts import KnownPart
from chatd.domain.ids import ChatId, McpServerId, ProjectId, WorkspaceId
from chatd.domain.model.protocol import Effort
from chatd.domain.tool_modes import ModeChoice
from chatd.domain.tool_policy.rules import PolicyAction, ToolRule

MAX_INLINE_BYTES: Final = 32 * 1024
"""Longer input is sent as a file: a message has at most 256 KiB with everything in it."""
MAX_INPUT_BYTES: Final = 20 * 1024 * 1024
NOTICE_AFTER_S: Final = 3.0
_CHUNK_BYTES: Final = 64 * 1024


class Prompt(Struct, frozen=True, kw_only=True):
    """`attached` is input that is too long for the text."""

    text: str
    attached: bytes | None = None


def read_prompt(words: str, *, has_files: bool = False) -> Prompt:
    """The words, and below them what standard input has unless it is a terminal. Only a message
    with files needs no text."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        given = b""
    else:
        given = read_input(sys.stdin.fileno(), on_wait=_say_waiting)
    return join_prompt(words, given, has_files=has_files)


def join_prompt(words: str, given: bytes, *, has_files: bool = False) -> Prompt:
    """Raises UsageProblem."""
    if len(given) > MAX_INPUT_BYTES:
        raise UsageProblem(f"standard input has more than {MAX_INPUT_BYTES >> 20} MiB")
    try:
        text = given.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UsageProblem("standard input is not UTF-8 text; attach a file with -f") from None
    if not words.strip() and not text and not has_files:
        raise UsageProblem('there is no prompt: chatd run "What to do", or write it to the input')
    if len(text.encode()) > MAX_INLINE_BYTES:
        return Prompt(text=words.strip() or "See the attached file.", attached=given)
    return Prompt(text="\n\n".join(one for one in (words.strip(), text) if one))


def read_input(
    descriptor: int, on_wait: Callable[[], None], notice_after_s: float = NOTICE_AFTER_S
) -> bytes:
    """Until its end. `on_wait` is called once if nothing comes for a while: a program that starts
    this one may have left its own input open."""
    found = bytearray()
    has_said = False
    while len(found) <= MAX_INPUT_BYTES:
        ready = select.select([descriptor], [], [], None if has_said else notice_after_s)[0]
        if not ready:
            has_said = True
            on_wait()
            continue
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            break
        found += chunk
    return bytes(found)


def _say_waiting() -> None:
    print_notice("Waiting for the end of standard input (without any: < /dev/null).")


# Sending: the names of options are resolved, and files are uploaded

OCTETS = "application/octet-stream"
MAX_PROJECTS: Final = 1000


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
    project: str | None = None
    template: str | None = None
    files: tuple[Path, ...] = ()
    labels: Mapping[str, str] = {}
    mcp: tuple[str, ...] = ()
    max_cost_micros: int | None = None
    system: str | None = None
    tool_rules: tuple[ToolRule, ...] = ()
    output: OutputSchema | None = None
    max_steps: int | None = None


class StartedTurn(Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    sent: SentMessage


async def start_turn(api: ServerApi, request: RunRequest) -> StartedTurn:
    chat_id = request.chat_id or (await last_chat(api) if request.continues else None)
    prompt = request.prompt
    if request.output is not None:
        text = "\n\n".join(one for one in (prompt.text, request.output.request) if one)
        prompt = replace(prompt, text=text)
    content = await message_content(api, prompt, request.files)
    draft = Draft(
        content=content,
        model=request.model,
        reasoning_effort=request.effort,
        mode=request.mode,
        mcp_server_ids=await _mcp_ids(api, request.mcp),
        labels=request.labels,
        workspace_id=await _workspace_id(api, request),
        max_cost_micros=request.max_cost_micros,
        system_prompt=request.system,
        tool_rules=request.tool_rules,
        project_id=await _project_id(api, request.project),
    )
    if chat_id is None:
        return await _create(api, draft)
    return await send_turn(api, chat_id, draft)


def read_tool_rule(text: str, action: PolicyAction) -> ToolRule:
    """Of `NAME`, or `NAME:ARGUMENT=PATTERN` for some calls only. Raises UsageProblem."""
    name, colon, rest = text.partition(":")
    argument, sign, pattern = rest.partition("=")
    if not name.strip() or (colon and not (argument.strip() and sign and pattern)):
        option = "--deny-tool" if action == "deny" else "--allow-tool"
        raise UsageProblem(f"{option} {text!r}: write NAME, or NAME:ARGUMENT=PATTERN")
    args = {argument.strip(): pattern} if colon else {}
    return ToolRule(tool=name.strip(), action=action, args=args)


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


async def send_turn(api: ServerApi, chat_id: ChatId, draft: Draft) -> StartedTurn:
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


async def _project_id(api: ServerApi, name: str | None) -> ProjectId | None:
    return None if name is None else (await find_project(api, name)).id


async def find_project(api: ServerApi, name: str) -> Project:
    """By its id, or by its name in any letter case. Raises UsageProblem."""
    known = await api.list_projects().items(MAX_PROJECTS)
    given = read_id(name)
    named = [one for one in known if one.id == given or one.name.lower() == name.lower()]
    if len(named) == 1:
        return named[0]
    if named:
        ids = ", ".join(str(one.id) for one in named)
        raise UsageProblem(f"several projects are named {name!r}; name one by its id: {ids}")
    there = ", ".join(one.name for one in known) or "none"
    raise UsageProblem(f"there is no project {name!r}; there are: {there}")


def read_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
