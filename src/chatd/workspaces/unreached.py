"""What a model is told of an agent that could not be reached: the matter, and what to do."""

from typing import Final

from chatd.domain.errors import ChatdError
from chatd.domain.hands import AgentLost, NoHands
from chatd.domain.workspace_rules import agent_status, remedy_after_dial
from chatd.workspaces.bound import Seen

_AGAIN: Final = "Call stop_workspace, then start_workspace."
_FAR: Final = (
    "Trying again does not help: tell the user. If that host is gone for good, create_workspace"
    " makes a new workspace here."
)


def classify(seen: Seen) -> ChatdError:
    """What to say of an agent that could not be dialled in time."""
    if remedy_after_dial(seen.agent, seen.now) == "retry":
        return perhaps_slow()
    if agent_status(seen.agent, seen.now) == "timeout":
        return NoHands(f"The workspace agent has never connected. {_AGAIN}")
    return NoHands(f"The workspace agent has been gone for a while. {_AGAIN}")


def elsewhere(error: AgentLost) -> NoHands:
    """To try again is of no use here, unlike with whoever else was lost."""
    return NoHands(f"{error.message} {_FAR}", code=error.code)


def perhaps_slow() -> AgentLost:
    return AgentLost("The workspace agent did not answer in time; it may work next time.")
