"""Tool search: the catalogue, scores, and which tools are active."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import ToolCallPart, ToolResultPart
from chatd.domain.ids import ToolCallId
from chatd.domain.mcp.tool_search import (
    FIND_TOOLS,
    MAX_OFFERED_MCP_TOOLS,
    SearchableTool,
    budget_chars,
    find_active_names,
    find_tools_description,
    needs_search,
    read_query,
    search_tools,
)
from tests.support.factories import message


def tool(name: str, description: str = "", server: str = "git", chars: int = 0) -> SearchableTool:
    schema = {"type": "object", "properties": {"path": {"description": "x" * chars}}}
    return SearchableTool(
        name=name, description=description, server=server, schema=Raw(msgspec.json.encode(schema))
    )


ISSUES = [
    tool("git__create_issue", "Opens an issue."),
    tool("git__list_issues", "All issues of a repository."),
    tool("git__merge", "Merges a branch; closes its issue."),
    tool("mail__send", "Sends a letter.", server="mail"),
]
MANY = [tool(f"git__tool_{number:03}", f"Does number {number}. " * 5) for number in range(500)]


def found(*queries: str, names: tuple[str, ...] = ()) -> list[str]:
    query = read_query(Raw(msgspec.json.encode({"queries": queries, "names": names})))
    assert not isinstance(query, str)
    result = msgspec.json.decode(search_tools(ISSUES, query), type=dict[str, object])
    assert result["total_deferred"] == 4
    return msgspec.convert(result["activated"], list[str])


def test_words_of_the_name_count_more_than_the_description() -> None:
    assert found("issue") == ["git__create_issue", "git__list_issues", "git__merge"]
    assert found("letter") == ["mail__send"]
    assert found("nothing like it") == []


def test_a_server_before_a_colon_limits_the_search() -> None:
    assert found("mail: issue") == []
    assert found("MAIL: send") == ["mail__send"]
    assert found("mail:") == ["mail__send"]


def test_named_tools_come_first_and_unknown_ones_are_told() -> None:
    assert found("letter", names=("git__merge", "nope")) == ["git__merge", "mail__send"]
    query = read_query(Raw(b'{"names":["nope"]}'))
    assert not isinstance(query, str)
    assert b'"unknown_names":["nope"]' in bytes(search_tools(ISSUES, query))


def test_at_most_twenty_tools_are_found() -> None:
    query = read_query(Raw(b'{"queries":["number"]}'))
    assert not isinstance(query, str)
    result = msgspec.json.decode(search_tools(MANY, query), type=dict[str, object])
    assert len(msgspec.convert(result["activated"], list[str])) == 20


@pytest.mark.parametrize(
    "args",
    [
        *(b"{}", b"[]", b"no", b'{"queries":[]}', b'{"queries":[""]}', b'{"queries":[1]}'),
        msgspec.json.encode({"queries": ["a"] * 11}),
        msgspec.json.encode({"names": ["a"] * 41}),
    ],
)
def test_a_query_without_words_or_with_too_many_is_refused_with_advice(args: bytes) -> None:
    assert isinstance(read_query(Raw(args)), str)


def test_one_text_in_place_of_a_list_is_accepted() -> None:
    assert not isinstance(read_query(Raw(b'{"queries":"create issue"}')), str)


def test_more_tools_than_vendors_take_need_a_search() -> None:
    small = [tool(f"t{number}") for number in range(MAX_OFFERED_MCP_TOOLS + 1)]
    assert needs_search(small, 1_000_000)
    assert not needs_search(small[1:], 1_000_000)
    called = History().called(*(each.name for each in small))
    assert len(called.active(small, 1_000_000)) == MAX_OFFERED_MCP_TOOLS


def test_few_tools_need_no_search() -> None:
    assert not needs_search(ISSUES, 128_000)
    assert needs_search(MANY, 128_000)
    assert needs_search(MANY, None)


@pytest.mark.parametrize("window", [4_000, 16_000, 64_000, 128_000, 1_000_000, None])
def test_the_catalogue_fits_and_degrades(window: int | None) -> None:
    text = find_tools_description(MANY, window)
    assert len(text) <= max(min(10_000, budget_chars(window)), 500)
    assert find_tools_description(list(reversed(MANY)), window) == text


def test_the_catalogue_names_what_fits() -> None:
    assert "git__merge: Merges a branch" in find_tools_description(ISSUES, 128_000)
    assert "git: git__tool_000, git__tool_001" in find_tools_description(MANY, 128_000)
    assert "git: 500 tools" in find_tools_description(MANY, 16_000)
    assert "500 tools of 1 servers." in find_tools_description(MANY, 4_000)


class History:
    """Steps of calls and results."""

    def __init__(self) -> None:
        self.rows: list[Message] = []

    def step(self, *calls: tuple[str, bytes, bool]) -> "History":
        number = len(self.rows)
        ids = [ToolCallId(f"{number}-{index}") for index in range(len(calls))]
        parts = [
            ToolCallPart(tool_call_id=call_id, tool_name=name, args=Raw(b"{}"))
            for call_id, (name, _, _) in zip(ids, calls, strict=True)
        ]
        self.rows.append(message(number + 1, "assistant", *parts))
        for call_id, (name, result, is_error) in zip(ids, calls, strict=True):
            part = ToolResultPart(
                tool_call_id=call_id, tool_name=name, result=Raw(result), is_error=is_error
            )
            self.rows.append(message(len(self.rows) + 1, "tool", part))
        return self

    def called(self, *names: str, is_error: bool = False) -> "History":
        return self.step(*((name, b"{}", is_error) for name in names))

    def searched(self, *names: str) -> "History":
        return self.step((FIND_TOOLS, msgspec.json.encode({"activated": names}), False))

    def active(self, tools: list[SearchableTool], window: int = 128_000) -> frozenset[str]:
        return find_active_names(self.rows, tools, window)


def test_found_and_called_tools_are_active() -> None:
    assert History().active(ISSUES) == frozenset()
    assert History().searched("git__merge", "nope").active(ISSUES) == {"git__merge"}
    assert History().called("mail__send").active(ISSUES) == {"mail__send"}
    assert History().called("mail__send", is_error=True).active(ISSUES) == {"mail__send"}


LARGE = [tool(f"t{number}", chars=4000) for number in range(6)]
"""Three of them fit into the budget of a window of 64,000 tokens beside the catalogue."""


def test_of_too_many_the_oldest_are_shed() -> None:
    history = History().called("t0").called("t1").searched("t2").called("t3")
    assert history.active(LARGE, 64_000) == {"t1", "t2", "t3"}
    assert history.called("t0").active(LARGE, 64_000) == {"t0", "t2", "t3"}


def test_failed_calls_are_shed_first_and_direct_calls_of_a_step_last() -> None:
    failed = History().called("t0").called("t1").searched("t2").called("t3", is_error=True)
    assert failed.active(LARGE, 64_000) == {"t0", "t1", "t2"}
    search = (FIND_TOOLS, msgspec.json.encode({"activated": ["t1", "t2", "t3"]}), False)
    both = History().step(search, ("t0", b"{}", False))
    assert both.active(LARGE, 64_000) == {"t0", "t1", "t2"}


def test_the_newest_tool_is_active_even_if_it_does_not_fit() -> None:
    history = History().called("t0").called("t1")
    assert history.active(LARGE, 4_000) == {"t1"}
