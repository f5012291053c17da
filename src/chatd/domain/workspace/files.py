"""The files of a workspace as a person sees them."""

from datetime import datetime
from typing import Annotated, Final, Literal, Protocol

from msgspec import Struct

from chatd.domain.description import UPDATED_AT, describe

MAX_PIECE_BYTES: Final = 1 << 20
"""Of a file, in one request to its workspace agent."""
_PROBED_BYTES: Final = 8 << 10
_UTF8_TAIL_BYTES: Final = 3

EntryKind = Literal["file", "directory", "link", "other"]


class WorkspaceEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of a directory. A pipe, a socket or a device is `other`."""

    name: Annotated[str, describe("The name.", "app.py")]
    kind: Annotated[EntryKind, describe("What it is.", "file")]
    size_bytes: Annotated[int | None, describe("The size of a file.", 1834)] = None
    modified_at: Annotated[
        datetime | None, describe("When its content changed last.", UPDATED_AT)
    ] = None
    target: Annotated[
        str | None, describe("What a link says, at most 512 characters.", "../shared/app.py")
    ] = None
    target_kind: Annotated[
        Literal["file", "directory"] | None,
        describe("What a link leads to; null: nothing that can be read here.", "file"),
    ] = None
    detail: Annotated[str | None, describe("The kind of an `other` entry.", "socket")] = None


DirectoryPath = Annotated[str, describe("Its path, without links.", "/home/dev/app")]
HomePath = Annotated[str, describe("The home directory. Other paths cannot be read.", "/home/dev")]
StartPath = Annotated[str, describe("Where commands begin.", "/home/dev/app")]
IsCut = Annotated[bool, describe("The directory has more than 2,000 entries: some are missing.")]


class WorkspaceDirectory(Struct, frozen=True, kw_only=True):
    """A directory of a workspace: directories first, then by name."""

    path: DirectoryPath
    home: HomePath
    directory: StartPath
    entries: tuple[WorkspaceEntry, ...]
    is_cut: IsCut = False


class FilePiece(Struct, frozen=True, kw_only=True):
    """Some bytes of a file. `version` changes with the file."""

    path: str
    size: int
    version: str
    modified_at: datetime | None
    content: bytes


class WorkspaceFiles(Protocol):
    """The files of one running workspace. Raises AgentRefused and AgentUnreachable."""

    async def list_directory(self, path: str) -> WorkspaceDirectory: ...

    async def read_piece(self, path: str, *, offset: int, limit: int) -> FilePiece: ...


def is_text(content: bytes, *, is_beginning: bool, is_end: bool) -> bool:
    """Whether a piece of a file is UTF-8 text. Characters may be cut where the piece is."""
    probed = content[:_PROBED_BYTES]
    if b"\0" in probed:
        return False
    first = 0
    if not is_beginning:
        while first < min(_UTF8_TAIL_BYTES, len(probed)) and probed[first] & 0xC0 == 0x80:
            first += 1
    is_whole = is_end and len(probed) == len(content)
    try:
        probed[first:].decode()
    except UnicodeDecodeError as error:
        at_the_end = error.end == len(probed) - first and error.reason == "unexpected end of data"
        return at_the_end and not is_whole
    return True
