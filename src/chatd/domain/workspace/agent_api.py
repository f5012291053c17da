"""The API of a workspace agent as tools and people use it (commands, files, terminals), and a
chat's binding, pinned context and diffs.

These are values only: the agent, a separate program, has its routes in `agent/*/*_routes.py`, and
`workspaces/agents/agent_client.py` calls them. A chat uses its pinned context until
the user pins a newer one.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import Struct

from chatd.domain.description import UPDATED_AT, describe
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.entities import AgentId, BuildId

ProcessSignal = Literal["terminate", "kill"]


class AgentRefused(ChatdError):
    """The agent rejected the request. The message is written for a model to read."""

    code = "agent_refused"

    def __init__(self, message: str, *, status: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status


class AgentUnreachable(ChatdError):
    """The agent exited, never connected, or did not answer in time."""

    code = "agent_lost"


class ConnectFailed(AgentUnreachable):
    """No connection was made, so the agent has not received the request."""


class RunnerDisconnected(ConnectFailed):
    """No replica can reach the runner that has the workspace. It reconnects by itself, and its
    processes keep running. The message names it."""

    code = "runner_disconnected"


class WorkspaceUnavailable(ChatdError):
    """The chat has no workspace, or it is not running. The message names the tool to call."""

    code = "no_workspace"


class FileLines(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbered lines of a file, as a model reads them. `next_offset` is the line to continue at, if
    there are fewer than requested; `note` says so."""

    content: str
    file_size: int
    total_lines: int
    lines_read: int
    next_offset: int | None = None
    note: str = ""


class TextEdit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    search: str
    replace: str
    replace_all: bool = False


class FileEdits(Struct, frozen=True, kw_only=True):
    path: str
    edits: tuple[TextEdit, ...]


class FileDiff(Struct, frozen=True, kw_only=True):
    path: str
    diff: str


class OutputTruncation(Struct, frozen=True, kw_only=True):
    original_bytes: int
    retained_bytes: int
    omitted_bytes: int
    strategy: str = "head_tail"


class ProcessOutput(Struct, frozen=True, kw_only=True):
    """The output of a process so far; complete if it is not running.

    `cursor` counts all bytes printed so far. With `after`, `output` has the retained bytes printed
    after that cursor. A process that a signal ended has the exit code -1 and that `signal`; agents
    of earlier versions do not report it. `file` has the whole output, if it is long.
    """

    output: str
    running: bool
    exit_code: int | None = None
    signal: str | None = None
    truncated: OutputTruncation | None = None
    cursor: int = 0
    file: str = ""


class ProcessInfo(Struct, frozen=True, kw_only=True):
    id: str
    command: str
    workdir: str
    background: bool
    running: bool
    exit_code: int | None = None
    signal: str | None = None
    started_at_unix: int
    exited_at_unix: int | None = None


class StartedProcess(Struct, frozen=True, kw_only=True):
    """`again`: the key was used before, and this is the process started then. `output` is set if it
    ended within the requested wait."""

    id: str
    started: bool = True
    again: bool = False
    output: ProcessOutput | None = None


class ContextResource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instruction file or a skill found in the workspace."""

    kind: str
    source: str
    status: str
    content: str = ""
    hash: str = ""
    size: int = 0
    error: str = ""
    name: str = ""
    description: str = ""


class WorkspaceContext(Struct, frozen=True, kw_only=True):
    version: int
    hash: str
    directory: str
    os: str
    resources: tuple[ContextResource, ...] = ()


class WorkspaceMcpServer(Struct, frozen=True, kw_only=True):
    """An MCP server that a workspace declares. `tools` is the JSON list of its tools, empty with an
    `error`."""

    name: str
    tools: str
    hash: str
    error: str = ""


class DesktopState(Struct, frozen=True, kw_only=True):
    """`missing` are the Debian packages that the workspace lacks for a desktop. `taken_by` is the
    person who has mouse and keyboard now; empty: the agents have them."""

    enabled: bool = False
    running: bool = False
    width: int = 0
    height: int = 0
    missing: tuple[str, ...] = ()
    note: str = ""
    taken_by: str = ""


class ActedOnDesktop(Struct, frozen=True, kw_only=True):
    """How many actions were done; `error` is why the next one was not. `unknown`: that one may have
    been done in part. `person`: the actions were not done, because a person is in control
    (`active`) or was and `gave_back`."""

    done: int = 0
    error: str = ""
    unknown: bool = False
    person: Literal["", "active", "gave_back"] = ""


class DesktopPicture(Struct, frozen=True, kw_only=True):
    """A screenshot as PNG, and where the pointer is, in pixels of the screen. `starts`: how often
    this agent has started the desktop. `took_ms`: the agent's time by stage."""

    image: bytes
    x: int
    y: int
    taken_by: str = ""
    note: str = ""
    starts: int = 1
    took_ms: Mapping[str, float] = {}


