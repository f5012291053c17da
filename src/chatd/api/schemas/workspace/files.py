"""Queries about the files of a chat's workspace."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from chatd.domain.description import describe
from chatd.domain.workspace.files import MAX_PIECE_BYTES

MAX_PATH_CHARS: Final = 4096
MAX_FILE_OFFSET: Final = 1 << 48

WorkspacePath = Annotated[
    str,
    Meta(max_length=MAX_PATH_CHARS),
    describe("A path in the workspace, absolute or from its home directory.", "app/main.py"),
]


class DirectoryQuery(Struct, frozen=True, kw_only=True):
    path: Annotated[
        str,
        Meta(max_length=MAX_PATH_CHARS),
        describe("The directory, absolute or from the home directory; empty: that.", "app/src"),
    ] = ""


class WorkspaceFileQuery(Struct, frozen=True, kw_only=True):
    path: WorkspacePath
    offset: Annotated[
        int, Meta(ge=0, le=MAX_FILE_OFFSET), describe("The first byte to load.", 0)
    ] = 0
    limit: Annotated[
        int,
        Meta(ge=1, le=MAX_PIECE_BYTES),
        describe("How many bytes to load at most. Ignored for a download.", 262_144),
    ] = MAX_PIECE_BYTES
    download: Annotated[bool, describe("Load the whole file, for a browser to save it.")] = False
