"""Text and JSON that cannot be stored or sent, mended."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from chatd.domain.text import (
    decode_lenient,
    is_empty_json,
    model_json,
    model_text,
    parse_json,
    replace_json_surrogates,
    replace_surrogates,
    storable_json,
)


@pytest.mark.covers("prompt-15")
@pytest.mark.parametrize(
    ("text", "healed"),
    [
        ("plain", "plain"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud800b", "a\ufffdb"),
        ("a\udc00", "a\ufffd"),
        ("nul \0 stays", "nul \0 stays"),
    ],
)
def test_halves_of_a_character_are_joined_or_replaced(text: str, healed: str) -> None:
    assert replace_surrogates(text) == healed


@pytest.mark.parametrize(
    ("text", "healed"),
    [
        (r'{"a":"\ud83d\ude00"}', r'{"a":"\ud83d\ude00"}'),
        (r'{"a":"\ud800"}', r'{"a":"\ufffd"}'),
        (r'{"\uDC00":1}', r'{"\ufffd":1}'),
        (r'{"a":"\ud800\ud83d\ude00"}', r'{"a":"\ufffd\ud83d\ude00"}'),
        (r'{"a":"\\ud800"}', r'{"a":"\\ud800"}'),
        (r'{"a":"\\\ud800"}', r'{"a":"\\\ufffd"}'),
        (r'{"a":"\u0000\n"}', r'{"a":"\u0000\n"}'),
        (r'{"a":"\ud8', r'{"a":"\ud8'),
    ],
)
def test_halves_that_json_holds_as_escapes_are_replaced(text: str, healed: str) -> None:
    assert replace_json_surrogates(text) == healed


def test_raw_json_that_is_fine_comes_back_as_it_is() -> None:
    raw = Raw(b'{"a": "\\ud83d\\ude00"}')
    assert storable_json(raw) is raw
    assert storable_json(UNSET) is UNSET


@pytest.mark.covers("prompt-15")
def test_raw_json_is_made_valid_utf8() -> None:
    mended = storable_json(Raw(b'{"a":"\xff"}'))
    assert parse_json(mended) == {"a": "\ufffd"}


@pytest.mark.covers("prompt-6")
def test_a_model_gets_no_nul_in_text_arguments_or_keys() -> None:
    assert model_text("a\0b\ud800") == "a\ufffdb\ufffd"
    mended = model_json(Raw(rb'{"k\u0000":"v\u0000", "w":"\\u0000"}'))
    assert parse_json(mended) == {"k\ufffd": "v\ufffd", "w": r"\u0000"}


def test_bytes_become_text_whatever_they_are() -> None:
    assert decode_lenient(b"ok \xc3\xa4 \xff") == "ok ä \ufffd"


@pytest.mark.parametrize("raw", [UNSET, Raw(b"null"), Raw(b" {} "), Raw(b"")])
def test_metadata_that_says_nothing_is_empty(raw: Raw) -> None:
    assert is_empty_json(raw)


def test_metadata_that_says_something_is_not_empty() -> None:
    assert not is_empty_json(Raw(b'{"anthropic":{}}'))


@pytest.mark.parametrize("text", ["", "{", "nope", "[" * 100_000, r'"\ud800"', "1e999"])
def test_what_is_no_json_parses_to_nothing(text: str) -> None:
    assert parse_json(text) is UNSET
    assert parse_json(Raw(text.encode())) is UNSET


def test_json_null_is_not_nothing() -> None:
    assert parse_json("null") is None
    assert parse_json(UNSET) is UNSET


ANY_TEXT = st.text(alphabet=st.characters(codec=None, exclude_categories=()))


@given(ANY_TEXT)
def test_healed_text_can_always_be_encoded(text: str) -> None:
    assert replace_surrogates(text).encode().decode() == replace_surrogates(text)


@given(ANY_TEXT)
def test_healed_json_says_what_the_healed_text_says(text: str) -> None:
    escaped = json.dumps({"key " + text: text})
    assert parse_json(replace_json_surrogates(escaped)) == {
        "key " + replace_surrogates(text): replace_surrogates(text)
    }