BrowserActionKind = Literal["open", "click", "type", "key", "back"]


class BrowserAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`ref` names an element of the page that was read last. `accept` accepts the page's dialogs,
    with `text` as the answer."""

    action: BrowserActionKind
    url: str = ""
    ref: str = ""
    text: str = ""
    submit: bool = False
    accept: bool = False


class BrowserPage(Struct, frozen=True, kw_only=True):
    """The page of a chat. `text` has its lines, or after an action those that are new; `more` says
    which these are. `notices` say what else happened, such as a dialog. `error`: why the action did
    not do what was asked. `image`: a screenshot as PNG."""

    url: str = ""
    title: str = ""
    status: int = 0
    text: str = ""
    more: str = ""
    notices: tuple[str, ...] = ()
    error: str = ""
    image: bytes = b""


class DesktopRecording(Struct, frozen=True, kw_only=True):
    """The files of a finished recording."""

    video: bool = False
    poster: bool = False


MAX_CONTEXT_RESOURCES: Final = 1000
MAX_CONTEXT_BODY_BYTES: Final = 256 * 1024
MAX_CONTEXT_TOTAL_BYTES: Final = 4 * 1024 * 1024
MAX_CONTEXT_SOURCE_CHARS: Final = 1024
MAX_CONTEXT_ERROR_CHARS: Final = 4 * 1024


class WorkspaceBinding(Struct, frozen=True, kw_only=True):
    """Build and agent are those of the last connection and may be stale."""

    chat_id: ChatId
    workspace_id: WorkspaceId | None = None
    build_id: BuildId | None = None
    agent_id: AgentId | None = None


class PinnedContext(Struct, frozen=True, kw_only=True):
    """The context that a chat uses. `dirty`: the agent has reported a newer one."""

    agent_id: AgentId
    context: WorkspaceContext
    pinned_at: datetime
    dirty: bool


def check_context(context: WorkspaceContext) -> None:
    """Check the size of a context. The agent has limits too, but is not trusted. Raises
    InvalidInput."""
    if len(context.resources) > MAX_CONTEXT_RESOURCES:
        raise InvalidInput("resources", f"there are more than {MAX_CONTEXT_RESOURCES}")
    total = 0
    for index, resource in enumerate(context.resources):
        at = f"resources[{index}]"
        size = len(resource.content.encode(errors="replace"))
        total += size
        if size > MAX_CONTEXT_BODY_BYTES:
            raise InvalidInput(f"{at}.content", f"it is longer than {MAX_CONTEXT_BODY_BYTES} bytes")
        if len(resource.source.encode(errors="replace")) > MAX_CONTEXT_SOURCE_CHARS:
            raise InvalidInput(
                f"{at}.source", f"it is longer than {MAX_CONTEXT_SOURCE_CHARS} bytes"
            )
        if len(resource.error.encode(errors="replace")) > MAX_CONTEXT_ERROR_CHARS:
            raise InvalidInput(f"{at}.error", f"it is longer than {MAX_CONTEXT_ERROR_CHARS} bytes")
    if total > MAX_CONTEXT_TOTAL_BYTES:
        raise InvalidInput(
            "resources", f"together they are longer than {MAX_CONTEXT_TOTAL_BYTES} bytes"
        )
    if context.version < 1 or not context.hash:
        raise InvalidInput("version", "a snapshot has a version from 1 and a hash")


class RepositoryDiff(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current diff of a repository. `removed`: the repository no longer exists."""

    repo_root: Annotated[str, describe("The path of the repository.", "/home/dev/app")]
    branch: Annotated[str, describe("The branch that is checked out.", "main")] = ""
    remote_origin: Annotated[
        str, describe("The address of the remote `origin`.", "https://example.com/app.git")
    ] = ""
    unified_diff: Annotated[
        str, describe("All changes since the last commit.", "--- a/app.py\n+++ b/app.py\n")
    ] = ""
    removed: Annotated[bool, describe("The repository no longer exists.")] = False


