"""The tools that read, write and edit files of the workspace."""

import asyncio
from hashlib import sha256
from typing import Annotated, Final

from msgspec import Struct, structs

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.errors import ToolError, Unavailable
from chatd.domain.ports import SaveResult, ToolContext, WorkspaceAccess
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    FileEdits,
    TextEdit,
    WorkspaceUnavailable,
)
from chatd.tools.arguments import AT_LEAST_1, NOT_BLANK, NOT_EMPTY, argument
from chatd.tools.plan_paths import expand_home, require_writable_paths
from chatd.tools.tool import WorkspaceTool, json_output, workspace_tool

PATH_ARGUMENT_TEXT: Final = "give the absolute path of a file, such as /home/user/project/main.py."
NOTHING_APPLIED_TEXT: Final = "Nothing of this call was applied."
MAX_READ_LINES: Final = 2000
MAX_CONTENT_BYTES: Final = 8 * 1024 * 1024
RESULTS_DIRECTORY: Final = "~/.chatd/results"
SAVED_ABOVE_BYTES: Final = 16 * 1024
"""The least that a result may have in any step."""
SAVE_TIMEOUT_S: Final = 10.0
READ_TEXT: Final = "read parts of it with read_file, or search it with execute and grep."

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


def save_long_results(access: WorkspaceAccess) -> SaveResult:
    """For results of MCP servers: those of a chat with a workspace go to a file in it."""

    async def save(context: ToolContext, output: ToolOutput) -> ToolOutput:
        data = output.text.encode("utf-8", "replace")
        if len(data) <= SAVED_ABOVE_BYTES or context.chat.workspace_id is None:
            return output
        name = sha256(context.call_key.encode()).hexdigest()[:16]
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                conn = await access.connect(context)
                path = await expand_home(conn, f"{RESULTS_DIRECTORY}/{name}.txt")
                await conn.write_file(path, data[:MAX_CONTENT_BYTES], key=f"{context.call_key}:r")
        except (WorkspaceUnavailable, AgentUnreachable, AgentRefused, Unavailable, TimeoutError):
            return output
        saved = f"The whole result, {len(data)} bytes, is in {path} of the workspace: {READ_TEXT}"
        return structs.replace(output, saved=saved)

    return save


def file_tools(access: WorkspaceAccess) -> tuple[WorkspaceTool, ...]:
    return (_read_file(access), _write_file(access), _edit_files(access))


def _read_file(access: WorkspaceAccess) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ReadFileArguments) -> ToolOutput:
        conn = await access.connect(context)
        path = await expand_home(conn, args.path)
        return json_output(await conn.read_lines(path, offset=args.offset, limit=args.limit))

    return workspace_tool(
        "read_file",
        "Read a text file of the workspace. Each line comes with its number and a tab in front"
        f" of it. At most {MAX_READ_LINES} lines and 32 KiB come at once; of a longer file the"
        " first page comes, and next_offset says where to go on.",
        ReadFileArguments,
        handle,
        effect="read",
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
