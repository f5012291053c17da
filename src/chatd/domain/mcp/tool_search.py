"""Tool search: when the schemas of MCP tools outgrow their share of the prompt, the model is sent a
catalogue and the tool `find_tools` instead, and the schemas of those tools that it found or called.

Which ones these are is derived from history at every step, so every replica decides alike.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import ToolCallPart, ToolResultPart
from chatd.domain.text import clip, parse_json

FIND_TOOLS: Final = "find_tools"
DEFAULT_CONTEXT_TOKENS: Final = 128_000
"""Of a model with an unknown context limit."""
MAX_CATALOGUE_TOKENS: Final = 4000
MAX_OFFERED_MCP_TOOLS: Final = 90
"""Small tools can fit into the budget by hundreds; vendors refuse more than 128 tools in all."""
MAX_TOOL_QUERIES: Final = 10
MAX_TOOL_NAMES: Final = 40
MAX_TOOL_MATCHES: Final = 20

_CHARS_PER_TOKEN: Final = 2.5
_SUMMARY_CHARS: Final = 100
_MIN_PART_CHARS: Final = 3
"""Shorter words count only as whole words of a name."""
_MATCH_CHARS: Final = 300
_FRAME_CHARS: Final = 1200
"""Of `find_tools` without its catalogue."""

_Object = Mapping[str, object]
_WORD: Final = re.compile(r"[^\W_]+")


class SearchableTool(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    schema: Raw
    server: str

    @property
    def chars(self) -> int:
        """What it adds to a prompt."""
        return len(self.name) + len(self.description) + len(bytes(self.schema))


class ToolQuery(Struct, frozen=True, kw_only=True):
    queries: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def budget_chars(context_limit: int | None) -> int:
    """A tenth of the context, for the schemas of all MCP tools."""
    tokens = (context_limit or DEFAULT_CONTEXT_TOKENS) // 10
    return int(tokens * _CHARS_PER_TOKEN)


def needs_search(tools: Collection[SearchableTool], context_limit: int | None) -> bool:
    is_many = len(tools) > MAX_OFFERED_MCP_TOOLS
    return is_many or sum(tool.chars for tool in tools) > budget_chars(context_limit)


# The catalogue


def find_tools_description(tools: Sequence[SearchableTool], context_limit: int | None) -> str:
    """It does not change while the tools stay: the prompt's prefix stays cached."""
    limit = min(int(MAX_CATALOGUE_TOKENS * _CHARS_PER_TOKEN), budget_chars(context_limit))
    intro = (
        "Finds tools of connected servers. They can be called by name, but their parameters are"
        " hidden until you look them up here: the tools found can be used from the next step on."
        " A query is a few words; `server: words` searches one server."
    )
    return f"{intro}\n{_catalogue(tools, max(limit - _FRAME_CHARS, 0))}"


def find_tools_schema() -> Raw:
    texts = {"type": "array", "items": {"type": "string"}}
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            "queries": {
                **texts,
                "maxItems": MAX_TOOL_QUERIES,
                "description": "What the tools should do, such as `create issue`.",
            },
            "names": {
                **texts,
                "maxItems": MAX_TOOL_NAMES,
                "description": "Names of tools of the catalogue.",
            },
        },
        "required": [],
    }
    return Raw(msgspec.json.encode(schema))


def _catalogue(tools: Sequence[SearchableTool], limit: int) -> str:
    by_server: dict[str, list[SearchableTool]] = {}
    for tool in sorted(tools, key=lambda tool: (tool.server, tool.name)):
        by_server.setdefault(tool.server, []).append(tool)
    levels = (
        "\n".join(f"{server}:\n{_summaries(each)}" for server, each in by_server.items()),
        "\n".join(f"{server}: {_names(each)}" for server, each in by_server.items()),
        "; ".join(f"{server}: {len(each)} tools" for server, each in by_server.items()),
    )
    for text in levels:
        if len(text) <= limit:
            return text
    return f"{len(tools)} tools of {len(by_server)} servers."


def _summaries(tools: Iterable[SearchableTool]) -> str:
    return "\n".join(f"- {tool.name}: {_summary(tool, _SUMMARY_CHARS)}" for tool in tools)


def _names(tools: Iterable[SearchableTool]) -> str:
    return ", ".join(tool.name for tool in tools)


def _summary(tool: SearchableTool, chars: int) -> str:
    return clip(" ".join(tool.description.split()), chars)


# The search


