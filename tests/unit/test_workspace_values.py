"""Workspace names, parameter values and the limits of a workspace context."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.domain.errors import InvalidInput
from chatd.domain.workspace.agent_api import ContextResource, WorkspaceContext, check_context
from chatd.domain.workspace.entities import Parameter, ParameterOption
from chatd.domain.workspace.templates import (
    MAX_PARAMETER_BYTES,
    choose_name,
    generated_name,
    is_valid_name,
    resolve_parameters,
    slug,
)

DRAW = b"\x0f\xa2"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("work", True),
        ("Work-2", True),
        ("a", True),
        ("a" * 32, True),
        ("a" * 33, False),
        ("", False),
        ("-a", False),
        ("a-", False),
        ("a--b", False),
        ("a_b", False),
        ("a b", False),
        ("käse", False),
        ("a\n", False),
    ],
)
def test_a_name_is_valid_or_not(text: str, valid: object) -> None:
    assert is_valid_name(text) is valid


@pytest.mark.parametrize(
    ("requested", "name"),
    [
        ("work", "work"),
        ("My Work!", "my-work-0fa2"),
        ("Käse & Brot", "kase-brot-0fa2"),
        ("", "scratch-0fa2"),
        ("日本", "scratch-0fa2"),
        ("x" * 60, "x" * 27 + "-0fa2"),
        ("a" * 26 + "--b", "a" * 26 + "-0fa2"),
    ],
)
def test_an_invalid_requested_name_is_replaced_by_a_generated_one(
    requested: str, name: str
) -> None:
    assert choose_name(requested, "scratch", DRAW) == name


@given(st.text(max_size=60), st.text(max_size=60), st.binary(max_size=3))
def test_the_chosen_name_is_always_valid(requested: str, template: str, draw: bytes) -> None:
    assert is_valid_name(choose_name(requested, template, draw))
    assert is_valid_name(generated_name(template, draw))
    assert len(slug(requested)) <= 27


COLOURS = (ParameterOption(name="Red", value="red"), ParameterOption(name="Blue", value="blue"))


@pytest.mark.parametrize(
    ("parameter", "value", "problem"),
    [
        (Parameter(name="p"), "anything", None),
        (Parameter(name="p"), "a\0b", "characters"),
        (Parameter(name="p"), "a\ud800b", "characters"),
        (Parameter(name="p"), "x" * (MAX_PARAMETER_BYTES + 1), "longer"),
        (Parameter(name="p", regex="^[a-z]+$"), "abc", None),
        (Parameter(name="p", regex="^[a-z]+$"), "ABC", "must match"),
        (Parameter(name="p", regex="^a", regex_error="Begin with a."), "b", "Begin with a."),
        (Parameter(name="p", regex="("), "b", "not a valid regular expression"),
        (Parameter(name="p", options=COLOURS), "red", None),
        (Parameter(name="p", options=COLOURS), "Red", "one of: red, blue"),
        (Parameter(name="p", type="number"), "1.5", None),
        (Parameter(name="p", type="number"), "one", "a number"),
        (Parameter(name="p", type="number"), "nan", "a number"),
        (Parameter(name="p", type="number"), "inf", "a number"),
        (Parameter(name="p", type="number", min=1, max=3), "0.9", "at least 1"),
        (Parameter(name="p", type="number", min=1, max=3), "3.1", "at most 3"),
        (Parameter(name="p", type="number", min=1, max=3), "3", None),
        (Parameter(name="p", type="bool"), "true", None),
        (Parameter(name="p", type="bool"), "yes", "true or false"),
        (Parameter(name="p", type="list(string)"), '["a"]', None),
        (Parameter(name="p", type="list(string)"), "a,b", "JSON list"),
        (Parameter(name="p", type="list(string)"), "[1]", "JSON list"),
        (Parameter(name="p", type="list(string)", options=COLOURS), '["red","blue"]', None),
        (Parameter(name="p", type="list(string)", options=COLOURS), '["red","x"]', "one of"),
    ],
)
def test_a_value_is_checked_against_its_parameter(
    parameter: Parameter, value: str, problem: str | None
) -> None:
    resolved = resolve_parameters([parameter], {"p": value})
    if problem is None:
        assert resolved.problems == ()
        assert resolved.values == {"p": value}
    else:
        [found] = resolved.problems
        assert found.field == "p"
        assert problem in found.detail


ALL = (
    Parameter(name="size", default="2"),
    Parameter(name="repo", required=True, mutable=False),
    Parameter(name="once", default="no", ephemeral=True),
    Parameter(name="free"),
)


@pytest.mark.parametrize(
    ("given", "before", "values", "wrong"),
    [
        ({"repo": "a"}, None, {"size": "2", "repo": "a", "once": "no"}, []),
        ({}, None, {"size": "2", "once": "no"}, ["repo"]),
        (
            {"repo": "a", "x": "1", "y": "2"},
            None,
            {"size": "2", "repo": "a", "once": "no"},
            ["x", "y"],
        ),
        ({}, {"repo": "a", "size": "4"}, {"size": "4", "repo": "a", "once": "no"}, []),
        ({"repo": "a"}, {"repo": "a"}, {"size": "2", "repo": "a", "once": "no"}, []),
        ({"repo": "b"}, {"repo": "a"}, {"size": "2", "repo": "b", "once": "no"}, ["repo"]),
        ({"repo": "b"}, {}, {"size": "2", "repo": "b", "once": "no"}, []),
        (
            {"once": "yes"},
            {"repo": "a", "old": "1"},
            {"size": "2", "repo": "a", "once": "yes"},
            [],
        ),
        ({}, {"repo": "a", "once": "yes"}, {"size": "2", "repo": "a", "once": "no"}, []),
        ({"free": ""}, {"repo": "a"}, {"size": "2", "repo": "a", "once": "no", "free": ""}, []),
    ],
)
def test_a_given_value_comes_before_the_previous_one_and_that_before_the_default(
    given: dict[str, str],
    before: dict[str, str] | None,
    values: dict[str, str],
    wrong: list[str],
) -> None:
    resolved = resolve_parameters(ALL, given, before)
    assert resolved.values == values
    assert [problem.field for problem in resolved.problems] == wrong


def test_too_many_parameters_are_one_problem() -> None:
    resolved = resolve_parameters(ALL, {f"p{n}": "" for n in range(101)})
    assert [problem.field for problem in resolved.problems] == ["parameters"]


def resource(**columns: object) -> ContextResource:
    usual: dict[str, object] = {"kind": "instruction_file", "source": "/a", "status": "ok"}
    return ContextResource(**(usual | columns))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("resources", "version", "field"),
    [
        ((), 1, None),
        ((resource(content="x" * 262_144),) * 16, 1, None),
        ((resource(content="x" * 262_145),), 1, "resources[0].content"),
        ((resource(), resource(source="x" * 1025)), 1, "resources[1].source"),
        ((resource(error="x" * 4097),), 1, "resources[0].error"),
        ((resource(),) * 1000, 1, None),
        ((resource(),) * 1001, 1, "resources"),
        ((resource(content="x" * 262_144),) * 17, 1, "resources"),
        ((), 0, "version"),
    ],
)
def test_a_context_over_a_limit_is_rejected(
    resources: tuple[ContextResource, ...], version: int, field: str | None
) -> None:
    context = WorkspaceContext(
        version=version, hash="h", directory="/", os="linux", resources=resources
    )
    if field is None:
        check_context(context)
        return
    with pytest.raises(InvalidInput) as refused:
        check_context(context)
    assert refused.value.field == field
