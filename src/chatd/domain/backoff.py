"""Delays before something is tried again: doubled each time, and spread by chance."""

from typing import Final

JITTER_SHARE: Final = 0.25
"""A delay is longer by up to this share of it, so that what failed together does not start
together again."""


def doubled_s(times: int, *, first_s: float, max_s: float) -> float:
    """`first_s` the first time, then twice as long each time, up to `max_s`."""
    return min(first_s * 2.0 ** min(times - 1, 16), max_s)


def spread(delay_s: float, jitter: float) -> float:
    """The delay with a random addition. `jitter` is from 0 to 1."""
    return delay_s * (1 + JITTER_SHARE * jitter)
