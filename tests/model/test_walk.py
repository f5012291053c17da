"""A hundred thousand random steps of users, workers and crashes; the invariants hold after each."""

from collections import Counter
from random import Random

import pytest

from chatd.domain.chat.states import TRANSITIONS, State, Transition
from tests.model.driver import Driver

WORLDS = 56
STEPS = 250
SEEDS = range(8)


def _walk(seed: int) -> Counter[tuple[Transition, State, State | None]]:
    seen: Counter[tuple[Transition, State, State | None]] = Counter()
    for world in range(WORLDS):
        driver = Driver(Random(f"{seed}.{world}"))
        try:
            for _ in range(STEPS):
                driver.step()
            driver.finish()
        except AssertionError as broken:
            broken.add_note(f"Driver(Random('{seed}.{world}')) replays it")
            raise
        seen += driver.seen
    return seen


@pytest.mark.covers("V1")
@pytest.mark.promise("P1", "P2", "P3", "P9", "P11")
@pytest.mark.parametrize("seed", SEEDS)
def test_the_invariants_hold_at_every_step_and_every_chat_settles(seed: int) -> None:
    seen = _walk(seed)
    listed = {
        (m, s, to) for m, row in TRANSITIONS.items() for s, goals in row.items() for to in goals
    }
    visited = {cell for cell in seen if cell[2] is not None}
    assert visited <= listed
    assert len(visited) > 0.95 * len(listed), "the walk reaches too few transitions"


def test_the_walk_is_long_enough() -> None:
    assert len(SEEDS) * WORLDS * STEPS >= 100_000
