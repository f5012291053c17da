"""Hosts, origins, addresses and cookies: which requests may use a session."""

import pytest

from chatd.api.accounts.site import (
    PLAIN_COOKIE,
    SECURE_COOKIE,
    Site,
    SiteConfig,
    cleared_cookie,
    host_name,
    is_loopback,
    session_cookie,
    session_secret,
)
from chatd.api.request import Scope
from chatd.domain.errors import Forbidden

SECRET = "s" * 43
LOCAL = Site(SiteConfig())
PUBLIC = Site(
    SiteConfig(
        url="https://chat.example.com/",
        allowed_hosts=("chat.internal:7870",),
        allowed_origins=("https://app.example.com",),
        trusted_proxies=("10.0.0.0/8", "::1"),
    )
)


def request(host: str = "localhost:7870", *, peer: str | None = "127.0.0.1", **more: str) -> Scope:
    headers = [(b"host", host.encode())]
    headers += [(name.replace("_", "-").encode(), text.encode()) for name, text in more.items()]
    return {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "headers": headers,
        "client": None if peer is None else (peer, 5),
    }


@pytest.mark.parametrize(
    ("site", "host", "allowed"),
    [
        (LOCAL, "localhost", True),
        (LOCAL, "localhost:7870", True),
        (LOCAL, "LOCALHOST:1", True),
        (LOCAL, "app.localhost:7870", True),
        (LOCAL, "127.0.0.1:7870", True),
        (LOCAL, "127.9.9.9", True),
        (LOCAL, "[::1]:7870", True),
        (LOCAL, "192.168.1.5:7870", True),
        (LOCAL, "evil.example", False),
        (LOCAL, "localhost.evil.example", False),
        (LOCAL, "127.0.0.1.evil.example", False),
        (LOCAL, "chat.example.com", False),
        (LOCAL, "", False),
        (LOCAL, "[", False),
        (PUBLIC, "chat.example.com", True),
        (PUBLIC, "Chat.Example.com:443", True),
        (PUBLIC, "chat.internal", True),
        (PUBLIC, "app.example.com", False),
        (PUBLIC, "chat.example.com.evil.example", False),
    ],
)
def test_a_request_must_name_a_host_of_this_server(site: Site, host: str, *, allowed: bool) -> None:
    if allowed:
        site.require_host(request(host))
        return
    with pytest.raises(Forbidden) as refused:
        site.require_host(request(host))
    assert refused.value.code == "host_not_allowed"


@pytest.mark.parametrize(
    ("site", "host", "headers", "allowed"),
    [
        (LOCAL, "localhost:7870", {"origin": "http://localhost:7870"}, True),
        (LOCAL, "localhost:7870", {"origin": "http://LOCALHOST:7870"}, True),
        (LOCAL, "localhost:7870", {"origin": "http://localhost:7871"}, False),
        (LOCAL, "localhost:7870", {"origin": "https://localhost:7870"}, False),
        (LOCAL, "localhost:7870", {"origin": "http://127.0.0.1:7870"}, False),
        (LOCAL, "localhost:7870", {"origin": "null"}, False),
        (LOCAL, "localhost:7870", {"origin": ""}, False),
        (LOCAL, "localhost:7870", {"origin": "http://["}, False),
        (LOCAL, "evil.example", {"origin": "http://evil.example"}, False),
        (LOCAL, "localhost", {"origin": "http://evil.example"}, False),
        (LOCAL, "localhost", {"sec_fetch_site": "same-origin"}, True),
        (LOCAL, "localhost", {"sec_fetch_site": "none"}, True),
        (LOCAL, "localhost", {"sec_fetch_site": "same-site"}, False),
        (LOCAL, "localhost", {"sec_fetch_site": "cross-site"}, False),
        (
            LOCAL,
            "localhost",
            {"origin": "http://evil.example", "sec_fetch_site": "same-origin"},
            False,
        ),
        (LOCAL, "localhost", {}, False),
        (PUBLIC, "chat.example.com", {"origin": "https://chat.example.com"}, True),
        (PUBLIC, "chat.example.com", {"origin": "https://chat.example.com:443"}, True),
        (PUBLIC, "chat.example.com", {"origin": "http://chat.example.com"}, False),
        (PUBLIC, "chat.example.com", {"origin": "https://app.example.com"}, True),
        (PUBLIC, "chat.internal", {"origin": "https://chat.example.com"}, True),
    ],
)
def test_only_a_page_of_this_server_or_of_an_allowed_site_may_send_it(
    site: Site, host: str, headers: dict[str, str], *, allowed: bool
) -> None:
    sent = request(host, **headers)
    if allowed:
        site.require_same_site(sent, needs_proof=True)
    else:
        with pytest.raises(Forbidden):
            site.require_same_site(sent, needs_proof=True)


