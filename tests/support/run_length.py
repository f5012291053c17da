"""How hard tests that draw at random shall try.

The defaults are for every run; set these to look longer, or to look again at one bad case:

    CHATD_TEST_STORM_S   seconds that many writers at once may take
    CHATD_TEST_SEED      the one seed to draw from, instead of the usual ones
    CHATD_TEST_WALKS     how many seeds to draw from, counting from 0
    CHATD_TEST_STEPS     steps from each seed
    CHATD_TEST_EXAMPLES  cases that a fuzzed decoder is given
"""

import os


def concurrent_run_s(default: float) -> float:
    return float(os.environ.get("CHATD_TEST_STORM_S", default))


def seed(default: int) -> int:
    return int(os.environ.get("CHATD_TEST_SEED", default))


def seeds(default: int) -> range:
    if (only := os.environ.get("CHATD_TEST_SEED")) is not None:
        return range(int(only), int(only) + 1)
    return range(int(os.environ.get("CHATD_TEST_WALKS", default)))


def steps(default: int) -> int:
    return int(os.environ.get("CHATD_TEST_STEPS", default))


def examples(default: int) -> int:
    return int(os.environ.get("CHATD_TEST_EXAMPLES", default))
