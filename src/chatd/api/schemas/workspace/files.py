"""Queries about the files of a chat's workspace."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from chatd.domain.description import describe
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.workspace.files import (
    MAX_PIECE_BYTES,
    DirectoryPath,
    HomePath,
    IsCut,
    StartPath,
    WorkspaceEntry,
)

MAX_PATH_CHARS: Final = 4096
MAX_FILE_OFFSET: Final = 1 << 48

WorkspacePath = Annotated[
    str,
    Meta(max_length=MAX_PATH_CHARS),
    describe("A path in the workspace, absolute or from its home directory.", "app/main.py"),
]


class DirectoryQuery(ListQuery, frozen=True, kw_only=True):
    path: Annotated[
        str,
        Meta(max_length=MAX_PATH_CHARS),
        describe("The directory, absolute or from the home directory; empty: that.", "app/src"),
    ] = ""


class DirectoryPage(ListPage[WorkspaceEntry], frozen=True, kw_only=True):
    """A page of a directory of a workspace: directories first, then by name."""

    path: DirectoryPath
    home: HomePath
    directory: StartPath
    entries: Annotated[
        tuple[WorkspaceEntry, ...],
        describe("All entries, on the first page, for clients of earlier versions. Use `items`."),
    ]
    is_cut: IsCut


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