def read_query(args: Raw) -> ToolQuery | str:
    """The query, or what is wrong with it."""
    value = parse_json(args)
    fields = cast("_Object", value if isinstance(value, dict) else {})
    queries, names = _texts(fields.get("queries")), _texts(fields.get("names"))
    if not queries and not names:
        return "Give `queries`, a list of a few words each, or `names`, a list of tools."
    if len(queries) > MAX_TOOL_QUERIES:
        return f"queries has {len(queries)} entries; at most {MAX_TOOL_QUERIES} are allowed."
    if len(names) > MAX_TOOL_NAMES:
        return f"names has {len(names)} entries; at most {MAX_TOOL_NAMES} are allowed."
    return ToolQuery(queries=queries, names=names)


def _texts(value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    items = cast("Sequence[object]", given) if isinstance(given, list) else ()
    return tuple(item for item in items if isinstance(item, str) and item.strip())


def search_tools(tools: Sequence[SearchableTool], query: ToolQuery) -> Raw:
    """The result of `find_tools`: its `activated` names are what later steps read."""
    by_name = {tool.name: tool for tool in tools}
    scores: dict[str, int] = {}
    for text in query.queries:
        for tool, score in _scored(tools, text):
            scores[tool.name] = max(scores.get(tool.name, 0), score)
    ranked = sorted(scores, key=lambda name: (-scores[name], name))[:MAX_TOOL_MATCHES]
    named = [name for name in query.names if name in by_name]
    activated = list(dict.fromkeys((*named, *ranked)))
    result = {
        "matches": [
            {
                "name": name,
                "server": by_name[name].server,
                "description": _summary(by_name[name], _MATCH_CHARS),
            }
            for name in activated
        ],
        "activated": activated,
        "total_deferred": len(tools),
    }
    if unknown := [name for name in query.names if name not in by_name]:
        result["unknown_names"] = unknown
    return Raw(msgspec.json.encode(result))


def _scored(tools: Sequence[SearchableTool], text: str) -> Iterable[tuple[SearchableTool, int]]:
    server, words_text = _scope({tool.server for tool in tools}, text)
    words = [word.casefold() for word in _WORD.findall(words_text)]
    for tool in tools:
        if server is not None and tool.server != server:
            continue
        score = sum(_word_score(tool, word) for word in words)
        if score or (server is not None and not words):
            yield tool, score


def _scope(servers: Collection[str], text: str) -> tuple[str | None, str]:
    """`server: words`. Longer names first, so that `git` does not win over `git-hub`."""
    for fold in (str, str.casefold):
        for server in sorted(servers, key=lambda name: (-len(name), name)):
            if fold(text.strip()).startswith(f"{fold(server)}:"):
                return server, text.strip()[len(server) + 1 :]
    return None, text


def _word_score(tool: SearchableTool, word: str) -> int:
    name = tool.name.casefold()
    score = 0
    if word in (part.casefold() for part in _WORD.findall(tool.name)):
        score += 8
    elif len(word) < _MIN_PART_CHARS:
        return 0
    elif word in name:
        score += 5
    if word in tool.description.casefold():
        score += 2
    if word in bytes(tool.schema).decode("utf-8", "replace").casefold():
        score += 1
    return score + (1 if word in tool.server.casefold() else 0)


# Which tools are active


def find_active_names(
    history: Sequence[Message], tools: Sequence[SearchableTool], context_limit: int | None
) -> frozenset[str]:
    """The most recently called or found tools that fit into the budget beside the catalogue; the
    newest one always."""
    by_name = {tool.name: tool for tool in tools}
    left = budget_chars(context_limit) - len(find_tools_description(tools, context_limit))
    left -= len(bytes(find_tools_schema()))
    active: set[str] = set()
    for name in _rank(history, by_name.keys()):
        left -= by_name[name].chars
        if (left < 0 and active) or len(active) == MAX_OFFERED_MCP_TOOLS:
            break
        active.add(name)
    return frozenset(active)


def _rank(history: Sequence[Message], known: Collection[str]) -> list[str]:
    """Newest first; of one step direct calls before searches; failed calls come last."""
    results: dict[str, ToolResultPart] = {}
    ranked: dict[str, None] = {}
    failed: dict[str, None] = {}
    for message in reversed(history):
        calls: list[ToolCallPart] = []
        for part in message.content:
            if isinstance(part, ToolResultPart):
                results[part.tool_call_id] = part
            elif isinstance(part, ToolCallPart):
                calls.append(part)
        for call in calls:
            result = results.get(call.tool_call_id)
            target = failed if result is not None and result.is_error else ranked
            target[call.tool_name] = None
        for call in calls:
            if call.tool_name == FIND_TOOLS:
                ranked.update(dict.fromkeys(_activated(results.get(call.tool_call_id))))
    return [name for name in dict.fromkeys((*ranked, *failed)) if name in known]


def _activated(result: ToolResultPart | None) -> Sequence[str]:
    if result is None or result.result is UNSET or result.is_error:
        return ()
    value = parse_json(result.result)
    return _texts(cast("_Object", value).get("activated")) if isinstance(value, dict) else ()
