"""Runs inside a sandbox without a network: `python3 -c <this text> SOCKET COMMAND...`.

Forwards a port of the sandbox's own loopback to the server's proxy behind the Unix socket SOCKET,
and runs COMMAND, in which git uses the port as its proxy. Standard library only, any Python 3.9.
"""

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress

CHUNK_BYTES = 65_536
STALLED_AFTER_S = 60
"""Git gives up a server that sends less than a byte a second for this long."""


def copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def serve(listener: socket.socket, path: str) -> None:
    while True:
        inner, _ = listener.accept()
        outer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            outer.connect(path)
        except OSError:
            inner.close()
            continue
        for pair in ((inner, outer), (outer, inner)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


def git_variables(port: int) -> "dict[str, str]":
    config = {
        "http.proxy": f"socks5h://127.0.0.1:{port}",
        "http.lowSpeedLimit": "1",
        "http.lowSpeedTime": str(STALLED_AFTER_S),
    }
    variables = {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (key, value) in enumerate(config.items()):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, sys.argv[1]), daemon=True).start()
    own = dict(os.environ)  # noqa: TID251 - this program has no settings
    env = {**own, **git_variables(listener.getsockname()[1])}
    sys.exit(subprocess.call(sys.argv[2:], env=env))


if __name__ == "__main__":
    main()
