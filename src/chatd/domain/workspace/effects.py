"""What a person does in a chat's workspace: stop a command of the chat, revert a file."""

from collections.abc import Sequence
from typing import Protocol

from chatd.domain.workspace.agent_api import DiffScope, ProcessInfo, ProcessSignal


class WorkspaceEffects(Protocol):
    """Raises AgentRefused and AgentUnreachable within a minute."""

    async def processes(self) -> Sequence[ProcessInfo]:
        """The commands of this chat, of which the agent still knows."""
        ...

    async def signal(self, process_id: str, signal: ProcessSignal) -> ProcessInfo:
        """The command as it is shortly after the signal. Refused with 404 for a command of another
        chat, and with `not_running`."""
        ...

    async def revert(self, scope: DiffScope, repo_root: str, paths: Sequence[str]) -> None:
        """Put one file back, or the new and the old name of a renamed one. Refused with
        `not_reverted`."""
        ...
