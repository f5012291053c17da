"""Which network addresses a stranger may name: those of the public internet.

A model or a user can give chatd a URL. Without this rule chatd would connect for them to its own
host, to the private network around it, or to the metadata service of its cloud.
"""

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

# Not public: this host, private networks, shared and link-local addresses, documentation,
# benchmarks, multicast, reserved.
CLOSED_IPV4: Final = tuple(
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
# All public IPv6 addresses are in one block; these parts of it lead to IPv4 or nowhere.
PUBLIC_IPV6: Final = IPv6Network("2000::/3")
CLOSED_IPV6: Final = tuple(
    IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
NAT64: Final = IPv6Network("64:ff9b::/96")
_NUMERIC: Final = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*")


def is_public(address: str) -> bool:
    """False for a text that is no address, such as a host name."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        inner = _inner_address(found)
        if inner is None:
            is_closed = any(found in network for network in CLOSED_IPV6)
            return found in PUBLIC_IPV6 and not is_closed
        found = inner
    return not any(found in network for network in CLOSED_IPV4)


def names_private_host(host: str) -> bool:
    """Whether a host, as it stands in a URL, is an address that is not public or this host. A name
    may still lead to one: only the connection shows that."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        # Resolvers read such a name as a number: 2130706433, 0x7f.1, 127.1.
        return _NUMERIC.fullmatch(name) is not None
    return not is_public(name)


def _inner_address(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address to which the network translates this one."""
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped
