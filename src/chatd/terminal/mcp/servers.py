"""What the list of MCP servers shows, and what a choice means. Pure."""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from chatd.client.mcp_resources import McpTrial, WorkspaceMcpServer
from chatd.client.resources import McpServer
from chatd.domain.ids import McpServerId
from chatd.terminal.safe_text import safe_line

Tone = Literal["success", "warning", "error", "muted"]
Chosen = Sequence[McpServerId] | None
"""The servers of a chat; None: those that are on by default."""

NAME_CELLS: Final = 24
MAX_TOOL_NAMES: Final = 12
NO_SERVERS: Final = "No MCP servers are set up. An administrator can add them."
WORKSPACE_NOTE: Final = "Of the workspace (its .mcp.json), used by all its chats:"
MAX_WORKSPACE_SERVERS: Final = 12
_WORDS: Final[dict[str, tuple[str, Tone]]] = {
    "ready": ("Ready", "success"),
    "connected": ("Connected", "success"),
    "needs_connect": ("Not connected", "warning"),
    "failed": ("Connection ended", "error"),
}


class ServerRow(Struct, frozen=True, kw_only=True):
    """One line of the list; `detail` stands below it."""

    mark: str
    name: str
    state: str
    tone: Tone
    note: str
    detail: str


def is_used(server: McpServer, chosen: Chosen) -> bool:
    """Forced, chosen, or on by default if nothing was chosen."""
    if server.availability == "force_on":
        return True
    return server.availability == "default_on" if chosen is None else server.id in chosen


def with_server(
    servers: Sequence[McpServer], chosen: Chosen, server: McpServer
) -> tuple[McpServerId, ...]:
    """The whole choice after this server was switched. Forced ones are never part of it."""
    return tuple(
        one.id
        for one in servers
        if one.availability != "force_on" and is_used(one, chosen) != (one.id == server.id)
    )


def needs_connection(server: McpServer) -> bool:
    return server.connection.state in ("needs_connect", "failed")


def can_disconnect(server: McpServer) -> bool:
    """An ended connection has a record that can be removed too."""
    return server.auth == "oauth2" and server.connection.state in ("connected", "failed")


def row_of(server: McpServer, chosen: Chosen, *, has_chat: bool) -> ServerRow:
    state, tone = _WORDS.get(server.connection.state, (server.connection.state, "muted"))
    is_forced = server.availability == "force_on"
    mark = "[x]" if is_used(server, chosen) else "[ ]"
    notes = {
        "force_on": "every chat uses it",
        "default_on": "on by default",
        "default_off": "",
    }
    reason = server.connection.reason if server.connection.state == "failed" else ""
    return ServerRow(
        mark="   " if not has_chat else " ● " if is_forced else mark,
        name=safe_line(server.display_name or server.slug, NAME_CELLS),
        state=safe_line(state, NAME_CELLS),
        tone=tone,
        note=notes.get(server.availability, ""),
        detail=safe_line(reason or server.description or "", 400),
    )


def workspace_text(servers: Sequence[WorkspaceMcpServer]) -> str:
    """The servers of the running workspace, one a line. Empty without one."""
    if not servers:
        return ""
    lines = [f"  {_workspace_line(one)}" for one in servers[:MAX_WORKSPACE_SERVERS]]
    more = len(servers) - MAX_WORKSPACE_SERVERS
    return "\n".join([WORKSPACE_NOTE, *lines, *([f"  and {more} more"] if more > 0 else [])])


def _workspace_line(server: WorkspaceMcpServer) -> str:
    name = safe_line(server.name, NAME_CELLS)
    if server.error:
        return f"{name}  cannot be used: {safe_line(server.error, 200)}"
    return f"{name}  {server.tools} tool{'' if server.tools == 1 else 's'}"


def trial_text(server: McpServer, trial: McpTrial) -> str:
    """What a test found, in one or two lines."""
    name = safe_line(server.display_name or server.slug, NAME_CELLS)
    if not trial.ok:
        return f"{name}: {safe_line(trial.problem, 600)}"
    used = [tool.name for tool in trial.tools if tool.is_used]
    shown = ", ".join(safe_line(one, 40) for one in used[:MAX_TOOL_NAMES])
    more = f" and {len(used) - MAX_TOOL_NAMES} more" if len(used) > MAX_TOOL_NAMES else ""
    count = f"{len(used)} tool{'' if len(used) == 1 else 's'}"
    left = f", {len(trial.tools) - len(used)} not allowed" if len(used) < len(trial.tools) else ""
    names = f": {shown}{more}" if used else ""
    return f"{name} answered in {trial.duration_ms} ms. {count}{left}{names}"
