"""Tool servers as processes, each forked by one process that has imported the SDK: the imports take
a second of the processor, and the tests start many servers.

`python -m tests.support.mcp.server_forks` reads the arguments of a server as a line of JSON, forks
it and prints its process id and its port. It exits at the end of its input.
"""

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys

import msgspec
from msgspec import Struct

from tests.support.processes import ROOT


class ForkedServer(Struct, frozen=True):
    pid: int
    port: int


class ForkedProcess:
    """A process that is no child of this one: `pidfd` names it also when its number is reused."""

    def __init__(self, pid: int) -> None:
        self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """Returns when it has ended. Its ports are free then."""
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return
        select.select([self._pidfd], [], [])

    def close(self) -> None:
        os.close(self._pidfd)


class ServerForks:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-m", __name__),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def fork(self, *words: str) -> ForkedServer:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(words).encode() + b"\n")
        stdin.flush()
        return msgspec.json.decode(stdout.readline(), type=ForkedServer)

    def close(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


@functools.cache
def server_forks() -> ServerForks:
    """One for this test process."""
    forks = ServerForks()
    atexit.register(forks.close)
    return forks


def main() -> None:
    from tests.support.mcp.tool_server import build_web_server, listen, read_options  # noqa: PLC0415

    # What it imports when it starts, the forks need not import again.
    build_web_server(read_options(["http"])).config.load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a fork that has ended is forgotten
    for line in sys.stdin:
        options = read_options(json.loads(line))
        with listen(options) as listener:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, 0)
                os.dup2(nothing, 1)
                build_web_server(options).run(sockets=[listener])
                os._exit(0)
            port = listener.getsockname()[1]
        sys.stdout.write(json.dumps({"pid": pid, "port": port}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
