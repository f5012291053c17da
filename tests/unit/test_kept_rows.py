"""What stays beside a summary, and which old tool results are shortened."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chatd.domain.chat.messages import Draft, Message, Role
from chatd.domain.chat.parts import (
    BoundaryPart,
    FilePart,
    NoticePart,
    Part,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.ids import MessageId, ToolCallId
from chatd.domain.model.protocol import PromptResult
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.compaction import ContextFill, is_compactable, rows_for_prompt, select_rows
from chatd.domain.prompt.kept_rows import (
    CLEARED_CHARS,
    RESULTS_CLEARED,
    CompactionLimits,
    choose_kept,
    clear_results,
    count_cleared,
    find_cleared,
    row_tokens,
    shorten_result,
)
from tests.support.domain.prompt_rules import find_problems
from tests.support.factories import call, message, result, text

TARGET = PromptTarget(provider="here")
LONG = "line\n" * 640
"""About 970 tokens, as JSON."""


def output(words: str) -> str:
    return msgspec.json.encode({"output": words}).decode()


def user(message_id: int, words: str = "hello") -> Message:
    return message(message_id, "user", text(words))


def answer(message_id: int, *parts: Part) -> Message:
    return message(message_id, "assistant", *(parts or (text("ok"),)))


def step(message_id: int, words: str = LONG) -> list[Message]:
    """A call and its result."""
    name = f"c{message_id}"
    done = message(message_id + 1, "tool", result(name, output=output(words)))
    return [answer(message_id, call(name)), done]


def steps(first_id: int, count: int, words: str = LONG) -> list[Message]:
    return [row for n in range(count) for row in step(first_id + 2 * n, words)]


def summary(message_id: int, mark: BoundaryPart) -> list[Message]:
    shown = (call("s", "chat_summarized"), result("s", "chat_summarized"))
    return [
        message(message_id, "user", text("summary"), mark, visibility="model", compressed=True),
        message(message_id + 1, "assistant", shown[0], visibility="user", compressed=True),
        message(message_id + 2, "tool", shown[1], compressed=True),
    ]


def ids(rows: Sequence[Message]) -> list[int]:
    return [row.id for row in rows]


def compacted(history: list[Message], kept_tokens: int) -> list[Message]:
    """The history after a compaction."""
    mark = choose_kept(history, kept_tokens).mark
    return [*history, *summary(max(ids(history), default=0) + 1, mark)]


# What a summary keeps


@pytest.mark.covers("compaction-15")
@pytest.mark.parametrize(
    ("history", "budget", "sent"),
    [
        pytest.param(
            [user(1), *steps(2, 8)], 2_100, [18, 1, 14, 15, 16, 17], id="the last two steps"
        ),
        pytest.param(
            [user(1), *steps(2, 8)], 900, [18, 1], id="no step fits: only the user's message"
        ),
        pytest.param(
            [user(1), *steps(2, 8)], 99_999, [18, 1, 14, 15, 16, 17], id="at most a quarter"
        ),
        pytest.param(
            [user(1), *steps(2, 9), user(20)], 2_100, [21, 16, 17, 18, 19, 20], id="a new message"
        ),
        pytest.param(
            [user(1), *steps(2, 8), user(18, "hello " * 4_000)], 5_000, [19], id="a long message"
        ),
        pytest.param(
            [user(1), *steps(2, 4), user(10), *steps(11, 4)],
            1_100,
            [19, 10, 17, 18],
            id="the last message of two",
        ),
        pytest.param([user(1), answer(2)], 2_100, [3], id="a short chat gets shorter"),
        pytest.param([user(1), *steps(2, 8)], 0, [18], id="nothing by setting"),
        pytest.param([user(1)], 2_100, [2], id="a message that is the whole chat"),
    ],
)
def test_a_summary_keeps_the_newest_steps_and_the_last_message(
    history: list[Message], budget: int, sent: list[int]
) -> None:
    assert ids(rows_for_prompt(compacted(history, budget))) == sent


def test_a_second_summary_keeps_the_message_that_the_first_one_kept() -> None:
    first = compacted([user(1), *steps(2, 8)], 2_100)
    again = compacted([*first, *steps(21, 4)], 1_100)
    assert ids(rows_for_prompt(again)) == [29, 1, 27, 28]


def test_the_prompt_after_a_summary_that_was_halved_keeps_less() -> None:
    history = [user(1), *steps(2, 8)]
    assert choose_kept(history, 99_999).mark.kept == 4
    assert choose_kept(history, 99_999, halvings=1).mark.kept == 2


IMAGE = FilePart(media_type="image/png", file_id="f1")
UPLOADED_PDF = FilePart(media_type="application/pdf", file_id="f1")
UPLOADED_TEXT = FilePart(media_type="text/plain; charset=utf-8", file_id="f1")
SMALL_TEXT = FilePart(media_type="text/plain", data="aGVsbG8=" * 100)
LARGE_TEXT = FilePart(media_type="text/plain", data="aGVsbG8=" * 10_000)


@pytest.mark.parametrize(
    ("file", "halvings", "stays"),
    [
        pytest.param(IMAGE, 0, True, id="an image"),
        pytest.param(IMAGE, 1, False, id="an image after an overflow"),
        pytest.param(UPLOADED_PDF, 0, False, id="a PDF of unknown size"),
        pytest.param(UPLOADED_TEXT, 0, False, id="a text of unknown size"),
        pytest.param(SMALL_TEXT, 0, True, id="a small text"),
        pytest.param(SMALL_TEXT, 1, False, id="a small text after an overflow"),
        pytest.param(LARGE_TEXT, 0, False, id="a large text"),
    ],
)
@pytest.mark.parametrize("later", [0, 1])
def test_a_message_with_a_file_stays_only_if_the_file_surely_fits(
    file: FilePart, halvings: int, later: int, *, stays: bool
) -> None:
    """`later`: steps after the message, which stay without it."""
    asked = message(50, "user", text("read this"), file)
    history = [user(1), *steps(2, 24), asked, *steps(51, later)]
    mark = choose_kept(history, 5_000, halvings).mark
    sent = ids(rows_for_prompt([*history, *summary(60, mark)]))
    assert (50 in sent) is stays
    assert (52 in sent) is bool(later)


def test_files_in_an_answer_are_not_sent_and_do_not_keep_it_from_staying() -> None:
    history = [user(1), *steps(2, 24), answer(50, text("see"), UPLOADED_PDF)]
    assert choose_kept(history, 5_000).mark.kept > 0


def test_a_step_that_returned_a_file_does_not_stay_after_an_overflow() -> None:
    shown = replace(result("c50", output="{}"), is_media=True)
    history = [user(1), *steps(2, 24), answer(50, call("c50")), message(51, "tool", shown)]
    assert choose_kept(history, 5_000).mark.kept > 0
    assert choose_kept(history, 5_000, halvings=1).mark.kept == 0


def test_a_summary_right_after_one_that_keeps_messages_keeps_nothing() -> None:
    first = compacted([user(1), *steps(2, 8)], 2_100)
    assert is_compactable(first)
    second = compacted([*first, user(21)], 2_100)
    assert ids(rows_for_prompt(second)) == [22]
    assert not is_compactable(second)


def test_a_paused_answer_stays_with_its_continuation() -> None:
    paused = replace(answer(10, text("a" * 400)), finish_reason="pause")
    history = [user(1), *steps(2, 4), paused, answer(11)]
    assert choose_kept(history, 50).mark.kept == 0
    assert choose_kept(history, 200).mark.kept == 2


def test_a_summary_of_an_earlier_version_keeps_nothing() -> None:
    old = [replace(row, content=row.content[:1]) for row in summary(4, BoundaryPart())]
    assert ids(rows_for_prompt([user(1), *step(2), *old, user(7)])) == [4, 7]


def test_answers_that_a_summary_keeps_count_neither_as_new_nor_as_its_size() -> None:
    history = compacted([user(1), *steps(2, 8)], 2_100)
    assert select_rows(history).answers == []
    assert ids(select_rows([*history, answer(21)]).answers) == [21]


# Old results

FULL = ContextFill(tokens=9_000, limit=15_000)
LIMITS = CompactionLimits(kept_tokens=2_100, clear_steps=5)


def after(history: list[Message], draft: Draft | None) -> list[Message]:
    """The history after the step that stores the notice."""
    assert draft is not None
    number = max(ids(history)) + 1
    notice = message(number, "system", *draft.content, visibility="user")
    return [*history, notice, *step(number + 1)]


@pytest.mark.covers("compaction-16")
@pytest.mark.parametrize(
    ("history", "fill", "limits", "cleared"),
    [
        pytest.param(steps(2, 8), FULL, LIMITS, 6, id="all but the newest"),
        pytest.param(
            steps(2, 8), ContextFill(tokens=7_000, limit=15_000), LIMITS, None, id="far from full"
        ),
        pytest.param(steps(2, 8), FULL, replace(LIMITS, clear_steps=0), None, id="off by setting"),
        pytest.param(steps(2, 40, "short"), FULL, LIMITS, None, id="small results"),
        pytest.param(
            [*steps(2, 1), *steps(4, 20, "short")], FULL, LIMITS, None, id="hardly worth it"
        ),
        pytest.param([*steps(2, 3), *step(8, LONG * 9)], FULL, LIMITS, 3, id="unread results stay"),
        pytest.param(steps(2, 8), ContextFill(tokens=9_000), LIMITS, None, id="unknown window"),
    ],
)
def test_old_large_results_are_cleared_shortly_before_a_summary_is_needed(
    history: list[Message], fill: ContextFill, limits: CompactionLimits, cleared: int | None
) -> None:
    draft = clear_results([user(1), *history], fill, limits)
    counted = None if draft is None else count_cleared([draft])
    assert (None if counted is None else counted[0]) == cleared


def test_a_threshold_of_100_clears_nothing() -> None:
    assert clear_results([user(1), *steps(2, 8)], FULL, LIMITS, threshold=100) is None


def test_results_are_cleared_again_only_after_some_steps() -> None:
    history = [user(1), *steps(2, 8)]
    history = after(history, clear_results(history, FULL, LIMITS))
    history += steps(21, 3)
    assert clear_results(history, FULL, LIMITS) is None
    history += steps(27, 2)
    draft = clear_results(history, FULL, LIMITS)
    assert draft is not None
    assert count_cleared([draft]) == (6, 6 * (968 - CLEARED_CHARS // 4))


def test_the_call_and_the_first_lines_of_a_cleared_result_stay() -> None:
    history = [user(1), *steps(2, 8)]
    before = build_prompt(history, TARGET)
    history = after(history, clear_results(history, FULL, LIMITS))
    prompt = build_prompt(history, TARGET)
    results = [part for row in prompt for part in row.parts if isinstance(part, PromptResult)]
    assert [len(part.text) < 500 for part in results] == [True] * 6 + [False] * 3
    assert results[0].text.startswith("line\nline\n")
    assert "Call the tool again" in results[0].text
    assert [row for row in prompt if row.role == "assistant"][:8] == [
        row for row in before if row.role == "assistant"
    ]


def test_of_a_cleared_image_a_note_stays() -> None:
    media = '{"data":"aGk=","mime_type":"image/png","text":""}'
    shots = [
        row
        for n in range(8)
        for row in (
            answer(2 + 2 * n, call(f"c{n}")),
            message(3 + 2 * n, "tool", result(f"c{n}", output=media, is_media=True)),
        )
    ]
    history = [user(1), *shots]
    draft = clear_results(history, FULL, LIMITS)
    prompt = build_prompt(after(history, draft), TARGET)
    results = [part for row in prompt for part in row.parts if isinstance(part, PromptResult)]
    assert [part.media is None for part in results[:8]] == [True] * 7 + [False]
    assert "its file" in results[0].text


def test_a_short_head_is_cut_at_the_end_of_a_line() -> None:
    whole = PromptResult(id=ToolCallId("c"), name="t", text="one\ntwo\nthree")
    assert shorten_result(whole, 9).text.startswith("one\ntwo\n[Removed")
    assert shorten_result(whole, 2).text.startswith("on\n[Removed")


def test_a_notice_with_broken_numbers_is_read_with_the_defaults() -> None:
    part = NoticePart(code=RESULTS_CLEARED, text="", detail={"kept_messages": "-1"})
    notice = message(9, "system", part, visibility="user")
    found = find_cleared([user(1), *steps(2, 2), notice])
    assert (found.before_id, found.kept_chars) == (9, CLEARED_CHARS)


# Any history

_SIZES = st.sampled_from(["x", "line\n" * 40, LONG])


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Turns with parallel calls, pauses, gaps, summaries and cleared results."""
    rows: list[Message] = []

    def next_id() -> int:
        return rows[-1].id + 1 if rows else 1

    def add(role: Role, *parts: Part, **columns: object) -> None:
        rows.append(message(next_id(), role, *parts, **columns))

    add("system", text("be kind"), visibility="model")
    for number in range(draw(st.integers(1, 12))):
        match draw(st.sampled_from("uuaassscrpd")):
            case "d":
                rows[-1] = replace(rows[-1], id=MessageId(rows[-1].id + 5))
            case "u":
                add("user", text(draw(_SIZES)))
            case "a":
                add("assistant", text(draw(_SIZES)))
            case "p":
                add("assistant", text("wait"), finish_reason="pause")
                add("assistant", text("done"))
            case "s":
                names = [f"c{number}-{n}" for n in range(draw(st.integers(1, 3)))]
                add("assistant", text("look"), *(call(name) for name in names))
                for name in draw(st.permutations(names)):
                    add("tool", result(name, output=output(draw(_SIZES))))
            case "c":
                mark = choose_kept(rows, draw(st.integers(0, 3_000))).mark
                rows.extend(summary(next_id(), mark))
            case _:
                draft = clear_results(rows, FULL, replace(LIMITS, clear_steps=1))
                if draft is not None:
                    add("system", *draft.content, visibility="user")
    return rows


