"""Hosts of their own on this machine: network namespaces, joined by a bridge.

Only root can make them. Each host has one cable to the bridge, which can be pulled: packets are
dropped then, and connections stay open on both sides until somebody's patience ends.
"""

import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from msgspec import Struct

PROGRAMS: Final = ("ip", "nsenter")


def missing_reason() -> str:
    """Why hosts cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    tried = f"chatd-try-{os.getpid()}"
    try:
        _ip("netns", "add", tried)
        _ip("netns", "delete", tried)
    except CannotMakeHosts as error:
        return str(error)
    return ""


class CannotMakeHosts(Exception):
    """The kernel or its settings do not allow it."""


class NamespaceHost(Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    cable: str
    """The end at the bridge."""
    address: str

    def command(self, *words: str) -> Sequence[str]:
        """Runs these words on this host."""
        return ("nsenter", f"--net=/run/netns/{self.namespace}", *words)

    def cut(self) -> None:
        _ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self.cable, "up")


class HostNetwork:
    """`address` is that of the machine itself, which all hosts reach."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._number = os.getpid() % 250
        self._bridge = f"chatdbr{self._number}"
        self.address = f"10.77.{self._number}.1"
        self._hosts = 0
        _ip("link", "add", self._bridge, "type", "bridge")
        stack.callback(_ip, "link", "delete", self._bridge)
        _ip("address", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def host(self, name: str) -> NamespaceHost:
        self._hosts += 1
        host = NamespaceHost(
            name=name,
            namespace=f"chatd{self._number}-{name}",
            cable=f"chatd{self._number}v{self._hosts}",
            address=f"10.77.{self._number}.{self._hosts + 1}",
        )
        _ip("netns", "add", host.namespace)
        self._stack.callback(_ip, "netns", "delete", host.namespace)
        inside = ("-n", host.namespace)
        _ip("link", "add", host.cable, "type", "veth", "peer", "eth0", "netns", host.namespace)
        _ip("link", "set", host.cable, "master", self._bridge)
        _ip(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip(*inside, "link", "set", device, "up")
        _ip("link", "set", host.cable, "up")
        return host


@contextmanager
def host_network() -> Generator[HostNetwork]:
    """Raises CannotMakeHosts. Everything is removed at the end."""
    with ExitStack() as stack:
        yield HostNetwork(stack)


def _ip(*words: str) -> None:
    done = subprocess.run(("ip", *words), capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise CannotMakeHosts(f"ip {' '.join(words)}: {done.stderr.strip()}")
