"""How well a workspace can be kept apart on this host: the rungs of the ladder, best first.

What each rung keeps:
  bwrap+uid        own namespaces for files, processes, network and users, and an own account
  bwrap            the same, under the server's account
  landlock+rlimit  closed paths and no TCP; other processes can be seen, UDP and sockets with a
                   path are open: only with an own account, or for people who want it
  none             nothing but limits: only for people who have said that they want it
"""

from typing import Final, Literal

Level = Literal["bwrap+uid", "bwrap", "landlock+rlimit", "none"]
LADDER: Final[tuple[Level, ...]] = ("bwrap+uid", "bwrap", "landlock+rlimit", "none")


def namespaced(level: Level) -> bool:
    return level in ("bwrap+uid", "bwrap")
