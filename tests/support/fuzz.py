"""How long tests look for input that breaks something.

A few hundred examples, always the same, in an ordinary run; `FUZZ_EXAMPLES=20000` looks
further, at new ones each time.
"""

import os

from hypothesis import settings

_ORDINARY = 300
_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", str(_ORDINARY)))

fuzzed = settings(
    max_examples=_EXAMPLES, deadline=None, database=None, derandomize=_EXAMPLES <= _ORDINARY
)
