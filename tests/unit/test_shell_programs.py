"""Which commands the rules of a tool policy find where bash or a program runs them on its own."""

import shutil
import subprocess
from pathlib import Path

import pytest

from chatd.domain.tool_policy.rules import PolicyAction
from chatd.domain.tool_policy.shell_commands import (
    MAX_SHELL_COMMANDS,
    MAX_SHELL_FORM_CHARS,
    read_shell,
)
from chatd.domain.tool_policy.shell_programs import PROGRAMS
from tests.unit.test_shell_commands import decided

BY_BASH = [
    "let 'a[$(rm x)]'",
    'let "a[\\$(rm x)]"',
    "let a[\\$\\(rm\\)]",
    "let $'a[\\x24(rm x)]'",
    "let 'a[`rm x`]'",
    "(( a[$(rm x)] ))",
    "i='a[$(rm x)]'; echo $((i))",
    "i='a[$(rm x)]'; echo $[i]",
    "a['$(rm x)']=1",
    "a['b[$(rm x)]']=1",
    "declare -i n='a[$(rm x)]'",
    "declare 'a[$(rm x)]=1'",
    "declare -n r='a[$(rm x)]'; r=1",
    "[[ x -eq 'a[$(rm x)]' ]]",
    "[[ -v 'a[$(rm x)]' ]]",
    "test -v 'a[$(rm x)]'",
    "[ -v 'a[$(rm x)]' ]",
    "printf -v 'a[$(rm x)]' hi",
    "read 'a[$(rm x)]' <<< y",
    "read n <<< 'a[$(rm x)]'; (( n ))",
    "read n <<'E'\na[$(rm x)]\nE\n(( n ))",
    "a=(1); unset 'a[$(rm x)]'",
    "for i in 'a[$(rm x)]'; do (( i )); done",
    "f() { (( $1 )); }; f 'a[$(rm x)]'",
    "set -- 'a[$(rm x)]'; echo $(( $1 ))",
    "x=abc; echo ${x:'a[$(rm y)]'}",
    "x=abc; i='a[$(rm y)]'; echo ${x:i}",
    "i='a[$(rm x)]'; echo ${!i}",
    "exec {a[$(rm x)]}>/dev/null",
    "PS4='$(rm x)'; set -x; :",
    "BASH_ENV='$(rm x)' bash -c :",
    "env BASH_ENV='$(rm x)' bash -c :",
    "export BASH_ENV='`rm x`'; bash -c :",
    "PROMPT_COMMAND='rm x' bash --norc -i <<< :",
    "mapfile -C 'rm x;:' -c 1 a <<< y",
    "readarray -c1 -C'rm x;:' a <<< y",
    "compgen -C 'rm x' y",
    "compgen -W '$(rm x)' y",
    "hash -p \"$(command -v rm)\" ls; ls x",
    "env 'BASH_FUNC_ls%%=() { rm x; }' bash -c ls",
    "trap 'rm x' EXIT",
    "shopt -s expand_aliases; alias l='rm x'\nl",
    "declare -a 'a=($(rm x))'",
    "declare -A 'a=([x]=$(rm x))'",
    "readonly -a 'a=(`rm x`)'",
    "cat <<E\n$((a[$(rm x)]))\nE",
    "jobs -x rm x",
    "trap -- 'rm x' EXIT",
    "builtin eval 'rm x'",
    "while :; do break; done < <(rm y)",
]  # fmt: skip
"""Denied by `rm *`, but for those of BY_BASH_ASKED; bash runs rm for each."""
BY_BASH_ASKED = [
    "x='$(rm y)'; echo ${x@P}",
    "x='$(rm y)'; echo ${x@P}$((1))",
    "X=ce; ni$X rm y",
    "X=sh; ba$X -c 'rm y'",
    "X=v; /usr/bin/en$X rm y",
    "a='r'; b='m'; $a$b x",
    "read PS4 <<< '$(rm x)'; set -x; :",
    "X='$(rm y)'; PS4=$X; set -x; :",
    "f() { \"$@\"; }; f rm x",
    "set -- rm x; \"$@\"",
    "bash -c '\"$@\"' _ rm x",
    "hash -p \"$(command -v rm)\" ls; ls x",
]  # fmt: skip

