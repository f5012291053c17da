"""Sealed secrets: what opens, what does not, and what is never shown."""

import base64
import pickle

import pytest

from chatd.sealed_secrets import (
    InvalidSecretKey,
    KeyRing,
    SecretKey,
    SecretKeyMissing,
    SecretUnreadable,
    check_value,
    fits_check_value,
    new_key,
    parse_keys,
    seal_context,
)

KEY, OTHER = SecretKey(bytes(32)), SecretKey(bytes(31) + b"\x01")
RING = KeyRing([KEY, OTHER], KEY.id)
HERE, ELSEWHERE = seal_context("t", "c", "1"), seal_context("t", "c", "2")


@pytest.mark.parametrize("plaintext", ["", "sk-ant-123", "ключ", "x" * 100_000])
def test_a_sealed_secret_opens_in_its_context(plaintext: str) -> None:
    assert RING.open(RING.seal(plaintext, HERE), HERE) == plaintext


def test_the_same_secret_is_sealed_differently_each_time_and_names_its_key() -> None:
    one, two = RING.seal("secret", HERE), RING.seal("secret", HERE)
    assert one != two
    assert one.split(".")[:2] == two.split(".")[:2] == ["sealed1", KEY.id]


def test_a_sealed_secret_that_was_moved_to_another_row_does_not_open() -> None:
    with pytest.raises(SecretUnreadable, match="belongs to another row"):
        RING.open(RING.seal("secret", HERE), ELSEWHERE)


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_changed_sealed_secret_does_not_open(place: int) -> None:
    sealed = KEY.seal("secret", HERE)
    at = place % len(sealed)
    changed = sealed[:at] + ("B" if sealed[at] == "A" else "A") + sealed[at + 1 :]
    with pytest.raises(SecretUnreadable):
        RING.open(changed, HERE)


@pytest.mark.parametrize(
    "sealed", ["", "secret", "sealed1..", f"sealed1.{KEY.id}.", f"sealed1.{KEY.id}.A"]
)
def test_a_text_that_is_not_sealed_is_an_error(sealed: str) -> None:
    with pytest.raises(SecretUnreadable):
        RING.open(sealed, HERE)


def test_a_text_that_names_the_key_of_another_does_not_open() -> None:
    data = KEY.seal("secret", HERE).rsplit(".", 1)[1]
    with pytest.raises(SecretUnreadable):
        RING.open(f"sealed1.{OTHER.id}.{data}", HERE)


def test_every_held_key_opens_and_the_current_one_seals() -> None:
    old = OTHER.seal("secret", HERE)
    assert RING.open(old, HERE) == "secret"
    assert RING.seal("secret", HERE).split(".")[1] == KEY.id


def test_a_missing_key_is_named_with_what_to_do() -> None:
    ring = KeyRing([OTHER], KEY.id, remedy="Copy the file.")
    for work in (lambda: ring.seal("a", HERE), lambda: ring.open(KEY.seal("a", HERE), HERE)):
        with pytest.raises(SecretKeyMissing, match=rf"key {KEY.id}, .* Copy the file\.$"):
            work()
    with pytest.raises(SecretKeyMissing, match="does not hold a key"):
        KeyRing().seal("a", HERE)


def test_a_key_is_hidden_in_its_repr_and_cannot_be_pickled() -> None:
    text = KEY.encode()
    assert text not in repr(KEY) + repr(RING) + str(vars(RING))
    with pytest.raises(TypeError):
        pickle.dumps(KEY)


def test_keys_are_read_in_both_alphabets_with_and_without_padding() -> None:
    value = bytes([0xFB, 0xEF, 0xFF] * 10 + [1, 2])
    plain, urlsafe = base64.b64encode(value).decode(), base64.urlsafe_b64encode(value).decode()
    assert plain != urlsafe
    for text in (plain, urlsafe, plain.rstrip("="), f" {plain},{urlsafe}\n"):
        assert [key.id for key in parse_keys(text)] == [SecretKey(value).id]


def test_an_order_of_keys_is_kept() -> None:
    keys = [new_key() for _ in range(3)]
    text = "\n".join(key.encode() for key in keys)
    assert [key.id for key in parse_keys(text)] == [key.id for key in keys]


@pytest.mark.parametrize("text", ["hunter2", "!" * 44, base64.b64encode(bytes(31)).decode()])
def test_an_invalid_key_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(InvalidSecretKey) as refused:
        parse_keys(text)
    assert text not in refused.value.message


def test_a_check_value_fits_its_key_only() -> None:
    assert fits_check_value(KEY, check_value(KEY))
    assert not fits_check_value(OTHER, check_value(KEY))
    assert not fits_check_value(KEY, "sealed1")
