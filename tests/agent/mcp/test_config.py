"""`.mcp.json`: transports, names, variables, and what is wrong with a file or a server."""

import json

import pytest

from chatd.agent.context.mcp_config import (
    McpConfigError,
    McpServerConfig,
    expand,
    merge_configs,
    parse_config,
)


def servers(**entries: object) -> dict[str, McpServerConfig]:
    found = parse_config(json.dumps({"mcpServers": entries}).encode())
    return {server.name: server for server in found}


def test_the_transport_follows_from_the_type_or_from_what_is_given() -> None:
    found = servers(
        a={"command": "run", "args": ["-x"], "env": {"K": "v"}},
        b={"url": "https://example.com/mcp", "headers": {"X": "y"}},
        c={"type": "http", "command": "ignored", "url": "http://h"},
        d={"type": "streamable-http", "url": "http://h"},
    )
    assert {name: server.transport for name, server in found.items()} == {
        "a": "stdio",
        "b": "http",
        "c": "http",
        "d": "http",
    }
    assert (found["a"].args, found["a"].env) == (("-x",), (("K", "v"),))
    assert found["b"].headers == (("X", "y"),)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({}, "needs a command or a url"),
        ({"type": "sse", "url": "http://h"}, "sse is not supported"),
        ({"type": "pigeon", "url": "http://h"}, "'pigeon' is unknown"),
        ({"type": "stdio"}, "needs a command"),
        ({"type": "http"}, "needs a url"),
        ({"command": 1}, "command must be a text"),
        ({"command": "a", "args": "b"}, "args must be a list of texts"),
        ({"command": "a", "env": {"K": 1}}, "env must be a map of texts"),
        ("text", "must be an object"),
    ],
)
def test_a_server_that_cannot_be_used_says_why_and_leaves_the_others_alone(
    entry: object, error: str
) -> None:
    found = servers(bad=entry, good={"command": "run"})
    assert error in found["bad"].error
    assert found["good"].error == ""


@pytest.mark.parametrize("name", ["a__b", "_a", "a_", "", "a b", "x" * 65])
def test_a_name_that_makes_tool_names_ambiguous_is_refused(name: str) -> None:
    [found] = parse_config(json.dumps({"mcpServers": {name: {"command": "run"}}}).encode())
    assert "name" in found.error


def test_servers_are_sorted_and_the_first_file_wins() -> None:
    assert list(servers(b={"command": "b"}, a={"command": "a"})) == ["a", "b"]
    first = McpServerConfig("a", command="one")
    merged = merge_configs([first, McpServerConfig("a", command="two"), McpServerConfig("B")])
    assert [(server.name, server.command) for server in merged] == [("B", ""), ("a", "one")]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"mcpServers": []}', b"[" * 100_000])
def test_a_malformed_file_is_an_error(data: bytes) -> None:
    with pytest.raises(McpConfigError):
        parse_config(data)


@pytest.mark.parametrize("data", [b"{}", b'{"mcpServers": {}}'])
def test_a_file_without_servers_has_none(data: bytes) -> None:
    assert parse_config(data) == []


def test_variables_are_expanded() -> None:
    variables = {"TOKEN": "t", "EMPTY": ""}
    assert expand("Bearer ${TOKEN}", variables) == "Bearer t"
    assert expand("${NONE}${EMPTY:-d}${NONE:-e}", variables) == "de"
    assert expand("$TOKEN $${", variables) == "$TOKEN $${"
