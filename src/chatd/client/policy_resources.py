"""Moved to `resources`."""

from chatd.client.resources import ToolPolicyState

__all__ = ["ToolPolicyState"]
