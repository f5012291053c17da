"""The rules of OAuth for MCP servers, in tables."""

import pytest

from chatd.domain.errors import InvalidInput
from chatd.domain.ids import McpServerId
from chatd.domain.mcp.oauth import (
    IssuerMetadata,
    OauthClient,
    OauthFailed,
    RegistrationReply,
    ResourceMetadata,
    TokenError,
    TokenReply,
    authorization_header,
    choose_scopes,
    find_token_fault,
    is_same_origin,
    issuer_metadata_urls,
    metadata_hint,
    refusal_reason,
    registered_client,
    registration_request,
    require_endpoint,
    require_own_resource,
    require_same_issuer,
    resource_metadata_urls,
)
from chatd.domain.mcp.servers import check_header, check_server_url, is_used
from tests.support.mcp_servers import mcp_server, mcp_server_id

SERVER = "https://mcp.example.com/team/mcp"
ISSUER = IssuerMetadata(
    issuer="https://login.example.com",
    authorization_endpoint="https://login.example.com/a",
    token_endpoint="https://login.example.com/t",
)
CLIENT = OauthClient(
    client_id="c",
    authorization_endpoint="https://login.example.com/a",
    token_endpoint="https://login.example.com/t",
    resource=SERVER,
    issuer="https://login.example.com",
)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("https://a.example.com", "https://A.example.com:443/path?q", True),
        ("http://a.example.com:80/", "http://a.example.com", True),
        ("https://a.example.com", "http://a.example.com", False),
        ("https://a.example.com", "https://a.example.com:8443", False),
        ("https://a.example.com", "https://a.example.com.evil.com", False),
        ("https://a.example.com", "https://a.example.com@evil.com", False),
        ("https://[::1]:5", "https://[::1]:5/x", True),
        ("no url", "no url", False),
    ],
)
def test_the_origin_is_scheme_host_and_port(one: str, other: str, is_same: bool) -> None:  # noqa: FBT001
    assert is_same_origin(one, other) is is_same


@pytest.mark.parametrize(
    ("challenge", "expected"),
    [
        (None, (None, None)),
        ("Bearer", (None, None)),
        ('Bearer resource_metadata="https://a/x", scope="a b"', ("https://a/x", "a b")),
        ("Bearer error=invalid_token, scope=tools", (None, "tools")),
    ],
)
def test_a_refusal_may_name_the_metadata_and_the_scope(
    challenge: str | None, expected: tuple[str | None, str | None]
) -> None:
    assert metadata_hint(challenge) == expected


def test_a_server_describes_itself_at_its_path_and_at_its_root() -> None:
    root = "https://mcp.example.com/.well-known/oauth-protected-resource"
    assert resource_metadata_urls(SERVER, None) == (f"{root}/team/mcp", root)
    own = "https://mcp.example.com/own"
    assert resource_metadata_urls(SERVER, own) == (own, f"{root}/team/mcp", root)
    assert resource_metadata_urls(SERVER, "https://evil.com/own") == (f"{root}/team/mcp", root)
    assert resource_metadata_urls("https://mcp.example.com", None) == (root,)


def test_an_authorization_server_with_a_path_has_three_addresses() -> None:
    base = "https://login.example.com"
    assert issuer_metadata_urls(f"{base}/tenant") == (
        f"{base}/.well-known/oauth-authorization-server/tenant",
        f"{base}/.well-known/openid-configuration/tenant",
        f"{base}/tenant/.well-known/openid-configuration",
    )
    assert len(issuer_metadata_urls(base)) == 2
    assert issuer_metadata_urls(f"{base}?x=1") == ()


@pytest.mark.parametrize(
    ("resource", "is_own"),
    [
        (SERVER, True),
        ("https://mcp.example.com", True),
        ("https://mcp.example.com/team/", True),
        ("https://mcp.example.com/tea", False),
        ("https://mcp.example.com/team/mcp/more", False),
        ("https://other.example.com/team/mcp", False),
        ("http://mcp.example.com/team/mcp", False),
    ],
)
def test_tokens_are_asked_for_the_server_or_what_contains_it(
    resource: str,
    is_own: bool,  # noqa: FBT001
) -> None:
    found = ResourceMetadata(resource=resource)
    if is_own:
        assert require_own_resource(found, SERVER) == resource
        return
    with pytest.raises(OauthFailed, match="another resource"):
        require_own_resource(found, SERVER)


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://login.example.com/t", True),
        ("http://mcp.internal/t", True),
        ("http://login.example.com/t", False),
        ("javascript:alert(1)", False),
        ("//login.example.com", False),
        (None, False),
    ],
)
def test_an_endpoint_is_encrypted_or_on_a_named_host(url: str | None, is_allowed: bool) -> None:  # noqa: FBT001
    if is_allowed:
        assert require_endpoint(url, "token endpoint", ("mcp.internal",)) == url
        return
    with pytest.raises(OauthFailed):
        require_endpoint(url, "token endpoint", ("mcp.internal",))


