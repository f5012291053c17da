"""The MCP servers that the context files of a workspace declare, and their tools as resources."""

from __future__ import annotations

import os
from collections.abc import Sequence

from chatd.agent.context.resolver import MAX_ERROR_BYTES, MAX_RESOURCE_BYTES, FoundResource
from chatd.agent.context.sources import ContextSources, find_candidates, is_within
from chatd.agent.errors import AgentError
from chatd.agent.files.paths import open_regular, printable_name, read_at_most
from chatd.agent.mcp.config import (
    McpConfigError,
    McpServerConfig,
    merge_configs,
    parse_config,
)
from chatd.agent.mcp.servers import ServerReport
from chatd.agent.text import clip_text


def find_mcp_servers(sources: ContextSources) -> list[McpServerConfig]:
    """Blocks while it reads a few files of bounded size. A file that cannot be used declares
    nothing; its own resource says why."""
    found: list[McpServerConfig] = []
    for candidate in find_candidates(sources):
        if candidate.kind != "mcp_config":
            continue
        if not is_within(os.path.realpath(candidate.path), os.path.realpath(candidate.root)):
            continue
        try:
            found += parse_config(_read(candidate.path), printable_name(candidate.path))
        except (AgentError, McpConfigError):
            continue
    return merge_configs(found)


def _read(path: str) -> bytes:
    fd, _ = open_regular(path)
    try:
        data = read_at_most(fd, MAX_RESOURCE_BYTES + 1, path=path)
    finally:
        os.close(fd)
    if len(data) > MAX_RESOURCE_BYTES:
        raise McpConfigError("it is too large")
    return data


def server_resources(reports: Sequence[ServerReport]) -> tuple[FoundResource, ...]:
    """A server that was not tried yet is left out."""
    return tuple(
        FoundResource(
            "mcp_server",
            report.source,
            "ok" if report.tools else "unreadable",
            content=report.tools,
            hash=report.hash,
            size=len(report.tools),
            error=clip_text(report.error, MAX_ERROR_BYTES),
            name=report.name,
        )
        for report in reports
        if report.tools or report.error
    )
