"""A version of a chat is known by its number and its change id, as far back as the row tells."""

import pytest

from chatd.domain.chat.row import UNKNOWN_CHANGE, Chat
from chatd.domain.ids import ChangeId
from tests.support.factories import chat


def row(version: int, *changes: int) -> Chat:
    return chat(
        status="waiting",
        snapshot_version=version,
        history_version=version,
        recent_changes=tuple(map(ChangeId, changes)),
    )


ROW = row(20, 120, 119, 118)


@pytest.mark.parametrize(
    ("version", "change", "is_contained", "may_be_contained"),
    [
        pytest.param(20, 120, True, True, id="the same"),
        pytest.param(18, 118, True, True, id="the oldest that the row remembers"),
        pytest.param(19, 7, False, False, id="another change under its number"),
        pytest.param(21, 121, False, False, id="ahead"),
        pytest.param(17, 117, False, True, id="older than the row remembers"),
        pytest.param(17, UNKNOWN_CHANGE, True, True, id="a number alone"),
        pytest.param(21, UNKNOWN_CHANGE, False, False, id="a number alone, ahead"),
    ],
)
def test_what_a_row_shows_of_its_past(
    version: int, change: int, *, is_contained: bool, may_be_contained: bool
) -> None:
    assert ROW.contains(version, ChangeId(change)) is is_contained
    assert ROW.may_contain(version, ChangeId(change)) is may_be_contained


@pytest.mark.parametrize(
    ("old", "is_followed", "may_be_followed"),
    [
        pytest.param(row(19, 119, 118), True, True, id="its past"),
        pytest.param(row(19, 7, 118), False, False, id="another past"),
        pytest.param(row(21, 121, 120, 119), False, False, id="its future"),
        pytest.param(row(17, 117, 116), False, True, id="older than the row remembers"),
        pytest.param(row(17), True, True, id="without any change id"),
    ],
)
def test_whether_a_row_follows_another(
    old: Chat, *, is_followed: bool, may_be_followed: bool
) -> None:
    assert ROW.follows(old) is is_followed
    assert ROW.may_follow(old) is may_be_followed
