"""`chatd bench`."""

import sys
from collections.abc import Sequence

from chatd.bench.report import format_json, format_table, has_missed
from chatd.bench.run import ALL_ROWS, DEFAULT_ROWS, run_bench
from chatd.settings.tree import SettingsError


async def bench(names: Sequence[str], *, quick: bool, json: bool, database_url: str | None) -> bool:
    """Whether every target was met. Progress goes to standard error."""
    for name in names:
        if name not in ALL_ROWS:
            known = ", ".join(ALL_ROWS)
            raise SettingsError(f"--rows: there is no row {name!r}; there are {known}")
    measured = await run_bench(
        names or DEFAULT_ROWS, quick=quick, database_url=database_url, on_progress=_say
    )
    if json:
        print(format_json(measured.rows, measured.machine).decode())
    else:
        print(format_table(measured.rows))
        print(f"\n{measured.machine}")
    return not has_missed(measured.rows)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
