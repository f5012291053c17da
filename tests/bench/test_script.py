"""What the fake provider is asked and says, and who asks for which statement on the wire."""

import msgspec
import pytest

from chatd.bench.provider import chunk, wished
from chatd.bench.script import MARK, Wish, answer, read_wish
from chatd.bench.wire import Asked

WISHES = [
    Wish(tokens=1),
    Wish(tokens=300, per_s=50),
    Wish(tokens=5, calls=10),
    Wish(tokens=7, per_s=3, calls=2),
]


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_a_wish_is_read_as_it_was_written(wish: Wish) -> None:
    assert read_wish(f"please {wish}, thanks") == wish


def test_what_is_no_wish_gets_a_short_answer() -> None:
    assert read_wish("What is a good title?") == Wish(tokens=1)


def test_every_token_can_be_counted() -> None:
    assert answer(12_345).encode().count(MARK) == 12_345
    assert chunk({"content": answer(1)}).count(MARK) == 1


def asked(*messages: tuple[str, object]) -> bytes:
    said = [{"role": role, "content": content} for role, content in messages]
    return msgspec.json.encode({"model": "bench", "messages": said})


def test_the_last_message_of_the_user_counts_and_the_results_after_it() -> None:
    old, new = str(Wish(tokens=1)), str(Wish(tokens=9, calls=2))
    body = asked(("user", old), ("tool", "x"), ("user", new), ("assistant", None), ("tool", "y"))
    assert wished(body) == (Wish(tokens=9, calls=2), 1)


def test_a_message_may_come_in_parts() -> None:
    parts = [{"type": "text", "text": "say 3 "}, {"type": "text", "text": "tokens"}]
    assert wished(asked(("user", parts))) == (Wish(tokens=3), 0)


def test_a_trip_is_for_the_statement_that_was_bound_last() -> None:
    line = Asked()
    line.by(b"P", b"one\0SELECT 1\0\0\0")
    line.by(b"P", b"two\0SELECT 2\0\0\0")
    line.by(b"B", b"\0one\0\0\0")
    assert line.by(b"S", b"") == "SELECT 1"
    assert line.by(b"Q", b"LISTEN x\0") == "LISTEN x"
    line.by(b"B", b"\0two\0\0\0")
    assert line.by(b"S", b"") == "SELECT 2"
