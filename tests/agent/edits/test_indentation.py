"""Indentation of edits that match except for blanks."""

from textwrap import dedent

import pytest

from chatd.agent.files.edit_matcher import apply_edit
from chatd.agent.files.edit_splice import file_unit, indent_unit, reindent, typical_step

TABS = "func f() {\n\tif a {\n\t\tfoo()\n\t}\n}\n"
FOUR = "def f():\n    if a:\n        foo()\n    return 1\n"


def edit(content: str, search: str, new: str) -> str:
    return apply_edit(content, search, new, replace_all=False)


@pytest.mark.covers("files-7")
def test_spaces_are_converted_to_tabs_with_a_deeper_line() -> None:
    search = "    if a {\n        foo()\n    }\n"
    new = "    if a {\n        if b {\n            foo()\n        }\n    }\n"
    assert edit(TABS, search, new) == (
        "func f() {\n\tif a {\n\t\tif b {\n\t\t\tfoo()\n\t\t}\n\t}\n}\n"
    )


def test_two_spaces_are_converted_to_four() -> None:
    search = "  if a:\n    foo()\n"
    new = "  if a:\n    foo()\n    if b:\n      bar()\n"
    assert edit(FOUR, search, new) == (
        "def f():\n    if a:\n        foo()\n        if b:\n            bar()\n    return 1\n"
    )


@pytest.mark.covers("files-7")
def test_a_search_without_the_outer_indent_is_indented() -> None:
    search = "if a:\n    foo()\n"
    new = "if a:\n    if b:\n        foo()\n    else:\n        bar()\n"
    assert edit(FOUR, search, new) == (
        "def f():\n    if a:\n        if b:\n            foo()\n        else:\n"
        "            bar()\n    return 1\n"
    )


def test_a_block_moved_out_of_its_condition_loses_a_level() -> None:
    search = "if a {\n    foo()\n}\n"
    new = "foo()\n"
    assert edit(TABS, search, new) == "func f() {\n\tfoo()\n}\n"


def test_a_new_text_with_the_file_indent_is_not_indented_again() -> None:
    # The search was trimmed, the new text was not.
    content = "class A:\n    x = 1 \n    y = 2\n"
    assert edit(content, "x = 1\ny = 2\n", "    x = 3\n    y = 4\n") == (
        "class A:\n    x = 3 \n    y = 4\n"
    )


def test_a_new_text_with_other_blanks_is_converted_to_the_file_indent() -> None:
    assert edit(TABS, "foo() \n", "        bar()\n        baz()\n") == TABS.replace(
        "\t\tfoo()\n", "\t\tbar()\n\t\tbaz()\n"
    )


def test_a_changed_indent_shifts_by_the_same_levels() -> None:
    content = "a:\n\tb\n\tc\n"
    assert edit(content, "  b\n  c\n", "  b\n    c\n") == "a:\n\tb\n\t\tc\n"
    assert edit(content, "  b\n  c\n", "  b\nc\n") == "a:\n\tb\nc\n"


@pytest.mark.covers("files-7")
def test_mixed_blanks_are_inherited() -> None:
    content = "a:\n \tb\n"
    assert edit(content, "    b\n", "    b\n        c\n    d\n") == "a:\n \tb\n \tc\n \td\n"


def test_an_odd_number_of_spaces_is_kept() -> None:
    content = "    call(a,\n         b)\n"
    assert edit(content, "  call(a,\n       b)\n", "  call(a,\n       b,\n       c)\n") == (
        "    call(a,\n         b,\n         c)\n"
    )


def test_a_search_with_the_file_indent_keeps_the_new_indent() -> None:
    content = "a: \n  b\n"
    assert edit(content, "a:\n  b\n", "a:\n\tc\n   d\n") == "a: \n\tc\n   d\n"


def test_inserted_empty_lines_stay_empty() -> None:
    search = "    if a {\n        foo()\n"
    new = "    if a {\n\n        bar()\n        \n        foo()\n"
    assert edit(TABS, search, new) == (
        "func f() {\n\tif a {\n\n\t\tbar()\n        \n\t\tfoo()\n\t}\n}\n"
    )


@pytest.mark.covers("files-8")
def test_each_match_gets_its_own_indent() -> None:
    content = dedent(
        """\
        a:
            x()
        b:
                x()
        """
    )
    assert apply_edit(content, "  x() \n", "  x()\n  y()\n", replace_all=True) == dedent(
        """\
        a:
            x()
            y()
        b:
                x()
                y()
        """
    )


def test_lines_are_paired_by_body_not_by_position() -> None:
    content = "a  \n  b\t\n    c \n"
    assert edit(content, "a\nb\nc\n", "new\na\nb\nc\n") == "new\na  \n  b\t\n    c \n"
    assert edit(content, "a\nb\nc\n", "c\n") == "    c \n"


@pytest.mark.parametrize(
    ("leads", "unit"),
    [
        ([], None),
        (["", ""], None),
        (["\t", "\t\t"], "\t"),
        (["    ", "        "], "    "),
        (["  ", "      "], "  "),
        (["  ", "   "], None),
        (["\t", "  "], None),
        ([" \t"], None),
        (["\f"], None),
    ],
)
def test_the_indent_unit_divides_all_indents(leads: list[str], unit: str | None) -> None:
    assert indent_unit(leads) == unit


def test_the_unit_of_one_deep_line_comes_from_the_file() -> None:
    assert file_unit(["        "], ["", "    ", "        ", ""]) == "    "
    assert file_unit(["        "], ["        "]) == "        "
    assert file_unit([""], ["", "\t", ""]) == "\t"
    assert file_unit(["\t", "  "], ["", "\t"]) is None
    assert file_unit([""], [""]) is None
    assert typical_step(["", " \t", ""]) is None


@pytest.mark.parametrize(
    ("base", "old", "new", "caller", "file", "expected"),
    [
        ("\t", "  ", "  ", None, None, "\t"),
        ("\t", "  ", "    ", "  ", "\t", "\t\t"),
        ("\t\t", "    ", "  ", "  ", "\t", "\t"),
        ("", "    ", "  ", "  ", "\t", ""),
        ("\t", "", "  ", None, "\t", "\t"),
        ("  ", "", "   ", None, None, "     "),
        ("     ", "   ", "", None, None, "  "),
        ("\t", "   ", "", None, None, "\t"),
        ("\t", " \t", "\t ", None, None, "\t"),
    ],
)
def test_reindent_shifts_by_levels(
    base: str, old: str, new: str, caller: str | None, file: str | None, expected: str
) -> None:
    assert reindent(base, old=old, new=new, caller=caller, file=file) == expected
