"""Boundaries, the rows a model sees after one, and when compaction is needed."""

import pytest
from msgspec.structs import replace

from chatd.domain.chat.messages import Message, TokenUsage
from chatd.domain.chat.parts import BoundaryPart, Part
from chatd.domain.model.failures import known_failure
from chatd.domain.prompt import compaction
from chatd.domain.prompt.compaction import ContextFill, Status
from tests.support.factories import call, message, result, text


def answer(message_id: int, tokens: int | None, *parts: Part, limit: int | None = None) -> Message:
    """An answer to a prompt of `tokens` tokens."""
    usage = None if tokens is None else TokenUsage(input_tokens=tokens, context_limit=limit)
    return message(message_id, "assistant", *(parts or (text(),)), usage=usage)


def user(message_id: int) -> Message:
    return message(message_id, "user", text())


def system(message_id: int) -> Message:
    return message(message_id, "system", text(), visibility="model")


def summary(first_id: int, *mark: BoundaryPart) -> list[Message]:
    """The three rows of one compaction."""
    shown = (call("s", "chat_summarized"), result("s", "chat_summarized"))
    return [
        message(first_id, "user", text("summary"), *mark, visibility="model", compressed=True),
        message(first_id + 1, "assistant", shown[0], visibility="user", compressed=True),
        message(first_id + 2, "tool", shown[1], visibility="both", compressed=True),
    ]


def deleted(row: Message) -> Message:
    return replace(row, deleted=True)


def ids(rows: list[Message]) -> list[int]:
    return [row.id for row in rows]


def test_a_chat_without_a_summary_has_no_boundary() -> None:
    assert compaction.find_boundary([system(1), user(2), answer(3, 10)]) is None


def test_the_boundary_is_the_newest_summary_and_not_its_result_for_viewers() -> None:
    history = [user(1), answer(2, 10), *summary(3), user(6), answer(7, 10), *summary(8)]
    assert compaction.find_boundary(history) == history[7]


def test_the_boundary_is_found_by_id_in_any_order() -> None:
    history = [*summary(8), user(1), *summary(3)]
    assert compaction.find_boundary(history) == history[0]


def test_a_deleted_summary_is_no_boundary() -> None:
    history = [user(1), *summary(2), user(5), *map(deleted, summary(6))]
    assert compaction.find_boundary(history) == history[1]


def test_without_a_boundary_the_model_sees_all_rows_but_deleted_and_user_only_ones() -> None:
    history = [
        system(1),
        user(2),
        deleted(answer(3, 10)),
        message(4, "assistant", text("a notice"), visibility="user"),
        answer(5, 10, call("a")),
        message(6, "tool", result("a")),
    ]
    assert ids(compaction.rows_for_prompt(history)) == [1, 2, 5, 6]


def test_after_a_summary_the_model_sees_system_rows_the_summary_and_later_rows() -> None:
    history = [system(1), user(2), answer(3, 10), *summary(4), user(7), system(8), answer(9, 10)]
    assert ids(compaction.rows_for_prompt(history)) == [1, 4, 7, 8, 9]


def test_only_the_newest_summary_is_sent() -> None:
    history = [system(1), user(2), *summary(3), user(6), answer(7, 10), *summary(8), user(11)]
    assert ids(compaction.rows_for_prompt(history)) == [1, 8, 11]


def test_a_compressed_system_row_is_not_sent() -> None:
    history = [replace(system(1), compressed=True, visibility="both"), system(2), user(3)]
    assert ids(compaction.rows_for_prompt(history)) == [2, 3]


def test_deleting_the_summary_restores_the_rows_before_it() -> None:
    history = [user(1), answer(2, 10), *map(deleted, [user(3), *summary(4), user(7)]), user(8)]
    assert ids(compaction.rows_for_prompt(history)) == [1, 2, 8]


def test_prompt_rows_are_sorted_by_id() -> None:
    history = [user(7), *summary(4), answer(9, 10), system(1), user(2)]
    assert ids(compaction.rows_for_prompt(history)) == [1, 4, 7, 9]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param([], False, id="nothing at all"),
        pytest.param([user(1)], False, id="no answer yet"),
        pytest.param([user(1), answer(2, 10)], True, id="an answer"),
        pytest.param([user(1), deleted(answer(2, 10))], False, id="a deleted answer"),
        pytest.param([user(1), answer(2, 10), *summary(3)], False, id="all summarized"),
        pytest.param([answer(2, 10), *summary(3), user(6)], False, id="only a prompt since"),
        pytest.param([*summary(1), user(4), answer(5, None)], True, id="an answer since"),
        pytest.param(
            [answer(2, 10), *summary(3, BoundaryPart(kept=1)), user(6)], True, id="kept rows"
        ),
        pytest.param(
            [user(1), *summary(3, BoundaryPart(keeps_prompt=True))], True, id="a kept message"
        ),
        pytest.param(
            [user(1), *summary(3, BoundaryPart(kept=1)), *summary(6), user(9)],
            False,
            id="nothing kept by the second of two",
        ),
    ],
)
def test_a_chat_is_compactable_if_answers_follow_the_last_summary_or_it_keeps_messages(
    history: list[Message], *, expected: bool
) -> None:
    assert compaction.is_compactable(history) is expected


