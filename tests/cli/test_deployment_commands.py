"""`chatd policy`, `chatd admin users`, `groups` and `limits`, against a server."""

from pathlib import Path

import msgspec
import pytest

from tests.support.command_line import Json, ServerProcess

pytestmark = pytest.mark.timeout(240)

RULES: list[Json] = [
    {"tool": "execute", "action": "ask", "reason": "Look first."},
    {"tool": "execute", "action": "auto", "args": {"command": "ls *"}},
]


@pytest.mark.parametrize("flags", [(), ("--deployment",)])
def test_a_policy_is_set_by_a_file_shown_and_tried(
    server: ServerProcess, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        '[[rules]]\ntool = "execute"\naction = "ask"\nreason = "Look first."\n'
        '[[rules]]\ntool = "execute"\naction = "auto"\nargs = { command = "ls *" }\n'
    )
    before = server.done("policy", "show", *flags, "--json").json
    stored = server.done("policy", "set", file, *flags, "--json").json
    assert stored["rules"] == RULES
    shown = server.done("policy", "show", *flags).out.splitlines()
    assert shown[1].split() == ["ask", "execute", "Look", "first."]
    assert shown[2].split() == ["auto", "execute", "command:", "ls", "*"]
    asked = server.done("policy", "try", "execute", "command=rm -rf x", *flags)
    assert asked.out == "ask\n"
    assert "Look first." in asked.err
    assert server.done("policy", "try", "execute", "command=ls x", *flags).out == "auto\n"
    file.with_suffix(".json").write_text('{"rules": [{"tool": "execute", "action": "deny"}]}')
    words = ("execute", "command=ls", "--file", file.with_suffix(".json"), "--json")
    assert server.done("policy", "try", *words, *flags).json["action"] == "deny"
    stale = tmp_path / "stale.json"
    stale.write_bytes(msgspec.json.encode(before))
    refused = server.call("policy", "set", stale, *flags)
    assert (refused.code, "has changed meanwhile" in refused.err) == (1, True)
    empty = tmp_path / "empty.json"
    empty.write_text('{"rules": []}')
    assert "the policy has 0 rules" in server.done("policy", "set", empty, *flags).err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules", "policy.json: "),
        ("{}", "it has no rules"),
        ('{"rules": [{"tool": "execute", "action": "maybe"}]}', "must be one of auto, ask, deny"),
    ],
)
def test_a_policy_that_cannot_be_read_changes_nothing(
    server: ServerProcess, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text)
    refused = server.call("policy", "set", file)
    assert (refused.code, said in refused.err) == (2, True), refused
    assert server.done("policy", "show", "--json").json["rules"] == []


def test_two_policies_at_once_are_refused(server: ServerProcess) -> None:
    refused = server.call("policy", "show", "--deployment", "--chat", "last")
    assert (refused.code, "say one of" in refused.err) == (2, True)


def test_users_are_added_changed_and_removed(server: ServerProcess) -> None:
    made = server.pipe(
        "correct horse battery\n", "admin", "users", "add", "ada", "--password", "--json"
    )
    assert (made.code, made.json["role"], made.json["has_password"]) == (0, "member", True), made
    assert "battery" not in made.out + made.err
    taken = server.call("admin", "users", "add", "ADA")
    assert (taken.code, taken.out) == (1, "")
    changed = server.done("admin", "users", "change", "ada", "--role", "viewer", "--disable")
    assert changed.err == "changed ada: viewer, suspended\n"
    listed = server.done("admin", "users", "list").out
    assert ["ada", "viewer", "suspended", "never"] in [line.split() for line in listed.splitlines()]
    last = server.call("admin", "users", "change", "admin", "--role", "member")
    assert (last.code, "administrator" in last.err) == (1, True)
    nothing = server.call("admin", "users", "change", "ada")
    assert (nothing.code, "say what to change" in nothing.err) == (2, True)
    unasked = server.call("admin", "users", "remove", "ada")
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    removed = server.done("admin", "users", "remove", "ada", "--yes", "--json")
    assert removed.json == {"removed": made.json["id"]}
    unknown = server.call("admin", "users", "remove", "ada", "--yes")
    assert (unknown.code, "there is no user" in unknown.err) == (2, True)


def test_a_group_has_members_and_a_limit(server: ServerProcess) -> None:
    server.done("admin", "users", "add", "grace")
    server.done("admin", "groups", "add", "Compilers")
    joined = server.done("admin", "groups", "add-member", "compilers", "grace")
    assert joined.err == "grace is in Compilers: 1 members\n"
    members = server.done("admin", "groups", "members", "Compilers", "--json").items
    assert [one["username"] for one in members] == ["grace"]
    server.done("admin", "limits", "set", "7.50", "--group", "compilers")
    server.done("admin", "limits", "set", "3", "--user", "grace")
    server.done("admin", "limits", "set", "20", "--period", "week")
    lines = server.done("admin", "limits", "list").out.splitlines()
    assert [line.split() for line in lines] == [
        ["LIMIT", "A", "WEEK", "FOR", "MEMBERS"],
        ["$20.00", "everyone"],
        ["$7.50", "group", "Compilers", "1"],
        ["$3.00", "user", "grace"],
    ]
    again = server.done("admin", "limits", "set", "30", "--json").json
    assert (again["spend_limit_micros"], again["period"]) == (30_000_000, "week")
    for which in (("--user", "grace"), ("--group", "Compilers"), ("--everyone",)):
        server.done("admin", "limits", "remove", *which)
    assert server.done("admin", "limits", "list").out.split()[-2:] == ["none", "everyone"]
    server.done("admin", "groups", "remove-member", "Compilers", "grace")
    server.done("admin", "groups", "remove", "Compilers", "--yes")
    assert server.done("admin", "groups", "list", "--json").items == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "lots"), "an amount in dollars"),
        (("set", "0"), "more than 0"),
        (("set", "1", "--user", "a", "--group", "b"), "not both"),
        (("set", "1", "--user", "lost"), "there is no user"),
        (("set", "1", "--user", "admin", "--period", "day"), "--period is of all limits"),
        (("remove",), "say which limit"),
    ],
)
def test_a_wrong_limit_is_refused(server: ServerProcess, words: tuple[str, ...], said: str) -> None:
    refused = server.call("admin", "limits", *words)
    assert (refused.code, said in refused.err) == (2, True), refused
