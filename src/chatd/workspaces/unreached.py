"""What a model is told of an agent that could not be reached: the matter, and what to do."""

from datetime import timedelta
from typing import Final

from chatd.domain.errors import ChatdError
from chatd.domain.hands import AgentLost, NoHands
from chatd.domain.workspace_rules import LOST_S, agent_status
from chatd.workspaces.bound import Seen

_AGAIN: Final = "Call stop_workspace, then start_workspace."
_FAR: Final = (
    "Trying again does not help: tell the user. If that host is gone for good, create_workspace"
    " makes a new workspace here."
)


def classify(seen: Seen) -> ChatdError:
    """What to say of an agent that could not be dialled in time. To advise a restart, which ends
    everything that runs there, takes a second sign beside the dial: a long silence."""
    status = agent_status(seen.agent, seen.now)
    if status == "timeout":
        return NoHands(f"The workspace agent has never connected. {_AGAIN}")
    heard = [at for at in (seen.agent.last_connected_at, seen.agent.disconnected_at) if at]
    silent = seen.now - max(heard) if heard else timedelta()
    if status == "disconnected" and silent >= timedelta(seconds=LOST_S):
        return NoHands(f"The workspace agent has been gone for a while. {_AGAIN}")
    return perhaps_slow()


def elsewhere(error: AgentLost) -> NoHands:
    """To try again is of no use here, unlike with whoever else was lost."""
    return NoHands(f"{error.message} {_FAR}", code=error.code)


def perhaps_slow() -> AgentLost:
    return AgentLost("The workspace agent did not answer in time; it may work next time.")
