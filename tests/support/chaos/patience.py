"""How long a test waits for progress on a machine that does other work too."""

import asyncio
import os
from typing import Final

MAX_RENEWALS: Final = 20
"""After this many times its length a patience is over even with progress."""


def load_factor() -> float:
    """How many times slower than alone a process runs here, by the load of the last minute."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Patience:
    """`base_s` without progress on a machine without other load; longer with load."""

    def __init__(self, base_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._base_s = base_s
        self._began_at = self._loop.time()
        self._renewed_at = self._began_at

    def renew(self) -> None:
        """There was progress."""
        self._renewed_at = self._loop.time()

    @property
    def is_over(self) -> bool:
        now, limit_s = self._loop.time(), self._base_s * load_factor()
        return now - self._renewed_at > limit_s or now - self._began_at > MAX_RENEWALS * limit_s