BY_PROGRAM = [
    ("dash", "ENV='$(rm x)' dash -ic :"),
    ("tar", "tar cf /dev/null --checkpoint=1 --checkpoint-action=exec='rm x' f"),
    ("tar", "tar cf /dev/null --checkpoint=1 --checkpoint-act exec='rm x' f"),
    ("tar", "tar cf - f | tar xf - --to-command='rm x'"),
    ("tar", "tar cf t.tar -I 'rm x' f"),
    ("tar", "tar cIf 'rm x' t.tar f"),
    ("tar", "tar -cf t.tar --use-compress='rm x' f"),
    ("tar", "TAR_OPTIONS='-I rm' tar cf t.tar f"),
    ("sed", "sed '1e rm x' f"),
    ("sed", "sed -n -e '1!d' -e 'y/a/b/;e rm x' f"),
    ("sed", "sed --expression='/r/Ie rm x' f"),
    ("sed", "sed -e's/[/]/a/;1{e rm x\n}' f"),
    ("awk", "awk 'BEGIN{system(\"rm x\")}'"),
    ("awk", "awk 'BEGIN{print \"x\" | \"rm y\"}'"),
    ("awk", "awk 'BEGIN{\"rm y\" | getline z}'"),
    ("awk", "awk '/r|m/{x=1/1; print | \"rm y\"; y=1/1}' f"),
    ("ex", "ex -s +'!rm x' +q"),
    ("vim", "vim -es -c 'r!rm x' -c 'q!'"),
    ("vim", "vim -es -c \"call system('rm x')\" -c q"),
    ("ed", "printf '!rm x\\nq\\n' | ed -s"),
    ("ed", "ed -s <<'E'\n!rm x\nE"),
    ("ed", "ed -s '!rm x' <<< p"),
    ("perl", "perl -ne print 'rm x|'"),
    ("perl", "perl -e 'print `rm x`'"),
    ("perl", "perl -we 'system(\"rm x\")'"),
    ("perl", "perl <<< 'exec \"rm x\"'"),
    ("git", "git -c alias.x='!rm y' x"),
    ("git", "git init -q . && git config alias.x '!rm y' && git x"),
    ("git", "GIT_EDITOR='rm x;' git config -e --file f"),
    ("git", "git init -q . && git -c core.fsmonitor='rm x' status"),
    ("make", "make --eval='a:;rm x' a"),
    ("make", "make -f - <<< 'x:=$(shell rm y)'"),
    ("make", "make 'x=$(shell rm y)' -f - <<< $'a:\\n\\techo $(x)'"),
    ("make", "make CC='rm x;:' -f - <<< $'a:\\n\\t$(CC) b'"),
    ("split", "split --filter='rm x' f"),
    ("zip", "zip -q z.zip f -T -TT 'rm x'"),
    ("sqlite3", "sqlite3 :memory: '.shell rm x'"),
    ("sqlite3", "sqlite3 :memory: <<'E'\n.system rm x\nE"),
    ("script", "script -qc 'rm x' /dev/null"),
    ("flock", "flock f rm x"),
    ("setpriv", "setpriv --nnp rm x"),
    ("find", "find . -name f -exec rm {} +"),
    ("xargs", "xargs -I@ sh -c 'rm @' <<< x"),
    ("prlimit", "prlimit --core=0 rm x"),
    ("sed", "sed -f - f <<< 'e rm x'"),
    ("sed", "sed -- 'e rm x' f"),
    ("sed", "sed -s -n 'e rm x' f"),
    ("sed", "sed -n -s -E '1{p;e rm x\n}' f"),
    ("awk", "awk -f /dev/stdin <<< 'BEGIN{system(\"rm x\")}'"),
    ("awk", "awk 'BEGIN{system(\"rm x\")}' -f"),
    ("perl", "perl '-Mstrict;system(\"rm x\")' -e 1"),
    ("perl", "PERL5DB='BEGIN{system(\"rm x\")}' perl -de 1"),
    ("perl", "perl - <<'E'\nsystem('rm x')\nE"),
    ("make", "make -E 'a:;rm x' a"),
    ("make", "make -sf - <<< $'a:\\n\\t@-rm x'"),
    ("git", "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.x GIT_CONFIG_VALUE_0='!rm y' git x"),
    ("nice", "nice -5 rm x"),
    ("timeout", "timeout --foreground 5 rm x"),
]  # fmt: skip
"""Denied by `rm *`; the program runs rm for each."""
BY_PROGRAM_ASKED = [
    ("make", "make SHELL=\"$(command -v rm)\" -f - <<< $'a:\\n\\techo >x'"),
    ("sed", "sed 's/x/y/e' f"),
    ("sed", "echo e | sed -n '1s,e,rm x,gew /dev/null'"),
    ("awk", "awk 'BEGIN{c=\"rm\"; c=c\" x\"; print 1 | c}'"),
    ("awk", "awk 'BEGIN{f=\"sys\"; system(\"r\" \"m x\")}'"),
    ("perl", "perl -e 'open F, \"-|\", \"r\".\"m\"; <F>'"),
    ("perl", "echo 'exec \"r\".\"m\"' | perl"),
    ("awk", "awk -f <(echo 'BEGIN{system(\"rm x\")}')"),
    ("sed", "X=e; sed \"s/x/y/$X\" f"),
    ("git", "V='!rm x' git --config-env=alias.y=V y"),
    ("find", "find f -exec sh -c '$0 x' rm ';'"),
    ("make", "X=$'a:\\n\\trm x'; make -f - <<< \"$X\""),
]  # fmt: skip

