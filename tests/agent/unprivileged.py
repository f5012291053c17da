"""Acting without privileges: root is refused nothing, so refusals are tried in a child process."""

import os
import pickle
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from chatd.agent.errors import AgentError

NOBODY = 65534


class Denied(NamedTuple):
    status: int
    message: str


@contextmanager
def shared_directory() -> Generator[Path]:
    """A directory that anybody can reach. Those of pytest are shut whenever another one starts."""
    with TemporaryDirectory(prefix="chatd-ground-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


def denied_without_privileges(act: Callable[[], object]) -> Denied | None:
    """What `act` is refused when an account without rights asks."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of threads. The child only makes system calls and leaves.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(_in_child(act, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    return pickle.loads(said)


def _in_child(act: Callable[[], object], writing: int) -> int:
    """Ends without running anything of the parent's: no fixtures, no buffers, no exit handlers."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    said: Denied | None = None
    try:
        act()
    except AgentError as error:
        said = Denied(error.status, error.message)
    except BaseException:  # noqa: BLE001  a child of fork must not return into pytest
        return 3
    os.write(writing, pickle.dumps(said))
    return 0
