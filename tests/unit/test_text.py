"""Text and JSON that cannot be stored or sent are replaced; text is clipped."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from chatd.domain.text import (
    clip,
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
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud800b", "a\ufffdb"),
        ("a\udc00", "a\ufffd"),
        ("nul \0 stays", "nul \0 stays"),
    ],
)
def test_surrogates_are_joined_or_replaced(text: str, expected: str) -> None:
    assert replace_surrogates(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_escaped_lone_surrogates_in_json_are_replaced(text: str, expected: str) -> None:
    assert replace_json_surrogates(text) == expected


def test_storable_json_is_returned_unchanged() -> None:
    raw = Raw(b'{"a": "\\ud83d\\ude00"}')
    assert storable_json(raw) is raw
    assert storable_json(UNSET) is UNSET


@pytest.mark.covers("prompt-15")
def test_raw_json_is_made_valid_utf8() -> None:
    replaced = storable_json(Raw(b'{"a":"\xff"}'))
    assert parse_json(replaced) == {"a": "\ufffd"}


@pytest.mark.covers("prompt-6")
def test_a_model_gets_no_nul_in_text_arguments_or_keys() -> None:
    assert model_text("a\0b\ud800") == "a\ufffdb\ufffd"
    replaced = model_json(Raw(rb'{"k\u0000":"v\u0000", "w":"\\u0000"}'))
    assert parse_json(replaced) == {"k\ufffd": "v\ufffd", "w": r"\u0000"}


def test_invalid_utf8_is_decoded_with_replacements() -> None:
    assert decode_lenient(b"ok \xc3\xa4 \xff") == "ok ä \ufffd"


@pytest.mark.parametrize("raw", [UNSET, Raw(b"null"), Raw(b" {} "), Raw(b"")])
def test_absent_null_and_empty_objects_are_empty_json(raw: Raw) -> None:
    assert is_empty_json(raw)


def test_an_object_with_a_field_is_not_empty_json() -> None:
    assert not is_empty_json(Raw(b'{"anthropic":{}}'))


@pytest.mark.parametrize("text", ["", "{", "nope", "[" * 100_000, r'"\ud800"', "1e999"])
def test_invalid_json_parses_to_unset(text: str) -> None:
    assert parse_json(text) is UNSET
    assert parse_json(Raw(text.encode())) is UNSET


def test_json_null_parses_to_none() -> None:
    assert parse_json("null") is None
    assert parse_json(UNSET) is UNSET


@pytest.mark.parametrize(
    ("text", "clipped"), [("", ""), ("four", "four"), ("fives", "fiv…"), ("to be or", "to…")]
)
def test_clipped_text_fits_the_limit_and_ends_in_an_ellipsis(text: str, clipped: str) -> None:
    assert clip(text, 4) == clipped


ANY_TEXT = st.text(alphabet=st.characters(codec=None, exclude_categories=()))


@given(ANY_TEXT)
def test_replaced_text_can_always_be_encoded(text: str) -> None:
    assert replace_surrogates(text).encode().decode() == replace_surrogates(text)


@given(ANY_TEXT)
def test_replaced_json_decodes_to_the_replaced_text(text: str) -> None:
    escaped = json.dumps({"key " + text: text})
    assert parse_json(replace_json_surrogates(escaped)) == {
        "key " + replace_surrogates(text): replace_surrogates(text)
    }