NOT_PROVEN = [
    "ssh -o ProxyCommand='rm x' host",
    "ssh -oProxyCommand='rm x' host",
    "rsync -e 'rm x' a b:c",
    "docker run --rm -v a:b img rm x",
    "docker exec -it c rm x",
    "docker -H h compose exec -T app rm x",
    "docker run --entrypoint rm img x",
    "kubectl -n x exec -it pod -c a -- rm x",
    "podman run --unknown value img rm x",
    "git bisect run rm x",
    "git -C d submodule foreach --recursive 'rm x'",
    "git rebase -i --exec 'rm x' HEAD~2",
    "git rebase -x'rm x' HEAD~2",
    "git filter-branch --tree-filter 'rm -rf x' HEAD",
    "git clone -u 'rm x' a b",
    "git -c core.pager='rm x' -p log",
    "GIT_SSH_COMMAND='rm x' git fetch",
    "PAGER='rm x' man ls",
    "man -P 'rm x' ls",
    "man --pager='rm x' ls",
    "less '+!rm x' f",
    "gdb -batch -ex 'shell rm x'",
    "gdb -batch -ex '!rm x'",
    "python3 -c 'import os; os.system(\"rm x\")'",
    "python3.11 -c 'import subprocess; subprocess.run([\"rm\", \"x\"])'",
    "python3 -Ic'import os;os.popen(\"rm x\")'",
    "python3 <<'E'\nimport os\nos.system('rm x')\nE",
    "cat <<'E' | python3 -\nimport os\nos.system('rm x')\nE",
    "echo 'import os; os.system(\"rm x\")' | sudo python3",
    "node -e 'child_process.execSync(\"rm x\")'",
    "ruby -e 'system(\"rm x\")'",
    "ruby -e 'puts `rm x`'",
    "php -r 'system(\"rm x\");'",
    "lua -e 'os.execute(\"rm x\")'",
    "Rscript -e 'system(\"rm x\")'",
    "psql -c '\\! rm x'",
    "mysql -e 'system rm x'",
    "sort --compress-program=rm f",
    "cmake -E rm x",
    "bind -x '\"\\C-x\":rm x'",
    "complete -C 'rm x' ls",
    "tmux new -d 'rm x'",
    "tmux send-keys -t 0 'rm x' Enter",
    "socat - EXEC:'rm x'",
    "nc -e rm h 1",
    "m4 <<< 'syscmd(`rm x'\"')\"",
    "go test -exec 'rm x' ./...",
    "gosu dev rm x",
    "ip netns exec n rm x",
    "doas rm x",
    "toybox rm x",
    "setarch x86_64 -R rm x",
    "chrt -o 0 rm x",
    "taskset -c 0 rm x",
    "bwrap --ro-bind / / rm x",
    "sshpass -p x ssh h rm y",
    "vim -c 'silent! !rm x' f",
    "EXINIT='!rm x' ex",
    "LESSOPEN='||-rm %s' less f",
    "LESS='+!rm x' less f",
    "git -c uploadpack.packObjectsHook='rm x' fetch",
    "npm --script-shell=rm run x",
    "npm x -- rm x",
    "nix-shell --run 'rm x'",
    "fly ssh console -C 'rm x'",
    "docker run -itv a:b img rm x",
    "lldb -o 'platform shell rm x'",
    "rpm -E '%(rm x)'",
    "bash5 -c 'rm x'",
    "bash --rcfile <(echo rm x) -i",
    "PROMPT_COMMAND[0]='rm x'",
    "systemd-run -p A=b rm x",
]  # fmt: skip
NOT_PROVEN_ASKED = [
    "enable -f ./x.so x",
    "python3 -c 'import subprocess; subprocess.run(a)'",
    "python3 -c 'exec(x)'",
    "python3 -c \"$X\"",
    "perl -e \"$X\"",
    "sed \"$X\" f",
    "awk \"$X\" f",
    "curl x | python3",
    "curl x | node",
    "python3 <(curl x)",
    "node -e 'require(\"child_process\")'",
    "git clone 'ext::sh -c rm% x' y",
    "vim -c 'py3 x' f",
    "tar -I bash -xf f",
    "st$X rm y",
    "vim -S <(echo '!rm x')",
    "gdb -x <(echo 'shell rm x')",
    "make -f <(printf 'a:')",
    "sqlite3 :memory: '.read \"|rm x\"'",
    "git -c url.'ext::rm x'.insteadOf=a fetch",
    "GIT_CONFIG_PARAMETERS=\"'alias.x=!rm y'\" git x",
    "node -e 'process.binding(\"spawn_sync\")'",
]  # fmt: skip