@pytest.mark.covers("compaction-7")
@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (TokenUsage(input_tokens=1, cache_read_tokens=20, cache_creation_tokens=300), 321),
        (TokenUsage(input_tokens=5, output_tokens=7, total_tokens=12), 5),
        (TokenUsage(output_tokens=7, total_tokens=12), 12),
        (TokenUsage(output_tokens=7), 0),
        (TokenUsage(), 0),
        (None, 0),
    ],
)
def test_context_tokens_are_input_and_cached_tokens_or_else_the_total(
    usage: TokenUsage | None, tokens: int
) -> None:
    history = [user(1), message(2, "assistant", text(), usage=usage)]
    assert compaction.measure_fill(history, 1000) == ContextFill(tokens=tokens, limit=1000)


@pytest.mark.parametrize(
    ("reported", "configured", "limit"),
    [(200, 1000, 200), (None, 1000, 1000), (0, 1000, 1000), (None, None, 0), (None, -5, 0)],
)
def test_a_reported_limit_takes_precedence_over_the_configured_one(
    reported: int | None, configured: int | None, limit: int
) -> None:
    history = [user(1), answer(2, 10, limit=reported)]
    assert compaction.measure_fill(history, configured) == ContextFill(tokens=10, limit=limit)


@pytest.mark.covers("compaction-7")
def test_the_newest_answer_with_usage_is_measured() -> None:
    history = [user(1), answer(2, 10), user(3), answer(4, 30), user(5), answer(6, None)]
    assert compaction.measure_fill(history, 100) == ContextFill(tokens=30, limit=100)


def guessed(message_id: int, tokens: int) -> Message:
    usage = TokenUsage(input_tokens=tokens, estimated=True)
    return message(message_id, "assistant", text(), usage=usage)


@pytest.mark.parametrize(
    ("history", "tokens"),
    [
        pytest.param([user(1), guessed(2, 10), user(3), guessed(4, 30)], 30, id="only estimates"),
        pytest.param([user(1), answer(2, 20), user(3), guessed(4, 30)], 20, id="told before"),
        pytest.param([answer(1, 90), *summary(2), guessed(5, 30)], 30, id="told before a summary"),
    ],
)
def test_an_estimate_counts_if_the_provider_told_no_usage(
    history: list[Message], tokens: int
) -> None:
    assert compaction.measure_fill(history, 100) == ContextFill(tokens=tokens, limit=100)


def test_a_chat_of_a_provider_without_usage_is_summarized_by_the_estimate() -> None:
    assert compaction.compaction_status([user(1), guessed(2, 70)], 100, 70) == "needed"


def test_answers_before_the_summary_are_not_measured() -> None:
    history = [user(1), answer(2, 90), *summary(3), user(6)]
    assert compaction.measure_fill(history, 100) == ContextFill(tokens=0, limit=100)


@pytest.mark.parametrize(
    ("fill", "percent"),
    [
        (ContextFill(tokens=699, limit=1000), 69),
        (ContextFill(tokens=5, limit=0), 0),
        (ContextFill(limit=7), 0),
    ],
)
def test_the_percentage_is_rounded_down_and_zero_if_unknown(
    fill: ContextFill, percent: int
) -> None:
    assert fill.percent == percent


@pytest.mark.covers("compaction-1")
@pytest.mark.parametrize(
    ("tokens", "limit", "threshold", "expected"),
    [
        pytest.param(69, 100, 70, "none", id="below"),
        pytest.param(70, 100, 70, "needed", id="exactly at the threshold"),
        pytest.param(999, 1428, 70, "none", id="just below, not rounded"),
        pytest.param(1000, 1428, 70, "needed", id="just above, not rounded"),
        pytest.param(70, 100, 71, "none", id="a higher threshold"),
        pytest.param(1, 100, 0, "needed", id="a threshold of zero"),
        pytest.param(500, 100, 100, "none", id="a threshold of 100 turns it off"),
        pytest.param(70, 100, 101, "needed", id="above 100 means 70"),
        pytest.param(69, 100, 101, "none", id="above 100 means 70, below"),
        pytest.param(70, 100, -1, "needed", id="below 0 means 70"),
        pytest.param(0, 100, 0, "none", id="nothing counted"),
        pytest.param(None, 100, 0, "none", id="no usage"),
        pytest.param(70, None, 0, "none", id="no limit"),
        pytest.param(70, 0, 0, "none", id="a limit of zero"),
    ],
)
def test_compaction_is_needed_from_the_threshold_on(
    tokens: int | None, limit: int | None, threshold: int, expected: Status
) -> None:
    history = [user(1), answer(2, tokens), user(3)]
    assert compaction.compaction_status(history, limit, threshold) == expected


