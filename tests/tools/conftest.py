"""The tools of a chat, on an agent that is shared by all tests."""

from tests.workspaces.conftest import agent_process, bench

__all__ = ["agent_process", "bench"]
