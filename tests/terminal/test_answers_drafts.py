"""Answers while they are made: replies to questions and rules for «always»."""

import pytest
from msgspec import Raw

from chatd.domain.chat.call_waits import MAX_ANSWER_CHARS, Question, QuestionOption
from chatd.domain.tool_policy.rules import ToolRule
from chatd.terminal.answers.asks import QuestionDraft, keep_draft, questions_of
from chatd.terminal.screens.policy_rules import (
    RuleDraft,
    RuleProblem,
    always_patterns,
    always_rule,
    can_edit,
    draft_of_rule,
    read_patterns,
    rule_of_draft,
    rule_text,
)

ONE = Question(
    question="Which database?",
    options=(QuestionOption(label="PostgreSQL"), QuestionOption(label="SQLite")),
)
MANY = Question(
    question="Which tests?",
    options=tuple(QuestionOption(label=label) for label in ("unit", "api", "e2e")),
    multi_select=True,
)


def test_of_one_question_one_option_counts_and_of_the_other_several_in_their_order() -> None:
    draft = QuestionDraft.start((ONE, MANY))
    assert draft.problem() == "Not answered yet: question 1, 2."
    draft = draft.toggle(0, "SQLite").toggle(0, "PostgreSQL")
    draft = draft.toggle(1, "e2e").toggle(1, "unit").toggle(1, "api").toggle(1, "api")
    assert [reply.labels for reply in draft.replies] == [("PostgreSQL",), ("unit", "e2e")]
    assert draft.problem() == ""
    assert draft.toggle(0, "PostgreSQL").unanswered == (0,), "the choice is taken back"


def test_own_words_answer_and_are_checked_before_they_are_sent() -> None:
    draft = QuestionDraft.start((ONE,))
    assert draft.problem() == "Choose an option, or answer in your own words."
    assert draft.write(0, "  ").unanswered == (0,)
    assert draft.write(0, "DuckDB").problem() == ""
    assert "20000 characters" in draft.write(0, "x" * (MAX_ANSWER_CHARS + 1)).problem()


def test_a_draft_is_kept_for_the_same_questions_only() -> None:
    draft = QuestionDraft.start((ONE,)).toggle(0, "SQLite")
    assert keep_draft(draft, (ONE,)) is draft
    assert keep_draft(draft, (MANY,)).unanswered == (0,)
    assert keep_draft(None, (ONE,)).unanswered == (0,)


def test_questions_that_cannot_be_read_are_none() -> None:
    assert questions_of(Raw(b'{"questions":[]}')) == ()
    assert questions_of(Raw(b'{"questions":[{"question":"Q","options":["a","b"]}]}'))[0].labels == (
        "a",
        "b",
    )


@pytest.mark.parametrize(
    ("lines", "patterns"),
    [
        ("", {}),
        ("command: git push *", {"command": "git push *"}),
        ("command: =echo a: b\n\n path : src/* ", {"command": "=echo a: b", "path": "src/*"}),
    ],
)
def test_patterns_are_read_one_a_line(lines: str, patterns: dict[str, str]) -> None:
    assert read_patterns(lines) == patterns


@pytest.mark.parametrize("lines", ["git push", ": x", "a: 1\na: 2"])
def test_lines_that_are_no_patterns_are_named(lines: str) -> None:
    with pytest.raises(RuleProblem, match="argument"):
        read_patterns(lines)


def test_a_rule_is_the_same_after_it_was_edited() -> None:
    rule = ToolRule(tool="execute", action="deny", args={"command": "rm *"}, reason="Use trash/.")
    assert rule_of_draft(draft_of_rule(rule)) == rule
    with pytest.raises(RuleProblem, match="no spaces"):
        rule_of_draft(RuleDraft(tool="a b"))


ARGS = Raw(b'{"command":"git push origin main"}')


def test_always_allows_exactly_this_command_and_all_calls_of_another_tool() -> None:
    assert always_rule("execute", ARGS) == ToolRule(
        tool="execute", action="auto", args={"command": "=git push origin main", "workdir": "="}
    )
    assert always_rule("deploy", Raw(b'{"to":"x"}')) == ToolRule(tool="deploy", action="auto")


def test_an_edited_rule_must_match_the_call() -> None:
    assert always_patterns("execute", ARGS, "command: git push *") == {"command": "git push *"}
    for lines in ("command: git pull *", "workdir: /srv"):
        with pytest.raises(RuleProblem, match="does not match this call"):
            always_patterns("execute", ARGS, lines)
    chained = Raw(b'{"command":"git push; rm -rf ~"}')
    with pytest.raises(RuleProblem, match="does not match this call"):
        always_patterns("execute", chained, "command: git push*")


@pytest.mark.parametrize("command", ["a\nb", "a ", "a\u200bb"])
def test_a_rule_that_lines_cannot_say_is_not_edited(command: str) -> None:
    rule = ToolRule(tool="execute", action="auto", args={"command": f"={command}"})
    assert not can_edit(rule)
    assert "\n" not in rule_text(rule)


def test_a_rule_that_lines_can_say_is_edited() -> None:
    assert can_edit(ToolRule(tool="execute", action="auto", args={"command": "=git push"}))