EVERYDAY = """
sed -n 1,10p f
sed -n '1,10p' src/parser/here.py
sed -i 's/foo/bar/g' src/a.py src/setup/e.py
sed -i "s/$A/$B/" f
sed -e 's/a/b/' -e '/^#/d' f
sed -n "${a},${b}p" f
sed 's/[/]e/x/; s|/e|/f|' f
sed -E 's/^(.*)e$/\\1/w out' f
sed -i '/import os/a import sys' f
sed 's#http://e#https://e#g' f
sed --in-place=.bak -e '1d' e.txt
sed -f prog.sed f
tar xzf f.tgz
tar -czf out.tgz --exclude=node_modules .
tar -I zstd -xf f.tar.zst
tar --use-compress-program=pigz -cf a.tgz b
tar cf - . | ssh host 'tar xf -'
python script.py
python3 -m pytest -q tests
python3 -c "import sys; print(sys.executable, sys.version)"
python3 -c "import platform; print(platform.system())"
python3 -c 'import json,sys; print(json.load(sys.stdin)["a"])'
python3 -c "import importlib.metadata as m; print(m.version('x'))"
curl -s x | python3 -m json.tool
curl -s x | python3 -c 'import sys,json; print(json.load(sys.stdin))'
python3 --version
python manage.py migrate
python train.py --system-prompt "You are a system (exec)"
python -m venv .venv && . .venv/bin/activate && pip install -r requirements.txt
python$V -m pytest
python "$SCRIPT" "$X"
cat data.json | python3 script.py
node app.js
node -e 'console.log(process.version, `a`)'
node --version
npm run build
npx tsc --noEmit
perl -i -pe 's/foo/bar/g' src/*.py
perl -ne 'print if /a|b/' f
perl -0777 -ne 'print $1 if /x(.*?)y/s' f
ruby -e 'puts 1'
php artisan migrate
awk -F'|' '{print $2}' f
awk -F '|' '$3 ~ /a|b/ {print $2}' f
awk '/foo|bar/ {c++} END {print c}' f
awk -v n="$N" 'NR==n || NR>5' f
awk '{s+=$1} END {printf "%d | %d", s, NR}' f
awk -f prog.awk f
git status
git diff HEAD~1 -- src
git log --oneline -5 --pretty=format:'%h %s'
git commit -m "Remove the rm command; set EDITOR=vi"
git commit -m "$MSG"
git -c user.name="$N" -c user.email=a@b commit -m x
git -c core.pager=cat diff
git config --global core.editor "vim"
git push -u "$REMOTE" "$BRANCH"
git cherry-pick -x $SHA
git clean -fdx "$DIR"
git grep -n 'system(' src
git submodule update --init --recursive
git clone https://github.com/a/b.git
GIT_EDITOR=true git rebase --continue
GIT_PAGER=cat git log
vim
vim +10 f
vim -c 'wq' f
vi -c 'q!' f
ex -s -c '%s/a/b/g' -c 'wq' f
less +G f
man 5 crontab
make -j4 CC=gcc CFLAGS='-O2 -g' all
make VERSION="$(git describe)" V=$X
make SHELL=/bin/bash test
gdb -batch -ex run -ex bt --args ./a.out x
gdb -p 123 -batch -ex 'thread apply all bt'
find . -name '*.py' -newer f -print
find . -name '*.pyc' -delete
ssh -i key -o StrictHostKeyChecking=no user@host 'ls -la'
ssh -o "UserKnownHostsFile=$F" host ls
rsync -a -e "ssh -i key -p 22" a/ host:b/
rsync -avz -e ssh a/ host:b/
docker run --rm -it -v "$PWD:/w" -w /w img npm test
docker exec -it c bash -lc 'ls'
docker compose exec app pytest
docker rm x
kubectl exec -it pod -- ls
kubectl logs -f pod
sqlite3 db ".mode csv" "select * from t"
psql -c 'select 1' db
cat dump.sql | psql db
sort -u f | uniq -c | sort -rn | head
split -l 100 f
zip -r a.zip b
crontab -l
export EDITOR=vim PAGER=less PATH="$HOME/bin:$PATH"
ENV=$TARGET make deploy
PS4='+ ${LINENO}: ' ./x.sh
SHELL=/bin/bash ./x
declare -A m=([a]=1 [b]=2); echo "${m[a]}"
a=(1 2 3); echo "${a[@]}" "${#a[@]}" "${a[0]}"
for ((i=0;i<3;i++)); do echo "${a[$i]}"; done
[[ $x -eq 1 ]] && echo 'see a[0] and $(rm x)'
let i=i+1
printf '%s' "a[0]" "$x"
IFS=, read -ra parts <<< "$x"
mapfile -t lines < f
compgen -c | sort -u
hash -r
watch -n 1 'ls'
strace -f -o out ./a
go build -o x ./cmd/x
cmake -B build -S . && cmake --build build
jq -r '.a[] | select(.b=="rm")' f
grep -rn 'a[$(rm x)]' src
rg -n "system\\(" src
tmux new -d -s x 'npm start'
poetry run python -m app
nohup ./server > log 2>&1 &
ed -s f <<< $'%s/a/b/\\nw\\nq'
python$V x.py
""".strip().splitlines()  # fmt: skip
EVERYDAY_TEXTS = [
    "python3 - <<'E'\nimport re, json\np = re.compile('x')\nprint(json.dumps({'n': ((1), 2)}))\nE",
    "cat > f.py <<'E'\nimport subprocess\nsubprocess.run(['rm', 'x'])\nE",
    "cat <<'E' | python3 -\nprint(1)\nE",
    "node <<'E'\nconsole.log(`a`)\nE",
    "mysql db <<'E'\nselect 1;\nE",
    "python3 - <<'E'\n" + "print(len('a'), ('b', \"c\"))\n" * 3_000 + "E",
]