def test_scopes_are_the_administrators_then_the_refusals_then_the_resources() -> None:
    known = ("tools", "offline_access")
    assert choose_scopes("mine", "asked", ("known",), known) == "mine"
    assert choose_scopes("", "asked", ("known",), known) == "asked offline_access"
    assert choose_scopes("", None, ("known",), ()) == "known"
    assert choose_scopes("", None, (), known) == "", "nothing is asked that nobody named"


@pytest.mark.parametrize(
    ("reply", "method"),
    [
        (RegistrationReply(client_id="c"), "none"),
        (RegistrationReply(client_id="c", client_secret="s"), "client_secret_basic"),
        (
            RegistrationReply(client_id="c", token_endpoint_auth_method="client_secret_post"),
            "client_secret_post",
        ),
    ],
)
def test_a_registration_says_how_the_client_authenticates(
    reply: RegistrationReply, method: str
) -> None:
    assert registered_client(ISSUER, reply, SERVER, "").token_auth == method
    assert registration_request(ISSUER, "https://x/cb", "a")["scope"] == "a"
    assert "scope" not in registration_request(ISSUER, "https://x/cb", "")


def test_a_way_to_authenticate_that_is_unknown_is_refused() -> None:
    reply = RegistrationReply(client_id="c", token_endpoint_auth_method="private_key_jwt")
    with pytest.raises(OauthFailed, match="private_key_jwt"):
        registered_client(ISSUER, reply, SERVER, "")


@pytest.mark.parametrize(
    ("promises", "named", "is_allowed"),
    [
        (False, None, True),
        (False, "https://login.example.com/", True),
        (False, "https://evil.example.com", False),
        (True, None, False),
        (True, "https://login.example.com", True),
    ],
)
def test_the_issuer_of_an_answer_is_compared(
    promises: bool,  # noqa: FBT001
    named: str | None,
    is_allowed: bool,  # noqa: FBT001
) -> None:
    client = OauthClient(
        client_id="c",
        authorization_endpoint=CLIENT.authorization_endpoint,
        token_endpoint=CLIENT.token_endpoint,
        resource=SERVER,
        issuer=CLIENT.issuer,
        checks_issuer=promises,
    )
    if is_allowed:
        require_same_issuer(client, named)
        return
    with pytest.raises(OauthFailed):
        require_same_issuer(client, named)


def test_a_token_that_would_break_a_header_is_refused() -> None:
    assert find_token_fault(TokenReply(access_token="abc")) is None
    for bad in ("", "a\r\nX-Evil: 1", "ä", "x" * 20_000):
        assert find_token_fault(TokenReply(access_token=bad)) is not None
    assert find_token_fault(TokenReply(access_token="abc", token_type="a\nb")) is not None


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, None), (60.0, 60.0), (-5.0, 0.0), (1e30, None), (float("nan"), None)],
)
def test_the_lifetime_of_a_token_is_bounded(given: float | None, expected: float | None) -> None:
    assert TokenReply(access_token="a", expires_in=given).lifetime_s == expected


def test_the_type_of_a_token_is_bearer_unless_it_is_another() -> None:
    assert [authorization_header(kind, "t") for kind in ("", "bearer", "BEARER", "DPoP")] == [
        *("Bearer t", "Bearer t", "Bearer t", "DPoP t"),
    ]


def test_a_reason_is_short_and_hides_what_was_sent() -> None:
    said = TokenError(error="invalid_grant", error_description=f"token s3cret {'x' * 900}")
    reason = refusal_reason(said, 400, ["s3cret"])
    assert (len(reason), "s3cret" in reason) == (400, False)
    assert refusal_reason(TokenError(), 503).endswith("status 503")


@pytest.mark.parametrize("url", ["", "mcp", "ftp://a", "https://u:p@a", "https://a#b", "https://ä"])
def test_an_address_of_a_server_is_plain_http(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_server_url(url)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X Y", "a"),
        ("Host", "a"),
        ("Mcp-Session-Id", "a"),
        ("X-A", ""),
        ("X-A", "a\nb"),
        ("X-A", " a"),
    ],
)
def test_a_header_must_be_one_that_can_be_sent(name: str, value: str) -> None:
    with pytest.raises(InvalidInput):
        check_header(name, value, "headers")
    check_header("X-A", "a b", "headers")


@pytest.mark.parametrize(
    ("availability", "chosen", "is_expected"),
    [
        ("force_on", (), True),
        ("force_on", None, True),
        ("default_on", None, True),
        ("default_on", (), False),
        ("default_off", None, False),
        ("default_off", (mcp_server_id(1),), True),
    ],
)
def test_a_chat_uses_what_is_forced_chosen_or_on_by_default(
    availability: str,
    chosen: tuple[McpServerId, ...] | None,
    is_expected: bool,  # noqa: FBT001
) -> None:
    assert is_used(mcp_server(1, availability=availability), chosen) is is_expected
    assert not is_used(mcp_server(1, availability=availability, enabled=False), chosen)
