"""Which addresses are public."""

import pytest

from chatd.domain.addresses import is_public, names_private_host


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.1", "100.128.0.1"),
        *("223.255.255.255", "2606:4700:4700::1111", "2a00:1450::1", "64:ff9b::1.1.1.1"),
        "::ffff:8.8.8.8",
    ],
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1"),
        *("172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.127.255.255"),
        *("192.0.0.8", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1"),
        *("203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fe80::1"),
        *("fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("2002:7f00:1::", "2001::1", "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254"),
        *("64:ff9b:1::1", "100::1", "3fff::1", "fd00:ec2::254"),
        *("localhost", "", "example.org", "1.1.1", "0x7f000001", "1.1.1.1.", "127.1"),
    ],
)
def test_other_addresses_and_names_are_not(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "a.localhost.", "printer.local", "metadata.internal", "127.0.0.1", "::1"),
        *("10.1.2.3", "2130706433", "127.1", "0x7f.1", "0x7f000001"),
    ],
)
def test_a_host_that_is_plainly_private_is_known_by_its_name(host: str) -> None:
    assert names_private_host(host)


@pytest.mark.parametrize(
    "host",
    ["8.8.8.8", "push.example.com", "2606:4700:4700::1111", "0xdead.example.com", "1.example.com"],
)
def test_other_hosts_are_not_taken_for_private_ones(host: str) -> None:
    assert not names_private_host(host)
