"""What a client may assume of each tool before it asks its user. True, or the client is misled."""

from collections.abc import Mapping
from typing import Final

from chatd.api.mcp.toolset import ToolHints

HINTS: Final[Mapping[str, ToolHints]] = {
    "start_chat": ToolHints(title="Start a chat", read_only_hint=False, open_world_hint=True),
    # It can remove a turn: when_busy=rollback.
    "send_message": ToolHints(
        title="Send a message", read_only_hint=False, destructive_hint=True, open_world_hint=True
    ),
    "wait_for_chat": ToolHints(
        title="Wait for an answer", read_only_hint=True, idempotent_hint=True
    ),
    "read_chat": ToolHints(title="Read a chat", read_only_hint=True, idempotent_hint=True),
    "interrupt_chat": ToolHints(
        title="Interrupt a chat", read_only_hint=False, idempotent_hint=True
    ),
    "fork_chat": ToolHints(title="Copy a chat", read_only_hint=False),
    "list_chats": ToolHints(title="List chats", read_only_hint=True, idempotent_hint=True),
    "submit_results": ToolHints(title="Submit results", read_only_hint=False, open_world_hint=True),
    # A call that is approved may do anything.
    "answer_calls": ToolHints(
        title="Approve or answer", read_only_hint=False, destructive_hint=True, open_world_hint=True
    ),
}