@pytest.mark.parametrize(
    "command",
    [
        *(command for command in BY_BASH if command not in BY_BASH_ASKED),
        *(command for _, command in BY_PROGRAM),
        *NOT_PROVEN,
    ],
)
def test_a_command_that_bash_or_a_program_runs_on_its_own_is_found(command: str) -> None:
    assert decided(command, ("deny", "rm *")) == "deny"


@pytest.mark.parametrize(
    "command",
    [*BY_BASH_ASKED, *(command for _, command in BY_PROGRAM_ASKED), *NOT_PROVEN_ASKED],
)
def test_a_command_that_a_program_may_run_is_asked_for(command: str) -> None:
    assert decided(command, ("deny", "rm *")) == "ask"
    assert decided(command, ("ask", "rm *")) == "ask"


@pytest.mark.parametrize("command", [*EVERYDAY, *EVERYDAY_TEXTS], ids=lambda text: text[:40])
def test_everyday_commands_are_not_asked_for(command: str) -> None:
    assert decided(command, ("deny", "rm *"), ("ask", "rm *")) == "auto"


ODD_ARGUMENTS = ["", "-x y", "'$('", "-- '", "-c", "-e $X", "--eval= = -f -", "x= -I", "[ -S <(y)"]


def test_no_arguments_of_a_program_fail() -> None:
    for name in PROGRAMS:
        for arguments in ODD_ARGUMENTS:
            read_shell(f"{name} {arguments}")


