"""How long random tests run.

The defaults are for every run; set these to run longer, or to repeat one failure:

    CHATD_TEST_STORM_S   seconds of a run with concurrent writers
    CHATD_TEST_SEED      the only seed, instead of the default ones
    CHATD_TEST_WALKS     number of seeds, counting from 0
    CHATD_TEST_STEPS     steps from each seed
    FUZZ_EXAMPLES        examples of a fuzz test, new ones each time if they are more than usual
"""

import os

from hypothesis import settings


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


_ORDINARY = 100
_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", str(_ORDINARY)))

fuzzed = settings(
    max_examples=_EXAMPLES, deadline=None, database=None, derandomize=_EXAMPLES <= _ORDINARY
)
