"""The accidents of a random run, and how often each occurs."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct


class Accident(Struct, frozen=True, kw_only=True):
    """`weight`: how often it occurs, relative to the others. `needs`: what the database must
    offer."""

    weight: int
    does: str
    needs: str = ""


ACCIDENTS: Final[Mapping[str, Accident]] = {
    "kill": Accident(weight=25, does="kill -9 of a replica"),
    "leave": Accident(weight=20, does="SIGTERM: a replica drains and leaves"),
    "freeze": Accident(weight=12, does="SIGSTOP of a replica, for 0.5 to 45 s"),
    "crash_loop": Accident(
        weight=2, does="one more replica starts and is killed within a second, 3 to 8 times"
    ),
    "cut": Accident(weight=10, does="all database connections of a replica break"),
    "cut_off": Accident(weight=5, does="a replica cannot reach the database, for 0.5 to 45 s"),
    "stall": Accident(weight=6, does="its connections pass no data, for 0.5 to 45 s"),
    "strand": Accident(weight=4, does="its present connections never pass data again"),
    "deafen": Accident(weight=4, does="its present connections drop all notifications"),
    "database": Accident(
        weight=4, does="kill -9 of the database, which is restarted", needs="server"
    ),
    "clock_jump": Accident(
        weight=3,
        does="the database's clock jumps by 40 s to 20 min, forth or back",
        needs="clock",
    ),
    "failover": Accident(
        weight=2,
        does="the database goes back to a copy taken 1 to 8 s before: later commits are lost",
        needs="server",
    ),
    "full_disk": Accident(weight=2, does="the database's disk is full, for 1 to 8 s", needs="disk"),
    "none": Accident(weight=10, does="nothing happens for a second"),
}
"""Frozen, disconnected and stalled replicas come back, some of them after their lease has
expired."""


def table_of_accidents() -> str:
    width = max(map(len, ACCIDENTS))
    rows = (f"  {name:{width}} {one.weight:4}  {one.does}" for name, one in ACCIDENTS.items())
    return "\n".join(("accidents, with how often each occurs:", *rows))


def choose_weights(changes: Iterable[str], *, only: Iterable[str] = ()) -> dict[str, int]:
    """`changes` are `NAME=WEIGHT`; `only` names the accidents that keep theirs."""
    kept = set(only) or set(ACCIDENTS)
    weights = {name: one.weight if name in kept else 0 for name, one in ACCIDENTS.items()}
    for change in changes:
        name, _, weight = change.partition("=")
        kept.add(name)
        weights[name] = int(weight)
    if unknown := kept - set(ACCIDENTS):
        raise ValueError(f"no such accident: {', '.join(sorted(unknown))}")
    if not any(weights.values()):
        raise ValueError("every accident has the weight 0")
    return weights
