"""Names, passwords, scopes of tokens, secrets, buckets, and what the audit log keeps."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.access.accounts import (
    Bucket,
    check_email,
    check_password,
    check_username,
    is_full,
    redacted_diff,
    retry_after,
    take,
    token_scopes,
)
from chatd.domain.access.permissions import Role, UserActor
from chatd.domain.access.secret_text import (
    csrf_token,
    digest,
    is_csrf_token,
    is_opaque_secret,
    is_runner_token,
    is_token,
    runner_token_label,
    runner_token_text,
    secret_text,
    token_label,
    token_text,
)
from chatd.domain.errors import Forbidden, InvalidInput
from chatd.domain.ids import CredentialId, UserId

ID = CredentialId(UUID("3f2a9c0d-1e5b-4000-8000-000000000001"))


def creator(*scopes: str) -> UserActor:
    return UserActor(
        user_id=UserId(UUID(int=1)), role="member", scopes=frozenset(scopes) if scopes else None
    )


@pytest.mark.parametrize("name", ["a", "ada", "ada.lovelace", "a@b.c", "A-1_x", "x" * 64])
def test_a_username_has_letters_digits_and_some_signs_inside(name: str) -> None:
    assert check_username(name) == name


@pytest.mark.parametrize("name", ["", " ", "a b", ".a", "a.", "ä", "x" * 65, "a\n", "<b>"])
def test_other_usernames_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_username(name)


def test_an_email_has_one_at_sign_and_a_domain() -> None:
    assert check_email("ada@example.com")
    for wrong in ("ada", "@example.com", "ada@", "ada@x", "a b@example.com", "a@b@c.d", "a@b.c."):
        with pytest.raises(InvalidInput):
            check_email(wrong)


def test_a_password_has_at_least_twelve_characters_and_is_never_repeated() -> None:
    assert check_password("xy" * 6) == "xy" * 6
    for wrong in ("", "eleven-char", "xy" * 129):
        with pytest.raises(InvalidInput) as refused:
            check_password(wrong)
        assert not wrong or wrong not in refused.value.message


@pytest.mark.parametrize("wrong", ["x" * 12, "\0" * 12, "correct horse\0", " " * 20])
def test_a_password_is_neither_one_repeated_character_nor_has_a_nul(wrong: str) -> None:
    with pytest.raises(InvalidInput):
        check_password(wrong)


@pytest.mark.parametrize("role", ["member", "viewer"])
def test_only_an_administrator_makes_tokens_of_the_scope_admin(role: Role) -> None:
    with pytest.raises(Forbidden) as refused:
        token_scopes(replace(creator(), role=role), ("chat:read", "admin"))
    assert refused.value.code == "missing_scope"
    assert token_scopes(replace(creator(), role="admin"), ("admin",)) == ("admin",)


@pytest.mark.parametrize(
    ("by", "wanted", "expected"),
    [
        (creator(), None, None),
        (creator(), ("files", "chat:read"), ("chat:read", "files")),
        (creator("chat:read", "account"), None, ("chat:read", "account")),
        (creator("chat:read", "account"), ("chat:read",), ("chat:read",)),
    ],
)
def test_a_token_has_the_wanted_scopes_or_those_of_its_creator(
    by: UserActor, wanted: tuple[str, ...] | None, expected: tuple[str, ...] | None
) -> None:
    assert token_scopes(by, wanted) == expected


def test_a_token_never_has_more_scopes_than_its_creator() -> None:
    with pytest.raises(Forbidden) as refused:
        token_scopes(creator("account"), ("account", "admin"))
    assert refused.value.code == "missing_scope"
    for unknown in (("root",), ()):
        with pytest.raises(InvalidInput):
            token_scopes(creator(), unknown)


def test_a_token_names_its_id_and_can_be_recognized() -> None:
    token = token_text(ID, b"\x01" * 32)
    assert token == f"chatd_3f2a9c0d1e5b_{secret_text(bytes([1] * 32))}"
    assert token.startswith(token_label(ID))
    assert is_token(token)
    for wrong in ("", token[:-1], f"{token}x", token.upper(), f" {token}", token[6:], f"{token}\n"):
        assert not is_token(wrong)
    assert is_opaque_secret(secret_text(b"\x02" * 32))
    assert not is_opaque_secret(token)
    assert len(digest("\udcff")) == 32


def test_a_runners_token_is_no_token_of_a_user() -> None:
    token = runner_token_text(ID, b"\x01" * 32)
    assert token == f"chatd_runner_3f2a9c0d1e5b_{secret_text(bytes([1] * 32))}"
    assert token.startswith(runner_token_label(ID))
    assert is_runner_token(token)
    assert not is_token(token)
    for wrong in ("", token[:-1], f"{token}x", token[7:], token_text(ID, b"\x01" * 32)):
        assert not is_runner_token(wrong)


def test_the_csrf_token_follows_from_the_session_and_does_not_reveal_it() -> None:
    mine, other = secret_text(b"\x01" * 32), secret_text(b"\x02" * 32)
    made = csrf_token(mine)
    assert is_csrf_token(made, mine)
    assert mine not in made
    for wrong in (None, "", mine, csrf_token(other), f"{made}=", "é"):
        assert not is_csrf_token(wrong, mine)


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    bucket, now = None, 100.0
    for _ in range(10):
        bucket, wait = take(bucket, 10, now)
        assert wait == 0
    bucket, wait = take(bucket, 10, now)
    assert wait == pytest.approx(6)
    bucket, wait = take(bucket, 10, now + 3)
    assert wait == pytest.approx(3), "a refused event costs nothing"
    bucket, wait = take(bucket, 10, now + 6.1)
    assert wait == 0
    assert not is_full(bucket, 10, now + 30)
    assert is_full(bucket, 10, now + 70)
    assert take(Bucket(0, 100), 10, 90.0)[1] > 0, "a clock that goes back gives nothing"
    assert [retry_after(seconds) for seconds in (0.0, 0.2, 1.0, 1.2)] == [1, 1, 1, 2]


def test_a_diff_has_what_changed_and_no_secret() -> None:
    before = {"name": "a", "role": "member", "api_key": "sk-1", "has_password": False}
    after = {"name": "b", "role": "member", "api_key": "sk-2", "has_password": True}
    assert redacted_diff(before, after) == {
        "before": {"name": "a", "api_key": "***", "has_password": False},
        "after": {"name": "b", "api_key": "***", "has_password": True},
    }
    assert redacted_diff(None, {"client_secret": "x"}) == {"after": {"client_secret": "***"}}
    assert redacted_diff({"name": "a"}, None) == {"before": {"name": "a"}}
    assert redacted_diff(before, before) == {"before": {}, "after": {}}
