"""What a workspace with the network `allow` may reach: named hosts and ports.

A rule is text in a template, such as `github.com`, `*.pypi.org`, `registry.npmjs.org:443` or
`private:git.corp.example:8443`. Hosts are compared in normal form: lower case, no trailing dot,
international names as `xn--`. A rule leads to public addresses only, whatever its name resolves to,
unless it begins with `private:`.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated, Final, Literal

from msgspec import MsgspecError, Struct
from msgspec.json import decode
from msgspec.structs import replace

from chatd.domain.addresses import is_public
from chatd.domain.description import UPDATED_AT, describe

MAX_ALLOWED_HOSTS: Final = 200
"""How many entries `allow` in a template may have."""
MAX_HOST_CHARS: Final = 253
MAX_REFUSALS: Final = 100
"""How many refused hosts are kept per workspace: the latest."""
DEFAULT_PORTS: Final = (443, 80)
PRIVATE_PREFIX: Final = "private:"
PRIVATE_NETWORKS: Final = tuple(
    ip_network(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
_LOCAL_NAMES: Final = (".localhost", ".local", ".internal")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")

RefusalReason = Literal[
    "not_allowed", "private_address", "wrong_name", "untrusted_certificate", "no_authority"
]


class HostRule(Struct, frozen=True, kw_only=True):
    """`host` is without the `*.` of a wildcard; empty: every host. Empty `ports`: every port.
    `private`: the host may have an address in a private network."""

    host: str
    is_wildcard: bool = False
    ports: tuple[int, ...] = DEFAULT_PORTS
    private: bool = False

    @property
    def names_own_host(self) -> bool:
        """Whether the rule may lead to the proxy's own machine: only a rule with an address may."""
        return self.private and (_is_address(self.host) or self.host == "localhost")


class NetworkTarget(Struct, frozen=True, kw_only=True):
    """A host in normal form, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Refusal(Struct, frozen=True, kw_only=True):
    """Requests of a workspace to one host and port that were refused."""

    host: Annotated[str, describe("The host that was asked for.", "example.com")]
    port: Annotated[int, describe("Its port.", 443)]
    reason: Annotated[
        RefusalReason,
        describe(
            "Why: no rule allows it, its address is not public, a request named another host"
            " than its connection, a program did not trust the certificate of the proxy, which"
            " hosts with a credential have, or (`no_authority`) the request was passed on without"
            " the credential of its host, because the workspace was started by an earlier version.",
            "not_allowed",
        ),
    ]
    count: Annotated[int, describe("How often.", 3)]
    last_at: Annotated[datetime, describe("When it was last refused.", UPDATED_AT)]


ANY_PUBLIC_HOST: Final = HostRule(host="", is_wildcard=True, ports=())


def normal_host(text: str) -> str:
    """Normalize a host name or address. Raises ValueError that says what is wrong."""
    host = text.strip("[]") if text.startswith("[") and text.endswith("]") else text
    host = host.lower().removesuffix(".")
    try:
        found = ip_address(host)
    except ValueError:
        return _normal_name(host)
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            raise ValueError("must not have a zone")
        return str(found.ipv4_mapped or found)
    return str(found)


def _normal_name(name: str) -> str:
    if not name.isascii():
        try:
            name = name.encode("idna").decode().lower()
        except UnicodeError:
            raise ValueError("is not a host name") from None
    labels = name.split(".")
    last = labels[-1]
    if last.isdigit() or (last.startswith("0x") and all(c in "0123456789abcdef" for c in last[2:])):
        # Resolvers read such names as addresses: 127.1, 0x7f.1, 2130706433.
        raise ValueError("is neither a host name nor an address in its usual form")
    if len(name) > MAX_HOST_CHARS or not all(_is_label(label) for label in labels):
        raise ValueError("is not a host name")
    return name


def _is_label(text: str) -> bool:
    ends = not text.startswith("-") and not text.endswith("-")
    return 0 < len(text) <= 63 and ends and _LETTERS.issuperset(text)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def parse_rule(text: str) -> HostRule:
    """Raises ValueError that says what is wrong."""
    if len(text) > MAX_HOST_CHARS + len(PRIVATE_PREFIX) + 6:
        raise ValueError("is too long")
    if "://" in text or "/" in text or "@" in text:
        raise ValueError("must be a host such as github.com, without https://, path and user")
    private = text.startswith(PRIVATE_PREFIX)
    host, ports = _split_ports(text.removeprefix(PRIVATE_PREFIX))
    is_wildcard = host == "*" or host.startswith("*.")
    name = host.removeprefix("*").removeprefix(".") if is_wildcard else host
    if private and is_wildcard:
        raise ValueError("must name a private host without *")
    normal = normal_host(name) if name or not is_wildcard else ""
    if is_wildcard and _is_address(normal):
        raise ValueError("must not have * before an address")
    if not private and normal and _is_private_host(normal):
        raise ValueError(f"is on a private network: write {PRIVATE_PREFIX}{text} if that is meant")
    return HostRule(host=normal, is_wildcard=is_wildcard, ports=ports, private=private)


def _is_private_host(host: str) -> bool:
    if _is_address(host):
        return not is_public(host)
    return host == "localhost" or host.endswith(_LOCAL_NAMES)


def _split_ports(text: str) -> tuple[str, tuple[int, ...]]:
    if _is_address(text):  # an IPv6 address has colons of its own
        return text, DEFAULT_PORTS
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        return text, DEFAULT_PORTS
    return host, () if port == "*" else (parse_port(port),)


def parse_port(text: str) -> int:
    """Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536):
        raise ValueError("must have a port from 1 to 65535, or * for every port")
    return int(text)