def reloaded(history: list[Message]) -> list[Message]:
    """What a worker reads that takes the chat over: nothing that the summary replaces."""
    chosen = select_rows(history)
    needed = {row.id for row in (*chosen.system, chosen.prompt) if row is not None}
    return [row for row in history if row.id >= chosen.first_id or row.id in needed]


@pytest.mark.covers("compaction-15")
@given(histories(), st.integers(0, 5_000))
def test_no_call_is_sent_without_its_result_nor_a_result_without_its_call(
    history: list[Message], budget: int
) -> None:
    history = compacted(history, budget)
    shown = [row for row in rows_for_prompt(history) if row.role != "system"]
    parts = [part for row in shown for part in row.content]
    called = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
    answered = [part.tool_call_id for part in parts if isinstance(part, ToolResultPart)]
    assert sorted(called) == sorted(answered)
    assert find_problems(build_prompt([*history, user(10_000)], TARGET)) == []


@given(histories(), st.integers(0, 5_000))
def test_a_takeover_builds_the_same_prompt_and_makes_the_same_choices(
    history: list[Message], budget: int
) -> None:
    history = [*compacted(history, budget), user(10_000)]
    read = reloaded(history)
    assert build_prompt(read, TARGET) == build_prompt(history, TARGET)
    assert choose_kept(read, budget) == choose_kept(history, budget)
    assert clear_results(read, FULL, LIMITS) == clear_results(history, FULL, LIMITS)


@given(histories(), st.integers(0, 5_000))
def test_a_fork_that_counts_its_messages_anew_has_the_same_prompt(
    history: list[Message], budget: int
) -> None:
    history = [*compacted(history, budget), user(10_000)]
    counted = [replace(row, id=MessageId(n)) for n, row in enumerate(history, 1)]
    assert build_prompt(counted, TARGET) == build_prompt(history, TARGET)


@given(histories(), st.integers(0, 5_000))
def test_what_is_kept_fits_the_budget(history: list[Message], budget: int) -> None:
    kept = choose_kept(history, budget)
    assert kept.tokens <= 2 * budget
    chosen = select_rows(compacted(history, budget))
    cleared = find_cleared(history)
    rows = [row for row in (chosen.prompt, *chosen.rows) if row is not None]
    assert sum(row_tokens(row, cleared) for row in rows) == kept.tokens
    assert len(rows) == kept.messages