def test_a_chat_without_an_answer_needs_no_compaction() -> None:
    assert compaction.compaction_status([user(1)], 1, 0) == "none"


@pytest.mark.covers("compaction-5")
@pytest.mark.parametrize(
    ("since_the_summary", "expected"),
    [
        pytest.param([user(6)], "none", id="no answer yet"),
        pytest.param([user(6), answer(7, 30)], "none", id="it helped"),
        pytest.param([user(6), answer(7, 80)], "none", id="it did not help, but there is room"),
        pytest.param([user(6), answer(7, 95)], "still_over_limit", id="it did not help"),
        pytest.param([user(6), answer(7, 30), answer(8, 80)], "needed", id="full again later"),
        pytest.param(
            [user(6), answer(7, 80), answer(8, 90)], "none", id="never was below, with room"
        ),
        pytest.param(
            [user(6), answer(7, 80), answer(8, 95)], "needed", id="helps a little if it is full"
        ),
        pytest.param(
            [user(6), answer(7, 95), answer(8, 99)], "still_over_limit", id="never was below"
        ),
        pytest.param(
            [user(6), answer(7, None), answer(8, 90)], "needed", id="the first was not counted"
        ),
        pytest.param(
            [user(6), answer(7, 200), answer(8, 190, limit=200)],
            "still_over_limit",
            id="one limit for both",
        ),
        pytest.param(
            [user(6), answer(7, 25, limit=25), answer(8, 24, limit=25)],
            "none",
            id="the limit was raised since",
        ),
        pytest.param([user(6), answer(7, 80), answer(8, 30)], "none", id="below by now"),
    ],
)
def test_no_second_summary_follows_one_that_did_not_help(
    since_the_summary: list[Message], expected: Status
) -> None:
    history = [system(1), user(2), *summary(3), *since_the_summary]
    assert compaction.compaction_status(history, 100, 70) == expected


def test_an_estimate_does_not_end_a_chat() -> None:
    """The provider told no usage; whether the prompt fits, it will say."""
    usage = TokenUsage(input_tokens=99, estimated=True)
    guessed = message(7, "assistant", text(), usage=usage)
    history = [system(1), user(2), *summary(3), user(6), guessed]
    assert compaction.compaction_status(history, 100, 70) == "none"


def test_a_first_answer_over_the_threshold_is_summarized_without_an_earlier_summary() -> None:
    assert compaction.compaction_status([user(1), answer(2, 80)], 100, 70) == "needed"


def failed(message_id: int) -> Message:
    draft = compaction.summary_failed_notice(known_failure("generic", "here"), "auto")
    return message(message_id, "system", *draft.content, visibility="user")


ROOM, FULL = ContextFill(tokens=80, limit=100), ContextFill(tokens=95, limit=100)


@pytest.mark.covers("compaction-14")
@pytest.mark.parametrize(
    ("history", "fill", "expected"),
    [
        pytest.param([user(1), answer(2, 80)], ROOM, True, id="none has failed"),
        pytest.param([user(1), answer(2, 80), failed(3)], ROOM, False, id="failed in this turn"),
        pytest.param([user(1), answer(2, 95), failed(3)], FULL, True, id="failed, but it is full"),
        pytest.param([user(1), failed(2), answer(3, 80), user(4)], ROOM, True, id="a new turn"),
        pytest.param(
            [user(1), failed(2), user(3), failed(4), user(5), failed(6), user(7)],
            ROOM,
            False,
            id="failed too often",
        ),
        pytest.param(
            [user(1), failed(2), user(3), failed(4), user(5), failed(6), *summary(7), user(10)],
            ROOM,
            True,
            id="a summary since",
        ),
        pytest.param([user(1), answer(2, 80), deleted(failed(3))], ROOM, True, id="edited away"),
        pytest.param(
            [user(1), failed(2), user(3), failed(4), user(5), failed(6), user(7)],
            FULL,
            True,
            id="failed too often, but it is full",
        ),
    ],
)
def test_a_failed_summary_is_tried_again_in_the_next_turn_a_few_times_or_when_full(
    history: list[Message], fill: ContextFill, *, expected: bool
) -> None:
    assert compaction.may_try_summary(history, fill) is expected
