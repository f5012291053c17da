"""The tools that read, write and edit files of the workspace, or hand one to the user."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Annotated, Final

from msgspec import Struct, structs

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.parts import FilePart
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError, Unavailable
from chatd.domain.files import StoredFile, clean_file_name
from chatd.domain.ports import Tool, ToolContext
from chatd.domain.projects import PROJECT_FILES
from chatd.domain.text import decode_lenient
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    FileEdits,
    FileLines,
    TextEdit,
    WorkspaceUnavailable,
)
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.execute import READ_TEXT
from chatd.tools.plans import expand_home, require_writable_paths
from chatd.tools.tool import (
    AT_LEAST_1,
    NOT_BLANK,
    NOT_EMPTY,
    WorkspaceAccess,
    WorkspaceTool,
    argument,
    json_output,
    workspace_tool,
)
from chatd.workspaces.agents.agent_client import AgentClient

PATH_ARGUMENT_TEXT: Final = "give the absolute path of a file, such as /home/user/project/main.py."
NOTHING_APPLIED_TEXT: Final = "Nothing of this call was applied."
MAX_READ_LINES: Final = 2000
MAX_CONTENT_BYTES: Final = 8 * 1024 * 1024
CHAT_RESULTS: Final = "/chatd/results"
"""Where read_file finds the long results that are files of the chat. No directory."""
MAX_CHAT_RESULT_BYTES: Final = 2 * 1024 * 1024
MAX_PROJECT_FILE_BYTES: Final = 8 * 1024 * 1024
"""Of a file of a project, the first as many can be read."""
MAX_LINE_CHARS: Final = 2_000
MAX_PAGE_BYTES: Final = 32 * 1024
RESULTS_DIRECTORY: Final = "~/.chatd/results"
SAVE_TIMEOUT_S: Final = 10.0
READ_ON_TEXT: Final = "Read these lines again with a smaller limit, in a step with fewer calls."

_Path = Annotated[str, NOT_BLANK, argument("Absolute path of the file.", PATH_ARGUMENT_TEXT)]


class ReadFileArguments(Struct, frozen=True, kw_only=True):
    path: _Path
    offset: Annotated[int, AT_LEAST_1, argument("First line to read, from 1. Default 1.")] = 1
    limit: Annotated[int, AT_LEAST_1, argument(f"Lines to read. Default {MAX_READ_LINES}.")] = (
        MAX_READ_LINES
    )


class WriteFileArguments(Struct, frozen=True, kw_only=True):
    path: _Path
    content: Annotated[str, argument("All of its content.", "give all of the file's new content.")]


class EditArguments(Struct, frozen=True, kw_only=True):
    old_text: Annotated[
        str,
        NOT_EMPTY,
        argument(
            "Text that is in the file now, with enough lines around it to be found once. Copy it"
            " exactly, without line numbers.",
            f"the text to be replaced. {NOTHING_APPLIED_TEXT}",
            former_name="search",
        ),
    ]
    new_text: Annotated[
        str,
        argument(
            "What to put in its place.",
            f'give "" to delete the text. {NOTHING_APPLIED_TEXT}',
            former_name="replace",
        ),
    ]
    replace_all: Annotated[
        bool, argument("Replace every place where it is found. Default false.")
    ] = False


class FileEditsArguments(Struct, frozen=True, kw_only=True):
    path: Annotated[
        str,
        NOT_BLANK,
        argument("Absolute path of the file.", f"{PATH_ARGUMENT_TEXT} {NOTHING_APPLIED_TEXT}"),
    ]
    edits: Annotated[
        list[EditArguments],
        argument(
            "Applied in order, each to the outcome of the one before.",
            f"each with old_text and new_text. {NOTHING_APPLIED_TEXT}",
        ),
    ]


class EditFilesArguments(Struct, frozen=True, kw_only=True):
    files: Annotated[
        list[FileEditsArguments], argument("The files to change.", "each with a path and edits.")
    ]


SaveResult = Callable[[ToolContext, ToolOutput], Awaitable[ToolOutput]]


def save_results(access: WorkspaceAccess | None, files: ChatFileWriter | None = None) -> SaveResult:
    """In a file of the chat's workspace, else in a file of the chat. A result that cannot be saved
    is as it was. Raises StaleFence."""

    async def save(context: ToolContext, output: ToolOutput) -> ToolOutput:
        data = output.text.encode("utf-8", "replace")
        name = sha256(context.call_key.encode()).hexdigest()[:16]
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                if access is not None and context.chat.workspace_id is not None:
                    path = await _save_in_workspace(access, context, name, data)
                    where = f"in {path} of the workspace: {READ_TEXT}"
                    return structs.replace(output, saved=_saved_text(data, where))
                if files is None:
                    return output
                # A file of text ends with a whole character.
                kept = data[:MAX_CHAT_RESULT_BYTES].decode("utf-8", "ignore").encode()
                stored = await files.store_result(context, f"result-{name}.txt", kept)
        except (
            WorkspaceUnavailable,
            AgentUnreachable,
            AgentRefused,
            ToolError,
            Unavailable,
            TimeoutError,
        ):
            return output
        where = f"in {CHAT_RESULTS}/{stored.id}: read parts of it with read_file."
        if len(data) > MAX_CHAT_RESULT_BYTES:
            where = f"{where} Only its first {MAX_CHAT_RESULT_BYTES} bytes are kept."
        shown = FilePart(media_type=stored.media_type, file_id=str(stored.id), name=stored.name)
        saved = _saved_text(data, where)
        return structs.replace(output, saved=saved, files=(*output.files, shown))

    return save


def _saved_text(data: bytes, where: str) -> str:
    return f"The whole result, {len(data)} bytes, is {where}"


async def _save_in_workspace(
    access: WorkspaceAccess, context: ToolContext, name: str, data: bytes
) -> str:
    conn = await access.connect(context)
    path = await expand_home(conn, f"{RESULTS_DIRECTORY}/{name}.txt")
    await conn.write_file(path, data[:MAX_CONTENT_BYTES], key=f"{context.call_key}:r")
    return path


class SavedResultTools:
    """Satisfies `ports.ToolFamily`: `read_file`, which also reads the results that are files of the
    chat. `access` is None without workspaces; it then reads nothing else."""

    def __init__(self, access: WorkspaceAccess | None, files: ChatFileWriter) -> None:
        self._tools = (_read_file(access, files),)

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        return self._tools


def file_tools(access: WorkspaceAccess) -> tuple[WorkspaceTool, ...]:
    return (_read_file(access), _write_file(access), _edit_files(access))


def _read_file(
    access: WorkspaceAccess | None, files: ChatFileWriter | None = None
) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ReadFileArguments) -> ToolOutput:
        if files is not None and args.path.startswith(f"{CHAT_RESULTS}/"):
            name = args.path.removeprefix(f"{CHAT_RESULTS}/")
            text = decode_lenient(await files.read_result(context, name, MAX_CHAT_RESULT_BYTES))
            page = number_lines(text, offset=args.offset, limit=args.limit)
            return structs.replace(json_output(page), saved=READ_ON_TEXT)
        if files is not None and args.path.startswith(f"{PROJECT_FILES}/"):
            name = args.path.removeprefix(f"{PROJECT_FILES}/")
            data = await files.read_project_file(context, name, MAX_PROJECT_FILE_BYTES)
            page = number_lines(decode_lenient(data), offset=args.offset, limit=args.limit)
            return structs.replace(json_output(page), saved=READ_ON_TEXT)
        if access is None:
            raise ToolError(
                f"There is no workspace. Only long results can be read, in {CHAT_RESULTS}, and the"
                f" files of the chat's project, in {PROJECT_FILES}."
            )
        conn = await access.connect(context)
        path = await expand_home(conn, args.path)
        lines = await conn.read_lines(path, offset=args.offset, limit=args.limit)
        return structs.replace(json_output(lines), saved=READ_ON_TEXT)

    what = "a text file of the workspace" if access is not None else "a long result of a tool"
    return workspace_tool(
        "read_file",
        f"Read {what}. Each line comes with its number and a tab in front"
        f" of it. At most {MAX_READ_LINES} lines and 32 KiB come at once; of a longer file the"
        " first page comes, and next_offset says where to go on.",
        ReadFileArguments,
        handle,
        effect="read",
    )


def number_lines(text: str, *, offset: int, limit: int) -> FileLines:
    """A page of a saved result, in the form of the workspace agent. A long line, such as JSON
    without line feeds, counts as several."""
    lines = [
        line[start : start + MAX_LINE_CHARS]
        for line in text.splitlines()
        for start in range(0, max(len(line), 1), MAX_LINE_CHARS)
    ]
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        numbered = f"{number}\t{line}"
        size += len(numbered.encode("utf-8", "replace")) + 1
        if shown and size > MAX_PAGE_BYTES:
            break
        shown.append(numbered)
    end = offset + len(shown)
    return FileLines(
        content="\n".join(shown),
        file_size=len(text.encode("utf-8", "replace")),
        total_lines=len(lines),
        lines_read=len(shown),
        next_offset=end if shown and end <= len(lines) else None,
    )


def _write_file(access: WorkspaceAccess) -> WorkspaceTool:
    async def handle(context: ToolContext, args: WriteFileArguments) -> ToolOutput:
        data = args.content.encode("utf-8", "replace")
        if len(data) > MAX_CONTENT_BYTES:
            raise ToolError(
                f"content is too long: it has {len(data)} bytes, at most {MAX_CONTENT_BYTES} are"
                " allowed. Write it in parts."
            )
        conn = await access.connect(context)
        path = await expand_home(conn, args.path)
        await require_writable_paths(conn, context.chat, [path])
        await conn.write_file(path, data, key=context.call_key)
        return json_output({"ok": True})

    return workspace_tool(
        "write_file",
        "Write a file of the workspace, whole. Directories on the way are made, a file that is"
        " there already is replaced. To change part of a file use edit_files.",
        WriteFileArguments,
        handle,
    )


def _edit_files(access: WorkspaceAccess) -> WorkspaceTool:
    async def handle(context: ToolContext, args: EditFilesArguments) -> ToolOutput:
        conn = await access.connect(context)
        paths = [await expand_home(conn, file.path) for file in args.files]
        await require_writable_paths(conn, context.chat, paths)
        files = [_file_edits(path, file) for path, file in zip(paths, args.files, strict=True)]
        diffs = await conn.edit_files(files, key=context.call_key)
        return json_output({"ok": True, "files": diffs})

    return workspace_tool(
        "edit_files",
        "Change parts of one or more files of the workspace by replacing text. If any edit"
        " cannot be applied, none is, and the answer says why.",
        EditFilesArguments,
        handle,
    )


def _file_edits(path: str, file: FileEditsArguments) -> FileEdits:
    edits = tuple(
        TextEdit(search=edit.old_text, replace=edit.new_text, replace_all=edit.replace_all)
        for edit in file.edits
    )
    return FileEdits(path=path, edits=edits)


# The tool that hands a file of the workspace to the user.

MAX_ATTACHED_BYTES: Final = 10 * 1024 * 1024
ATTACH_PIECE_BYTES: Final = 1024 * 1024
ATTACH_TIMEOUT_S: Final = 120.0


class AttachFileArguments(Struct, frozen=True, kw_only=True):
    path: Annotated[str, NOT_BLANK, argument("Absolute path of the file.", PATH_ARGUMENT_TEXT)]
    name: Annotated[str, argument("The name that the user sees. Default: that of the file.")] = ""


class AttachedFile(Struct, frozen=True, kw_only=True):
    ok: bool = True
    path: str
    file_id: str
    name: str
    media_type: str
    size: int


def attach_file(access: WorkspaceAccess, files: ChatFileWriter) -> WorkspaceTool:
    async def handle(context: ToolContext, args: AttachFileArguments) -> ToolOutput:
        path = args.path.strip()
        name = clean_file_name(args.name.strip() or path)
        if name is None:
            raise ToolError("path must name a file, not a directory.")
        stored = await files.find(context)
        if stored is None:
            conn = await access.connect(context)
            path = await expand_home(conn, path)
            stored = await files.store(context, name, None, _read_pieces(conn, path))
        return _attached(path, stored)

    return workspace_tool(
        "attach_file",
        "Give the user a file of the workspace: an image, a PDF, or text such as Markdown, CSV or"
        " JSON, at most 10 MiB. The user sees it in the chat and can download it.",
        AttachFileArguments,
        handle,
        serial=True,  # so that the limit of files of a chat holds
        timeout_s=ATTACH_TIMEOUT_S,
    )


def _attached(path: str, stored: StoredFile) -> ToolOutput:
    name = stored.name or ""
    result = AttachedFile(
        path=path,
        file_id=str(stored.id),
        name=name,
        media_type=stored.media_type,
        size=stored.size_bytes,
    )
    shown = FilePart(media_type=stored.media_type, file_id=str(stored.id), name=name)
    return ToolOutput(text=json_output(result).text, files=(shown,))


async def _read_pieces(conn: AgentClient, path: str) -> AsyncGenerator[bytes]:
    """Raises ToolError past the limit, before the rest is read."""
    size = 0
    while piece := await conn.read_file(path, offset=size, limit=ATTACH_PIECE_BYTES):
        size += len(piece)
        if size > MAX_ATTACHED_BYTES:
            raise ToolError(
                f"{path} is larger than {MAX_ATTACHED_BYTES} bytes, the most that can be attached."
                " Attach a part of it, or a smaller version."
            )
        yield piece
        if len(piece) < ATTACH_PIECE_BYTES:
            return
