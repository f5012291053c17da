"""The text of a message as the search reads it: without Markdown, folded, in pieces; snippets."""

import json
from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.parts import FilePart, FileReferencePart
from chatd.domain.chat_views.search import (
    MAX_ARGUMENT_CHARS,
    MAX_INDEXED_CHARS,
    MAX_QUERY_GRAMS,
    SNIPPET_CHARS,
    fold,
    has_terms,
    index_keys,
    make_snippet,
    message_text,
    one_line,
    parse_query,
    plain_text,
    query_grams,
    text_grams,
)
from chatd.domain.ids import UserId
from tests.support.factories import OWNER, call, message, result, text


@pytest.mark.parametrize(
    ("markdown", "plain"),
    [
        ("a **bold** and *slanted* word", "a bold and slanted word"),
        ("***both*** and ~~gone~~", "both and gone"),
        ("_two words_ but snake_case and __init__.py", "two words but snake_case and __init__.py"),
        ("## Title\n\ntext", "Title text"),
        ("- one\n* two\n+ [x] three\n1. four\n> five", "one two three four five"),
        ("run `git *x*` or ``a_b``", "run git *x* or a_b"),
        ("```py\n**kwargs\n# no title\n```\nend", "**kwargs # no title end"),
        ("~~~\n```\n~~~\nend", "``` end"),
        ('see [the docs](https://x.y/z "T")', "see the docs (https://x.y/z)"),
        ("![a picture](a.png) <https://x.y>", "a picture (a.png) https://x.y"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |", "a b 1 2"),
        ("one\n---\ntwo\n***\nthree\n===", "one two three"),
        ("2 * 3 * 4, a \\* b", "2 * 3 * 4, a * b"),
        ("--force x -y", "--force x -y"),
        ("not closed: **a `b [c](", "not closed: **a `b [c]("),
        ("", ""),
    ],
)
def test_the_marks_of_markdown_are_no_text(markdown: str, plain: str) -> None:
    assert one_line(plain_text(markdown)) == plain


@pytest.mark.parametrize("char", [*"*_`[]()<>#-|~\\ 1.", "[a](", "- ", "* a", "_a ", "| - ", "<a:"])
def test_markdown_of_any_length_is_read_in_one_pass(char: str) -> None:
    """A pattern that goes back over what it has read would take minutes for it."""
    assert len(plain_text(char * (MAX_INDEXED_CHARS // len(char)) + "x")) <= 2 * MAX_INDEXED_CHARS


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("Fence", "fence"),
        ("Über CAFÉ Łódź", "uber cafe łodz"),
        ("ΑΘΉΝΑ Ёлка", "αθηνα елка"),
        ("İstanbul ß ﬁ", "istanbul ß ﬁ"),
        ("\uff21\uff42\uff43", "abc"),
        ("한국어 がか 汉字", "한국어 がか 汉字"),
        ("🙂 ok", "🙂 ok"),
    ],
)
def test_folding_keeps_every_place(line: str, folded: str) -> None:
    assert fold(line) == folded
    assert len(folded) == len(line)


def test_decomposed_characters_are_composed_first() -> None:
    assert fold(one_line("Cafe\u0301")) == "cafe"


def test_commands_paths_and_files_are_part_of_the_text() -> None:
    args = '{"command": "pytest -q", "files": [{"path": "src/a.py", "line": 3}], "x": null}'
    shown = message(
        1,
        "assistant",
        text("I **run** it."),
        call("1", "execute", args),
        FilePart(media_type="image/png", name="shot.png"),
        FileReferencePart(file_name="b.py", start_line=1, end_line=1, content="x = 1"),
        result("1"),
    )
    assert message_text(shown) == "I run it. execute pytest -q src/a.py shot.png b.py x = 1"


def test_arguments_that_are_no_json_are_part_of_the_text() -> None:
    assert (
        message_text(message(1, "assistant", call("1", "go", None, args_text='{"a": "b')))
        == 'go {"a": "b'
    )


def test_long_arguments_are_cut() -> None:
    long = "y" * 100_000
    args = json.dumps({"content": long, "path": "a.py", "more": [long] * 9})
    found = message_text(message(1, "assistant", call("1", "write", args)))
    assert "a.py" in found
    assert MAX_ARGUMENT_CHARS < len(found) < 7 * MAX_ARGUMENT_CHARS


@pytest.mark.parametrize(
    "columns",
    [{"deleted": True}, {"compressed": True}, {"visibility": "model"}, {"role": "tool"}],
)
def test_what_people_do_not_see_is_not_searched(columns: dict[str, object]) -> None:
    assert (
        message_text(msgspec.structs.replace(message(1, "assistant", text("secret")), **columns))
        == ""
    )


FOUND = [
    ("A fence keeps a stale Worker out.", "fence"),
    ("A fence keeps a stale Worker out.", "fen"),
    ("A fence keeps a stale Worker out.", "ence"),
    ("A fence keeps a stale Worker out.", '"stale work"'),
    ("A fence keeps a stale Worker out.", "f"),
    ("A fence keeps a stale Worker out.", "wo fe"),
    ("execute pytest -q tests/store/test_x.py", "tests/store"),
    ("execute pytest -q tests/store/test_x.py", "store/test_x.py"),
    ("execute pytest -q tests/store/test_x.py", "-q"),
    ("execute pytest -q tests/store/test_x.py", '"pytest -q"'),
    ("git commit -m 'C++ 100%_x'", "c+"),
    ("git commit -m 'C++ 100%_x'", "100%_x"),
    ("Das Café ist müde", "cafe"),
    ("これは東京の天気です", "東京"),
    ("これは東京の天気です", "天"),
    ("これは東京の天気です", "京の天"),
    ("한국어를 배우다", "국어"),
    ("Привет, мир", "прив"),
]
MISSING = [
    ("A fence keeps a stale Worker out.", "gate"),
    ("A fence keeps a stale Worker out.", "en"),
    ("A fence keeps a stale Worker out.", "fence gate"),
    ("A fence keeps a stale Worker out.", '"worker stale"'),
    ("これは東京の天気です", "京東"),
]


@pytest.mark.parametrize(("line", "query"), FOUND)
def test_a_piece_of_a_text_is_found_by_its_grams(line: str, query: str) -> None:
    folded, terms = fold(line), parse_query(query).texts
    assert query_grams(terms)
    assert query_grams(terms) <= text_grams(folded)
    assert has_terms(folded, terms)
    assert make_snippet(line, terms).highlights


@pytest.mark.parametrize(("line", "query"), MISSING)
def test_what_a_text_does_not_have_is_not_found(line: str, query: str) -> None:
    folded, terms = fold(line), parse_query(query).texts
    assert not (query_grams(terms) <= text_grams(folded) and has_terms(folded, terms))


def test_a_long_query_has_a_limited_number_of_grams() -> None:
    for terms in (["abcdefghij" * 99], [f"word{number}" for number in range(30)]):
        assert 0 < len(query_grams(terms)) <= MAX_QUERY_GRAMS


def test_the_keys_of_owners_differ_and_fit_into_four_bytes() -> None:
    grams = text_grams("a fence")
    for number in (0, OWNER.int, 2**128 - 1):
        keys = index_keys(UserId(UUID(int=number)), grams)
        assert len(keys) == len(grams)
        assert all(-(2**31) <= key < 2**31 for key in keys)
    other = UserId(UUID(int=OWNER.int ^ 1))
    assert not set(index_keys(OWNER, grams)) & set(index_keys(other, grams))


@pytest.mark.parametrize(
    ("line", "terms", "marked"),
    [
        ("A fence and a lease.", ["lease"], ["lease"]),
        ("Fence, FENCE fences", ["fence"], ["Fence", "FENCE", "fence"]),
        ("Out of memory", ["out of memory"], ["Out of memory"]),
        ("Über Café", ["uber", "cafe"], ["Über", "Café"]),
        ("stalest", ["stale", "lest"], ["stalest"]),
        ("an amber ant", ["a"], ["a", "a", "a"]),
        ("Nothing here", ["lease"], []),
        ("", ["lease"], []),
    ],
)
def test_a_snippet_marks_the_terms(line: str, terms: list[str], marked: list[str]) -> None:
    snippet = make_snippet(line, terms)
    assert snippet.text == line
    assert [snippet.text[start:end] for start, end in snippet.highlights] == marked


def test_a_snippet_of_a_long_text_begins_shortly_before_the_first_term() -> None:
    snippet = make_snippet("some words " * 500 + "the lease " + "and more " * 500, ["lease"])
    assert len(snippet.text) == SNIPPET_CHARS
    ((start, end),) = snippet.highlights
    assert snippet.text[start:end] == "lease"
    assert start < 45
    assert snippet.text.startswith(("some", "words"))