@pytest.mark.parametrize(
    ("pattern", "command", "expected"),
    [
        ("git push *", "git -c alias.p=push p", "deny"),
        ("git push *", "git config alias.p 'push --force'", "deny"),
        ("git push *", "git rebase -x 'git push' main", "deny"),
        ("git push *", "python3 -c 'import os; os.system(\"git push\")'", "deny"),
        ("git push *", "docker run img git push", "deny"),
        ("git push *", "docker push x", "auto"),
        ("systemctl stop *", "systemctl -H host stop x", "deny"),
        ("* /etc/*", "diff <(ls) <(cat x)", "auto"),
        ("export A=*", "export A=1", "deny"),
    ],
)
def test_other_patterns_are_found_through_programs(
    pattern: str, command: str, expected: PolicyAction
) -> None:
    assert decided(command, ("deny", pattern)) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_and_the_programs_of_this_machine_run_the_command_in_each_spelling(
    tmp_path: Path,
) -> None:
    """A fake rm writes down the number of its case. One bash runs all cases."""
    there = [
        command
        for program, command in (
            *(("bash", command) for command in dict.fromkeys((*BY_BASH, *BY_BASH_ASKED))),
            *BY_PROGRAM,
            *BY_PROGRAM_ASKED,
        )
        if shutil.which(program) is not None
    ]
    fake = tmp_path / "bin" / "rm"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "${{PWD##*/}}" >> {tmp_path}/log\n')
    fake.chmod(0o755)
    for number, command in enumerate(there):
        case = tmp_path / f"case{number}"
        case.mkdir()
        (case / "f").write_text("rm x\n")
        (case / ".command").write_text(command)
    script = (
        f"PATH={fake.parent}:$PATH HOME={tmp_path}; cd {tmp_path}; for case in case*; do "
        '(cd "$case"; timeout 20 bash -c "$(cat .command)" < /dev/null > /dev/null 2>&1) & '
        "done; wait"
    )
    subprocess.run(["bash", "-c", script], check=True, timeout=60)

    ran = set((tmp_path / "log").read_text().split())
    assert [each for number, each in enumerate(there) if f"case{number}" not in ran] == []


@pytest.mark.parametrize(
    "command",
    [
        "sed '" + "s/a/b/;" * 2_000 + "'",
        "sed '" + "s[" * 4_000 + "'",
        "awk '" + "/a|b/" * 3_000 + "'",
        "awk '" + "\n" * 16_000 + "'",
        "perl -e '" + "open " * 3_000 + "'",
        "python3 -c '" + "system " * 2_000 + "'",
        "git " + "a" * 16_000,
        "git " + "-c pager" * 2_000,
        "ssh -o " + "a" * 16_000 + " h",
        "apt -o " + "invoke" * 2_500,
        "make " + "a:b" * 5_000,
        "vim -c '" + "!" * 16_000 + "'",
        "ed <<'E'\n" + "1" * 16_000 + "\nE",
        "sed 's/" + "[" * 16_000 + "'",
        "ed <<'E'\n" + "\n" * 200_000 + "\nE",
        "gdb <<'E'\n" + "\n" * 200_000 + "\nE",
        "dc <<'E'\n" + "\n" * 200_000 + "\nE",
        "sqlite3 <<'E'\n" + "\n" * 200_000 + "\nE",
        "PS4='" + "$(" * 180 + "'",
        "tar " + "-I tar " * 2_000,
        "let '" + "a[$(b)" * 60 + "'",
        "python3;" * 130 + "\n: <<'E'\n" + "system(" * 10_000 + "\nE",
    ],
    ids=lambda text: text[:16],
)
def test_a_long_text_for_a_program_is_read_in_bounds(command: str) -> None:
    """A reading that is not linear takes minutes for some of them."""
    found = read_shell(command).commands

    assert len(found) <= MAX_SHELL_COMMANDS
    assert sum(map(len, found)) <= MAX_SHELL_FORM_CHARS
