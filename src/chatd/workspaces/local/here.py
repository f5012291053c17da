"""A workspace that works in a directory of the person who started its runner.

The sandbox shows the whole file system, read-only. The directory is writable at its own path. /tmp,
/run and the home directory are the workspace's own; the real home stays readable at its path,
without what commonly holds credentials. Sockets of the host's services are in /run and /tmp, so
they are out of reach.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

HERE_HOME: Final = "/run/chatd-home"
HERE_KIT: Final = "/run/chatd-kit"
OWN_DIRS: Final = frozenset({"dev", "proc", "run", "sys", "tmp"})
"""Top directories that the sandbox has of its own, or not at all."""
SYSTEM_DIRS: Final = ("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sys", "/usr")

HIDDEN_IN_HOME: Final = (
    ".aws", ".azure", ".bash_history", ".cargo/credentials", ".cargo/credentials.toml", ".claude",
    ".claude.json", ".codex", ".config/chatd", ".config/chromium", ".config/containers/auth.json",
    ".config/gcloud", ".config/gh", ".config/git/credentials", ".config/glab-cli",
    ".config/google-chrome", ".config/hub", ".config/op", ".config/rclone", ".docker", ".gem",
    ".git-credentials", ".gnupg", ".kube", ".local/share/chatd", ".local/share/chatd-here",
    ".local/share/chatd-runner", ".local/share/keyrings", ".local/share/opencode",
    ".local/state/chatd", ".mozilla", ".mysql_history", ".netrc", ".npmrc", ".password-store",
    ".pgpass", ".psql_history", ".pypirc", ".python_history", ".ssh", ".terraform.d",
    ".vault-token", ".zsh_history",
)  # fmt: skip
HIDDEN_OF_ROOT: Final = (
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssh", "/etc/ssl/private",
    "/etc/sudoers", "/etc/sudoers.d", "/etc/letsencrypt", "/etc/wireguard",
    "/var/lib/chatd", "/var/lib/chatd-here", "/var/lib/chatd-runner", "/var/lib/docker",
)  # fmt: skip
PASSED_VARIABLES: Final = (
    "PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME", "SHELL",
    "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYENV_ROOT", "NVM_DIR", "JAVA_HOME",
    "GOROOT", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "ANDROID_HOME", "DOTNET_ROOT", "NIX_PATH",
)  # fmt: skip
"""The variables that commands may get; others may be secrets."""
TOOLS_IN_HOME: Final = {"RUSTUP_HOME": ".rustup", "PYENV_ROOT": ".pyenv", "NVM_DIR": ".nvm"}
GIT_SETTINGS: Final = (".gitconfig", ".config/git/config")


class HereView(msgspec.Struct, frozen=True, kw_only=True):
    """`directory` and `home` are real paths. `hidden` are further paths that the sandbox must not
    see; `env` is what commands get of the person's environment."""

    directory: Path
    home: Path
    hidden: tuple[Path, ...] = ()
    env: Mapping[str, str] = {}
    network: bool = False


def here_view(
    directory: Path, env: Mapping[str, str], *, hidden: Iterable[Path], network: bool
) -> HereView:
    """Made of the directory and the environment of the person who names it."""
    home = Path(env.get("HOME") or "/nonexistent").resolve()
    passed = {name: env[name] for name in PASSED_VARIABLES if env.get(name)}
    for name, place in TOOLS_IN_HOME.items():
        if (home / place).is_dir():
            passed.setdefault(name, str(home / place))
    settings = next((home / name for name in GIT_SETTINGS if (home / name).is_file()), None)
    if settings is not None:
        passed["GIT_CONFIG_GLOBAL"] = str(settings)
    return HereView(
        directory=directory.resolve(),
        home=home,
        hidden=tuple(path.resolve() for path in hidden),
        env=passed,
        network=network,
    )


def explain_refusal(view: HereView) -> str | None:
    """Why the sandbox cannot make the directory writable. None if it can."""
    directory = view.directory
    is_top = directory in (Path("/"), Path("/tmp"))
    if is_top or any(directory.is_relative_to(path) for path in SYSTEM_DIRS):
        return f"{directory} belongs to the system. Change to the directory of a project."
    if directory == view.home or view.home.is_relative_to(directory):
        return (
            f"{directory} holds files that act outside of a sandbox, such as .profile. Change to"
            " the directory of a project."
        )
    for path in _secret_paths(view):
        if directory.is_relative_to(path):
            return f"{path} is hidden from workspaces. Change to the directory of a project."
    return None


def root_words(view: HereView) -> list[str]:
    """Arguments of bubblewrap that show the top of the file system, read-only."""
    words: list[str] = []
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        if entry.name in OWN_DIRS:
            continue
        if entry.is_symlink():
            words += ["--symlink", os.readlink(entry.path), entry.path]
        elif entry.is_dir():
            words += ["--ro-bind-try", entry.path, entry.path]
    resolver = os.path.realpath("/etc/resolv.conf")
    if view.network and resolver.startswith("/run/"):
        words += ["--ro-bind-try", resolver, resolver]
    return words


def directory_words(view: HereView) -> list[str]:
    """Comes after the words for the rest of the file system: later mounts hide earlier ones."""
    directory = str(view.directory)
    words = ["--bind", directory, directory]
    for path in _secret_paths(view):
        if path.parts[1] in OWN_DIRS and not path.is_relative_to(view.directory):
            continue  # The sandbox does not show it.
        if path.is_dir():
            words += ["--perms", "0555", "--tmpfs", str(path), "--remount-ro", str(path)]
        else:
            words += ["--ro-bind", "/dev/null", str(path)]
    return words


def _secret_paths(view: HereView) -> Sequence[Path]:
    """The existing ones, without those inside of others. Links are hidden at their targets."""
    wanted = [view.home / name for name in HIDDEN_IN_HOME] + list(view.hidden)
    wanted += [Path(name) for name in HIDDEN_OF_ROOT] if os.geteuid() == 0 else []
    found = {Path(os.path.realpath(path)) for path in wanted if os.path.exists(path)}
    return [path for path in sorted(found) if not any(top in found for top in path.parents)]
