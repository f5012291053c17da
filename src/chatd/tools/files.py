"""The tools that read, write and edit files of the workspace."""

from typing import Final

from chatd.domain.call_key import call_key
from chatd.domain.hands import Edit, FileEdits, Hands
from chatd.domain.ports import ToolContext
from chatd.domain.tool_output import ToolOutput
from chatd.tools.arguments import Arguments
from chatd.tools.tool import WorkspaceTool, answer, spec

WHERE: Final = "give the absolute path of a file, such as /home/user/project/main.py."
MAX_LINES: Final = 2000
MAX_CONTENT: Final = 8 * 1024 * 1024
UNCHANGED: Final = "Nothing of this call was applied."


def file_tools(hands: Hands) -> tuple[WorkspaceTool, ...]:
    return (_read_file(hands), _write_file(hands), _edit_files(hands))


def _read_file(hands: Hands) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        path = args.text("path", why=WHERE)
        offset = args.whole("offset", 1, least=1)
        limit = args.whole("limit", MAX_LINES, least=1)
        conn = await hands.reach(context)
        return answer(await conn.read_lines(path.strip(), offset=offset, limit=limit))

    return WorkspaceTool(
        effect="read",
        act=act,
        spec=spec(
            "read_file",
            "Read a text file of the workspace. Each line comes with its number and a tab in front"
            f" of it. At most {MAX_LINES} lines and 32 KiB at once: read longer files in parts,"
            " with offset and limit.",
            path={"type": "string", "description": "Absolute path of the file.", "needed": True},
            offset={"type": "integer", "description": "First line to read, from 1. Default 1."},
            limit={"type": "integer", "description": f"Lines to read. Default {MAX_LINES}."},
        ),
    )


def _write_file(hands: Hands) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        path = args.text("path", why=WHERE)
        content = args.optional_text("content")
        if content is None:
            raise args.wrong("content", "is required: give all of the file's new content.")
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_CONTENT:
            raise args.wrong(
                "content", f"is too long: at most {MAX_CONTENT} bytes. Write it in parts."
            )
        conn = await hands.reach(context)
        await conn.write_file(path.strip(), data, key=call_key(context))
        return answer({"ok": True})

    return WorkspaceTool(
        act=act,
        spec=spec(
            "write_file",
            "Write a file of the workspace, whole. Directories on the way are made, a file that is"
            " there already is replaced. To change part of a file use edit_files.",
            path={"type": "string", "description": "Absolute path of the file.", "needed": True},
            content={"type": "string", "description": "All of its content.", "needed": True},
        ),
    )


def _edit_files(hands: Hands) -> WorkspaceTool:
    async def act(context: ToolContext, args: Arguments) -> ToolOutput:
        listed = args.items("files", why="each with a path and edits.")
        files = [_file_edits(file) for file in listed]
        conn = await hands.reach(context)
        diffs = await conn.edit_files(files, key=call_key(context))
        return answer({"ok": True, "files": diffs})

    edit = {
        "type": "object",
        "properties": {
            "old_text": {
                "type": "string",
                "description": "Text that is in the file now, with enough lines around it to be"
                " found once. Copy it exactly, without line numbers.",
            },
            "new_text": {"type": "string", "description": "What to put in its place."},
            "replace_all": {
                "type": "boolean",
                "description": "Replace every place where it is found. Default false.",
            },
        },
        "required": ["old_text", "new_text"],
    }
    file = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Absolute path of the file."},
            "edits": {
                "type": "array",
                "items": edit,
                "description": "Applied in order, each to the outcome of the one before.",
            },
        },
        "required": ["path", "edits"],
    }
    return WorkspaceTool(
        act=act,
        spec=spec(
            "edit_files",
            "Change parts of one or more files of the workspace by replacing text. If any edit"
            " cannot be applied, none is, and the answer says why.",
            files={
                "type": "array",
                "items": file,
                "description": "The files to change.",
                "needed": True,
            },
        ),
    )


def _file_edits(file: Arguments) -> FileEdits:
    path = file.text("path", why=f"{WHERE} {UNCHANGED}")
    edits = file.items("edits", why=f"each with old_text and new_text. {UNCHANGED}")
    return FileEdits(path=path.strip(), edits=tuple(_edit(edit) for edit in edits))


def _edit(edit: Arguments) -> Edit:
    old, new = edit.optional_text("old_text"), edit.optional_text("new_text")
    if not old:
        # Former names, for models that have learnt them.
        old = edit.optional_text("search")
        new = edit.optional_text("replace") if new is None else new
    if not old:
        raise edit.wrong("old_text", f"is required: the text to be replaced. {UNCHANGED}")
    if new is None:
        raise edit.wrong("new_text", f'is required; give "" to delete the text. {UNCHANGED}')
    return Edit(search=old, replace=new, replace_all=edit.flag("replace_all"))
