"""Which versions a copy carries, and what a file may say of versions."""

import pytest

from chatd.domain.chat_views.copied_versions import LineReader, VersionRow, reachable_versions


def shown(message: int, group: int, previous: int | None = 1) -> VersionRow:
    return VersionRow(message_id=message, group_id=group, is_shown=True, previous=previous)


def replaced(group: int, *hidden: int) -> VersionRow:
    return VersionRow(message_id=hidden[0], group_id=group, hidden=hidden)


def within(message: int, group: int) -> VersionRow:
    return VersionRow(message_id=message, group_id=group)


NESTED = [replaced(2, 2, 3, 6, 7), replaced(4, 4, 5), within(6, 4), shown(8, 2)]
"""2, 3 were followed by 4, 5; 4 became 6, and then 2 became 8."""


@pytest.mark.parametrize(
    ("rows", "until", "lines"),
    [
        ([], None, {}),
        ([shown(4, 2), replaced(2, 2, 3)], None, {2: 2, 3: 2}),
        ([shown(4, 2), replaced(2, 2, 3)], 4, {2: 2, 3: 2}),
        ([shown(4, 2), replaced(2, 2, 3)], 3, {}),
        ([shown(2, 2), replaced(2, 4, 9)], 2, {4: 4, 9: 4}),
        (NESTED, None, {2: 2, 3: 2, 6: 2, 7: 2, 4: 4, 5: 4}),
        (NESTED, 7, {}),
        (NESTED[:3], None, {}),
        (NESTED[1:], None, {}),
        ([shown(2, 2)], None, {}),
        ([shown(4, 2), shown(5, 2), replaced(2, 2)], None, {}),
        ([shown(4, 2, previous=3), replaced(2, 2)], None, {}),
        ([shown(5, 2), replaced(2, 2, 3), replaced(3, 3, 4)], None, {2: 2, 3: 2}),
        ([within(5, 2), replaced(2, 2, 6), within(6, 3), replaced(3, 3, 5)], None, {}),
    ],
    ids=[
        *("none", "two versions", "up to it", "after the end", "a newer line of an older version"),
        *("nested", "nested and after the end", "none is shown", "its outer line is gone"),
        *("one version", "two are shown", "a message between", "a message of two lines", "a cycle"),
    ],
)
def test_a_copy_has_the_versions_that_can_be_shown_from_history(
    rows: list[VersionRow], until: int | None, lines: dict[int, int]
) -> None:
    found = reachable_versions(rows, until)
    assert found.lines == lines
    everything = {one for row in rows for one in row.hidden or ()}
    assert found.left_out == everything - lines.keys()
    hidden = {one.message_id: one.hidden for one in found.versions if one.hidden is not None}
    assert sorted(one for line in hidden.values() for one in line) == found.hidden
    firsts = [one.first for one in found.versions]
    assert all(firsts.count(first) > 1 for first in firsts)


Line = tuple[int | None, int | None]
"""`line` and `version_of` of a message; the ids count from 1."""
PLAIN: Line = (None, None)


def read(messages: list[Line]) -> None:
    reader = LineReader()
    for number, (line, version_of) in enumerate(messages, 1):
        reader.add(number, line=line, version_of=version_of, is_prompt=number != 3)
    reader.finish()


@pytest.mark.parametrize(
    "messages",
    [
        [PLAIN, PLAIN],
        [PLAIN, (2, 2), (2, None), (None, 2), PLAIN],
        [PLAIN, (None, 2), PLAIN, (4, 2), (4, None), PLAIN],
        [PLAIN, (2, 2), (2, None), (4, 4), (4, None), (2, 4), (2, None), (None, 2)],
        [(1, 1), (2, 1), (2, None), (None, 1)],
    ],
    ids=["none", "the older is hidden", "the newer is hidden", "nested", "three"],
)
def test_lines_that_an_export_has_are_read(messages: list[Line]) -> None:
    read(messages)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([(7, None)], "line must be the first message"),
        ([PLAIN, (1, None)], "line must be the first message"),
        ([PLAIN, (3, None), (3, 3)], "line must be the first message"),
        ([(1, None)], "begins with a message that has version_of"),
        ([(None, 2), (2, 2)], "must be the first version"),
        ([(None, 99)], "must be the first version"),
        ([(1, 1), (2, 1)], "all versions of message 1 are hidden"),
        ([(None, 1)], "has no other version"),
        ([(1, 1), (None, 1), PLAIN, (None, 1)], "two are not hidden"),
        ([(1, 1), PLAIN, PLAIN, (None, 1)], "do not follow the same message"),
        ([(1, 1), PLAIN, PLAIN, (1, 1)], "do not follow the same message"),
        ([PLAIN, PLAIN, (None, 3)], "only a message of a user"),
        ([(1, 1), (2, 2), (2, None), (2, 1), (1, 2)], "do not follow the same message"),
    ],
    ids=[
        *("no such line", "a line of history", "a later line", "a line without a version"),
        *("a later version", "no such version", "all are hidden", "one version", "two are shown"),
        *("another place", "within itself", "of no prompt", "a cycle"),
    ],
)
def test_wrong_lines_are_refused(messages: list[Line], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(messages)
