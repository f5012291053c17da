"""Unfinished features that an administrator can switch on.

A feature that is not finished has its name here while it is built. What it adds asks for its name
in `active_experiments` and else behaves as if it were not there. A finished feature loses its name.
"""

from collections.abc import Collection
from typing import Final

from chatd.domain.errors import InvalidInput

EXPERIMENTS: Final[dict[str, str]] = {}
"""Their names, and what each does. None today."""


def check_experiments(names: Collection[str]) -> tuple[str, ...]:
    """In order and once each. Raises InvalidInput that names an unknown one."""
    for name in names:
        if name not in EXPERIMENTS:
            known = ", ".join(sorted(EXPERIMENTS)) or "none"
            text = f"{name!r} is no experiment of this version; there are {known}"
            raise InvalidInput("experiments", text)
    return tuple(sorted(set(names)))


def active_experiments(names: Collection[str]) -> tuple[str, ...]:
    """Those of the stored names that this version knows."""
    return tuple(sorted(name for name in names if name in EXPERIMENTS))
