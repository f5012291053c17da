"""Which commands the rules of a tool policy find in a shell's text."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from chatd.domain.tool_policy.decision import can_allow_always, decide
from chatd.domain.tool_policy.matching import MAX_UNKNOWN_CHARS
from chatd.domain.tool_policy.rules import (
    LayerName,
    PolicyAction,
    PolicyLayer,
    ToolPolicy,
    ToolRule,
)
from chatd.domain.tool_policy.shell_commands import (
    MAX_SHELL_CHARS,
    MAX_SHELL_COMMANDS,
    MAX_SHELL_DEPTH,
    MAX_SHELL_FORM_CHARS,
    MAX_SHELL_SIGNS,
    MAX_SHELL_TEXTS,
    read_shell,
)


def policy(*rules: tuple[PolicyAction, str], layer: LayerName = "user") -> PolicyLayer:
    made = (ToolRule(tool="execute", action=one, args={"command": text}) for one, text in rules)
    return PolicyLayer(name=layer, policy=ToolPolicy(rules=tuple(made)))


def call(command: str) -> Raw:
    return Raw(msgspec.json.encode({"command": command}))


def decided(command: str, *rules: tuple[PolicyAction, str]) -> PolicyAction:
    return decide([policy(*rules)], "execute", call(command)).action


DENIED = [
    "rm x",
    '"rm" x',
    "'rm' x",
    "\\rm x",
    "r\\m x",
    "r''m x",
    'r""m x',
    "'r'\"m\" x",
    "$'rm' x",
    "$'\\x72m' x",
    "$'\\162\\u006d' x",
    "r\\\nm x",
    "r\\\n\\\nm \\\n x",
    "/bin/rm x",
    "/usr/bin/rm x",
    "./rm x",
    "../../bin/rm x",
    "~/bin/rm x",
    "$DIR/rm x",
    "/*/rm x",
    "FOO=1 rm x",
    "FOO=1 BAR='a b' rm x",
    "a[0]=1 rm x",
    "! rm x",
    ">f rm x",
    "2>&1 rm x",
    "rm<f",
    "rm>f",
    "rm",
    "rm&",
    "\trm  x",
    "true; rm x",
    "true&&rm x",
    "false||rm x",
    "ls|rm x",
    "ls & rm x",
    "ls\nrm x",
    "ls\r\nrm x",
    "ls\n\\rm x",
    "ls\n  \\r\\m x",
    "# a \\\nrm x",
    "echo a\\\\\nrm x",
    "if true; then rm x; fi",
    "if rm x; then :; fi",
    "if a; then b; elif rm x; then c; else d; fi",
    "if a; then b; else rm x; fi",
    "for f in *; do rm $f; done",
    "for ((i=0;i<3;i++)); do rm $i; done",
    "while read f; do rm $f; done",
    "until rm x; do :; done",
    "case x in x) rm y;; esac",
    "{ rm x; }",
    "(rm x)",
    "( (rm x) )",
    "((rm x))",
    "$(rm x)",
    "echo $(rm x)",
    'echo "$(rm x)"',
    'echo "a $(echo "$(rm x)") b"',
    "`rm x`",
    "echo `rm x`",
    "echo `echo \\`rm x\\``",
    "echo ${a:-$(rm x)}",
    "echo ${a[$(rm x)]}",
    "echo $((1 + $(rm x)))",
    "A=$(rm x)",
    "export A=$(rm x)",
    "cat <(rm x)",
    "ls > $(rm x)",
    "cat <<< $(rm x)",
    "cat <<E\n$(rm x)\nE",
    "cat <<E; rm x\na\nE",
    "cat <<'E'\na\nE\nrm x",
    "[ -n $(rm x) ]",
    "[[ -n $(rm x) ]]",
    "[[ a || rm x ]]",
    "f() { rm x; }; f",
    "function f { rm x; }; f",
    "env rm x",
    "env -i -u B A=1 rm x",
    "env -S 'rm x'",
    "env -S'rm x'",
    "env --split-string='rm x'",
    "/usr/bin/env rm x",
    "time rm x",
    "time -p rm x",
    "nohup rm x &",
    "nice rm x",
    "nice -n 5 rm x",
    "ionice -c 3 rm x",
    "command rm x",
    "command -p rm x",
    "builtin rm x",
    "exec rm x",
    "exec -a ls rm x",
    "coproc rm x",
    "setsid rm x",
    "stdbuf -oL rm x",
    "timeout 5 rm x",
    "timeout -s KILL -k 1 5 rm x",
    "timeout --signal=KILL 5 rm x",
    "sudo rm x",
    "sudo -u root rm x",
    "sudo -nu root -- rm x",
    "sudo A=1 rm x",
    "doas rm x",
    "chroot / rm x",
    "unshare -r rm x",
    "strace -f rm x",
    "busybox rm x",
    "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
    "flock f rm x",
    "flock f -c 'rm x'",
    "watch -n 1 rm x",
    "script -qc 'rm x' /dev/null",
    "su -c 'rm x' dev",
    "su - dev -c 'rm x'",
    "ssh host rm x",
    "uv run rm x",
    "parallel rm ::: a b",
    "xargs rm",
    "ls | xargs rm",
    "ls | xargs -0 -n 1 -I {} rm {}",
    "ls | xargs env rm",
    "find . -exec rm {} \\;",
    "find . -name '*.o' -exec rm {} +",
    "find . -type f -execdir /bin/rm {} ';'",
    "env time nice sudo rm x",
    "sh -c 'rm x'",
    "bash -c 'rm x'",
    "bash -lc \"rm x\"",
    "bash -x -o pipefail -c 'cd a && rm x'",
    "/bin/sh -c \"sh -c 'rm x'\"",
    "zsh -c 'rm x'",
    "busybox sh -c 'rm x'",
    "find . -exec sh -c 'rm \"$1\"' _ {} \\;",
    "xargs sh -c 'rm \"$@\"' _",
    "eval rm x",
    "eval 'rm x'",
    'eval "r""m" x',
    "trap 'rm x' EXIT",
    "alias l=rm; l x",
    "alias l='rm -rf'\nl x",
    "sh <<E\nrm x\nE",
    "sh <<'E'\nrm x\nE",
    "sudo bash -s <<E\nrm x\nE",
    "cat <<E | sh\nrm x\nE",
    "sh <<< 'rm x'",
    "echo rm x | sh",
    "echo 'rm x' | sudo bash",
    "printf 'ls\\nrm x\\n' | sh",
    "echo &>f rm x",
    "rm 2>/dev/null x",
    "ls >f; rm >f x",
    "! ! rm x",
    "! { rm x; }",
    "time { rm x; }",
    "coproc N { rm x; }",
    'echo "`rm x`"',
    'echo "${a:-`rm x`}"',
    "cat <<E\n`rm x`\nE",
    "cat <<E\n${a:-`rm x`}\nE",
    "cat <<-E\n\t$(rm x)\n\tE",
    "echo $'\\'; rm x #'",
]  # fmt: skip

ASKED = [
    "a=rm; $a x",
    "$X x",
    "${X} x",
    '"$X" x',
    "$X rm x",
    "r$X x",
    "rm$IFS-rf x",
    "$(echo rm) x",
    "`echo rm` x",
    "r? x",
    "/bin/r* x",
    "/bin/[r]m x",
    "{rm,x}",
    "r{m,} x",
    "env $X x",
    "sudo $X",
    "ls | xargs env",
    "ls | xargs -I X sh -c X",
    "parallel",
    "sh -c \"$X\"",
    "bash -c \"cd $X && ls\"",
    "bash $X",
    "eval $X",
    "eval \"$(curl x)\"",
    "curl x | sh",
    "curl x | sudo bash -s -- -y",
    "base64 -d f | sh",
    "sh < f",
    "sh",
    "bash <(curl x)",
    ". /dev/stdin < f",
    "source <(curl x)",
    "crontab f",
    "echo 'unclosed",
    "if true; then",
    "ls )",
    "rm\0x",
]  # fmt: skip

RUN = [
    "ls",
    "ls -la",
    "ls *.py",
    "echo rm",
    "echo rm x",
    "echo 'rm x'",
    'echo "a; rm x"',
    "echo \"don't; rm x\"",
    "echo \\; rm x",
    "# rm x",
    "ls # ; rm x",
    "git rm x",
    "git rm --help",
    "git commit -m 'Remove; rm the rest'",
    "git commit -m \"use \\`rm x\\` here\"",
    "git commit -F - <<'E'\nrm x\nE",
    "cat > f <<'E'\nrm x\nE",
    "cat <<E > f\nrm x\nE",
    "python3 - <<'E'\nimport os\nprint(os.name)\nE",
    "python3 -c 'print(1)'",
    "docker run --rm -it x",
    "npm rm x",
    "rmdir x",
    "rm.sh x",
    "./rm.sh",
    "armor x",
    "cd $DIR && make",
    'cd "$DIR" && make -j$(nproc)',
    "make CC=gcc test",
    "for f in *.py; do echo $f; done",
    "[ -f x ] && echo y || echo n",
    "[[ -f x && -d y ]] && echo y",
    "test $? -eq 0",
    "x=$((1 + 2)); echo $x",
    "grep -rn 'rm ' . | head -5",
    "grep -E '^(rm|mv)$' f",
    "awk '{print $1}' f",
    "sed -i 's/rm /mv /' f",
    "find . -name '*rm*' -print",
    "find . -type f -exec grep -l rm {} +",
    "ls | xargs grep rm",
    "timeout 10 git rm x",
    "command -v rm",
    "which rm",
    "type rm",
    "man rm",
    "bash --version",
    "bash build.sh rm",
    "sh -c 'echo rm'",
    "bash -lc 'cd app && make'",
    "curl -s https://example.org/rm?x=1 | jq '.a[0]'",
    "mkdir -p src/{a,b}",
    "A=rm",
    "PATH=/rm ls",
    "pytest -q -k 'not rm' 2>&1 | tail -5",
    "(cd a && ls) > out 2>&1 &",
    "ssh host ls",
    "tar xf a.tar && ls",
    "cat a/rm b",
    "echo $HOME ~",
]  # fmt: skip


@pytest.mark.parametrize("command", DENIED)
def test_a_denied_command_is_found_in_any_spelling(command: str) -> None:
    assert decided(command, ("deny", "rm *")) == "deny"
    assert decided(command, ("ask", "rm *")) == "ask"


@pytest.mark.parametrize("command", ASKED)
def test_a_command_that_only_the_running_shell_knows_is_asked_for(command: str) -> None:
    assert decided(command, ("deny", "rm *")) == "ask"
    assert decided(command, ("ask", "rm *")) == "ask"


@pytest.mark.parametrize("command", RUN)
def test_a_rule_for_one_command_leaves_others_alone(command: str) -> None:
    assert decided(command, ("deny", "rm *"), ("ask", "rm *")) == "auto"


@pytest.mark.parametrize(
    ("pattern", "command", "expected"),
    [
        ("git push *", "git push", "deny"),
        ("git push *", "git -C dir --no-pager push origin", "deny"),
        ("git push *", "git -c a.b=c push", "deny"),
        ("git push *", "git $X", "ask"),
        ("git push *", "git pu?h", "ask"),
        ("git push *", "git status $X", "auto"),
        ("git push *", "git $X status", "ask"),
        ("git push --force*", "git push $FLAGS", "ask"),
        ("git push --force*", "git push origin main", "auto"),
        ("*--force*", "git push $FLAGS", "ask"),
        ("*--force*", "git push origin main", "auto"),
        ("git push *", "git 2>&1 push", "deny"),
        ("git push *", "git <<E push\nE", "deny"),
        ("cat /etc/shadow", "echo a | cat >f /etc/shadow", "deny"),
        ("reboot", "$X reboot", "ask"),
        ("reboot", "/sbin/reboot", "deny"),
        ("reboot", "reboot now", "auto"),
        ("/sbin/reboot", "reboot", "deny"),
        ("/sbin/reboot *", "sudo reboot -f", "deny"),
        ("cat /etc/shadow", "cat '/etc/shadow'", "deny"),
        ("cat /etc/shadow", "cat /etc/shad*", "ask"),
        ("cat /etc/shadow", "cat /etc/{shadow,x}", "ask"),
        ("cat /etc/shadow", "cat $X", "ask"),
        ("cat /etc/shadow", "cat *", "auto"),
        ("* /etc/*", "ls *.py", "auto"),
        ("* /etc/*", "cat $X/passwd", "ask"),
        ("export *", "export A=1", "deny"),
        ("cat ~/.ssh/*", 'cat "$HOME"/".ssh/id_rsa"', "deny"),
        ("cat ~/.ssh/*", "bash -c 'cat $HOME/.ssh/id_rsa'", "deny"),
    ],
)
def test_a_pattern_is_compared_with_the_words_of_the_command(
    pattern: str, command: str, expected: PolicyAction
) -> None:
    assert decided(command, ("deny", pattern)) == expected


def test_a_person_sees_why_a_command_that_may_be_denied_is_asked_for() -> None:
    found = decide([policy(("deny", "rm *"))], "execute", call("curl x | sh"))

    assert found.may_be_denied
    assert "cannot tell" in found.reason


@pytest.mark.parametrize("layer", ["deployment", "user", "chat"])
def test_what_may_be_denied_is_not_allowed_for_good(layer: LayerName) -> None:
    denying = policy(("deny", "rm *"), layer=layer)

    assert not can_allow_always((denying,), "execute", call("curl x | sh"))
    allowing = policy(("auto", "=curl x | sh"), layer="chat")
    assert decide((denying, allowing), "execute", call("curl x | sh")).action == "ask"


def test_a_command_that_may_be_asked_for_is_allowed_for_good_by_its_exact_text() -> None:
    layers = policy(("ask", "rm *")), policy(("auto", "=make $X | sh"), layer="chat")

    assert decide(layers, "execute", call("make $X | sh")).action == "auto"
    assert decide(layers, "execute", call("make $Y | sh")).action == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "ls;" * (MAX_SHELL_SIGNS + 1),
        "ls " + "'a' " * MAX_SHELL_SIGNS,
        "echo " + "$(" * 200 + "ls" + ")" * 200,
        "\n".join(f"cmd{number}" for number in range(MAX_SHELL_COMMANDS + 1)),
        "\n".join(f"eval ls{number}" for number in range(MAX_SHELL_TEXTS + 1)),
        "a|" * 50_000,
        "sh -c " * 30 + "ls",
    ],
)
def test_a_command_beyond_the_bounds_is_asked_for(command: str) -> None:
    assert decided(command, ("deny", "rm *")) == "ask"


def test_a_rule_is_found_beyond_the_bounds_where_it_is_plain() -> None:
    assert decided("ls;" * 10_000 + "rm x", ("deny", "rm *")) == "ask"
    assert decided("rm x;" + "ls;" * 10_000, ("deny", "rm *")) == "deny"


LONG_CHAINS = [
    "nice " * 3_000 + "ls",
    "env " * 8_000 + "ls",
    "xargs " * 6_000 + "ls",
    "nice " * 20_000 + "ls",
    "/usr/bin/nice " * 20_000 + "ls",
    "nice " * (MAX_SHELL_DEPTH + 1) + "ls",
    "find -exec " * 1_000 + "ls",
    "find . " + "-exec " * 2_000 + "ls",
    "eval " + "nice " * 6_000 + "ls",
    "env " + "A=1 " * 5_000 + "ls",
    "A=1 " * 5_000 + "ls",
    "find " + "a " * 9_000 + "-exec ls +",
    "xargs " + " ".join(f"-Ia{number}" for number in range(1_000)) + " ls",
]


@pytest.mark.parametrize("command", LONG_CHAINS, ids=lambda command: command[:24])
def test_a_long_chain_of_programs_is_asked_for_and_read_in_bounds(command: str) -> None:
    found = read_shell(command).commands

    assert len(found) <= MAX_SHELL_COMMANDS
    assert sum(map(len, found)) <= MAX_SHELL_FORM_CHARS
    assert decided(command, ("deny", "rm *")) == "ask"
    assert decided(f"{command[:-2]}rm x", ("deny", "rm *")) != "auto"
    assert decided(f"rm {command}", ("deny", "rm *")) == "deny"
    assert decided(f"sudo rm {command}", ("deny", "rm *")) != "auto"


def test_a_long_command_of_plain_words_is_judged_by_its_first_part() -> None:
    words = "a " * 50_000

    assert sum(map(len, read_shell(f"echo {words}").commands)) <= MAX_SHELL_CHARS + 3
    assert decided(f"echo {words}", ("deny", "rm *")) == "auto"
    assert decided(f"rm {words}", ("deny", "rm *")) == "deny"
    assert decided(f"/bin/rm {words}", ("deny", "rm *")) == "deny"
    assert decided(f"/bin/echo {words} --force", ("deny", "echo * --force")) == "ask"
    assert decided("git " + "-c a " * 5_000 + "push", ("deny", "git push *")) == "ask"


@pytest.mark.parametrize("count", [8, 64])
def test_commands_that_start_one_another_in_many_ways_are_read_once_each(count: int) -> None:
    """`find -exec find -exec`: each of them has all those that follow."""
    command = "find -exec " * count

    assert decided(f"{command} rm x", ("deny", "rm *")) != "auto"
    assert len(read_shell(f"{command} rm x").commands) <= 2 * count + 1


def test_here_documents_beyond_the_bound_are_left_in_the_text() -> None:
    assert decided("cat <<E\n$\n" * 2_000 + "E\n", ("deny", "rm *")) == "ask"


def test_a_long_file_in_a_here_document_is_no_command() -> None:
    body = "if (a && b) { rm(x); }\n" * 2_000
    command = f"cat > 'a file' <<'EOF' && ls\n{body}EOF\ncat b"

    assert decided(command, ("deny", "rm *")) == "auto"
    assert decided(f"{command}; rm x", ("deny", "rm *")) == "deny"
    assert decided(command.replace("cat >", "sh >"), ("deny", "rm *")) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "# <<'E'\nrm x\nE\n",
        "echo \"<<'E'\"\nrm x\nE\n",
        "cat <<'E' \\\n&& rm x\nbody\nE\n",
        "cat <<'E' \"a\n\"; rm x #\nE\n",
        "echo $((1 <<E\n)); rm x\nE\n",
        "cat <<X <<'E'\nX\nE\nrm x\nE\n",
    ],
)
def test_no_command_hides_as_a_here_document_of_a_long_text(command: str) -> None:
    filler = "echo " + "'a' " * MAX_SHELL_SIGNS

    assert decided(command + filler, ("deny", "rm *")) != "auto"


def test_a_command_with_many_unknown_words_is_asked_for() -> None:
    words = " ".join(f"a$X{number}b" for number in range(300))
    assert len(words) > MAX_UNKNOWN_CHARS
    assert decided(f"ls {words}", ("deny", f"ls {'ab*' * 1000}c")) == "ask"
    assert decided(f"ls {words}", ("deny", f"rm {'ab*' * 1000}c")) == "auto"


@given(st.text(alphabet=" abrm;&|$(){}`'\"\\\n<>*~#!=-/.E[]?", max_size=40))
@settings(max_examples=200)
def test_a_command_before_any_text_is_found(text: str) -> None:
    assert decided(f"rm x\n{text}", ("deny", "rm *")) == "deny"


@given(st.text(alphabet=" abrm$*?/", max_size=12), st.text(alphabet="abrm*? /", max_size=12))
def test_a_hole_never_makes_a_match_impossible(command: str, pattern: str) -> None:
    """What a rule finds in a command it may find in the same one with unknown words."""
    if decided(f"x {command}", ("deny", pattern)) == "deny":
        assert decided(f"x {command} $Y", ("deny", f"{pattern}*")) != "auto"
