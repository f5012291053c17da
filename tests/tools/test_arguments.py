"""What a model may write into a call, and what it is told when it should not have."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.errors import ToolError
from chatd.tools.arguments import Arguments, duration


def args(**values: object) -> Arguments:
    return Arguments.of(Raw(msgspec.json.encode(values)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("2h", 7200),
        ("1.5s", 1.5),
        ("45", 45),
        ("0s", 0),
        (" 5s ", 5),
        ("", None),
        ("soon", None),
        ("-5s", None),
        ("5 s", None),
        ("5d", None),
        ("s", None),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("given", "number"), [(None, 7), (3, 3), (3.0, 3), ("12", 12), (" 12 ", 12)]
)
def test_a_whole_number_is_taken_however_it_is_written(given: object, number: int) -> None:
    assert args(limit=given).whole("limit", 7, least=1) == number


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (0, "limit must be at least 1, not 0."),
        (-4, "limit must be at least 1, not -4."),
        (1.5, "limit must be a whole number, not a number."),
        ("many", "limit must be a whole number, not a string."),
        (True, "limit must be a whole number, not a flag."),
        ([1], "limit must be a whole number, not a list."),
    ],
)
def test_what_is_no_whole_number_is_named(given: object, complaint: str) -> None:
    with pytest.raises(ToolError) as caught:
        args(limit=given).whole("limit", 7, least=1)
    assert caught.value.message == complaint


@pytest.mark.parametrize("given", [None, "", "  "])
def test_a_text_that_must_be_there_says_what_belongs_there(given: object) -> None:
    with pytest.raises(ToolError, match=r"^path is required: an absolute path\.$"):
        args(path=given).text("path", why="an absolute path.")


@pytest.mark.parametrize(
    ("given", "flag"),
    [(None, False), (True, True), (False, False), ("true", True), ("False", False)],
)
def test_a_flag_may_come_as_a_word(*, given: object, flag: bool) -> None:
    assert args(all=given).flag("all") is flag


def test_a_flag_that_is_none_is_refused() -> None:
    with pytest.raises(ToolError, match=r"^all must be true or false, not a number\.$"):
        args(all=1).flag("all")


def test_a_duration_may_be_a_number_of_seconds() -> None:
    assert args(timeout=30).seconds("timeout", 10) == 30
    assert args().seconds("timeout", 10) == 10


@pytest.mark.parametrize("given", ["later", -1, True, [], {}])
def test_what_is_no_duration_is_told_what_one_looks_like(given: object) -> None:
    with pytest.raises(ToolError, match=r'^timeout must be a duration such as "30s"'):
        args(timeout=given).seconds("timeout", 10)


def test_complaints_about_an_item_say_which_one() -> None:
    first, second = args(files=[{"path": "/a"}, {"path": 3}]).items("files", why="files.")
    assert first.text("path", why="") == "/a"
    with pytest.raises(ToolError, match=r"^files\[1\]\.path must be a string, not a number\.$"):
        second.text("path", why="")


@pytest.mark.parametrize("given", [None, [], "x", {}])
def test_a_list_must_have_something_in_it(given: object) -> None:
    with pytest.raises(ToolError, match=r"^files must be a list that is not empty: each a file\.$"):
        args(files=given).items("files", why="each a file.")


def test_an_item_must_be_an_object() -> None:
    with pytest.raises(ToolError, match=r"^files\[0\] must be an object, not a string.$"):
        args(files=["/a"]).items("files", why="")


def test_a_map_of_texts_takes_plain_values_at_their_word() -> None:
    told = args(parameters={"a": "x", "b": 2, "c": True, "d": 1.5}).texts("parameters")
    assert told == {"a": "x", "b": "2", "c": "true", "d": "1.5"}


def test_a_map_of_texts_refuses_what_has_no_plain_text() -> None:
    with pytest.raises(ToolError, match=r"^parameters\.a must be a string, not a list\.$"):
        args(parameters={"a": [1]}).texts("parameters")
    with pytest.raises(ToolError, match=r"^parameters must be an object of strings, not a list\.$"):
        args(parameters=[]).texts("parameters")