DiffScope = Literal["turn", "chat", "git"]


class ScopedDiff(Struct, frozen=True, kw_only=True):
    """What changed in one repository."""

    repo_root: Annotated[str, describe("The path of the repository.", "/home/dev/app")]
    branch: Annotated[str, describe("The branch that is checked out.", "fix-dispatch")]
    base: Annotated[
        str, describe("The default branch of the remote `origin`, if known.", "origin/main")
    ]
    unified_diff: Annotated[str, describe("The changes.", "--- a/app.py\n+++ b/app.py\n")]
    additions: Annotated[int, describe("Added lines.", 48)]
    deletions: Annotated[int, describe("Deleted lines.", 12)]
    changed_files: Annotated[int, describe("Files with changes.", 3)]
    omitted: Annotated[
        str,
        describe("Why the diff is left out.", "There is no diff of this turn: it is too large."),
    ] = ""
    remote: Annotated[
        str, describe("The address of the remote `origin`.", "https://git.example.com/a/app.git")
    ] = ""
    ahead: Annotated[
        int | None,
        describe("Commits that its upstream lacks, as of the last fetch; null if unknown.", 2),
    ] = None
    behind: Annotated[int | None, describe("Commits of the upstream that the branch lacks.", 0)] = (
        None
    )


class GitChanges(Struct, frozen=True, kw_only=True, tag_field="type", tag="changes"):
    """Each repository is added, or replaces the one with the same root."""

    scanned_at: Annotated[str, describe("When the repositories were read.", UPDATED_AT)]
    repositories: Annotated[tuple[RepositoryDiff, ...], describe("The repositories that changed.")]


# The files of a workspace as a person sees them.

MAX_PIECE_BYTES: Final = 1 << 20
"""Limit for a piece of a file in one request to the workspace agent."""
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


class SavedFile(Struct, frozen=True, kw_only=True):
    """A file after it was saved."""

    path: Annotated[str, describe("Its path, without links.", "/home/dev/app/main.py")]
    size: Annotated[int, describe("Its size in bytes.", 1834)]
    version: Annotated[
        str, describe("A mark that changes with it, for the next save.", "1f3-18a2b-72a")
    ]


MAX_ARCHIVE_BYTES: Final = 4 << 30
"""Limit for the files in an archive; the agent's own. The archive itself may be a bit larger."""


class ArchiveFacts(Struct, frozen=True, kw_only=True):
    """What an archive has, counted before it is packed. `skipped` are pipes, sockets and devices,
    `unreadable` the first of the files that cannot be read."""

    name: str = ""
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    unreadable: tuple[str, ...] = ()
    unreadable_count: int = 0


class UnpackedFiles(Struct, frozen=True, kw_only=True):
    """What was unpacked from an archive."""

    files: Annotated[int, describe("Files that were written.", 412)] = 0
    bytes: Annotated[int, describe("Their size together.", 1_834_112)] = 0
    links: Annotated[int, describe("Links that were made.", 3)] = 0
    directories: Annotated[int, describe("Directories of the archive.", 38)] = 0
    skipped: Annotated[int, describe("Pipes, sockets and devices, which are not made.", 0)] = 0
    left_out: Annotated[
        tuple[str, ...],
        describe(
            "The first of the links that lead out of the directory; they are not made.",
            ["venv/bin/python"],
        ),
    ] = ()
    left_out_count: Annotated[int, describe("How many such links there are.", 0)] = 0


MAX_DESKTOP_INPUT_BYTES: Final = 256 * 1024
"""Limit for one message from a viewer to a desktop's VNC server."""


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


# Terminals of a workspace: what a person types and what the shell prints.

MAX_TERMINAL_SIDE: Final = 1000
MAX_INPUT_BYTES: Final = 64 * 1024
"""Limit for one request to the workspace agent."""


class TerminalSize(Struct, frozen=True, kw_only=True):
    cols: int
    rows: int


class TerminalOutput(Struct, frozen=True):
    """Bytes that the shell has printed."""

    data: bytes


class TerminalExited(Struct, frozen=True):
    """The shell has ended. The exit code -1: a signal ended it."""

    exit_code: int


class TerminalTaken(Struct, frozen=True):
    """Another viewer reads the terminal now."""


TerminalEvent = TerminalOutput | TerminalExited | TerminalTaken
