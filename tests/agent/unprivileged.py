"""Run code without privileges, in a child process: root is never refused."""

import os
import pickle
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from chatd.agent.errors import AgentError

NOBODY_UID = 65534


class Denied(NamedTuple):
    status: int
    message: str


@contextmanager
def shared_directory() -> Generator[Path]:
    """A directory that all accounts can enter, unlike those of pytest."""
    with TemporaryDirectory(prefix="chatd-shared-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


def denied_without_privileges(act: Callable[[], object]) -> Denied | None:
    """The error that `act` raises for an account without privileges; None if it succeeds."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of threads. The child only makes system calls and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(_in_child(act, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        result = answer.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    return pickle.loads(result)


def _in_child(act: Callable[[], object], writing: int) -> int:
    """Exits without the parent's fixtures, buffers and exit handlers."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY_UID)
        os.setuid(NOBODY_UID)
    result: Denied | None = None
    try:
        act()
    except AgentError as error:
        result = Denied(error.status, error.message)
    except BaseException:  # noqa: BLE001  a child of fork must not return into pytest
        return 3
    os.write(writing, pickle.dumps(result))
    return 0
