"""What a process is started for, and what it tells its starter."""

from collections.abc import Callable
from typing import Final, Literal

import msgspec


class ProcessRole(msgspec.Struct, frozen=True, kw_only=True):
    """What this process serves on its port, and whether it runs chats."""

    serves: Literal["api", "health", "nothing"] = "api"
    runs_chats: bool = True


FULL_ROLE: Final = ProcessRole()


class ReadyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line prints once everything runs."""

    url: str | None
    token_file: str | None
    model: str
    migrated: tuple[str, ...]
    sign_in_link: str | None = None


class LifecycleCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` is called once; `stopping` with the number of chats that still run.
    `shows_sign_in_link`: it goes to a terminal, so a one-time link may be made for it."""

    shows_sign_in_link: bool = False
    ready: Callable[[ReadyInfo], None]
    stopping: Callable[[int], None] = lambda _running: None
