"""The environment variables and the working directory of a command.

A command inherits nothing from the agent's own environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from chatd.agent.errors import AgentError

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_CHAT_ID = "CHATD_CHAT_ID"


@dataclass(frozen=True)
class CommandEnvironment:
    """Shared by all commands of a workspace.

    Values of `template`, from the workspace's template, may refer to variables set before them, as
    in `$HOME/bin:$PATH`.
    """

    home: str
    directory: str = ""
    base: Mapping[str, str] = field(default_factory=dict[str, str])
    template: Mapping[str, str] = field(default_factory=dict[str, str])

    def build_variables(self, request: Mapping[str, str], chat_id: str | None) -> dict[str, str]:
        """Base, template, request, chat id: the later wins."""
        env = {"HOME": self.home, **self.base}
        for name, value in self.template.items():
            env[name] = expand_variables(value, env)
        env.update(request)
        env.pop(_CHAT_ID, None)
        if chat_id:
            env[_CHAT_ID] = chat_id
        for name, value in env.items():
            _check(name, value)
        return env

    def resolve_workdir(self, requested: str | None) -> str:
        """The requested directory; by default the workspace's directory if it exists, else home."""
        default = next((d for d in (self.directory, self.home) if d and os.path.isdir(d)), "/")
        if not requested:
            return default
        path = requested
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        path = os.path.normpath(os.path.join(default, path))
        if "\0" in path or not os.path.isdir(path):
            raise AgentError(
                400,
                f"The working directory {requested!r} is not a directory in this workspace. "
                "Create it first, or leave workdir out.",
                code="no_such_workdir",
            )
        return path


def expand_variables(value: str, env: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}`; an unset variable is empty. Any other `$` stays."""
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[2], ""), value)


def _check(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name:
        raise AgentError(400, f"{name!r} cannot be the name of an environment variable.")
    if "\0" in value:
        raise AgentError(400, f"The environment variable {name} contains a NUL character.")
