"""What a workspace agent can be asked to do, and what it answers: values and one Protocol.

The agent itself is a program of its own and imports nothing of ours; `workspaces` speaks to it,
`tools` see only this.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.ports import ToolContext

Signal = Literal["terminate", "kill"]


class AgentRefused(ChatdError):
    """The agent has answered, and the answer is no. The message is fit for a model to read."""

    code = "agent_refused"

    def __init__(self, message: str, *, status: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status


class AgentLost(ChatdError):
    """No answer: the agent is gone, never came, or did not answer in time."""

    code = "agent_lost"


class NoHands(ChatdError):
    """The chat has no workspace to act in, or not now. The message says which tool helps."""

    code = "no_workspace"


class Lines(Struct, frozen=True, kw_only=True):
    """Numbered lines of a file, as a model reads them."""

    content: str
    file_size: int
    total_lines: int
    lines_read: int


class Edit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    search: str
    replace: str
    replace_all: bool = False


class FileEdits(Struct, frozen=True, kw_only=True):
    path: str
    edits: tuple[Edit, ...]


class FileDiff(Struct, frozen=True, kw_only=True):
    path: str
    diff: str


class Truncated(Struct, frozen=True, kw_only=True):
    original_bytes: int
    retained_bytes: int
    omitted_bytes: int
    strategy: str = "head_tail"


class Output(Struct, frozen=True, kw_only=True):
    """What a process has printed so far. Not running means that nothing will follow.

    `cursor` counts all bytes printed so far; asked `after` a cursor, `output` holds what came
    later and is still kept.
    """

    output: str
    running: bool
    exit_code: int | None = None
    truncated: Truncated | None = None
    cursor: int = 0


class Process(Struct, frozen=True, kw_only=True):
    id: str
    command: str
    workdir: str
    background: bool
    running: bool
    exit_code: int | None = None
    started_at_unix: int
    exited_at_unix: int | None = None


class Started(Struct, frozen=True, kw_only=True):
    """`again`: the key was known, and this is the process that was started for it then."""

    id: str
    started: bool = True
    again: bool = False


class Resource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something in the workspace that tells the model how to work there."""

    kind: str
    source: str
    status: str
    content: str = ""
    hash: str = ""
    size: int = 0
    error: str = ""
    name: str = ""
    description: str = ""


class Context(Struct, frozen=True, kw_only=True):
    version: int
    hash: str
    directory: str
    os: str
    resources: tuple[Resource, ...] = ()


class AgentConn(Protocol):
    """A connection to one agent on behalf of one chat.

    Raises AgentRefused and AgentLost only. A `key` names an effect: asked again with the same
    key, the agent does nothing and answers as it did the first time.
    """

    async def read_lines(self, path: str, *, offset: int = 1, limit: int = 2000) -> Lines: ...

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 0) -> bytes: ...

    async def write_file(self, path: str, content: bytes, *, key: str) -> None: ...

    async def edit_files(self, files: Sequence[FileEdits], *, key: str) -> tuple[FileDiff, ...]: ...

    async def start_process(
        self,
        command: str,
        *,
        key: str,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        background: bool = False,
    ) -> Started: ...

    async def output(self, process_id: str, *, wait_s: float = 0, after: int = 0) -> Output: ...

    async def processes(self) -> tuple[Process, ...]: ...

    async def signal(self, process_id: str, signal: Signal) -> None: ...

    async def context(self, *, after: int = 0, wait_s: float = 0) -> Context: ...


class Hands(Protocol):
    async def reach(self, context: ToolContext) -> AgentConn:
        """The agent of the chat's workspace, dialled if need be. Raises NoHands and AgentLost,
        both within a bounded time."""
        ...
