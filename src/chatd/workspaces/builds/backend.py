"""What makes workspaces: the Protocol of a backend, and what it is given for one build.

A backend is asked by the build worker only. It does not touch the database, decides nothing
about retries, and is idempotent by (workspace, build number): after a crash another worker asks
for the same build again, and finds by deterministic names what the first one left.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import uuid5

from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import (
    AgentId,
    AgentRow,
    AgentSpec,
    BackendState,
    Build,
    Endpoint,
    FieldProblem,
    LogLevel,
    TemplateSpec,
    Workspace,
)


class BuildFailed(ChatdError):
    """The build cannot succeed. The message is stored and read by people and models."""

    code = "build_failed"


class BuildCancelled(ChatdError):
    """The backend has left off because it was asked to."""

    code = "build_canceled"


class LogSink(Protocol):
    """Takes a line at once: it neither waits nor fails, and too much of it is cut."""

    def __call__(self, stage: str, level: LogLevel, text: str) -> None: ...


class BuildContext:
    """One build, as the backend sees it.

    `cancelled` is set when somebody wants the build ended: leave off soon and raise
    `BuildCancelled`. Whoever does not is cancelled as a task a little later; so is a build that
    takes longer than it may. Either way what was half made may stay: the next build of the
    workspace finds and uses or removes it.
    """

    def __init__(
        self,
        *,
        workspace: Workspace,
        build: Build,
        spec: TemplateSpec,
        params: Mapping[str, str],
        log: LogSink,
    ) -> None:
        self.workspace = workspace
        self.build = build
        self.spec = spec
        self.params = params
        self.cancelled = asyncio.Event()
        self._log = log

    def log(self, stage: str, text: str, level: LogLevel = "info") -> None:
        self._log(stage, level, text)

    def agent_id(self, name: str) -> AgentId:
        """The same for every try of this build, so that a repeated start finds its own."""
        return AgentId(uuid5(self.build.id, name))


class Backend(Protocol):
    """Raises BuildFailed, with words, for what a person may have to put right."""

    @property
    def kind(self) -> str: ...

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        """What would make a start with these fail for sure. Quick, and without effect."""
        ...

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        """Make it run. Returns when the agents have been started, not when they are ready."""
        ...

    async def stop(self, context: BuildContext) -> None:
        """End all processes; keep the files. Fine if nothing runs."""
        ...

    async def delete(self, context: BuildContext) -> None:
        """Leave nothing behind. Fine if nothing is there."""
        ...

    async def inspect(self, workspace: Workspace) -> BackendState: ...

    async def endpoints(self, workspace: Workspace, agent: AgentRow) -> Sequence[Endpoint]:
        """How replicas may dial it now, best first."""
        ...

    async def workspaces(self) -> Sequence[WorkspaceId]:
        """Everything that is there on this host, running or not, known to the rows or not."""
        ...

    async def remove(self, workspace_id: WorkspaceId) -> None:
        """Remove what has no row any more, as `delete` would."""
        ...
