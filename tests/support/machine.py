"""Keeps the machine that runs the tests out of them: its variables, its home and what is in it.

A test process and all that it starts have an empty home, which is also their working directory
(a checkout may have a chatd.toml), and only the variables named here. Root's default data directory
depends on none of these: a command that looks for a server must be told another one
(`CHATD_DATA_DIR`).
"""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HOME_PREFIX: Final = "chatd-test-home-"
KEPT_VARIABLES: Final = frozenset(
    ("PATH", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "CI")
)
KEPT_PREFIXES: Final = (
    *("CHATD_TEST_", "FUZZ_", "LC_"),
    # Of the tools that run the tests.
    *("PYTHON", "PYTEST_", "HYPOTHESIS_", "COV", "VIRTUAL_ENV", "LD_", "DYLD_", "ASAN_"),
)

MACHINE_VARIABLES: Final = dict(os.environ)
"""As this process was started, for installing packages: npm has its settings in the home."""


def is_kept(variable: str) -> bool:
    return variable in KEPT_VARIABLES or variable.startswith(KEPT_PREFIXES)


class EmptyHome:
    """In force from `enter` to `leave`, for this process and those that it starts meanwhile."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._directory = Path.cwd()
        self._home: Path | None = None

    def enter(self) -> None:
        self._before = dict(os.environ)
        self._home = Path(tempfile.mkdtemp(prefix=HOME_PREFIX))
        for name in self._before:
            if not is_kept(name):
                del os.environ[name]
        os.environ["HOME"] = str(self._home)
        os.chdir(self._home)

    def leave(self) -> None:
        os.chdir(self._directory)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        os.environ.update(self._before)


@contextmanager
def in_empty_home() -> Generator[None]:
    home = EmptyHome()
    home.enter()
    try:
        yield
    finally:
        home.leave()
