"""Which of a step's tools the model is sent, and the tool that finds the others."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Raw, Struct

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.messages import Message
from chatd.domain.mcp.tool_search import (
    FIND_TOOLS,
    SearchableTool,
    find_active_names,
    find_tools_description,
    find_tools_schema,
    needs_search,
    read_query,
    search_tools,
)
from chatd.domain.mcp.tools import mcp_origin
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import Tool, ToolContext, ToolEffect


class ToolOffer(Struct, frozen=True, kw_only=True):
    """All tools that may be called, and the names of those that the model is not sent."""

    tools: Mapping[str, Tool]
    hidden: frozenset[str] = frozenset()


def offer_tools(
    found: Sequence[Tool],
    history: Sequence[Message],
    context_limit: int | None,
    denied: frozenset[str] = frozenset(),
) -> ToolOffer:
    """All tools, unless those of MCP servers need more than their share of the prompt. A tool of
    another family with the name `find_tools` disables the search. Those that the tool policy
    denies are neither sent nor found; a call of one gets the policy's denial."""
    tools = {tool.spec.name: tool for tool in found}
    searchable = [
        SearchableTool(
            name=tool.spec.name,
            description=tool.spec.description,
            schema=tool.spec.input_schema,
            server=origin.name,
        )
        for tool in found
        if (origin := mcp_origin(tool)) is not None and tool.spec.name not in denied
    ]
    if FIND_TOOLS in tools or not needs_search(searchable, context_limit):
        return ToolOffer(tools=tools, hidden=denied)
    active = find_active_names(history, searchable, context_limit)
    search = FindTools(
        spec=ToolSpec(
            name=FIND_TOOLS,
            description=find_tools_description(searchable, context_limit),
            input_schema=find_tools_schema(),
        ),
        searchable=tuple(searchable),
    )
    own = {name: tool for name, tool in tools.items() if mcp_origin(tool) is None}
    own[FIND_TOOLS] = search
    return ToolOffer(
        tools={name: own[name] for name in sorted(own)} | tools,
        hidden=(frozenset(tool.name for tool in searchable) - active) | denied,
    )


class FindTools(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`. Serial: direct calls of the same step count as older."""

    spec: ToolSpec
    searchable: tuple[SearchableTool, ...]
    effect: ToolEffect = "read"
    origin: Literal["chatd"] = "chatd"
    serial: bool = True
    exclusive: bool = False
    stops_turn: bool = False
    timeout_s: float = 30.0

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        del context
        query = read_query(args)
        if isinstance(query, str):
            return error_output(query)
        return ToolOutput(text=bytes(search_tools(self.searchable, query)).decode())

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None
