"""Gives commands the options that choose their server, so that each of them has the same."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from chatd.cli.options import DataDir, Profile, TokenFile, Url

if TYPE_CHECKING:
    from chatd.client.exchange import ServerAddress

ServerFinder = Callable[[], "ServerAddress"]

_OPTIONS: Final[dict[str, Any]] = {
    "url": Url,
    "token_file": TokenFile,
    "profile": Profile,
    "data_dir": DataDir,
}
_SERVER: Final = "server"


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """The command's parameter `server` is replaced by the options. The server is looked up when
    the command calls it, so that an error is reported like its others."""

    @wraps(command)
    def run(**given: Any) -> None:
        flags = {name: given.pop(name) for name in _OPTIONS}

        def find() -> "ServerAddress":
            from chatd.cli.target import find_server

            return find_server(**flags).server

        command(**given, server=find)

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
