"""Which calls run, are asked for or are denied, by rules of several layers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from chatd.domain.errors import InvalidInput
from chatd.domain.text import Json
from chatd.domain.tool_policy.decision import can_allow_always, decide, denial_text, rule_for_call
from chatd.domain.tool_policy.matching import MAX_COMPARED_COMMANDS, denied_tools
from chatd.domain.tool_policy.rules import (
    MAX_RULES,
    LayerName,
    PolicyAction,
    PolicyLayer,
    ToolPolicy,
    ToolRule,
    check_policy,
    decode_policy,
)


def rule(action: PolicyAction, tool: str = "execute", **args: str) -> ToolRule:
    return ToolRule(tool=tool, action=action, args=args)


def layer(name: LayerName, *rules: ToolRule, may_loosen: bool = False) -> PolicyLayer:
    return PolicyLayer(name=name, policy=ToolPolicy(rules=rules, may_loosen=may_loosen))


def args(**values: object) -> Raw:
    return Raw(msgspec.json.encode(values))


def action(tool: str, given: Json, *layers: PolicyLayer) -> PolicyAction:
    return decide(layers, tool, given).action


PUSH = args(command="git push origin main")

OFFERED = ["execute", "read_file", "github__list_issues", "github__push", "gitlab__push"]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((), []),
        ((layer("deployment", rule("ask", "*")),), []),
        ((layer("deployment", rule("auto", "*")),), []),
        ((layer("user", rule("deny", command="*")),), []),
        ((layer("user", rule("deny", "execut")),), []),
        ((layer("user", rule("deny", "xecute")),), []),
        ((layer("user", rule("deny")),), ["execute"]),
        ((layer("user", rule("deny", "exec?te")),), ["execute"]),
        ((layer("chat", rule("auto")), layer("user", rule("deny"))), ["execute"]),
        ((layer("user", rule("deny")), layer("chat", rule("auto"))), ["execute"]),
        ((layer("deployment", rule("deny"), may_loosen=True),), ["execute"]),
        ((layer("template", rule("deny", "github__*")),), OFFERED[2:4]),
        ((layer("user", rule("deny", "*__push"), rule("deny", "github__*")),), OFFERED[2:]),
        ((layer("user", rule("deny", "a|execute")),), []),
        ((layer("user", rule("deny", "*")),), OFFERED),
        ((layer("user", *decode_policy("?").rules),), []),
    ],
)
def test_tools_are_denied_whatever_their_arguments_by_a_rule_without_arguments(
    layers: tuple[PolicyLayer, ...], expected: list[str]
) -> None:
    assert denied_tools(layers, OFFERED) == frozenset(expected)
    assert {name for name in OFFERED if action(name, args(), *layers) == "deny"} == set(expected)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((), "auto"),
        ((layer("deployment", rule("ask", "read_file")),), "auto"),
        ((layer("deployment", rule("ask")),), "ask"),
        ((layer("deployment", rule("auto", "*"), rule("ask", "exec*")),), "ask"),
        ((layer("deployment", rule("ask"), rule("auto", command="git push *")),), "auto"),
        ((layer("deployment", rule("auto"), rule("ask")),), "ask"),
        ((layer("chat", rule("deny", "*")), layer("user", rule("auto", "execute"))), "deny"),
        (
            (layer("deployment", rule("deny")), layer("chat", rule("auto", command="git push *"))),
            "deny",
        ),
        ((layer("deployment", rule("ask")), layer("user", rule("auto"))), "ask"),
        ((layer("template", rule("ask")), layer("chat", rule("auto"))), "ask"),
        ((layer("deployment", rule("ask"), may_loosen=True), layer("user", rule("auto"))), "auto"),
        ((layer("user", rule("ask")), layer("chat", rule("auto"))), "auto"),
        ((layer("deployment", rule("auto")), layer("user", rule("ask"))), "ask"),
        (
            (
                layer("deployment", rule("ask")),
                layer("template", rule("ask"), may_loosen=True),
                layer("chat", rule("auto")),
            ),
            "ask",
        ),
        (
            (
                layer("deployment", rule("ask")),
                layer("user", rule("ask")),
                layer("chat", rule("auto")),
            ),
            "ask",
        ),
    ],
)
def test_layers_combine(layers: tuple[PolicyLayer, ...], expected: PolicyAction) -> None:
    assert action("execute", PUSH, *layers) == expected


def test_a_call_says_whether_the_chat_could_stop_asking() -> None:
    assert not decide([layer("deployment", rule("ask"))], "execute", PUSH).may_loosen
    assert decide([layer("user", rule("ask"))], "execute", PUSH).may_loosen


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((layer("user", rule("ask")),), True),
        ((layer("chat", rule("ask")),), True),
        ((layer("user", rule("ask")), layer("chat", rule("ask", command="git *"))), True),
        ((layer("deployment", rule("ask")),), False),
        ((layer("deployment", rule("ask"), may_loosen=True),), True),
    ],
)
def test_approving_always_is_offered_where_it_ends_the_asking(
    layers: tuple[PolicyLayer, ...], *, expected: bool
) -> None:
    assert can_allow_always(layers, "execute", PUSH) == expected


def test_the_later_of_two_equal_rules_of_a_chat_counts() -> None:
    asking, allowing = rule("ask", "echo"), rule("auto", "echo")
    assert action("echo", args(), layer("chat", asking, allowing)) == "auto"
    assert action("echo", args(), layer("chat", allowing, asking)) == "ask"
    assert action("echo", args(), layer("user", asking, allowing)) == "ask"


@pytest.mark.parametrize(
    "text",
    [
        b'{"command":"ls","command":"rm x"}',
        b'{"Command":"ls"}',
        b'{"command":["ls"]}',
        b"[1]",
        b'{"command":"ls","x":' + b"[" * 3000 + b"]" * 3000 + b"}",
    ],
)
def test_a_call_that_can_be_read_in_two_ways_is_not_allowed_for_good(text: bytes) -> None:
    asking = layer("user", rule("ask"))
    assert rule_for_call("execute", Raw(text)) is None
    assert not can_allow_always((asking,), "execute", Raw(text))


def test_approving_always_is_not_offered_against_a_narrower_rule_of_the_chat() -> None:
    narrow = layer("chat", rule("ask", "echo", say="*"))
    assert not can_allow_always((narrow,), "echo", args(say="a"))


# Commands

TRICKS = [
    "git status; rm -rf ~",
    "git status && rm -rf ~",
    "git status || rm x",
    "git status | sh",
    "git status & rm x",
    "git status\nrm x",
    "git status\r\nrm x",
    "git status $(rm x)",
    "git status `rm x`",
    'git status "$(rm x)"',
    'git status "`rm x`"',
    "git status > ~/.bashrc",
    "git status < /etc/passwd",
    "git status <(rm x)",
    "git status ${IFS}rm",
    "git status $HOME",
    "git status \\; rm x",
    "git status 'a' 'b\nrm x'",
    "git status 'unclosed",
    'git status "unclosed',
    "git status {a,b}",
    "git status *",
    "git status ~root",
    "git status # x",
    "git status !rm",
    "git status\0rm",
    "git status\x0brm",
    " git status",
    "A=1 git status",
    "rm x; git status",
    "git statusx",
]


@pytest.mark.promise("P15")
@pytest.mark.parametrize("command", TRICKS)
def test_a_rule_that_allows_a_command_does_not_allow_a_longer_one(command: str) -> None:
    ruled = layer("user", rule("ask"), rule("auto", command="git status *"))
    assert action("execute", args(command=command), ruled) == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "git status",
        "git status -s",
        "git status --porcelain=v2 src/a_b.py",
        "git status 'a; b' \"c d\"",
        "git status 'größe'",
    ],
)
def test_a_rule_allows_plain_words_after_the_command(command: str) -> None:
    ruled = layer("user", rule("ask"), rule("auto", command="git status *"))
    assert action("execute", args(command=command), ruled) == "auto"


@given(st.text(alphabet=" abgits;&|$(){}`'\"\\\n<>*~#!=-/.", max_size=30))
def test_no_text_after_an_allowed_command_runs_a_second_one(text: str) -> None:
    """A shell reads the words that the rule allows as the words of one command."""
    command = f"git status {text}"
    ruled = layer("user", rule("ask"), rule("auto", command="git status *"))
    if action("execute", args(command=command), ruled) == "auto":
        unquoted = ""
        inside = ""
        for char in text:
            if inside:
                inside = "" if char == inside else inside
                assert inside != '"' or char not in "$`\\!"
            elif char in "'\"":
                inside = char
            else:
                unquoted += char
        assert not inside
        assert not set(unquoted) & set(";&|$(){}`\\\n<>*~#!")


@pytest.mark.parametrize(
    "command",
    ["rm -rf x", "cd a && rm -rf x", "true;rm x", "echo $(rm x)", "a\nrm x", "(rm x)", "`rm x`"],
)
def test_a_rule_that_denies_a_command_finds_it_among_others(command: str) -> None:
    denying = layer("user", rule("deny", command="rm *"))
    assert action("execute", args(command=command), denying) == "deny"


def test_an_exact_pattern_matches_only_that_text() -> None:
    exact = rule_for_call("execute", args(command="make * && echo $X"))
    assert exact is not None
    ruled = layer("chat", rule("ask"), exact)
    assert action("execute", args(command="make * && echo $X"), ruled) == "auto"
    assert action("execute", args(command="make a && echo $X"), ruled) == "ask"
    assert action("execute", args(command="make * && echo $X; rm x"), ruled) == "ask"


def test_an_approval_for_good_is_for_the_directory_and_the_other_arguments_too() -> None:
    asking = layer("chat", rule("ask", "*"))

    def allowed(tool: str, approved: Raw, later: Raw) -> bool:
        exact = rule_for_call(tool, approved)
        assert exact is not None
        assert action(tool, approved, layer("chat", rule("ask", "*"), exact)) == "auto"
        return action(tool, later, layer("chat", *asking.policy.rules, exact)) == "auto"

    plain, there = args(command="make"), args(command="make", workdir="/srv")
    quick = args(command="make", workdir="", timeout="5s", model_intent="x", run_in_background=True)
    assert allowed("execute", plain, quick)
    assert allowed("execute", quick, plain)
    assert not allowed("execute", plain, there)
    assert not allowed("execute", there, plain)
    assert not allowed("ssh", args(command="x", host="a"), args(command="x", host="b"))
    assert rule_for_call("ssh", args(command="x", hosts=["a"])) is None


def test_an_approval_for_good_of_another_tool_is_for_all_its_calls() -> None:
    assert rule_for_call("mcp_linear__list", args(a=1)) == ToolRule(
        tool="mcp_linear__list", action="auto"
    )


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("cat /home/dev/.ssh/*", "cat ~/.ssh/id_rsa"),
        ("cat /home/dev/.ssh/*", "cd x && cat $HOME/.ssh/id_rsa"),
        ("cat /root/.ssh/*", "cat ${HOME}/.ssh/id_rsa"),
        ("cat /home/*/.ssh/*", 'cat "$HOME"/.ssh/id_rsa'),
        ("cat ~/.ssh/*", "cat /home/ada/.ssh/id_rsa"),
        ("cat ~/.ssh/*", "cat $HOME/.ssh/id_rsa"),
        ("cat $HOME/.ssh/*", "cat ~/.ssh/id_rsa"),
        ("rm -rf /home/dev", "rm -rf ~"),
        ("* ~/.ssh/*", f"cat {'/home/a/x ' * 20}/home/dev/.ssh/id_rsa"),
        ("* ~/.ssh/*", "cat ~/x /home/ada/.ssh/id_rsa"),
        ("cat /root/.ssh/*", "cat ~root/.ssh/id_rsa"),
        ("cat /home/dev/.ssh/*", "cat ~dev/.ssh/id_rsa"),
        ("cat ~/.ssh/*", "cat ~dev/.ssh/id_rsa"),
        ("cat ~root/.ssh/*", "cat ~/.ssh/id_rsa"),
    ],
)
def test_a_denied_command_is_found_however_it_names_the_home_directory(
    pattern: str, command: str
) -> None:
    denying = layer("user", rule("deny", command=pattern))
    assert action("execute", args(command=command), denying) == "deny"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/home/dev/.ssh/*", "~/.ssh/id_rsa"),
        ("/home/dev/.ssh/*", "~/app/../.ssh/id_rsa"),
        ("/home/d*/.ssh/*", "~//.ssh/id_rsa"),
        ("/home/*", "~/.ssh/id_rsa"),
        ("/root/*", "$HOME/.bashrc"),
        ("~/.ssh/*", "/home/ada/.ssh/id_rsa"),
        ("~/.ssh/*", "/root/.ssh/id_rsa"),
        ("~/.ssh/*", " ~/.ssh/id_rsa"),
    ],
)
@pytest.mark.parametrize("decided", ["ask", "deny"])
def test_a_rule_finds_a_path_however_it_names_the_home_directory(
    decided: PolicyAction, pattern: str, path: str
) -> None:
    ruled = layer("user", rule(decided, "read_file", path=pattern))
    assert action("read_file", args(path=path), ruled) == decided


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/etc/*", "~/notes"),
        ("/home/dev/.ssh/*", "~/notes"),
        ("/home/ada/*", "/home/bob/notes"),
        ("/root/.ssh/*", "a~/.ssh/x"),
        ("/root/.ssh/*", "$HOMER/.ssh/x"),
    ],
)
def test_other_paths_are_not_taken_for_the_home_directory(pattern: str, path: str) -> None:
    ruled = layer("user", rule("deny", "read_file", path=pattern))
    assert action("read_file", args(path=path), ruled) == "auto"


def test_no_home_directory_is_filled_in_for_a_rule_that_allows() -> None:
    ruled = layer("user", rule("ask", "*"), rule("auto", "read_file", path="/home/dev/*"))
    assert action("read_file", args(path="~/notes"), ruled) == "ask"
    assert action("read_file", args(path="$HOME/notes"), ruled) == "ask"


# Arguments


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/a.py", "auto"),
        ("src/b/c.py", "auto"),
        ("src/../etc/passwd", "ask"),
        ("src/..", "ask"),
        ("src/..\\x", "ask"),
        ("src/a\nb", "ask"),
        ("other/a.py", "ask"),
    ],
)
def test_a_wildcard_of_a_path_does_not_leave_its_directory(
    path: str, expected: PolicyAction
) -> None:
    ruled = layer("user", rule("ask", "write_file"), rule("auto", "write_file", path="src/*"))
    assert action("write_file", args(path=path), ruled) == expected


@pytest.mark.parametrize(
    "text",
    [
        b'{"command":"git status","command":"rm x"}',
        b'{"command":"git status","Command":"rm x"}',
        b'{"COMMAND":"git status"}',
        b'{"command":["git status"]}',
        b"{}",
        b"[]",
        b"nonsense",
    ],
)
def test_arguments_that_can_be_read_in_two_ways_are_not_allowed(text: bytes) -> None:
    ruled = layer("user", rule("ask"), rule("auto", command="git status"))
    assert action("execute", Raw(text), ruled) == "ask"


@pytest.mark.parametrize(
    "text",
    [b'{"path":"a","path":".env"}', b'{"PATH":".env"}', b'{"path":["x",{"y":".env"}]}'],
)
def test_a_denial_finds_the_text_at_any_depth(text: bytes) -> None:
    assert action("write_file", Raw(text), layer("user", rule("deny", "*", path="*.env"))) == "deny"


@pytest.mark.parametrize(
    "text",
    [
        b'{"files": [{"path": "/etc/passwd", "edits": []}]}',
        b'{"model_intent": "a look", "properties": {"path": "/etc/passwd"}}',
        b'{"path": " /etc/passwd "}',
        b'{"path": "//etc/passwd"}',
        b'{"path": "/tmp/../etc/./passwd"}',
        b'{"options": {"PATH": ["/etc/passwd"]}}',
        b'{"path": {"path": ["a", {"Path": {"x": "/etc/passwd"}}]}}',
    ],
)
@pytest.mark.parametrize("decided", ["ask", "deny"])
def test_no_spelling_or_place_of_a_path_avoids_a_rule(decided: PolicyAction, text: bytes) -> None:
    rules = layer("deployment", rule(decided, "*", path="/etc/*"))

    assert action("edit_files", Raw(text), rules) == decided


@pytest.mark.parametrize("decided", ["ask", "deny"])
def test_a_call_with_more_commands_than_are_compared_is_meant_by_every_rule(
    decided: PolicyAction,
) -> None:
    policy = layer("user", rule(decided, command="rm *"))

    def decided_for(count: int) -> PolicyAction:
        return action("execute", args(command=[f"ls {n}" for n in range(count)]), policy)

    assert decided_for(MAX_COMPARED_COMMANDS) == "auto"
    assert decided_for(MAX_COMPARED_COMMANDS + 1) == decided
    assert action("execute", args(command=["ls"] * 9_000), policy) == "auto"


@pytest.mark.parametrize("filler", ["[" * 3000 + "]" * 3000, "1" * 5000])
@pytest.mark.parametrize("decided", ["ask", "deny"])
def test_arguments_that_the_policy_cannot_read_avoid_no_rule(
    decided: PolicyAction, filler: str
) -> None:
    rules = layer("deployment", rule(decided, command="rm *"), rule("auto", command="ls *"))
    text = Raw(f'{{"command": "rm -rf x", "filler": {filler}}}'.encode())

    found = decide((rules,), "execute", text)

    assert found.action == decided
    assert "could not be read" in denial_text(found)


def test_numbers_and_flags_are_matched_by_their_json() -> None:
    ruled = layer("user", rule("ask", "t"), rule("auto", "t", n="5", on="true"))
    assert action("t", args(n=5, on=True), ruled) == "auto"
    assert action("t", args(n=6, on=True), ruled) == "ask"


def test_missing_arguments_match_no_pattern() -> None:
    assert action("execute", UNSET, layer("user", rule("deny", command="*"))) == "auto"
    assert action("execute", UNSET, layer("user", rule("deny"))) == "deny"


def test_matching_takes_linear_time() -> None:
    """With backtracking it would not end."""
    hostile = rule("ask", command="*".join("a" * 200) + "c")
    assert action("execute", args(command="a" * 16_000), layer("user", hostile)) == "auto"
    # Of a longer command the rest is not read: it may have a `c`.
    assert action("execute", args(command="a" * 100_000), layer("user", hostile)) == "ask"


def test_many_home_directories_in_a_call_take_little_time() -> None:
    rules = [rule("ask", command=f"cat /home/dev/{number}/*") for number in range(100)]
    command = f"ls /home/{'a' * 50_000}" + " ~ $HOME" * 128
    assert action("execute", args(command=command), layer("user", *rules)) == "auto"


@pytest.mark.parametrize(
    "command",
    [
        " ~ $HOME" * 5_000,
        f"cat {'~ ' * 256} ~/.ssh/id_rsa",
        f"cat {' '.join(f'/home/u{number}/x' for number in range(10_000))}",
    ],
)
def test_a_call_with_too_many_home_directories_counts_as_a_match(command: str) -> None:
    denying = layer("user", rule("deny", command="* ~/.ssh/*"))
    assert action("execute", args(command=command), denying) == "deny"
    other = layer("user", rule("deny", command="rm *"))
    assert action("execute", args(command=command), other) == "auto"


# Stored policies


@pytest.mark.parametrize(
    "policy",
    [
        ToolPolicy(rules=(rule("ask"),) * (MAX_RULES + 1)),
        ToolPolicy(rules=(rule("ask", ""),)),
        ToolPolicy(rules=(rule("ask", "a b"),)),
        ToolPolicy(rules=(rule("ask", "a", x="y" * 5000),)),
        ToolPolicy(rules=(rule("ask", "a", x="\0"),)),
    ],
)
def test_bad_policies_are_refused(policy: ToolPolicy) -> None:
    with pytest.raises(InvalidInput):
        check_policy(policy)


def test_a_stored_policy_that_cannot_be_read_asks_for_every_call() -> None:
    policy = decode_policy('{"rules":[{"tool":"x","action":"maybe"}]}')
    assert action("read_file", args(), PolicyLayer(name="chat", policy=policy)) == "ask"
    assert decode_policy(None).rules == ()


def test_a_denial_says_whose_policy_it_is_and_why() -> None:
    denying = ToolRule(tool="execute", action="deny", reason="Use the tests.")
    text = denial_text(decide([layer("deployment", denying)], "execute", PUSH))
    assert "policy of the server denies this call. Use the tests." in text