def parse_target(authority: str, default_port: int | None = None) -> NetworkTarget:
    """The `host:port` of a request. Raises ValueError."""
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        if default_port is None:
            raise ValueError("must have a port")
        return NetworkTarget(host=normal_host(authority), port=default_port)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("must have an IPv6 address in brackets")
    return NetworkTarget(host=normal_host(host), port=parse_port(port))


def find_rule(rules: Iterable[HostRule], target: NetworkTarget) -> HostRule | None:
    """The rule that allows it; None if none does."""
    found = [rule for rule in rules if _is_match(rule, target)]
    # A rule for a private host takes precedence over another that covers it.
    return max(found, key=lambda rule: rule.private, default=None)


def _is_match(rule: HostRule, target: NetworkTarget) -> bool:
    if rule.ports and target.port not in rule.ports:
        return False
    if not rule.is_wildcard:
        return rule.host == target.host
    return not rule.host or target.host.endswith(f".{rule.host}")


def is_allowed_address(rule: HostRule, address: str) -> bool:
    """Whether this rule allows a connection to the address that its host resolved to."""
    if is_public(address):
        return True
    if not rule.private:
        return False
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if rule.names_own_host:
        return found.is_loopback if rule.host == "localhost" else str(found) == rule.host
    return any(found in network for network in PRIVATE_NETWORKS)


def find_rule_problems(allow: Sequence[str]) -> Iterable[tuple[int, str]]:
    """The places of invalid entries, and what is wrong with each."""
    seen: set[HostRule] = set()
    for at, text in enumerate(allow[:MAX_ALLOWED_HOSTS]):
        try:
            rule = parse_rule(text)
        except ValueError as error:
            yield at, str(error)
            continue
        if rule in seen:
            yield at, "is there twice"
        seen.add(rule)


def explain_refusal(target: NetworkTarget, reason: RefusalReason, allow: Sequence[str]) -> str:
    """Explain a refusal to the model or person that reads a command's output."""
    match reason:
        case "not_allowed":
            shown = ", ".join(allow[:20]) + (", ..." if len(allow) > 20 else "")
            return (
                f"This workspace may not reach {target}. Its template allows: {shown or 'nothing'}."
                " Do not retry. An administrator can add the host to `allow` of the template"
                " (Settings, Templates); the workspace gets it when it is started again."
            )
        case "private_address":
            return (
                f"This workspace may not reach {target}: its address is not on the public internet."
                f" If that is meant, an administrator can write `{PRIVATE_PREFIX}{target}` in"
                " `allow` of the template (Settings, Templates)."
            )
        case "wrong_name":
            return (
                f"This workspace may not reach another host over a connection to {target}: TLS and"
                " the Host header must name the same host as the connection."
            )
        case "untrusted_certificate":
            return (
                f"A program in this workspace did not accept the certificate of {target}. The host"
                " has a credential, which a proxy adds, so the program must trust the certificates"
                " in $SSL_CERT_FILE."
            )
        case "no_authority":
            return (
                f"A request to {target} was passed on without the credential of this host: the"
                " workspace was started by an earlier version of chatd, whose programs do not trust"
                " the proxy. Stop the workspace and start it again."
            )


def merge_refusals(kept: Sequence[Refusal], new: Sequence[Refusal]) -> tuple[Refusal, ...]:
    """Merge by host and port: the latest first, at most `MAX_REFUSALS`."""
    found = {(each.host, each.port): each for each in kept}
    for each in new:
        before = found.get((each.host, each.port))
        count = each.count + (0 if before is None else before.count)
        last = each if before is None or before.last_at < each.last_at else before
        found[each.host, each.port] = replace(last, count=count)
    ordered = sorted(found.values(), key=lambda each: each.last_at, reverse=True)
    return tuple(ordered[:MAX_REFUSALS])


def read_refusals(data: bytes) -> tuple[Refusal, ...]:
    """Decode what a proxy wrote; empty for anything else."""
    try:
        found = decode(data, type=tuple[Refusal, ...])
    except (MsgspecError, UnicodeDecodeError):
        return ()
    return found[:MAX_REFUSALS]
