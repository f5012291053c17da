"""Commands of a chat's workspace, and what people do to them and to its files. Docstrings here are
part of the OpenAPI document."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from chatd.api.schemas.workspace.diffs import SCOPE_TEXT
from chatd.api.schemas.workspace.files import MAX_PATH_CHARS
from chatd.domain.description import describe
from chatd.domain.list_page import ListPage
from chatd.domain.workspace.agent_api import DiffScope, ProcessSignal

MAX_PROCESS_ID_CHARS: Final = 64

ProcessId = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_PROCESS_ID_CHARS, pattern="^[0-9A-Za-z_-]+$"),
    describe("The id of the command, as tools tell it.", "p7"),
]
_RelativePath = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_PATH_CHARS),
    describe("The path of the file, from the repository on.", "src/app.py"),
]


class ProcessItem(Struct, frozen=True, kw_only=True):
    """A command that the chat started in its workspace."""

    id: ProcessId
    command: Annotated[str, describe("The command.", "npm run dev")]
    background: Annotated[bool, describe("It was started to go on in the background.")]
    running: Annotated[bool, describe("It has not ended.")]
    exit_code: Annotated[int | None, describe("Its exit code, once it has ended.", 0)]


class ProcessPage(ListPage[ProcessItem], frozen=True, kw_only=True):
    """A page of the commands of a chat: running ones first, then the newest first."""

    processes: Annotated[
        tuple[ProcessItem, ...],
        describe("All commands, on the first page, for clients of earlier versions. Use `items`."),
    ]


class SignalBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal to a command and to all that it started."""

    process_id: ProcessId
    signal: Annotated[
        ProcessSignal,
        describe("`terminate` asks it to end, `kill` ends it at once.", "terminate"),
    ] = "terminate"


class RevertBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file to put back."""

    scope: Annotated[DiffScope, Meta(description=SCOPE_TEXT, examples=["turn"])]
    repo_root: Annotated[
        str,
        Meta(min_length=1, max_length=MAX_PATH_CHARS),
        describe("The path of the repository, as the diff names it.", "/home/dev/app"),
    ]
    path: _RelativePath
    old_path: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_PATH_CHARS)] | None,
        describe("The former name of a renamed file: it is put back too.", "src/main.py"),
    ] = None
