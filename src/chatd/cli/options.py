"""Options that several commands share, with their help texts."""

import inspect
import shlex
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from chatd.settings.keys import setting_keys

if TYPE_CHECKING:
    from chatd.client.exchange import ServerAddress


_KEYS: Final = setting_keys()

# Of commands that are a server, or work on its database

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read settings from this file [else CHATD_CONFIG, ./chatd.toml, "
        "~/.config/chatd/chatd.toml]",
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        _KEYS["data_dir"].flag,
        metavar="DIR",
        help=f"{_KEYS['data_dir'].help} [else ~/.local/share/chatd; as root /var/lib/chatd]",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(_KEYS["database.url"].flag, metavar="URL", help=_KEYS["database.url"].help),
]
Host = Annotated[
    str | None,
    typer.Option(
        _KEYS["server.host"].flag,
        metavar="ADDRESS",
        help=f"{_KEYS['server.host'].help} [127.0.0.1]",
    ),
]
Port = Annotated[
    str | None,
    typer.Option(
        _KEYS["server.port"].flag,
        metavar="NUMBER",
        help=f"{_KEYS['server.port'].help} [7870]",
    ),
]

# Of commands that talk to a server: see `target`

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The server [else CHATD_URL, the profile, the server of the data directory]",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Read the token from this file [else CHATD_TOKEN, CHATD_TOKEN_FILE, the profile, the"
        " administrator's in the data directory]",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Use this sign-in of chatd login [else CHATD_PROFILE, the last one]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON")]


# Of commands that work in the current directory: see `chats.here`

Here = Annotated[
    bool, typer.Option("--here", help="Work in this directory, in a sandbox on this machine")
]
HereNetwork = Annotated[
    Literal["none", "full"] | None,
    typer.Option("--network", help="With --here: what commands reach [none]"),
]
NoSandbox = Annotated[
    bool,
    typer.Option("--no-sandbox", help="With --here: commands can do all that you can; asks once"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, with --no-sandbox")]


# The options that choose a server, the same for every command: `with_target`

ServerFinder = Callable[[], "ServerAddress"]

_OPTIONS: Final[dict[str, Any]] = {
    "url": Url,
    "token_file": TokenFile,
    "profile": Profile,
    "data_dir": DataDir,
}
_SERVER: Final = "server"


_GIVEN: Final[ContextVar[str]] = ContextVar("target_flags", default="")
_FLAGS: Final[ContextVar[Mapping[str, Any]]] = ContextVar("target_options")


def target_flags() -> Mapping[str, Any]:
    """Those of this command that choose its server, by their names in Python."""
    return _FLAGS.get({})


def suggest(verb: str, rest: object) -> str:
    """A command for the person to paste, with the options of this one that choose its server."""
    return f"chatd {verb}{_GIVEN.get()} {rest}"


def return_flags(flags: Mapping[str, object]) -> str:
    """The options that choose the server again, by their names in Python."""
    given = ((name.replace("_", "-"), value) for name, value in flags.items() if value is not None)
    return "".join(f" --{name} {shlex.quote(str(value))}" for name, value in given)


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """The command's parameter `server` is replaced by the options. The server is looked up when
    the command calls it, so that an error is reported like its others."""

    @wraps(command)
    def run(**given: Any) -> None:
        flags = {name: given.pop(name) for name in _OPTIONS}

        def find() -> "ServerAddress":
            from chatd.cli.target import find_server

            return find_server(**flags).server

        token, given_flags = _GIVEN.set(return_flags(flags)), _FLAGS.set(flags)
        try:
            command(**given, server=find)
        finally:
            _GIVEN.reset(token)
            _FLAGS.reset(given_flags)

    own = inspect.signature(command).parameters
    kept = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in own.values()
        if one.name != _SERVER
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    # Typer reads both.
    run.__annotations__ = {one.name: one.annotation for one in (*kept, *added)}
    vars(run)["__signature__"] = inspect.Signature([*kept, *added])
    return run
