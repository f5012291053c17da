"""A program that attempts everything a workspace must not be able to do, and prints what succeeded.

Stands alone and runs under any Python: in the workspace, and on the host to show that it would
succeed there. The argument is JSON: `files` to read, `directories` to list, `ports` of this host
and `sockets` to connect to, and a `canary` to find in the environment of any process.
"""

import glob
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def read(path: str) -> bool:
    with open(path, "rb") as file:
        return bool(file.read(1))


def listed(path: str) -> bool:
    return bool(os.listdir(path))


def connected(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def connected_to_file(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(5)
        link.connect(path)
        return True


def found(canary: str) -> bool:
    environments = glob.glob("/proc/[0-9]*/environ")
    return any(tried(lambda path: canary.encode() in content(path), path) for path in environments)


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def tried(attempt: Callable[[T], bool], at: T) -> bool:
    try:
        return attempt(at)
    except OSError:
        return False


def main() -> None:
    wanted = json.loads(sys.argv[1])
    got: dict[str, bool] = {path: tried(read, path) for path in wanted["files"]}
    got.update({path: tried(listed, path) for path in wanted["directories"]})
    got.update({f"port {port}": tried(connected, port) for port in wanted["ports"]})
    got.update({path: tried(connected_to_file, path) for path in wanted["sockets"]})
    got["environment"] = found(wanted["canary"])
    sys.stdout.write(json.dumps(got))


if __name__ == "__main__":
    main()
