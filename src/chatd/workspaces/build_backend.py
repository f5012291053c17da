"""The Protocol of a workspace backend, and the context it gets for one build.

Only the build worker calls a backend. A backend does not use the database, does not decide about
retries, and is idempotent by (workspace, build number): after a crash another worker repeats the
build, and deterministic names lead to what the first attempt left.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol
from uuid import uuid5

from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import (
    AgentId,
    AgentSpec,
    BackendState,
    Build,
    BuildId,
    FieldProblem,
    LogLevel,
    TemplateSpec,
    Workspace,
)
from chatd.domain.workspace.host_credentials import HostCredential


class BuildFailed(ChatdError):
    """The build cannot succeed. The message is stored and read by people and models."""

    code = "build_failed"


class BuildCancelled(ChatdError):
    """The backend stopped because `cancelled` was set."""

    code = "build_canceled"


class BuildInterrupted(ChatdError):
    """The connection to the runner broke. The build continues there; the replica that the runner
    connects to next repeats the call and gets its result."""

    code = "build_interrupted"


LogSink = Callable[[str, LogLevel, str], None]
"""Takes stage, level and text. Neither blocks nor fails; clips long text."""


AGENT_NAME: Final = "main"
"""The agent that every backend starts."""


def agent_id_of(build_id: BuildId, name: str = AGENT_NAME) -> AgentId:
    return AgentId(uuid5(build_id, name))


class BuildContext:
    """One build, as the backend sees it.

    `cancelled` is set when the build is to end: stop soon and raise `BuildCancelled`. A backend
    that goes on has its task cancelled after a grace period, as has a build that exceeds its
    timeout. Partial results may stay: the next build of the workspace uses or removes them.
    """

    def __init__(
        self,
        *,
        workspace: Workspace,
        build: Build,
        spec: TemplateSpec,
        params: Mapping[str, str],
        log: LogSink,
        agent_key: Callable[[AgentId], bytes],
        credentials: Sequence[HostCredential] = (),
    ) -> None:
        """`agent_key` returns the key with which the server signs requests to an agent.
        `credentials` are those that a proxy adds to requests of the workspace, also while its seed
        is cloned."""
        self.workspace = workspace
        self.build = build
        self.spec = spec
        self.params = params
        self.cancelled = asyncio.Event()
        self.agent_key = agent_key
        self.credentials = credentials
        self._log = log

    def log(self, stage: str, text: str, level: LogLevel = "info") -> None:
        self._log(stage, level, text)

    def agent_id(self, name: str) -> AgentId:
        """The id is the same for every attempt of this build, so that a repeated start finds its
        agents."""
        return agent_id_of(self.build.id, name)


class Backend(Protocol):
    """Raises BuildFailed with a message for what the user or the operator must correct."""

    @property
    def kind(self) -> str: ...

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        """Problems with which a start would certainly fail. Fast, without effects."""
        ...

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        """Start the workspace. Returns when its agents have been started, not when they are
        ready."""
        ...

    async def stop(self, context: BuildContext) -> None:
        """End all processes and keep the files. Succeeds if nothing runs."""
        ...

    async def delete(self, context: BuildContext) -> None:
        """Remove everything. Succeeds if there is nothing."""
        ...

    async def inspect(self, workspace: Workspace) -> BackendState: ...

    async def workspaces(self) -> Sequence[WorkspaceId]:
        """All workspaces on this host, running or not, with or without a row."""
        ...

    async def remove(self, workspace_id: WorkspaceId) -> None:
        """Remove a workspace without a row, as `delete` would."""
        ...
