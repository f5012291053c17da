"""Which hosts a workspace with the network `allow` reaches: the rules of its template."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from chatd.domain.workspace.entities import TemplateSpec
from chatd.domain.workspace.network import (
    MAX_ALLOWED_HOSTS,
    MAX_REFUSALS,
    Refusal,
    explain_refusal,
    find_rule,
    find_rule_problems,
    is_allowed_address,
    merge_refusals,
    normal_host,
    parse_rule,
    parse_target,
    read_refusals,
)
from chatd.domain.workspace.runners import BackendKind
from chatd.domain.workspace.template_definition import TemplateDefinition, find_template_problems

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("GitHub.COM", "github.com"),
        ("github.com.", "github.com"),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("8.8.8.8", "8.8.8.8"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::FFFF:7f00:1", "127.0.0.1"),
        ("_dmarc.a-b.example", "_dmarc.a-b.example"),
    ],
)
def test_a_host_has_one_form(text: str, normal: str) -> None:
    assert normal_host(text) == normal


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "a..b", "-a.example", "a b.example", "a\r\nb", "a%00.example", "a/b"),
        *("127.1", "2130706433", "0x7f.0.0.1", "0x7f000001", "0177.0.0.1", "1.2.3.4.5"),
        *("fe80::1%eth0", "x" * 64 + ".example", ".".join(["a" * 60] * 5)),
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is |must "):
        normal_host(text)


@pytest.mark.parametrize(
    ("rule", "target", "allowed"),
    [
        ("github.com", "github.com:443", True),
        ("github.com", "GITHUB.com.:443", True),
        ("GitHub.com.", "github.com:80", True),
        ("github.com", "github.com:22", False),
        ("github.com:22", "github.com:22", True),
        ("github.com:22", "github.com:443", False),
        ("github.com:*", "github.com:9418", True),
        ("github.com", "api.github.com:443", False),
        ("github.com", "evilgithub.com:443", False),
        ("github.com", "github.com.evil.example:443", False),
        ("*.pypi.org", "files.pypi.org:443", True),
        ("*.pypi.org", "a.b.pypi.org:443", True),
        ("*.pypi.org", "pypi.org:443", False),
        ("*.pypi.org", "evilpypi.org:443", False),
        ("*.pypi.org:8443", "a.pypi.org:8443", True),
        ("*", "anything.example:443", True),
        ("*", "anything.example:25", False),
        ("*:*", "anything.example:25", True),
        ("8.8.8.8", "8.8.8.8:443", True),
        ("[2606:4700::1111]:853", "[2606:4700:0::1111]:853", True),
        ("2606:4700::1111", "[2606:4700::1111]:443", True),
        ("8.8.8.8", "[::ffff:8.8.8.8]:443", True),
        ("private:10.0.0.5:5432", "10.0.0.5:5432", True),
        ("private:git.corp.example", "git.corp.example:443", True),
    ],
)
def test_a_rule_allows_its_host_and_ports(rule: str, target: str, *, allowed: bool) -> None:
    assert (find_rule([parse_rule(rule)], parse_target(target)) is not None) is allowed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("https://github.com", "without https://"),
        ("github.com/chatd", "without https://"),
        ("me@github.com", "without https://"),
        ("github.com:0", "port"),
        ("github.com:99999", "port"),
        ("github.com:ssh", "port"),
        ("git*hub.com", "not a host name"),
        ("*.*.com", "not a host name"),
        ("*.1.2.3.4", "before an address"),
        ("private:*.corp.example", "without \\*"),
        ("10.0.0.5", "write private:10.0.0.5"),
        ("169.254.169.254", "private network"),
        ("::ffff:127.0.0.1", "private network"),
        ("[::1]:80", "private network"),
        ("localhost:5432", "write private:localhost:5432"),
        ("db.internal", "private network"),
        ("2130706433", "usual form"),
        ("", "not a host name"),
        ("x" * 400, "too long"),
    ],
)
def test_a_bad_rule_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_rule(text)


@pytest.mark.parametrize(
    ("rule", "address", "allowed"),
    [
        ("github.com", "140.82.121.4", True),
        ("github.com", "10.0.0.1", False),
        ("github.com", "127.0.0.1", False),
        ("github.com", "::ffff:127.0.0.1", False),
        ("github.com", "169.254.169.254", False),
        ("*", "192.168.1.1", False),
        ("private:git.corp.example", "10.1.2.3", True),
        ("private:git.corp.example", "fd00::5", True),
        ("private:git.corp.example", "140.82.121.4", True),
        ("private:git.corp.example", "127.0.0.1", False),
        ("private:git.corp.example", "::ffff:127.0.0.1", False),
        ("private:git.corp.example", "169.254.169.254", False),
        ("private:git.corp.example", "0.0.0.0", False),
        ("private:git.corp.example", "nonsense", False),
        ("private:169.254.169.254", "169.254.169.254", True),
        ("private:127.0.0.1", "::ffff:127.0.0.1", True),
        ("private:127.0.0.1", "127.0.0.2", False),
        ("private:localhost", "127.0.0.1", True),
        ("private:localhost", "10.0.0.1", False),
    ],
)
def test_a_rule_leads_to_public_addresses_unless_it_says_private(
    rule: str, address: str, *, allowed: bool
) -> None:
    assert is_allowed_address(parse_rule(rule), address) is allowed


@pytest.mark.parametrize("text", ["a.example", "::1:80", "a:b:80", "a.example:", "[::1]", ":80"])
def test_a_target_without_a_host_and_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|is "):
        parse_target(text)


def test_a_rule_for_a_private_host_wins_over_one_that_also_covers_it() -> None:
    rules = [parse_rule("*"), parse_rule("private:git.corp.example")]
    found = find_rule(rules, parse_target("git.corp.example:443"))
    assert found is not None
    assert found.private


def test_rules_are_checked_one_by_one() -> None:
    assert list(find_rule_problems(["a.example", "A.example.", "b/c"])) == [
        (1, "is there twice"),
        (2, "must be a host such as github.com, without https://, path and user"),
    ]


def problems(backend: BackendKind, **changes: object) -> list[str]:
    spec = TemplateSpec(image="i" if backend in ("container", "kubernetes") else "")
    spec = msgspec.structs.replace(spec, **changes)
    defined = TemplateDefinition(name="t", backend=backend, spec=spec)
    return [f"{each.field} {each.detail}" for each in find_template_problems(defined)]


def test_a_template_names_hosts_where_a_proxy_can_admit_them() -> None:
    allowed = {"network": "allow", "allow": ("github.com",)}
    assert problems("sandbox", **allowed) == problems("container", **allowed) == []
    for backend in ("kubernetes", "machine"):
        (found,) = problems(backend, **allowed)
        assert found.startswith('spec.network must be "none" or "full"')
    assert problems("sandbox", network="allow") == [
        "spec.allow must name a host that the workspace may reach"
    ]
    assert problems("sandbox", network="full", allow=("a.example",)) == [
        'spec.allow must be empty: only the network "allow" has named hosts'
    ]
    (found,) = problems("sandbox", network="allow", allow=("a.example", "b/c"))
    assert found.startswith("spec.allow[1] must be a host")
    many = tuple(f"h{n}.example" for n in range(MAX_ALLOWED_HOSTS + 1))
    assert problems("sandbox", network="allow", allow=many) == [
        f"spec.allow must have at most {MAX_ALLOWED_HOSTS} hosts"
    ]


def refusal(host: str, *, at: int = 0, count: int = 1) -> Refusal:
    last = NOW + timedelta(seconds=at)
    return Refusal(host=host, port=443, reason="not_allowed", count=count, last_at=last)


def test_refusals_are_joined_by_host_and_port_and_the_latest_are_kept() -> None:
    kept = merge_refusals([refusal("a", count=2)], [refusal("a", at=5), refusal("b", at=1)])
    assert kept == (refusal("a", at=5, count=3), refusal("b", at=1))
    many = [refusal(f"h{n}", at=n) for n in range(MAX_REFUSALS + 5)]
    joined = merge_refusals(kept, many)
    assert len(joined) == MAX_REFUSALS
    assert joined[0].host == f"h{MAX_REFUSALS + 4}"
    assert read_refusals(msgspec.json.encode(joined)) == joined
    assert read_refusals(b"[{") == read_refusals(b"\xff") == ()


def test_a_refusal_says_what_is_allowed_and_who_can_change_it() -> None:
    target = parse_target("[::1]:80")
    assert "[::1]:80. Its template allows: nothing." in explain_refusal(target, "not_allowed", ())
    many = [f"h{n}.example" for n in range(30)]
    assert "h19.example, ...." in explain_refusal(target, "not_allowed", many)
    assert "`private:[::1]:80`" in explain_refusal(target, "private_address", ())
