"""What a model is told of an agent that could not be reached: the matter, and what to do."""

from typing import Final

from chatd.domain.errors import ChatdError
from chatd.domain.workspace.agent_api import AgentUnreachable, WorkspaceUnavailable
from chatd.domain.workspace.rules import agent_status, remedy_after_timeout
from chatd.workspaces.bound import Seen

_AGAIN: Final = "Call stop_workspace, then start_workspace."
_FAR: Final = (
    "Trying again does not help: tell the user. If that host is gone for good, create_workspace"
    " makes a new workspace here."
)


def classify(seen: Seen) -> ChatdError:
    """What to say of an agent that could not be dialled in time."""
    if remedy_after_timeout(seen.agent, seen.now) == "retry":
        return perhaps_slow()
    if agent_status(seen.agent, seen.now) == "timeout":
        return WorkspaceUnavailable(f"The workspace agent has never connected. {_AGAIN}")
    return WorkspaceUnavailable(f"The workspace agent has been gone for a while. {_AGAIN}")


def elsewhere(error: AgentUnreachable) -> WorkspaceUnavailable:
    """To try again is of no use here, unlike with whoever else was lost."""
    return WorkspaceUnavailable(f"{error.message} {_FAR}", code=error.code)


def perhaps_slow() -> AgentUnreachable:
    return AgentUnreachable("The workspace agent did not answer in time; it may work next time.")
