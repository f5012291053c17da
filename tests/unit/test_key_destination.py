"""Where a provider's keys may be sent."""

import pytest

from chatd.domain.model.config import key_destination, proxy_origin

A = "https://a.example"
PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.example/v1", "https://a.example/v2?x=1"),
        ("https://a.example", "HTTPS://A.example:443/"),
        ("http://[::1]:80", "http://[::1]/v1"),
        (" https://a.example ", "https://a.example"),
    ],
)
def test_two_addresses_of_one_origin_are_one_destination(one: str, other: str) -> None:
    assert key_destination(one, None, None) == key_destination(other, None, None)


@pytest.mark.parametrize(
    "other",
    [
        None,
        "http://a.example",
        "https://a.example:8443",
        "https://a.example.evil.test",
        "https://evil.test/https://a.example",
        "https://evil.test?https://a.example",
        "https://evil.test\\.a.example",
    ],
)
def test_another_scheme_host_or_port_is_another_destination(other: str | None) -> None:
    assert key_destination(A, None, None) != key_destination(other, None, None)


def test_a_proxy_counts_where_it_can_read_keys() -> None:
    """A plain address; or an encrypted one, if the trusted authorities are chosen as well."""
    through = proxy_origin("http://user:secret@proxy:3128/")
    assert through == PROXY
    plain = "http://a.example"
    assert key_destination(plain, through, None) != key_destination(plain, None, None)
    assert key_destination(A, through, None) == key_destination(A, None, None)
    assert key_destination(A, through, "/ca.pem") != key_destination(A, None, "/ca.pem")
    assert key_destination(A, None, "/ca.pem") == key_destination(A, None, None)
    assert proxy_origin("none") is None
