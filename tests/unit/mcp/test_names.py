"""Names of MCP tools: what providers accept, distinct, and stable."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatd.domain.mcp.servers import (
    MAX_MODEL_NAME_CHARS,
    ServerToolKey,
    assign_names,
    is_allowed,
    model_name,
)

ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}")


def key(slug: str, tool: str, server_id: str = "1") -> ServerToolKey:
    return ServerToolKey(slug=slug, server_id=server_id, tool=tool)


def names(*keys: ServerToolKey) -> dict[str, str]:
    return {name: f"{found.server_id}:{found.tool}" for name, found in assign_names(keys)}


@pytest.mark.parametrize(
    ("slug", "tool", "name"),
    [
        ("github", "search", "github__search"),
        ("github", "repos.list/all", "github__repos_list_all"),
        ("größe", "näm", "gr__e__n_m"),
        ("a", "with space", "a__with_space"),
    ],
)
def test_a_name_is_the_slug_and_the_tool_in_accepted_characters(
    slug: str, tool: str, name: str
) -> None:
    assert model_name(slug, tool) == name


def test_a_long_name_is_cut_and_keeps_apart_from_others_with_the_same_start() -> None:
    long = "x" * 100
    first, second = model_name("github", f"{long}1"), model_name("github", f"{long}2")
    assert len(first) == len(second) == MAX_MODEL_NAME_CHARS
    assert first != second
    assert first.startswith("github__xxx")


@pytest.mark.covers("mcp-2")
def test_colliding_names_get_numbers_and_keep_the_name_of_the_server() -> None:
    assert names(key("a", "b.c"), key("a", "b c"), key("a", "b_c")) == {
        "a__b_c": "1:b c",
        "a__b_c_2": "1:b.c",
        "a__b_c_3": "1:b_c",
    }


def test_two_servers_with_one_slug_are_told_apart_in_the_order_of_their_ids() -> None:
    assert names(key("a", "t", "2"), key("a", "t", "1")) == {"a__t": "1:t", "a__t_2": "2:t"}


def test_a_number_never_takes_the_name_of_another_tool() -> None:
    found = names(key("a", "t.x"), key("a", "t x"), key("a", "t_x_2"))
    assert found == {"a__t_x": "1:t x", "a__t_x_2": "1:t_x_2", "a__t_x_3": "1:t.x"}


def test_slugs_that_become_one_name_are_told_apart_in_their_order() -> None:
    first, second = key("b.c", "t"), key("b_c", "t")
    assert assign_names([first, second]) == assign_names([second, first])


@pytest.mark.covers("mcp-2")
@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.builds(key, st.text(max_size=70), st.text(max_size=90), st.sampled_from(["1", "2"])),
        max_size=12,
    )
)
def test_any_names_become_distinct_accepted_names_in_a_fixed_order(
    keys: list[ServerToolKey],
) -> None:
    named = assign_names(keys)
    assert {found for _, found in named} == set(keys)
    assert [name for name, _ in named] == sorted({name for name, _ in named})
    assert all(ACCEPTED.fullmatch(name) for name, _ in named)
    assert assign_names(reversed(keys)) == named


@pytest.mark.parametrize(
    ("allow", "deny", "left"),
    [
        ((), (), ["a", "b"]),
        (("a",), (), ["a"]),
        ((), ("a",), ["b"]),
        (("a",), ("a", "b"), ["a"]),
        (("A",), (), []),
    ],
    ids=["no list", "allow", "deny", "allow beats deny", "names are exact"],
)
def test_lists_choose_among_the_names_of_the_server(
    allow: tuple[str, ...], deny: tuple[str, ...], left: list[str]
) -> None:
    assert [tool for tool in ("a", "b") if is_allowed(tool, allow, deny)] == left