def test_a_program_that_does_not_tell_its_origin_may_sign_in() -> None:
    LOCAL.require_same_site(request(), needs_proof=False)


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("127.0.0.1", "1.2.3.4", "127.0.0.1"),
        (None, "1.2.3.4", None),
        ("10.1.1.1", "1.2.3.4", "1.2.3.4"),
        ("10.1.1.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("10.1.1.1", "6.6.6.6, 1.2.3.4, 10.2.2.2", "1.2.3.4"),
        ("10.1.1.1", "", "10.1.1.1"),
        ("10.1.1.1", "junk", "10.1.1.1"),
        ("10.1.1.1", "1.2.3.4, junk", "10.1.1.1"),
        ("10.1.1.1", "10.3.3.3", "10.3.3.3"),
        ("::1", "2001:db8::1", "2001:db8::1"),
    ],
)
def test_only_trusted_proxies_tell_the_address_of_a_client(
    peer: str | None, forwarded: str, address: str | None
) -> None:
    assert PUBLIC.address(request(peer=peer, x_forwarded_for=forwarded)) == address


@pytest.mark.parametrize(
    ("site", "host", "peer", "proto", "secure", "cookie"),
    [
        (LOCAL, "localhost:7870", "127.0.0.1", "", False, True),
        (LOCAL, "localhost:7870", "127.0.0.1", "https", False, True),
        (LOCAL, "192.168.1.5:7870", "192.168.1.9", "", False, False),
        (PUBLIC, "chat.example.com", "127.0.0.1", "", True, True),
        (PUBLIC, "chat.internal", "127.0.0.1", "", False, False),
        (PUBLIC, "chat.example.com", "10.1.1.1", "https", True, True),
        (PUBLIC, "chat.example.com", "10.1.1.1", "http", False, False),
        (PUBLIC, "localhost:7870", "127.0.0.1", "", False, True),
        (Site(SiteConfig(url="http://nas.lan")), "nas.lan", "192.168.1.9", "", False, True),
    ],
)
def test_a_cookie_is_given_over_https_on_loopback_or_where_the_operator_says_http(
    site: Site, host: str, peer: str, proto: str, *, secure: bool, cookie: bool
) -> None:
    sent = request(host, peer=peer, x_forwarded_proto=proto)
    assert (site.is_secure(sent), site.can_hold_cookie(sent)) == (secure, cookie)


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites() -> None:
    assert session_cookie(SECRET, secure=True) == (
        f"{SECURE_COOKIE}={SECRET}; Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax; Secure"
    )
    plain = session_cookie(SECRET, secure=False)
    assert plain.startswith(f"{PLAIN_COOKIE}={SECRET}; Path=/;")
    assert "Secure" not in plain
    assert "Max-Age=0" in cleared_cookie(secure=True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{PLAIN_COOKIE}={SECRET}", SECRET),
        (f"a=b; {PLAIN_COOKIE}={SECRET};c=d", SECRET),
        (f"x{PLAIN_COOKIE}={SECRET}", None),
        (f"{PLAIN_COOKIE}={SECRET}x", None),
        (f"{PLAIN_COOKIE}=", None),
        (f"{SECURE_COOKIE}={SECRET}", None),
        (PLAIN_COOKIE, None),
        ("x" * 20_000 + f"; {PLAIN_COOKIE}={SECRET}", None),
    ],
)
def test_a_cookie_is_read_by_its_name_and_form(text: str, found: str | None) -> None:
    assert session_secret(request(cookie=text), secure=False) == found


def test_pages_of_allowed_origins_may_read_replies_and_no_others() -> None:
    allowed = dict(PUBLIC.cors_headers(request(origin="https://app.example.com")))
    assert allowed[b"access-control-allow-origin"] == b"https://app.example.com"
    assert PUBLIC.cors_headers(request(origin="https://evil.example")) == [(b"vary", b"origin")]
    assert LOCAL.cors_headers(request(origin="https://app.example.com")) == []
    asked = request(access_control_request_method="PATCH")
    assert "PATCH" in PUBLIC.preflight_headers(asked)["access-control-allow-methods"]
    assert PUBLIC.preflight_headers(request()) == LOCAL.preflight_headers(asked) == {}


def test_names_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "x.localhost", "127.0.0.1", "::1")))
    assert not any(map(is_loopback, ("", "localhost.com", "0.0.0.0", "10.0.0.1")))
    assert host_name("[::1]:80") == "::1"


@pytest.mark.parametrize("proxy", ["x", "1.2.3", "10.0.0.0/99"])
def test_a_proxy_that_is_no_address_is_refused(proxy: str) -> None:
    with pytest.raises(ValueError, match="does not appear"):
        Site(SiteConfig(trusted_proxies=(proxy,)))
