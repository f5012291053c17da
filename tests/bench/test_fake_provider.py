"""Scripts of the fake provider, and the statement behind each database round trip."""

import msgspec
import pytest

from bench.fake_provider import (
    TOKEN_MARK,
    AnswerScript,
    answer_text,
    chunk,
    parse_script,
    read_request,
)
from bench.round_trips import StatementTracker

SCRIPTS = [
    AnswerScript(tokens=1),
    AnswerScript(tokens=300, per_s=50),
    AnswerScript(tokens=5, calls=10),
    AnswerScript(tokens=7, per_s=3, calls=2),
    AnswerScript(tokens=3, per_s=100, spawns=True),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_is_parsed_from_its_text(script: AnswerScript) -> None:
    assert parse_script(f"please {script}, thanks") == script


def test_a_text_without_a_script_gets_a_short_answer() -> None:
    assert parse_script("What is a good title?") == AnswerScript(tokens=1)


def test_every_token_can_be_counted() -> None:
    assert answer_text(12_345).encode().count(TOKEN_MARK) == 12_345
    assert chunk({"content": answer_text(1)}).count(TOKEN_MARK) == 1


def request_body(*messages: tuple[str, object]) -> bytes:
    listed = [{"role": role, "content": content} for role, content in messages]
    return msgspec.json.encode({"model": "bench", "messages": listed})


def test_the_last_user_message_and_the_results_after_it_count() -> None:
    old, new = str(AnswerScript(tokens=1)), str(AnswerScript(tokens=9, calls=2))
    body = request_body(
        ("user", old), ("tool", "x"), ("user", new), ("assistant", None), ("tool", "y")
    )
    assert read_request(body) == (AnswerScript(tokens=9, calls=2), 1)


def test_a_message_may_have_several_parts() -> None:
    parts = [{"type": "text", "text": "say 3 "}, {"type": "text", "text": "tokens"}]
    assert read_request(request_body(("user", parts))) == (AnswerScript(tokens=3), 0)


def test_a_round_trip_belongs_to_the_statement_bound_last() -> None:
    tracker = StatementTracker()
    tracker.statement_for(b"P", b"one\0SELECT 1\0\0\0")
    tracker.statement_for(b"P", b"two\0SELECT 2\0\0\0")
    tracker.statement_for(b"B", b"\0one\0\0\0")
    assert tracker.statement_for(b"S", b"") == "SELECT 1"
    assert tracker.statement_for(b"Q", b"LISTEN x\0") == "LISTEN x"
    tracker.statement_for(b"B", b"\0two\0\0\0")
    assert tracker.statement_for(b"S", b"") == "SELECT 2"
