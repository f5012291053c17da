"""`chatd bench`."""

import sys
from collections.abc import Sequence

from chatd.bench.report import as_json, missed, table
from chatd.bench.run import ROWS, measure
from chatd.settings.tree import SettingsError


async def bench(names: Sequence[str], *, quick: bool, json: bool, database_url: str | None) -> bool:
    """Whether every target was met. Progress goes to standard error."""
    for name in names:
        if name not in ROWS:
            raise SettingsError(f"--rows: there is no row {name!r}; there are {', '.join(ROWS)}")
    measured = await measure(
        list(names) or list(ROWS), quick=quick, database_url=database_url, say=_say
    )
    if json:
        print(as_json(measured.lines, measured.surroundings).decode())
    else:
        print(table(measured.lines))
        print(f"\n{measured.surroundings}")
    return not missed(measured.lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
