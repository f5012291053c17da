"""Number of examples of fuzz tests: a few hundred, always the same ones, in an ordinary run.
`FUZZ_EXAMPLES=20000` runs more, new ones each time."""

import os

from hypothesis import settings

_ORDINARY = 300
_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", str(_ORDINARY)))

fuzzed = settings(
    max_examples=_EXAMPLES, deadline=None, database=None, derandomize=_EXAMPLES <= _ORDINARY
)
