"""What an OpenID provider says: which tokens are refused, and what follows from claims."""

import pytest

from chatd.domain.access.accounts import (
    ExpectedToken,
    Identity,
    IdentityRules,
    check_domain,
    check_username,
    claimed_role,
    find_token_fault,
    local_path,
    proposed_username,
    read_identity,
)
from chatd.domain.errors import Forbidden

NOW = 1_800_000_000.0
EXPECTED = ExpectedToken(issuer="https://id", client_id="chatd", nonce="n", now=NOW)
GOOD = {
    "iss": "https://id",
    "aud": "chatd",
    "sub": "42",
    "nonce": "n",
    "iat": NOW - 5,
    "exp": NOW + 300,
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"aud": ["chatd"]}, None),
        ({"aud": ["chatd", "other"], "azp": "chatd"}, None),
        ({"exp": NOW - 59}, None),
        ({"iat": NOW + 59}, None),
        ({"iss": "https://evil"}, "another issuer"),
        ({"iss": "https://id/"}, "another issuer"),
        ({"aud": "other"}, "for another client"),
        ({"aud": ["other"]}, "for another client"),
        ({"aud": None}, "for another client"),
        ({"aud": ["chatd", "other"]}, "for another authorized party"),
        ({"azp": "other"}, "for another authorized party"),
        ({"exp": NOW - 60}, "expired"),
        ({"exp": None}, "expired"),
        ({"exp": "tomorrow"}, "expired"),
        ({"exp": True}, "expired"),
        ({"iat": NOW + 61}, "not valid yet"),
        ({"iat": None}, "not valid yet"),
        ({"nbf": NOW + 61}, "not valid yet"),
        ({"nonce": "other"}, "for another sign-in"),
        ({"nonce": None}, "for another sign-in"),
        ({"sub": ""}, "without a subject"),
        ({"sub": 42}, "without a subject"),
        ({"sub": "x" * 256}, "without a subject"),
    ],
)
def test_a_token_is_accepted_only_for_this_client_sign_in_and_time(
    change: dict[str, object], fault: str | None
) -> None:
    assert find_token_fault({**GOOD, **change}, EXPECTED) == fault


def identity(**claims: object) -> Identity:
    return read_identity({**GOOD, **claims}, IdentityRules(groups_claim="groups"))


@pytest.mark.parametrize(
    ("verified", "email"),
    [(True, "ada@example.com"), (False, None), (None, None), ("true", None), (1, None)],
)
def test_only_a_verified_email_counts(verified: object, email: str | None) -> None:
    assert identity(email="ada@example.com", email_verified=verified).email == email


@pytest.mark.parametrize(
    ("claims", "email"),
    [
        ({}, "ada@example.com"),
        ({"email_verified": True}, "ada@example.com"),
        ({"email_verified": False}, None),
        ({"email_verified": None}, None),
    ],
)
def test_a_provider_that_never_says_whether_an_email_is_verified_can_be_trusted(
    claims: dict[str, object], email: str | None
) -> None:
    given = {**GOOD, "email": "ada@example.com", **claims}
    assert read_identity(given, IdentityRules(trust_email=True)).email == email


def test_an_email_must_be_of_an_allowed_domain() -> None:
    rules = IdentityRules(allowed_domains=("Example.com",))
    check_domain(identity(email="ada@EXAMPLE.com", email_verified=True), rules)
    for email in ("ada@evil.example", "ada@sub.example.com", "ada@evilexample.com", "ada"):
        with pytest.raises(Forbidden):
            check_domain(identity(email=email, email_verified=True), rules)
    with pytest.raises(Forbidden):
        check_domain(identity(email="ada@example.com"), rules)
    check_domain(identity(), IdentityRules())


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["ops"], "admin"),
        (["audit", "ops"], "admin"),
        (["audit"], "viewer"),
        (["Ops"], "member"),
        ([], "member"),
        (None, "member"),
        ("ops", "member"),
        ([["ops"]], "member"),
    ],
)
def test_the_role_follows_the_groups(groups: object, role: str) -> None:
    rules = IdentityRules(admin_groups=("ops",), viewer_groups=("audit",))
    assert claimed_role(identity(groups=groups), rules) == role
    assert claimed_role(identity(groups=groups), IdentityRules()) is None


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "ada"}, "ada"),
        ({"preferred_username": "Ada Lovelace"}, "Ada-Lovelace"),
        ({"preferred_username": "..ä.."}, "user"),
        ({"email": "ada+x@example.com", "email_verified": True}, "ada-x"),
        ({"email": "ada@example.com"}, "user"),
        ({"preferred_username": "x" * 200}, "x" * 64),
    ],
)
def test_a_username_is_made_from_the_claims(claims: dict[str, object], name: str) -> None:
    found = identity(**claims)
    assert proposed_username(found) == check_username(name)
    assert check_username(proposed_username(found, "-1a2b3c")).endswith("-1a2b3c")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (None, "/"),
        ("", "/"),
        ("/docs", "/docs"),
        ("/docs?x=1#y", "/docs?x=1#y"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nset-cookie: x", "/"),
        ("/" + "x" * 1000, "/"),
    ],
)
def test_a_sign_in_leads_only_to_paths_of_this_server(text: str | None, path: str) -> None:
    assert local_path(text) == path
