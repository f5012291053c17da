"""The tool that hands a file of the workspace to the user."""

from collections.abc import AsyncGenerator
from typing import Annotated, Final

from msgspec import Struct

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.parts import FilePart
from chatd.domain.errors import ToolError
from chatd.domain.files import StoredFile, clean_file_name
from chatd.domain.ports import ToolContext, WorkspaceAccess
from chatd.domain.workspace.agent_api import AgentApi
from chatd.tools.arguments import NOT_BLANK, argument
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.files import PATH_ARGUMENT_TEXT
from chatd.tools.plan_paths import expand_home
from chatd.tools.tool import WorkspaceTool, json_output, workspace_tool

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


async def _read_pieces(conn: AgentApi, path: str) -> AsyncGenerator[bytes]:
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
