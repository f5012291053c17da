"""Programs that start others: how their arguments carry a command.

The table has a row for each name, and for subcommands such as `git rebase`. What is not in it
starts nothing that a rule sees.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

SHELLS: Final = frozenset({
    "ash", "bash", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "oksh", "posh", "rbash", "sh",
    "tcsh", "yash", "zsh", "nu", "xonsh", "elvish", "pwsh", "powershell", "hush",
})  # fmt: skip


class Program(Struct, frozen=True, kw_only=True):
    """`values`: its options with a value in the next word; with `flags`, all options but these.
    `starts`: what follows the options, after `skips` words: a command as words, or texts that are
    joined for a shell."""

    values: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    skips: int = 0
    starts: Literal["words", "text"] | None = None
    is_loose: bool = False
    """Any of these words may be the first of the command: its options take several values."""
    text: frozenset[str] = frozenset()
    """Options whose value is for a shell."""
    bundled: str = ""
    """Such letters in a first word without a dash, as in `tar cIf`."""
    exec_flags: frozenset[str] = frozenset()
    """A command follows each, up to `;` or `+`."""
    settings: re.Pattern[str] | None = None
    """At the beginning of a word, or of two joined by `=`. A named group is for a shell, `alias`
    for the program itself."""
    code: str = ""
    """The language of its code: in the values of `evals`, and in its first word with
    `has_script`."""
    evals: frozenset[str] = frozenset()
    has_script: bool = False
    operands: str = ""
    """The language of all its words."""
    reads: Literal["no", "known", "all"] = "no"
    """It reads its code from its input: `all` if nothing else is named. An unknown input counts
    then; with `known` only a here-document does."""


PROGRAMS: Final[dict[str, Program]] = {}


def _row(names: str, row: Program) -> None:
    PROGRAMS.update((name.strip(), row) for name in names.split(","))


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL | re.IGNORECASE)


# Words of the shell's own, where the parser takes them for commands; and programs that start the
# command in their arguments.
_row(
    "!, {, do, else, then, busybox, toybox, builtin, catchsegv, command, coproc, linux32, linux64,"
    " nohup, setsid, x86_64, i386, i686, noglob, nocorrect, torsocks, proxychains, proxychains4,"
    " unbuffer, valgrind, chronic,"
    " ifne, eatmydata, flatpak-spawn, torify, watchexec, reflex, heroku run, asdf exec, rbenv exec,"
    " pyenv exec,"
    " nodenv exec, pixi run, devbox run, adb shell, toolbox run, distrobox-enter, op run,"
    " doppler run, ssh-agent, dbus-launch",
    Program(starts="words"),
)
_row("bwrap, chpst, firejail, proot, setarch", Program(starts="words", is_loose=True))
_row("chroot", Program(values=_set("--userspec --groups"), skips=1, starts="words"))
_row("chrt", Program(values=_set("-p -T -P -D"), skips=1, starts="words"))
_row("gosu, su-exec, setuidgid, direnv exec, machinectl shell", Program(skips=1, starts="words"))
_row("sshpass", Program(values=_set("-p -f -d -P"), starts="words"))
_row("mosh, aws-vault exec, sops exec-env, chamber exec", Program(skips=1, starts="text"))
_row("nix-shell", Program(text=_set("--run --command")))
_row("nix develop, nix shell", Program(exec_flags=_set("-c --command")))
_row("fly ssh console, flyctl ssh console", Program(text=_set("-C --command")))
_row("cpulimit", Program(values=_set("-l --limit -p --pid -e --exe"), starts="words"))
_row("dbus-run-session", Program(values=_set("--config-file --dbus-daemon"), starts="words"))
_row("doas", Program(values=_set("-u -C"), starts="words"))
_row("dumb-init", Program(values=_set("-r --rewrite"), starts="words"))
_row("entr", Program(text=_set("-s"), starts="words"))
_row(
    "env",
    Program(
        values=_set("-u --unset -C --chdir -P --argv0 -a"),
        text=_set("-S --split-string -vS -iS -ivS"),
        starts="words",
    ),
)
_row("eval, trap", Program(starts="text"))
_row("exec", Program(values=_set("-a"), starts="words"))
_row("faketime", Program(values=_set("-f"), skips=1, starts="words"))
_row("fakeroot, fakechroot", Program(values=_set("-l --lib -s -i -b --faked"), starts="words"))
_row(
    "flock",
    Program(
        values=_set("-w --timeout -E --conflict-exit-code"),
        skips=1,
        text=_set("-c --command"),
        starts="words",
    ),
)
_row(
    "hyperfine",
    Program(values=_set("-w -m -M -r -p -c -n -L -P -S --warmup --runs --prepare"), starts="text"),
)
_row("ionice", Program(values=_set("-c -n -p -P -u --class --classdata"), starts="words"))
_row("ip netns exec", Program(skips=1, starts="words"))
_row("ld.so", Program(values=_set("--library-path --preload --audit --argv0"), starts="words"))
_row("ltrace", Program(values=_set("-o -p -e -s -u -a -n -l -x -F"), starts="words"))
_row("nice", Program(values=_set("-n --adjustment"), starts="words"))
_row(
    "npx, bunx, pnpm dlx, yarn dlx",
    Program(values=_set("-p --package"), text=_set("-c --call"), starts="words"),
)
_row("nsenter", Program(values=_set("-t --target -S --setuid -G --setgid -r -w"), starts="words"))
_row(
    "parallel",
    Program(
        values=_set("-j --jobs -a --arg-file -I -N -n -L -d -P -S --colsep --delay --joblog"),
        starts="text",
    ),
)
_row("pee", Program(starts="text"))
_row("perf", Program(values=_set("-e -o -p -F"), skips=1, starts="words"))
_row("pkexec", Program(values=_set("--user -u"), starts="words"))
_row("prlimit", Program(values=_set("-o --output"), starts="words"))
_row("rlwrap", Program(values=_set("-f -H -s -C -D"), starts="words"))
_row(
    "runuser",
    Program(
        values=_set("-u --user -g --group -G -s --shell"),
        text=_set("-c --command --session-command"),
        starts="words",
    ),
)
_row("screen", Program(values=_set("-S -t -c -p -e -h -s -T"), starts="words"))
_row(
    "script",
    Program(
        values=_set("-I -O -B -T -m -o -E"), skips=1, text=_set("-c --command"), starts="words"
    ),
)
_row(
    "setpriv",
    Program(
        values=_set("--reuid --regid --groups --inh-caps --ambient-caps --bounding-set"),
        starts="words",
    ),
)
_row("sg", Program(skips=1, text=_set("-c"), starts="text"))
_row(
    "ssh",
    Program(
        values=_set("-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w"),
        skips=1,
        starts="text",
        settings=_pattern(r"(?:-o=?)?\s*\w{0,40}(?:command|exec)\s*[= ]\s*(?P<text>.*)"),
    ),
)
_row("start-stop-daemon", Program(text=_set("-x --exec -a --startas")))
_row("stdbuf", Program(values=_set("-i --input -o --output -e --error"), starts="words"))
_row("strace", Program(values=_set("-o -p -e -s -u -E -a -b -I -P -S -X"), starts="words"))
_row(
    "su",
    Program(
        values=_set("-s --shell -g --group -G -w"),
        skips=99,
        text=_set("-c --command"),
        starts="words",
    ),
)
_row(
    "sudo",
    Program(
        values=_set(
            "-u --user -g --group -h --host -p --prompt -C -D --chdir -R --chroot -r --role -t"
            " --type"
            " -T -U"
        ),
        starts="words",
    ),
)
_row(
    "systemd-run",
    Program(
        values=_set("-p --property -u --unit --slice -E --setenv -M --uid --gid"), starts="words"
    ),
)
_row("taskset", Program(values=_set("-p"), skips=1, starts="words"))
_row("time", Program(values=_set("-f --format -o --output"), starts="words"))
_row("timeout", Program(values=_set("-k --kill-after -s --signal"), skips=1, starts="words"))
_row("tini", Program(values=_set("-p -e"), starts="words"))
_row(
    "unshare",
    Program(values=_set("-S --setuid -G --setgid -R --root -w --wd --propagation"), starts="words"),
)
_row("watch", Program(values=_set("-n --interval -q --equexit"), starts="text"))
_row(
    "xargs",
    Program(
        values=_set(
            "-a --arg-file -d --delimiter -E -I -L --max-lines -n --max-args -P --max-procs -s"
            " --max-chars"
            " --process-slot-var -J -R -S"
        ),
        starts="words",
    ),
)
_row("xvfb-run", Program(values=_set("-n -s -e -f -p -w"), starts="words"))
_row(
    "bundle exec, conda run, hatch run, mise exec, nix run, npm exec, npm x, pdm run, pipenv run,"
    " pnpm exec, poetry run, rye run, uv run, yarn exec",
    Program(
        values=_set("--with --extra --group --python -p -n --name --env-file --directory"),
        starts="words",
    ),
)
_row(
    "npm",
    Program(
        values=_set("--prefix -w --workspace -C"),
        settings=_pattern(r"(?:--)?script-shell=(?P<text>.*)"),
    ),
)
_row(
    "direnv, machinectl, ip, ip netns, systemctl, git bisect, git submodule",
    Program(values=_set("-H --host -M --machine -p -t -n -o")),
)

# Containers and other hosts.
_row(
    "docker, podman, nerdctl",
    Program(values=_set("-c --context -H --host --config -l --log-level --connection")),
)
_row(
    "docker compose, podman compose, docker-compose",
    Program(values=_set("-f --file -p --project-name --profile")),
)
_row(
    "docker run, docker create, docker exec, podman run, podman create, podman exec, docker"
    " service create, nerdctl run,"
    " nerdctl exec, docker container run, docker container exec, docker compose run,"
    " docker compose exec, docker-compose run, docker-compose exec, podman container run,"
    " podman container exec, podman compose run, podman compose exec",
    Program(
        flags=_set(
            "-d -i -t -q -P -T --rm --detach --interactive --tty --init --privileged --read-only"
            " --publish-all --no-healthcheck --oom-kill-disable --quiet --no-deps"
            " --service-ports --no-TTY"
            " --build --remove-orphans --use-aliases --sig-proxy --disable-content-trust --no-hosts"
        ),
        skips=1,
        text=_set("--entrypoint"),
        starts="words",
    ),
)
_row("kubectl, oc", Program(values=_set("-n --namespace --context --kubeconfig --cluster -s")))
_row(
    "kubectl exec, kubectl run, kubectl debug, oc exec, oc rsh, lxc exec, incus exec",
    Program(
        flags=_set("-i -t -q --stdin --tty --quiet --rm --attach --command"),
        skips=1,
        starts="words",
    ),
)
_row("lxc-attach", Program(values=_set("-n --name"), starts="words"))
_row(
    "scp, sftp",
    Program(
        text=_set("-S"), settings=_pattern(r"(?:-o=?)?\s*\w{0,40}command\s*[= ]\s*(?P<text>.*)")
    ),
)
_row("rsync", Program(text=_set("-e --rsh --rsync-path")))
_row("vagrant, gcloud", Program(text=_set("-c --command")))
_row("ansible", Program(text=_set("-a --args")))
_row("nc, ncat, netcat", Program(text=_set("-e -c --exec --sh-exec")))
_row("socat", Program(settings=_pattern(r"(?:exec|system|shell):(?P<text>[^,]*)")))

# Programs with a command among their options.
_row(
    "tar, gtar, bsdtar, star",
    Program(
        text=_set(
            "--to-command -I --use-compress-program -F --info-script --new-volume-script"
            " --rmt-command"
            " --rsh-command"
        ),
        bundled="IF",
        settings=_pattern(r"--[\w-]{1,40}=exec=(?P<text>.*)"),
    ),
)
_row("sort", Program(text=_set("--compress-program")))
_row("split", Program(text=_set("--filter")))
_row("man", Program(text=_set("-P --pager -H --html")))
_row("zip", Program(text=_set("-TT --unzip-command")))
_row("rg", Program(text=_set("--pre --hostname-bin")))
_row("bat, batcat", Program(text=_set("--pager")))
_row(
    "fzf",
    Program(
        text=_set("--preview"),
        settings=_pattern(r".*?(?:execute|silent|become|reload)[(:](?P<text>[^)]*)"),
    ),
)
_row(
    "wget",
    Program(text=_set("--use-askpass"), settings=_pattern(r"(?:-e=?)?use_askpass=(?P<text>.*)")),
)
_row("cpio", Program(text=_set("--rsh-command")))
_row("rpm", Program(text=_set("--pipe"), code="rpm", evals=_set("-E --eval")))
_row("restic, rclone", Program(text=_set("--password-command")))
_row("nodemon", Program(text=_set("-x --exec")))
_row("go run, go test, go vet, go build", Program(text=_set("-exec -toolexec")))
_row(
    "apt, apt-get, dpkg",
    Program(
        text=_set("--pre-invoke --post-invoke"),
        settings=_pattern(r".*?invoke[^=\s]{0,80}=(?P<text>.*)"),
    ),
)
_row("cmake", Program(exec_flags=_set("-E")))
_row("find", Program(exec_flags=_set("-exec -execdir -ok -okdir")))
_row("fd, fdfind", Program(exec_flags=_set("-x -X --exec --exec-batch")))
_row("xterm, gnome-terminal, konsole, alacritty, kitty", Program(exec_flags=_set("-e -x --")))
_row("tmux", Program(values=_set("-L -S -f -c")))
_row(
    "tmux new-session, tmux new, tmux new-window, tmux neww, tmux split-window, tmux splitw,"
    " tmux run-shell, tmux run, tmux respawn-pane, tmux respawn-window, tmux if-shell, tmux if,"
    " tmux pipe-pane, tmux pipep, tmux send-keys, tmux send, tmux display-popup, tmux popup",
    Program(values=_set("-s -n -t -c -x -y -e -F"), starts="text"),
)
_row("asciinema rec", Program(text=_set("-c --command")))

# Builtins of bash. `complete` and `bind` run their text in an interactive shell only.
_row("mapfile, readarray, complete", Program(text=_set("-C")))
_row("compgen", Program(text=_set("-C"), operands="expanded"))
_row("bind", Program(settings=_pattern(r'\s*"[^"]*"\s*:\s*(?P<text>.*)')))
_row("jobs", Program(exec_flags=_set("-x")))
_row("fc", Program(text=_set("-e")))
_row("enable", Program(settings=_pattern(r"-\w*f")))

_GIT_SETTING: Final = (
    r"(?:(?:-c|--config)=?)?(?:(?:alias\.|credential)[^=]{0,200}=!(?P<text>.*)"
    r"|alias\.[^=]{1,80}=(?P<alias>.*)|pager\.\w{1,40}=(?P<pager>.*)"
    r"|\w[\w./-]{0,200}?(?:pager|editor|command|cmd|helper|program|external|textconv|clean|smudge"
    r"|process|driver|fsmonitor|askpass|proxy|receivepack|uploadpack|hook|filter|tunnel)\w{0,20}"
    r"=!?(?P<value>.*))$|.{0,400}?ext::|--config-env"
)
_row(
    "git",
    Program(
        values=_set("-C -c --git-dir --work-tree --namespace --config-env"),
        settings=_pattern(_GIT_SETTING),
    ),
)
_row("git bisect run", Program(starts="words"))
_row("git submodule foreach", Program(starts="text"))
_row("git rebase", Program(text=_set("-x --exec")))
_row("git difftool", Program(text=_set("-x --extcmd")))
_row("git grep", Program(text=_set("-O --open-files-in-pager")))
_row("git clone", Program(text=_set("-u --upload-pack")))
_row(
    "git fetch, git pull, git ls-remote, git fetch-pack", Program(text=_set("--upload-pack --exec"))
)
_row("git push, git send-pack, git archive", Program(text=_set("--receive-pack --exec")))
_row(
    "git send-email",
    Program(text=_set("--sendmail-cmd --to-cmd --cc-cmd --header-cmd --smtp-server")),
)
_row(
    "git filter-branch",
    Program(
        text=_set(
            "--setup --env-filter --tree-filter --index-filter --parent-filter --msg-filter"
            " --commit-filter --tag-name-filter"
        )
    ),
)

# Programs with a language of their own.
_row(
    "python, pypy, ipython",
    Program(
        values=_set("-W -X -m --check-hash-based-pycs -Q"),
        code="script",
        evals=_set("-c"),
        reads="all",
    ),
)
_row(
    "perl",
    Program(
        values=_set("-I"), code="perl", evals=_set("-e -E"), operands="perl_operand", reads="all"
    ),
)
_row(
    "ruby",
    Program(values=_set("-I -r -C"), code="script_with_backticks", evals=_set("-e"), reads="all"),
)
_row(
    "php",
    Program(
        values=_set("-d -c -z -f -t -S"),
        code="script_with_backticks",
        evals=_set("-r -B -R -E"),
        reads="all",
    ),
)
_row(
    "node, nodejs, bun",
    Program(
        values=_set("-r --require --import --loader -C"),
        code="script",
        evals=_set("-e --eval -p --print -pe"),
        reads="all",
    ),
)
_row("deno eval", Program(code="script", has_script=True))
_row(
    "lua, luajit, Rscript, R, octave, osascript",
    Program(values=_set("-l"), code="script", evals=_set("-e --eval"), reads="all"),
)
_row(
    "julia",
    Program(
        values=_set("-t -p -L"),
        code="script_with_backticks",
        evals=_set("-e -E --eval --print"),
        reads="all",
    ),
)
_row("expect, tclsh, wish", Program(code="script", evals=_set("-c"), reads="all"))
_row("emacs", Program(code="script", evals=_set("--eval -eval --execute -execute")))
_row(
    "guile, sbcl, clojure, elixir, erl, ghc, groovy, scala, raku",
    Program(code="script_with_backticks", evals=_set("-c -e --eval -eval")),
)
_row(
    "awk, gawk, mawk, nawk, original-awk",
    Program(
        values=_set("-f -v -F --file --assign --field-separator -i -l -E"),
        code="awk",
        evals=_set("-e --source"),
        has_script=True,
    ),
)
_row(
    "sed, gsed",
    Program(
        values=_set("-f --file -l --line-length"),
        code="sed",
        evals=_set("-e --expression"),
        has_script=True,
    ),
)
_row(
    "vim, vi, nvim, gvim, view, ex, vimdiff, rvim",
    Program(
        values=_set("-u -U -S -s -w -W -T -i"),
        code="vim",
        evals=_set("-c --cmd"),
        operands="vim_operand",
        reads="known",
    ),
)
_row("ed, red", Program(code="ed", operands="ed", reads="known"))
_row(
    "gdb",
    Program(
        values=_set("-x -p -cd -d -ix --command --pid --cd --directory"),
        starts="words",
        exec_flags=_set("--args -args"),
        code="gdb",
        evals=_set("-ex --ex -eval-command --eval-command -iex --init-eval-command"),
        reads="known",
    ),
)
_row(
    "lldb",
    Program(exec_flags=_set("--"), code="gdb", evals=_set("-o -O --one-line"), reads="known"),
)
_row("ftp, telnet", Program(code="shell_line", reads="known"))
_row("irb, pry, jshell, gnuplot", Program(code="script", evals=_set("-e"), reads="known"))
_row(
    "cargo",
    Program(
        settings=_pattern(
            r"(?:--config=)?[\w.]{0,80}(?:wrapper|runner|linker)\W*=\W*(?P<text>[^\"']*)"
        )
    ),
)
_row("less, more, most", Program(operands="pager"))
_row(
    "make, gmake, bmake",
    Program(
        values=_set("-C -f -I -o -W --directory --file --makefile"),
        code="make",
        evals=_set("--eval -E"),
        operands="make",
        reads="known",
    ),
)
_row("m4", Program(code="m4", reads="known"))
_row("dc", Program(code="shell_line", evals=_set("-e --expression"), reads="known"))
_row("sqlite3", Program(operands="sql", code="sql", evals=_set("-cmd"), reads="known"))
_row("psql", Program(code="sql", evals=_set("-c --command -v"), reads="known"))
_row(
    "mysql, mariadb",
    Program(code="sql", evals=_set("-e --execute"), text=_set("--pager"), reads="known"),
)

READS_COMMANDS: Final = frozenset({"at", "batch", "crontab"})
_LIKE_SHELLS: Final = SHELLS | READS_COMMANDS | {"alias", "hash", "source", "."}

_STARTERS: Final = frozenset(
    name for name, row in PROGRAMS.items() if row.starts or row.exec_flags
).union(_LIKE_SHELLS)
HAS_SUBCOMMANDS: Final = frozenset(
    name[: blank.start()] for name in PROGRAMS for blank in re.finditer(" ", name)
).union({"systemctl"})
"""Their options before the subcommand do not count: `git -C dir push` is a `git push` too."""
for _name in HAS_SUBCOMMANDS:
    PROGRAMS.setdefault(_name, Program())

PROMPTS: Final = frozenset({"BASH_ENV", "ENV", "PS0", "PS1", "PS2", "PS4"})
"""Variables that a shell expands."""
COMMAND_VARIABLES: Final = re.compile(
    r"PROMPT_COMMAND|SHELL|EDITOR|VISUAL|FCEDIT|PAGER|MANPAGER|BROWSER|LESSOPEN|LESSCLOSE|SUDO_EDITOR"
    r"|GIT_(?:\w*EDITOR|PAGER|SSH|SSH_COMMAND|ASKPASS|EXTERNAL_DIFF|PROXY_COMMAND|CONFIG_VALUE_\d+)"
    r"|SSH_ASKPASS|SUDO_ASKPASS|RSYNC_RSH|CVS_RSH|SVN_SSH|RUSTC_WRAPPER|BASH_FUNC_\S+"
)
"""Variables whose value a program runs."""
VARIABLE_OPTIONS: Final[Mapping[str, str]] = {
    "LESS": "less", "MAKEFLAGS": "make", "MANOPT": "man", "TAR_OPTIONS": "tar",
}  # fmt: skip
"""Variables with options of a program."""
CODE_VARIABLES: Final[Mapping[str, str]] = {
    "EXINIT": "vim", "PERL5DB": "perl", "PERL5OPT": "perl_operand", "VIMINIT": "vim",
}  # fmt: skip
"""Variables with code, and its language."""
SCRIPT_FILES: Final = frozenset({"-f", "--file", "--makefile", "-S", "-s", "-x", "-init"})
"""Options with a file of code, of programs that have code."""


def find_program(name: str) -> Program | None:
    """Also of `python3.12` and `ld-linux-x86-64.so.2`."""
    if (row := PROGRAMS.get(name)) is not None:
        return row
    return PROGRAMS.get("ld.so" if name.startswith("ld-") else name.rstrip("0123456789.-"))


def starts_others(name: str) -> bool:
    return name in _LIKE_SHELLS or find_program(name) is not None


def may_start_words(prefix: str) -> bool:
    """Whether a program whose name begins so may start the command in its arguments."""
    return any(known.startswith(prefix) for known in _STARTERS)
